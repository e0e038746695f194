import json

import numpy as np
import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.tables import ReportInputs
from mbt_cli.report.formats import markdown
from mbt_cli.report.tables import MainResults, MQITable
from mbt_cli.scores.statistics import smallest_difference

AXES = ("benchmark", "split", "model", "prompt")


def summary(*cells):
    """Rows of summaries from (address, metric, value, low, high, n, failed, unit)."""
    found = []
    for address, metric, value, low, high, n, failed, unit in cells:
        axes = dict(part.split("=", 1) for part in address.split("/")[1:])
        found.append(
            {
                **dict.fromkeys(rows.SUMMARY), "address": address, **dict.fromkeys(AXES), **axes,
                "metric": metric, "value": value, "low": low, "high": high, "n": n,
                "failed": failed, "unit": unit,
            }
        )  # fmt: skip
    texts = dict.fromkeys(("address", *AXES), pl.String())
    return pl.DataFrame(found, schema={**rows.SUMMARY, **texts})


def scores(**values):
    """Per-question scores of exact_match: address to one value a question."""
    found = [
        {
            "address": address, "metric": "exact_match", "question_id": f"q{i}", "value": value,
            "n": 1, "failed": 0,
        }
        for address, column in values.items()
        for i, value in enumerate(column)
    ]  # fmt: skip
    return pl.LazyFrame(found, schema={"address": pl.String(), **rows.SCORES})


A = "scores/benchmark=tiny/split=dev/model=m/prompt=answer"
B = "scores/benchmark=tiny/split=dev/model=m/prompt=metacognitive"
TWO = summary(
    (A, "exact_match", 0.25, 0.125, 0.4166, 24, 0, "percent"),
    (A, "tokens", 20.4, 18.0, 22.5, 24, 0, "tokens"),
    (A, "judge_accuracy", 0.5, 0.3, 0.7, 20, 4, "percent"),
    (B, "exact_match", 0.5, 0.2917, 0.7083, 24, 1, "percent"),
    (B, "tokens", 199.5, 150.0, 240.0, 24, 1, "tokens"),
    (B, "judge_accuracy", 0.5, 0.3, 0.7, 20, 4, "percent"),
)


def test_main_results_from_hand_made_summaries():
    inputs = ReportInputs(summary=TWO, scores=scores(), axes=AXES, toy_judges=["toy"])

    lines = markdown(MainResults().build(inputs)).splitlines()

    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:6]]
    assert cells[0] == [
        "model", "prompt", "exact match (%)", "toy judge's accuracy (%)", "mean tokens", "n",
        "failed",
    ]  # fmt: skip
    assert cells[2:] == [
        ["m", "answer", "25.0 [12.5, 41.7]", "50.0 [30.0, 70.0]", "**20** [18, 23]", "24", "4"],
        ["m", "metacognitive", "**50.0** [29.2, 70.8]", "50.0 [30.0, 70.0]", "200 [150, 240]",
         "24", "4"],
    ]  # fmt: skip
    assert "- All rows: benchmark tiny, split dev." in lines
    assert "- The judge is toy, a toy: its accuracy only shows that the pipeline works." in lines


def test_a_real_judge_has_no_toy_label():
    inputs = ReportInputs(summary=TWO, scores=scores(), axes=AXES)

    titles = [column.title for column in MainResults().build(inputs).columns]

    assert "judge accuracy" in titles


def test_missing_cells_are_dashes_and_are_counted():
    missing = "scores/benchmark=tiny/split=dev/model=m/prompt=answer"
    inputs = ReportInputs(
        summary=TWO.filter(pl.col("address") == B), scores=scores(), axes=AXES, missing=[missing]
    )

    table = MainResults().build(inputs)

    assert table.rows["prompt"].to_list() == ["metacognitive", "answer"]
    assert table.rows["exact_match"].to_list() == [0.5, None]
    assert "1 cell is not run yet and shown as a dash." in table.notes


def test_breakdowns_do_not_enter_the_main_table():
    parts = TWO.with_columns(by=pl.lit("hops"), group=pl.lit("2"), value=pl.lit(0.0))

    table = MainResults().build(
        ReportInputs(summary=pl.concat([TWO, parts]), scores=scores(), axes=AXES)
    )

    assert table.rows["exact_match"].to_list() == [0.25, 0.5]


def test_a_note_warns_of_different_numbers_of_questions():
    uneven = TWO.with_columns(
        n=pl.when((pl.col("address") == B) & (pl.col("metric") == "exact_match"))
        .then(12)
        .otherwise("n")
    )

    table = MainResults().build(ReportInputs(summary=uneven, scores=scores(), axes=AXES))

    warnings = [note for note in table.notes if "different numbers of questions" in note]
    assert warnings == ["exact match: rows are over different numbers of questions."]


