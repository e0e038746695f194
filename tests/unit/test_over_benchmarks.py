"""Means over benchmarks: numbers, intervals, marks, and how tables show benchmarks side by side."""

import csv
import io

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from mbt_cli.cli.tables import StoredTable
from mbt_cli.core import rows
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.measures import Measure
from mbt_cli.core.tables import CELLS, ReportInputs
from mbt_cli.report.files import read_table, write_tables
from mbt_cli.report.formats import csv_text, formatted_rows, html, latex, markdown
from mbt_cli.report.layout import side_by_side
from mbt_cli.report.means import cells_of_mean
from mbt_cli.report.page import page_table
from mbt_cli.report.seeds import merged_seeds
from mbt_cli.report.tables import MAIN_METRICS, MainResults
from mbt_cli.scores.over_benchmarks import mean_interval, stratified, weighted
from mbt_cli.scores.seeds import over_seeds
from mbt_cli.scores.statistics import Interval, per_cluster, share_interval
from mbt_cli.scores.summaries import summarise_all

AXES = ("benchmark", "split", "model", "variant", "seed")


def study(cells, *, metrics=("exact_match",), baseline=None):
    """Report inputs from values per question: (axes as `k=v/k=v`) to metric to values."""
    summaries, scores, notes = [], [], []
    for address, of_metric in cells.items():
        axes = dict(part.split("=", 1) for part in address.split("/"))
        labels = [pl.lit(axes.get(axis), pl.String).alias(axis) for axis in AXES]
        whole = f"scores/{address}"
        for metric in metrics:
            if metric not in of_metric:
                continue
            values = of_metric[metric]
            questions = pl.DataFrame(
                {
                    "question_id": [f"q{k}" for k in range(len(values))],
                    "value": [float(value) for value in values],
                    "n": [1] * len(values),
                    "failed": [0] * len(values),
                }
            )
            is_share = metric != "tokens"
            measure = Measure(metric, "percent" if is_share else metric, questions, binary=is_share)
            found = summarise_all([(measure, None)], resamples=400, seed=1)
            frame = pl.DataFrame(found, schema=rows.SUMMARY)
            summaries.append(frame.with_columns(pl.lit(whole).alias("address"), *labels))
            named = questions.with_columns(metric=pl.lit(metric), address=pl.lit(whole))
            scores.append(named.with_columns(*labels))
        notes.append(
            {
                **dict.fromkeys(CELLS),
                "address": whole,
                "kind": "score",
                "notes": f'{{"reads": {{"rollouts": ["{address}"], "baseline_rollouts": ["'
                f'{address if baseline and baseline in address else "x"}"]}}}}',
            }
        )
    return ReportInputs(
        summary=pl.concat(summaries),
        scores=pl.concat(scores).lazy(),
        axes=AXES,
        cells=pl.DataFrame(notes, schema=CELLS),
    )


def right(share, n=100):
    return [1.0] * round(share * n) + [0.0] * (n - round(share * n))


def cell(benchmark, variant, model="m", split="dev"):
    return f"benchmark={benchmark}/split={split}/model={model}/variant={variant}"


TWO = study(
    {
        cell("easy", "base"): {"exact_match": right(0.8, 50)},
        cell("easy", "tuned"): {"exact_match": right(0.9, 50)},
        cell("hard", "base"): {"exact_match": right(0.2, 200)},
        cell("hard", "tuned"): {"exact_match": right(0.3, 200)},
    }
)


def means(table):
    return table.rows.filter(pl.col("is_mean"))


# --- statistics


def test_the_interval_of_a_mean_adds_the_squares_of_the_distances():
    found = mean_interval([0.5, 0.1], [Interval(0.4, 0.6), Interval(0.07, 0.22)])

    assert found.low == pytest.approx(0.3 - np.hypot(0.1, 0.03) / 2)
    assert found.high == pytest.approx(0.3 + np.hypot(0.1, 0.12) / 2)
    alone = mean_interval([0.5], [Interval(0.4, 0.7)])
    assert (alone.low, alone.high) == pytest.approx((0.4, 0.7))


def test_the_interval_of_a_mean_is_that_of_a_bootstrap_of_each_benchmark():
    random = np.random.default_rng(5)
    parts = [(random.random(n) < p).astype(float) for n, p in ((80, 0.3), (200, 0.6), (500, 0.8))]
    drawn = [random.choice(part, (20_000, len(part))).mean(axis=1) for part in parts]

    ends = [share_interval(part, np.ones(len(part))) for part in parts]
    found = mean_interval([float(part.mean()) for part in parts], ends)

    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    assert found.low == pytest.approx(low, abs=0.004)
    assert found.high == pytest.approx(high, abs=0.004)


