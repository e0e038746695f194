import json

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
    **{f"mqi_phase_{k}": k / 5 for k in range(1, 6)},
}
FIGURES = [
    AccuracyTokens(),
    AnswerInclusiveErrorsFigure(),
    MQIBars(),
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