@pytest.mark.parametrize(
    ("best", "other", "is_tied"),
    [
        # 8 questions for the best alone and none for the other: 2 / 2**8 = 0.0078
        ([1.0] * 12, [1.0] * 4 + [0.0] * 8, False),
        # 5 and none: 2 / 2**5 = 0.0625
        ([1.0] * 12, [1.0] * 7 + [0.0] * 5, True),
    ],
)
def test_a_dagger_marks_rows_that_mcnemar_cannot_tell_from_the_best(best, other, is_tied):
    table = MainResults().build(
        ReportInputs(summary=TWO, scores=scores(**{B: best, A: other}), axes=AXES)
    )

    assert table.rows["exact_match_tied"].to_list() == [is_tied, False]
    assert any(note.startswith("†") for note in table.notes) is is_tied


def test_a_dagger_counts_every_row_that_is_compared():
    others = [f"scores/benchmark=tiny/split=dev/model=m/prompt={n}" for n in range(30)]
    many = [summary((c, "exact_match", 0.3, 0.1, 0.5, 24, 0, "percent")) for c in others]
    # 6 questions for the best alone and none for the other: 2 / 2**6 = 0.031
    lost = {A: [1.0] * 6 + [0.0] * 6}
    random = np.random.default_rng(0)
    chance = {c: random.integers(0, 2, 12).astype(float).tolist() for c in others}

    two = MainResults().build(
        ReportInputs(summary=TWO, scores=scores(**{B: [1.0] * 12}, **lost), axes=AXES)
    )
    all_rows = MainResults().build(
        ReportInputs(
            summary=pl.concat([TWO, *many]),
            scores=scores(**{B: [1.0] * 12}, **lost, **chance),
            axes=AXES,
        )
    )

    assert two.rows["exact_match_tied"].to_list() == [False, False]
    assert all_rows.rows.filter(pl.col("address") == A)["exact_match_tied"].to_list() == [True]


def test_a_dagger_goes_where_rows_share_no_question():
    """One row that has only two questions decides nothing about the others."""
    random = np.random.default_rng(0)
    few = "scores/benchmark=tiny/split=dev/model=m/prompt=few"
    summaries = pl.concat([TWO, summary((few, "exact_match", 0.4, 0.1, 0.9, 2, 0, "percent"))])
    values = {B: random.random(60) < 0.9, A: random.random(60) < 0.3, few: [1.0, 0.0]}
    values = {address: np.asarray(own, dtype=float).tolist() for address, own in values.items()}

    table = MainResults().build(ReportInputs(summary=summaries, scores=scores(**values), axes=AXES))

    tied = dict(zip(table.rows["prompt"], table.rows["exact_match_tied"], strict=True))
    assert tied == {"answer": False, "metacognitive": False, "few": True}


def test_at_the_size_of_the_paper_an_f1_of_10_differs_from_one_of_79():
    random = np.random.default_rng(0)
    cells = [f"scores/benchmark=tiny/split=dev/model=m/prompt={n}" for n in range(100)]
    means = [78.8, 10.4, *np.linspace(30, 78, 98)]
    summaries = [
        summary((cell, "f1_score", mean / 100, None, None, 500, 0, "percent"))
        for cell, mean in zip(cells, means, strict=True)
    ]
    values = {
        cell: np.clip(random.normal(mean / 100, 0.3, 500), 0, 1).tolist()
        for cell, mean in zip(cells, means, strict=True)
    }
    of_f1 = scores(**values).with_columns(metric=pl.lit("f1_score"))

    table = MainResults().build(ReportInputs(summary=pl.concat(summaries), scores=of_f1, axes=AXES))

    tied = dict(zip(table.rows["address"], table.rows["f1_score_tied"], strict=True))
    assert not tied[cells[1]]
    assert tied[cells[-1]]
    assert 0 < sum(tied.values()) < 30


def test_a_row_without_any_right_answer_beside_one_without_any_wrong_one():
    table = MainResults().build(
        ReportInputs(summary=TWO, scores=scores(**{B: [1.0] * 20, A: [0.0] * 20}), axes=AXES)
    )

    assert table.rows["exact_match_tied"].to_list() == [False, False]
    # t at 0.975 + t at 0.8, with 19 degrees of freedom
    k = 2.093 + 0.861
    assert f"exact match {100 * (k**2 / (20 + k**2) + 1 / 20):.1f} points" in table.notes[-1]


def test_a_row_that_is_better_on_common_questions_keeps_the_dagger():
    """B is the best on its own easy questions; on those of both, A is far ahead."""
    easy, hard = {f"e{k}": 1.0 for k in range(120)}, {f"h{k}": 0.0 for k in range(120)}
    common = [f"c{k}" for k in range(40)]
    values = {
        B: {**easy, **{c: float(k < 10) for k, c in enumerate(common)}},
        A: {**hard, **{c: float(k < 36) for k, c in enumerate(common)}},
    }
    found = pl.LazyFrame(
        [
            {
                "address": address, "metric": "exact_match", "question_id": i, "value": value,
                "n": 1, "failed": 0,
            }
            for address, own in values.items()
            for i, value in own.items()
        ],
        schema={"address": pl.String(), **rows.SCORES},
    )  # fmt: skip

    table = MainResults().build(ReportInputs(summary=TWO, scores=found, axes=AXES))

    assert table.rows["exact_match_tied"].to_list() == [True, False]