def test_values_by_stratum_have_the_mean_and_the_error_of_the_stratified_mean():
    random = np.random.default_rng(2)
    strata = np.repeat([0, 1, 2], [10, 30, 60])
    values = random.normal(strata, 1 + strata)
    parts = [values[strata == b] for b in range(3)]
    mean = np.mean([part.mean() for part in parts])
    variance = sum(part.var(ddof=1) / len(part) for part in parts) / 9

    found = stratified(values, strata)

    assert found.mean() == pytest.approx(mean)
    assert found.var(ddof=1) / len(found) == pytest.approx(variance)
    assert weighted(values, strata).mean() == pytest.approx(mean)
    one = np.zeros(100, dtype=np.int64)
    assert stratified(values, one) == pytest.approx(values)
    assert weighted(values, one) == pytest.approx(values)


def test_clusters_within_strata_keep_the_mean_over_strata():
    strata = np.array([0, 0, 1, 1, 1, 1])
    values = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    clusters = np.array([0, 1, 2, 2, 3, 3])

    assert per_cluster(stratified(values, strata), clusters).mean() == pytest.approx(0.625)


# --- the table


def test_every_benchmark_counts_once_whatever_its_questions():
    table = MainResults().build(TWO)

    found = means(table)
    assert found["benchmark"].to_list() == ["mean of 2"] * 2
    assert found["exact_match"].to_list() == pytest.approx([0.5, 0.6])
    assert found["n"].to_list() == [250, 250]
    easy, hard = (
        share_interval(np.array(right(share, n)), np.ones(n))
        for share, n in ((0.8, 50), (0.2, 200))
    )
    low = 0.5 - np.hypot(0.8 - easy.low, 0.2 - hard.low) / 2
    assert found["exact_match_low"][0] == pytest.approx(low)
    assert any(note.startswith("Mean of 2: every benchmark counts once") for note in table.notes)


def test_one_benchmark_has_no_mean_and_no_groups():
    table = MainResults().build(study({cell("easy", v): {"exact_match": right(0.5)} for v in "ab"}))

    assert "is_mean" not in table.rows
    assert table.column_groups == ""
    assert side_by_side(table) is table


def test_the_mean_can_be_left_out_and_benchmarks_can_stay_rows():
    table = MainResults(mean=False, benchmarks="rows").build(TWO)

    assert "is_mean" not in table.rows
    assert side_by_side(table) is table
    assert "| easy" in markdown(table)


def test_new_settings_do_not_change_the_fingerprint_of_the_table():
    assert spec_of(MainResults()) == {
        "kind": "main_results",
        "version": 1,
        "metrics": list(MAIN_METRICS),
    }
    assert "mean" in spec_of(MainResults(mean=False))


def test_a_method_that_lacks_a_benchmark_has_no_mean_but_its_numbers():
    cells = {
        cell(benchmark, variant): {"exact_match": right(0.5)}
        for benchmark in ("a", "b")
        for variant in ("base", "tuned")
    }
    del cells[cell("b", "tuned")]

    table = MainResults().build(study(cells))

    assert means(table)["variant"].to_list() == ["base"]
    wide = side_by_side(table)
    texts = [[cell.text for cell in row] for row in formatted_rows(wide)]
    assert texts == [["m", "base", "50.0", "50.0", "50.0"], ["m", "tuned", "50.0", "—", "—"]]


def test_a_metric_that_a_benchmark_lacks_has_no_mean():
    inputs = study(
        {
            cell("words", "base"): {"exact_match": right(0.5), "f1_score": right(0.6)},
            cell("sums", "base"): {"exact_match": right(0.4), "math_match": right(0.7)},
        },
        metrics=("exact_match", "f1_score", "math_match"),
    )

    wide = side_by_side(MainResults().build(inputs))

    shown = {(c.group, c.key) for c in wide.columns if c.kind == "number"}
    assert shown == {
        ("words (n 100)", "words/exact_match"),
        ("words (n 100)", "words/f1_score"),
        ("sums (n 100)", "sums/exact_match"),
        ("sums (n 100)", "sums/math_match"),
        ("mean of 2 (n 200)", "mean of 2/exact_match"),
    }


def test_a_split_of_its_own_for_each_benchmark_belongs_to_its_heading():
    inputs = study(
        {
            cell("a", variant, split="test"): {"exact_match": right(0.5)}
            for variant in ("base", "tuned")
        }
        | {
            cell("b", variant, split="dev"): {"exact_match": right(0.4)}
            for variant in ("base", "tuned")
        }
    )

    wide = side_by_side(MainResults().build(inputs))

    assert wide.labels == ["model", "variant"]
    assert list(dict.fromkeys(c.group for c in wide.columns if c.group)) == [
        "a (test, n 100)",
        "b (dev, n 100)",
        "mean of 2 (n 200)",
    ]


