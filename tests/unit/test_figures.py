import json
from dataclasses import replace

import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.tables import CELLS, ReportInputs
from mbt_cli.report import figure_style
from mbt_cli.report.figure_style import METHOD, MODEL, names, panels
from mbt_cli.report.figures import (
    AccuracyTokens,
    AnswerInclusiveErrorsFigure,
    MQIBars,
    PassAtKCurves,
    PhaseProfile,
    RegulationPlane,
    ResponseLengths,
    TrainingCurves,
    pareto_front,
)

pytest.importorskip("matplotlib")

AXES = ("benchmark", "model", "variant")
NUMBERS = {
    "exact_match": 0.5,
    "tokens": 700.0,
    "rrp_arrival": 0.5,
    "rrp_redundancy": 0.25,
    "mqi": 1.2,
    "answer_inclusive_errors": 0.1,
    **{f"verified_pass@{k}": 0.1 * k for k in (1, 2, 4, 8)},
    **{f"mqi_phase_{k}": k / 5 for k in range(1, 6)},
}
FIGURES = [
    AccuracyTokens(),
    AnswerInclusiveErrorsFigure(),
    MQIBars(),
    PassAtKCurves(),
    PhaseProfile(),
    RegulationPlane(),
    ResponseLengths(),
    TrainingCurves(),
]


@pytest.fixture
def inputs():
    """Two benchmarks x one model x two variants, every metric, and two training runs."""
    found, values = [], []
    for benchmark in ("hotpotqa", "musique"):
        for variant in ("base", "$m_b^&$<t>"):
            axes = {"benchmark": benchmark, "model": "m", "variant": variant}
            address = "/".join(["scores", *(f"{axis}={name}" for axis, name in axes.items())])
            for metric, value in NUMBERS.items():
                row = {"address": address, **axes, "metric": metric, "value": value}
                interval = {"low": 0.9 * value, "high": 1.1 * value, "n": 3, "failed": 0}
                found.append({**dict.fromkeys(rows.SUMMARY), **row, **interval})
            values += [
                {"address": address, "metric": "tokens", "question_id": str(q), "value": tokens}
                for q, tokens in enumerate((0.0, 500.0, 900.0))
            ]
    curve = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"step": 2, "reward": 1.0}]
    runs = [
        {"address": f"sft/model={m}", "kind": "train", "notes": json.dumps({"training": told})}
        for m, told in (("a", {"curve": curve}), ("b", {"curve": curve}), ("c", {}))
    ]
    texts = dict.fromkeys(("address", *AXES), pl.String())
    return ReportInputs(
        summary=pl.DataFrame(found, schema={**rows.SUMMARY, **texts}),
        scores=pl.LazyFrame(values),
        axes=AXES,
        cells=pl.DataFrame(runs, schema=CELLS),
    )


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.kind)
def test_a_figure_is_drawn_as_svg_pdf_and_png(figure, inputs, tmp_path):
    paths = figure.draw(inputs, tmp_path)

    assert [path.name for path in paths] == [
        f"{figure.kind}{suffix}" for suffix in (".svg", ".pdf", ".png")
    ]
    assert paths[0].read_bytes().startswith(b"<?xml")
    assert paths[1].read_bytes().startswith(b"%PDF")
    assert paths[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.kind)