def test_a_note_says_what_difference_the_questions_can_show():
    """16 of 64 questions differ: the error is that of 16 ones and 48 zeros."""
    best, other = [1.0] * 64, [1.0] * 48 + [0.0] * 16
    least = smallest_difference(np.std(other, ddof=1) / 8, 63, pairs=64)

    table = MainResults().build(
        ReportInputs(summary=TWO, scores=scores(**{B: best, A: other}), axes=AXES)
    )

    assert table.notes[-1] == (
        "Smallest difference from the best that these questions can show (paired test of two rows "
        f"at 5%, 80 % power): exact match {100 * least:.1f} points."
    )


def test_nothing_scored_yet_is_a_table_of_dashes():
    inputs = ReportInputs(summary=summary(), scores=pl.LazyFrame(), axes=AXES, missing=[A, B])

    table = MainResults().build(inputs)

    assert table.rows["prompt"].to_list() == ["answer", "metacognitive"]


def test_failed_rollouts_have_bounds_in_the_row_where_they_matter_most():
    shares = TWO.filter(pl.col("metric") == "exact_match").with_columns(
        settings=pl.lit('{"interval":"wilson"}')
    )
    lost = pl.LazyFrame(
        [
            # two questions of three samples: A lost one sample, B a whole question and one sample
            (A, "q0", 0.5, 2, 1), (A, "q1", 1.0, 3, 0),
            (B, "q0", None, 0, 3), (B, "q1", 0.5, 2, 1),
        ],
        schema=["address", "question_id", "value", "n", "failed"], orient="row",
    ).with_columns(metric=pl.lit("exact_match"))  # fmt: skip

    table = MainResults().build(ReportInputs(summary=shares, scores=lost, axes=AXES))

    # A: q0 1/3 or 2/3, q1 1; B: q0 0 or 1, q1 1/3 or 2/3
    assert table.rows["exact_match_if_wrong"].to_list() == pytest.approx([2 / 3, 1 / 6])
    assert table.rows["exact_match_if_right"].to_list() == pytest.approx([5 / 6, 5 / 6])
    assert table.rows["failed"].to_list() == [1, 4]
    assert (
        "Missing samples all wrong, or all right: exact match 16.7 or 83.3 (m / metacognitive: "
        "4 missing, the widest of 2 rows)."
    ) in table.notes


def test_what_a_family_leaves_out_on_purpose_is_not_missing():
    names = ("mqi_phase_1", "mqi_not_judged")
    numbers = summary(*((A, name, 0.5, 0.1, 0.9, 2, 2, "percent") for name in names))
    numbers = numbers.with_columns(settings=pl.lit('{"interval":"wilson"}'))
    # q0 was truncated and not judged, the verdict on q1 is unread, q2 has one
    known = pl.LazyFrame(
        [
            (A, "mqi_phase_1", "q0", None, 0, 1), (A, "mqi_not_judged", "q0", 1.0, 1, 0),
            (A, "mqi_phase_1", "q1", None, 0, 1), (A, "mqi_not_judged", "q1", 0.0, 1, 0),
            (A, "mqi_phase_1", "q2", 1.0, 1, 0), (A, "mqi_not_judged", "q2", 0.0, 1, 0),
        ],
        schema=["address", "metric", "question_id", "value", "n", "failed"], orient="row",
    )  # fmt: skip

    table = MQITable().build(ReportInputs(summary=numbers, scores=known, axes=AXES))

    assert table.rows["failed"].to_list() == [1]
    assert table.rows["mqi_phase_1_if_wrong"].to_list() == [0.5]


def test_a_number_without_an_interval_has_a_dash_and_the_note_says_why():
    numbers = summary(
        (A, "tokens", 20.0, None, None, 24, 0, "tokens"),
        (B, "tokens", 30.0, 30.0, 30.0, 1, 0, "tokens"),
        (A, "aes", 0.1, 0.0, 0.2, 24, 0, "index"),
        (B, "aes", 0.2, 0.1, 0.4, 24, 0, "index"),
    )
    found = [
        {"no_interval": "every question has the same value"}, {"no_interval": "one question"},
        {"undefined_resamples": 0.0315}, {"undefined_resamples": 0.25},
    ]  # fmt: skip
    numbers = numbers.with_columns(settings=pl.Series([json.dumps(one) for one in found]))

    text = markdown(MainResults().build(ReportInputs(numbers, scores(), AXES)))

    assert "**20** [—]" in text
    assert "30 [—]" in text
    assert (
        r"- \[—\]: no interval: every question has the same value (mean tokens in 1 row); one "
        "question (mean tokens in 1 row)."
    ) in text
    assert (
        "- Undefined bootstrap resamples, left out of intervals: AES up to 25.0 % in 2 rows."
    ) in text