def test_benchmarks_with_methods_of_their_own_stay_rows():
    inputs = study(
        {cell("a", v): {"exact_match": right(0.5)} for v in ("short", "long")}
        | {cell("b", v): {"exact_match": right(0.5)} for v in ("sums", "proofs")}
    )

    table = MainResults().build(inputs)

    assert table.column_groups == ""
    assert "is_mean" not in table.rows


def test_counts_that_differ_keep_their_column():
    inputs = study(
        {
            cell("a", "base"): {"exact_match": right(0.5)},
            cell("a", "tuned"): {"exact_match": right(0.5, 90)},
            cell("b", "base"): {"exact_match": right(0.5)},
            cell("b", "tuned"): {"exact_match": right(0.5)},
        }
    )

    wide = side_by_side(MainResults().build(inputs))

    headings = [(c.group, c.title) for c in wide.columns if c.title == "n"]
    assert headings == [("a", "n"), ("mean of 2", "n")]


def test_the_baselines_own_aes_is_neither_bold_nor_second():
    inputs = study(
        {
            cell("a", "base"): {"aes": [0.0] * 9},
            cell("a", "longer"): {"aes": [-0.9] * 9},
            cell("a", "longest"): {"aes": [-1.5] * 9},
        },
        metrics=("aes",),
        baseline="variant=base",
    )
    inputs = ReportInputs(
        inputs.summary.with_columns(unit=pl.lit("index"), low=pl.col("value") - 0.1,
                                    high=pl.col("value") + 0.1),
        inputs.scores, AXES, cells=inputs.cells,
    )  # fmt: skip

    table = MainResults().build(inputs)

    base, longer, longest = (row[2] for row in formatted_rows(table))
    assert (base.text, base.rank, base.interval) == ("0.000", "", None)
    assert (longer.rank, longest.rank) == ("best", "")
    assert "AES of the baseline itself: 0 by definition, not ranked." in table.notes


def test_a_difference_on_all_benchmarks_is_seen_in_the_mean_alone():
    # on each benchmark 5 questions for the better row and none against: 2 / 2**5 = 0.0625
    cells = {}
    for benchmark in "abc":
        cells[cell(benchmark, "base")] = {"exact_match": right(0.5, 40)}
        cells[cell(benchmark, "tuned")] = {"exact_match": right(0.625, 40)}

    table = MainResults().build(study(cells))

    tied = table.rows.filter(pl.col("variant") == "base")["exact_match_tied"].to_list()
    assert tied == [True, True, True, False]  # 15 and none: 2 / 2**15
    (note,) = [note for note in table.notes if note.startswith("Smallest difference")]
    assert "of the mean over benchmarks: exact match" in note


def seeded(luck, n=200):
    """Two benchmarks, three seeds; `luck` is each seed's share of right answers there."""
    random = np.random.default_rng(3)
    return study(
        {
            f"{cell(benchmark, 'tuned')}/seed={seed}": {
                "exact_match": (random.random(n) < share).astype(float)
            }
            for benchmark in ("a", "b")
            for seed, share in enumerate(luck)
        }
        | {cell(benchmark, "base"): {"exact_match": right(0.5, n)} for benchmark in ("a", "b")}
    )


def test_the_seeds_of_a_training_are_shared_by_the_benchmarks():
    inputs = merged_seeds(seeded((0.4, 0.5, 0.6)))

    table = MainResults().build(inputs)

    found = means(table).filter(pl.col("variant") == "tuned")
    parts = table.rows.filter((pl.col("variant") == "tuned") & ~pl.col("is_mean"))
    scores = inputs.scores.filter(pl.col("variant") == "tuned").collect()
    wide = scores.pivot("seed", index=["benchmark", "question_id"], values="value")
    values = wide.drop("benchmark", "question_id").to_numpy().T
    strata = (wide["benchmark"] == "b").cast(pl.Int64).to_numpy()
    estimate = over_seeds(stratified(values, strata))
    expected = estimate.share_interval(questions=values.shape[1], samples=values.size)
    assert found["exact_match"][0] == pytest.approx(values.mean())
    assert found["exact_match_low"][0] == pytest.approx(expected.low)
    assert found["seeds"][0] == 3
    # seeds that differ on both benchmarks alike are no independent errors
    ends = parts.select("exact_match_low", "exact_match_high").rows()
    independent = mean_interval(parts["exact_match"].to_list(), [Interval(*one) for one in ends])
    assert expected.high - expected.low > independent.high - independent.low


def test_a_mean_names_the_cells_that_it_is_of():
    table = MainResults().build(TWO)
    last = table.rows.height - 1

    assert cells_of_mean(table, last) == [
        f"scores/{cell('easy', 'tuned')}",
        f"scores/{cell('hard', 'tuned')}",
    ]


