from dataclasses import replace

import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.tables import CELLS, ReportInputs
from mbt_cli.report.formats import markdown
from mbt_cli.report.tables import (
    AnswerInclusiveErrorsTable,
    DataFunnel,
    DegenerationTable,
    Difficulty,
    Efficiency,
    JudgeHealth,
    MQITable,
    PairedDifferences,
    RRPTable,
    TokensByStage,
    TrainingRuns,
)

AXES = ("benchmark", "model", "variant")


def inputs(*numbers, cells=()):
    """From (variant, metric, value, unit, more fields of a summary row)."""
    found = []
    for variant, metric, value, unit, more in numbers:
        axes = {"benchmark": "musique", "model": "m", "variant": variant}
        address = "/".join(["scores", *(f"{axis}={name}" for axis, name in axes.items())])
        row = {"address": address, **axes, "metric": metric, "value": value, "unit": unit}
        found.append({**dict.fromkeys(rows.SUMMARY), "n": 10, "failed": 0, **row, **more})
    texts = dict.fromkeys(("address", *AXES), pl.String())
    return ReportInputs(
        summary=pl.DataFrame(found, schema={**rows.SUMMARY, **texts}),
        scores=pl.LazyFrame(),
        axes=AXES,
        cells=pl.DataFrame(list(cells), schema=CELLS),
    )