def test_a_figure_without_anything_to_show_leaves_no_file(figure, inputs, tmp_path):
    empty = ReportInputs(summary=inputs.summary.clear(), scores=inputs.scores.clear(), axes=AXES)

    assert list(figure.draw(empty, tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_curves_of_several_values_have_a_panel_each(inputs, tmp_path):
    one, two = (
        TrainingCurves(metric=metric).draw(inputs, tmp_path / str(number))[0].read_text()
        for number, metric in enumerate(("loss", ["loss", "entropy", "reward"]))
    )

    # no run has logged `entropy`
    assert [svg.count('id="axes_') for svg in (one, two)] == [1, 2]


def test_equal_figures_are_equal_files(inputs, tmp_path):
    first = MQIBars().draw(inputs, tmp_path / "a")
    second = MQIBars().draw(inputs, tmp_path / "b")

    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_fonts_are_embedded_in_pdf_and_drawn_in_svg(inputs, tmp_path):
    svg, pdf, _ = MQIBars().draw(inputs, tmp_path)

    assert b"/FontFile2" in pdf.read_bytes()
    assert "<text" not in svg.read_text()


def test_points_are_grouped_by_benchmark_and_named_by_what_varies(inputs):
    found = panels(inputs, ("tokens", "exact_match"))

    assert [panel.title for panel in found] == ["hotpotqa", "musique"]
    assert names(found, METHOD) == ["base", "$m_b^&$<t>"]
    assert names(found, MODEL) == ["m"]


def test_a_cell_that_lacks_a_metric_is_no_point(inputs):
    lacking = inputs.summary.filter(
        (pl.col("variant") == "base") | (pl.col("metric") != "exact_match")
    )
    found = panels(
        ReportInputs(summary=lacking, scores=inputs.scores, axes=AXES), ("tokens", "exact_match")
    )

    assert [panel.rows["variant"].to_list() for panel in found] == [["base"], ["base"]]


def test_the_front_leaves_out_what_another_point_beats():
    # (cost, gain): the third is beaten by the second, the fourth costs more for the same
    assert pareto_front([1, 2, 3, 4, 5], [0.1, 0.5, 0.4, 0.5, 0.6]) == [0, 1, 4]


def test_eight_names_differ_in_more_than_their_colour():
    looks = [figure_style.look(list("abcdefgh"), name) for name in "abcdefgh"]

    for part in ("color", "marker", "hatch"):
        assert len({one[part] for one in looks}) == 8


def of_mixture(*names):
    """Trainings on two benchmarks, whose rewards the log has one by one."""
    curve = [
        {"step": n, "reward": 0.5 * n, "reward:a": 0.4 * n, "reward:b": 0.6 * n} for n in (1, 2)
    ]
    told = json.dumps({"training": {"curve": [*curve, {"step": 2, "eval_reward": 0.9}]}})
    cells = [{"address": f"rl/model={n}", "kind": "train", "notes": told} for n in names]
    return pl.DataFrame(cells, schema=CELLS)


@pytest.mark.parametrize(
    ("runs", "by_source", "panels"),
    [
        pytest.param("x", True, [(["x", "a", "b"], 1)], id="one run: one panel"),
        pytest.param(
            "xy", True, [(["x", "y"], 2), (["x", "y"], 0), (["x", "y"], 0)], id="two: three panels"
        ),
        pytest.param("xy", False, [(["x", "y"], 2)], id="only the mean"),
    ],
)
def test_each_benchmark_of_a_mixture_has_a_line(inputs, runs, by_source, panels):
    inputs = replace(inputs, cells=of_mixture(*runs))
    found = TrainingCurves(metric="reward", by_source=by_source)._drawn(inputs, "reward")
    names = {f"rl/model={name}": name for name in runs}

    shown = [([p.label(line, names) for line in p.lines], len(p.points)) for p in found]
    assert shown == panels
    assert found[0].lines[("rl/model=x", "")] == ([1.0, 2.0], [0.5, 1.0])


def scored_steps(inputs):
    """The training `x` has checkpoints of steps 1 to 3; those of 2 and 3, and its model before the
    training, are scored by pass@1 and pass@4."""
    axes = ("benchmark", "model", "step")
    found = []
    for step, values in ((None, (0.1, 0.2)), ("2", (0.3, 0.5)), ("3", (0.4, 0.7))):
        names = {"benchmark": "a", "model": "x", "step": step}
        for k, value in zip((1, 4), values, strict=True):
            row = {"address": f"scores/step={step}", **names, "metric": f"verified_pass@{k}"}
            row |= {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 9, "failed": 0}
            found.append({**dict.fromkeys(rows.SUMMARY), **row})
    texts = dict.fromkeys(("address", *axes), pl.String())
    curve = [{"step": n, "entropy": 1.0 / n, "reward": n if n % 2 else None} for n in (1, 2, 3, 4)]
    told = json.dumps({"training": {"curve": curve}})
    cells = [
        {"address": f"{stage}/model=x", "kind": "train", "notes": told, "published": published}
        for stage, published in (("rl", [1, 2, 3]), ("sft", []))
    ]
    return replace(
        inputs,
        summary=pl.DataFrame(found, schema={**rows.SUMMARY, **texts}),
        axes=axes,
        cells=pl.DataFrame(cells, schema=CELLS),
    )


def test_the_steps_whose_checkpoints_are_scored_are_marked_on_the_curves(inputs):
    inputs = scored_steps(inputs)

    for metric, values in (("entropy", [1 / 2, 1 / 3]), ("reward", [2.0, 3.0])):
        (panel,) = TrainingCurves(metric=metric)._drawn(inputs, metric)
        assert {address for address, _ in panel.lines} == {"rl/model=x", "sft/model=x"}
        # the reward of step 2 lies on the line from step 1 to step 3; `sft` has published nothing
        assert panel.points == {("rl/model=x", ""): ([2.0, 3.0], pytest.approx(values))}


def test_pass_at_k_has_a_line_for_each_step(inputs, tmp_path):
    inputs = scored_steps(inputs)
    found = panels(inputs, ("verified_pass@1", "verified_pass@4"))

    assert len(found) == 1
    assert names(found, METHOD) == ["", "2", "3"]
    svg = PassAtKCurves().draw(inputs, tmp_path)[0].read_text()
    assert svg.count('id="FillBetweenPolyCollection') == 3