# --- formats


def test_the_csv_file_keeps_a_row_for_each_cell_and_mean():
    found = list(csv.DictReader(io.StringIO(csv_text(MainResults().build(TWO)))))

    assert [(row["benchmark"], row["variant"], row["exact_match"]) for row in found] == [
        ("easy", "base", "80.0"),
        ("easy", "tuned", "90.0"),
        ("hard", "base", "20.0"),
        ("hard", "tuned", "30.0"),
        ("mean of 2", "base", "50.0"),
        ("mean of 2", "tuned", "60.0"),
    ]


def test_markdown_has_benchmarks_side_by_side_or_below_each_other():
    narrow = markdown(MainResults().build(TWO))
    head = narrow.splitlines()[2]
    assert [cell.strip() for cell in head.strip("|").split("|")] == [
        "model",
        "variant",
        "easy (n 50): exact match (%)",
        "hard (n 200): exact match (%)",
        "mean of 2 (n 250): exact match (%)",
    ]

    cells = {
        cell(benchmark, "base"): {"exact_match": right(0.5), "f1_score": right(0.5)}
        for benchmark in ("one", "two", "three", "four")
    }
    wide = markdown(MainResults().build(study(cells, metrics=("exact_match", "f1_score"))))
    assert [line for line in wide.splitlines() if line.startswith("**")] == [
        "**one (n 100)**",
        "**two (n 100)**",
        "**three (n 100)**",
        "**four (n 100)**",
        "**mean of 4 (n 400)**",
    ]


def models(*names):
    return study(
        {
            cell(benchmark, variant, model=name): {"exact_match": right(0.5 + k / 10)}
            for benchmark in ("a", "b")
            for name in names
            for k, variant in enumerate(("base", "tuned"))
        }
    )


def test_latex_has_headings_over_groups_and_rules_between_models():
    tex = latex(MainResults().build(models("small", "large")))

    assert r"\multicolumn{1}{c}{a (n 100)}" in tex
    assert r"\cmidrule(lr){3-3}\cmidrule(lr){4-4}\cmidrule(lr){5-5}" in tex
    lines = [line for line in tex.splitlines() if "base &" in line or "tuned &" in line]
    body = [line.partition("& ")[0].strip() for line in lines]
    assert body == ["small", "", "large", ""]
    assert tex.count(r"\midrule") == 2


def test_latex_puts_groups_that_do_not_fit_below_each_other():
    metrics = ("exact_match", "f1_score", "substring_match", "answer_rate", "degeneration")
    cells = {
        cell(benchmark, variant): dict.fromkeys(metrics, right(0.5))
        for benchmark in ("one", "two", "three")
        for variant in (f"variant-{k}" for k in range(9))
    }
    tex = latex(MainResults().build(study(cells, metrics=metrics)))

    # three benchmarks and the mean, each a part, the parts in floats of one number
    assert tex.count(r"\begin{tabular}{@{}l l") == 4
    assert tex.count(r"\begin{table}") > 1
    assert tex.count(r"\label{") == 1
    assert tex.count("Main results, continued") == tex.count(r"\addtocounter{table}{-1}")


def test_html_and_page_have_a_heading_over_each_group():
    table = MainResults().build(models("small", "large"))

    page = html(table)
    assert '<th scope="colgroup" class="group" colspan="1">a (n 100)</th>' in page
    assert page.count('<tr class="start">') == 2

    made = page_table(table)
    assert [group["key"] for group in made["groups"]] == ["mean of 2", "a", "b"]
    assert made["starts"] == [0, 2]
    assert made["once"] == [0]
    assert made["addresses"][1] == [
        None,
        f"scores/{cell('a', 'tuned', model='small')}",
        f"scores/{cell('b', 'tuned', model='small')}",
    ]
    assert [column["key"] for column in made["columns"]][2:] == ["exact_match"] * 3


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_terminal_shows_benchmarks_side_by_side_or_each_in_a_table(width):
    table = MainResults().build(models("small", "large"))
    file = io.StringIO()

    Console(file=file, width=width, color_system=None).print(StoredTable(table))

    text = file.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= max(width, 60)
    assert text.count("Main results") == (1 if width >= 80 else 3)
    for title in ("a (n 100)", "b (n 100)", "mean of 2 (n 200)"):
        assert title in text
    # a model is named once for its rows
    assert text.count(" small ") == (1 if width >= 80 else 3)
    assert text.count("In brackets") == 1


def test_a_table_in_groups_reads_back_equal(tmp_path):
    table = MainResults().build(TWO)

    write_tables(tmp_path, [table])

    back = read_table(tmp_path / "main_results.parquet")
    assert back.column_groups == "benchmark"
    assert markdown(back) == markdown(table)