def shown(table):
    """Heading and rows of the Markdown, cell by cell, without the dashes of absent intervals."""
    text = markdown(table).replace(" [—]", "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def test_rrp():
    found = inputs(
        ("base", "rrp_arrival", 0.75, "share", {"low": 0.7, "high": 0.8}),
        ("mbt-r", "rrp_arrival", 0.5, "share", {"low": 0.4, "high": 0.6}),
        ("base", "rrp_one_paragraph", 0.1, "percent", {}),
        ("mbt-r", "rrp_one_paragraph", 0.2, "percent", {}),
        ("base", "exact_match", 0.2, "percent", {}),
    )

    assert shown(RRPTable().build(found)) == [
        ["model", "variant", "arrival", "one paragraph (%)", "n", "failed"],
        ["m", "base", "0.750 [0.700, 0.800]", "10.0", "10", "0"],
        ["m", "mbt-r", "**0.500** [0.400, 0.600]", "20.0", "10", "0"],
    ]


def test_a_note_explains_a_dash_of_a_scored_cell():
    found = inputs(
        ("base", "rrp_arrival", 0.75, "share", {}),
        ("mbt-r", "rrp_arrival", None, "share", {"n": 0, "failed": 12}),
    )

    notes = RRPTable().build(found).notes

    reasons = [note for note in notes if note.startswith("arrival: 1 row has a dash")]
    assert len(reasons) == 1
    assert "12 failed replies or verdicts" in reasons[0]


def test_mqi_with_its_phases():
    found = inputs(
        ("base", "mqi", 1.25, "index", {}),
        ("base", "mqi_level", 2.5, "level", {}),
        *(("base", f"mqi_phase_{k}", k / 10, "percent", {}) for k in range(1, 6)),
    )

    assert shown(MQITable().build(found)) == [
        ["model", "MQI", "level", "understanding (%)", "planning (%)", "monitoring (%)",
         "self-correction (%)", "verification (%)", "n", "failed"],
        ["m", "1.250", "2.50", "10.0", "20.0", "30.0", "40.0", "50.0", "10", "0"],
    ]  # fmt: skip


def test_degeneration_is_shown_with_the_accuracy():
    found = inputs(
        ("base", "degeneration", 0.125, "percent", {"low": 0.0, "high": 0.25}),
        ("base", "exact_match", 0.5, "percent", {}),
    )

    assert shown(DegenerationTable().build(found))[0] == [
        "model", "cut at the limit (%)", "exact match (%)", "n", "failed",
    ]  # fmt: skip


def test_answer_inclusive_errors():
    found = inputs(
        ("base", "answer_inclusive_errors", 0.2375, "percent", {}),
        ("base", "answer_inclusive_errors_of_errors", 0.5, "percent", {}),
    )

    assert shown(AnswerInclusiveErrorsTable().build(found))[1] == [
        "m", "23.8", "50.0", "10", "0",
    ]  # fmt: skip


def test_judge_health_shows_the_range_that_unparsed_replies_leave_open():
    found = inputs(
        ("base", "judge_unread", 0.1, "percent", {}),
        ("base", "judge_accuracy", 0.5, "percent", {}),
        ("base", "judge_accuracy_if_unread_wrong", 0.45, "percent", {}),
        ("base", "judge_accuracy_if_unread_right", 0.55, "percent", {}),
    )

    assert shown(JudgeHealth().build(found))[1] == ["m", "10.0", "50.0", "45.0", "55.0", "10", "0"]


def test_efficiency_shows_the_change_from_the_baseline():
    found = inputs(
        ("base", "judge_accuracy", 0.5, "percent", {}),
        ("base", "tokens", 1000.0, "tokens", {}),
        ("mbt-r", "judge_accuracy", 0.6, "percent", {"baseline": 0.5, "difference": 0.1}),
        ("mbt-r", "tokens", 750.0, "tokens", {"baseline": 1000.0, "difference": -250.0}),
    )

    table = shown(Efficiency().build(found))

    assert table[0][4:] == ["accuracy change (%)", "tokens change (%)", "n", "failed"]
    assert table[1][4:] == ["—", "—", "10", "0"]
    assert table[2][4:] == ["10.0", "-25.0", "10", "0"]


def against(difference, low, high, p, n=9):
    """Fields of a summary row that has a baseline."""
    ends = {"difference": difference, "difference_low": low, "difference_high": high}
    return {**ends, "p": p, "settings": f'{{"paired_questions":{n},"test":"mcnemar"}}'}


def test_paired_differences_have_the_cells_with_a_baseline():
    reads = '{"reads": {"rollouts": ["r/%s"], "baseline_rollouts": ["r/base"]}}'
    found = inputs(
        ("base", "exact_match", 0.5, "percent", {}),
        ("base", "tokens", 100.0, "tokens", {}),
        ("alone", "exact_match", 0.5, "percent", {}),  # nothing in common with its baseline
        ("mbt-s", "exact_match", 0.9, "percent", against(0.4, 0.3, 0.5, 0.001)),
        ("mbt-s", "tokens", 80.0, "tokens", against(-20.4, -31.0, -9.0, 0.01)),
        ("mbt-r", "exact_match", 0.6, "percent", against(0.1, -0.1, 0.3, 0.04)),
        ("mbt-r", "tokens", 110.0, "tokens", against(10.0, -4.0, 22.0, 0.2)),
        ("plain", "exact_match", 0.4, "percent", against(-0.1, -0.3, 0.1, 0.04)),
        cells=[
            cell(f"scores/benchmark=musique/model=m/variant={name}", "score", notes=reads % name)
            for name in ("base", "alone", "mbt-s", "mbt-r", "plain")
        ],
    )

    table = PairedDifferences().build(found)

    # Holm over exact match: 0.003, 0.08, 0.08; over tokens: 0.02, 0.2
    assert shown(table) == [
        ["model", "variant", "exact match (%)", "mean tokens", "n", "failed"],
        ["m", "mbt-s", "40.0 [30.0, 50.0]", "-20 [-31, -9]", "9", "0"],
        ["m", "mbt-r", "10.0† [-10.0, 30.0]", "10† [-4, 22]", "9", "0"],
        ["m", "plain", "-10.0† [-30.0, 10.0]", "—", "9", "0"],
    ]
    assert "The baseline: variant base." in table.notes
    assert table.rows["exact_match_p"].to_list() == [0.001, 0.04, 0.04]


def test_without_a_baseline_a_note_says_how_to_set_one():
    found = inputs(("base", "exact_match", 0.5, "percent", {}))
    missing = "scores/benchmark=musique/model=m/variant=later"

    table = PairedDifferences().build(replace(found, missing=[missing]))

    assert table.rows.is_empty()
    assert any("baseline = {" in note for note in table.notes)


def test_difficulty_goes_from_easy_to_hard_and_compares_within_a_tier():
    found = inputs(
        ("base", "exact_match", 0.9, "percent", {}),
        *(
            (variant, "exact_match", value, "percent", {"by": "difficulty", "group": group})
            for variant, group, value in [
                ("base", "hard", 0.1), ("base", "easy", 0.6), ("base", "medium", 0.5),
                ("mbt-r", "hard", 0.4), ("mbt-r", "easy", 0.7), ("mbt-r", "medium", 0.2),
            ]
        ),
    )  # fmt: skip

    assert [row[1:4] for row in shown(Difficulty().build(found))] == [
        ["variant", "difficulty", "exact match (%)"],
        ["base", "easy", "60.0"],
        ["base", "medium", "**50.0**"],
        ["base", "hard", "10.0"],
        ["mbt-r", "easy", "**70.0**"],
        ["mbt-r", "medium", "20.0"],
        ["mbt-r", "hard", "**40.0**"],
    ]


def test_without_a_breakdown_a_note_says_what_is_missing():
    found = inputs(("base", "exact_match", 0.9, "percent", {}))

    table = Difficulty(by="hops").build(found)

    assert 'No score stage has `by = ["hops"]`.' in table.notes


def cell(address, kind, *, notes="{}", **numbers):
    zeros = {name: 0 for name, kind in CELLS.items() if kind.is_numeric()}
    basis = {"address": address, "stage": address.split("/")[0], "kind": kind, "notes": notes}
    return {**zeros, **basis, **numbers}


def test_tokens_by_stage_sums_the_cells_of_each_stage():
    found = inputs(
        cells=[
            cell("base/a=1", "rollout", rows=10, failed_rows=1, sent=9, completion_tokens=1000),
            cell("base/a=2", "rollout", rows=10, reused=10, completion_tokens=500, seconds=1800),
            cell("answers/a=1", "judge", rows=10, sent=10, retried=2, prompt_tokens=70),
        ]
    )

    table = shown(TokensByStage().build(found))

    assert table[1] == ["base", "rollout", "2", "20", "1", "9", "0", "10", "0", "1500", "0.50"]
    assert table[2] == ["answers", "judge", "1", "10", "0", "10", "2", "0", "70", "0", "0.00"]


def test_the_funnel_shows_each_step_against_the_one_before_and_the_first():
    funnel = '{"funnel": {"rollouts": 100, "kept": 60, "traces": 240, "passed": 180}}'
    found = inputs(
        cells=[
            cell("questions/a=1", "questions", rows=5),
            cell("base/a=1", "rollout", rows=8, failed_rows=2),
            cell("mbt-r/a=1", "rewrite", notes=funnel),
        ]
    )

    assert shown(DataFunnel().build(found))[1:] == [
        ["base/a=1", "rows", "8", "—", "100.0"],
        ["base/a=1", "not failed", "6", "75.0", "75.0"],
        ["mbt-r/a=1", "rollouts", "100", "—", "100.0"],
        ["mbt-r/a=1", "kept", "60", "60.0", "60.0"],
        ["mbt-r/a=1", "traces", "240", "400.0", "240.0"],
        ["mbt-r/a=1", "passed", "180", "75.0", "180.0"],
    ]


def test_training_runs_show_what_the_runs_recorded():
    notes = '{"training": {"method": "sft", "steps": 60, "last_loss": 0.51, "curve": [1]}}'
    found = inputs(
        cells=[
            cell("sft/m=1", "train", notes=notes, seconds=3600),
            cell("sft/m=2", "train", notes='{"training": {"learning_rate": 0.00003}}'),
        ]
    )

    assert shown(TrainingRuns().build(found)) == [
        ["cell", "method", "steps", "last loss", "learning rate", "hours"],
        ["sft/m=1", "sft", "60", "0.510", "—", "1.00"],
        ["sft/m=2", "—", "—", "—", "0.0000300", "0.00"],
    ]


@pytest.mark.parametrize("table", [DataFunnel(), TrainingRuns(), TokensByStage()])
def test_a_study_without_cells_gives_an_empty_table(table):
    assert table.build(inputs()).rows.is_empty()
