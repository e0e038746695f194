"""Published scorers' own inputs and outputs, from a file of reference goldens.

MBT_GOLDENS names the file; without it, ../shared/goldens/reference_goldens.json beside the
repository. Where it is missing these tests skip: the hand-made cases in test_answers.py,
test_answer_frames.py, test_aggregates.py, test_traces.py and test_judges.py hold the same rules.
"""

import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from pydantic import TypeAdapter

from mbt_cli.core.traces import paragraphs
from mbt_cli.errors import JudgeReplyError
from mbt_cli.judges.phases import read_observed
from mbt_cli.judges.redundancy import mark, read_marks, sentence_counts
from mbt_cli.registry import AnyBenchmark
from mbt_cli.scores.at_k import avg_at_k, ballots, maj_at_k_published, pass_at_k
from mbt_cli.scores.samples import samples_of
from mbt_cli.verifiers.text import (
    METRICS,
    answer_metrics,
    exact_match,
    f1_score,
    normalise,
    normalised,
)
from tests.unit.published import OFFICIAL, extract_answer_published, official, substring_match

_ROOT = Path(__file__).parents[2]
_PATH = Path(os.environ.get("MBT_GOLDENS", _ROOT.parent / "shared/goldens/reference_goldens.json"))


@pytest.fixture(scope="module")
def goldens():
    if not _PATH.exists():
        pytest.skip(f"no goldens at {_PATH}; set MBT_GOLDENS to a file of that form")
    return json.loads(_PATH.read_text(encoding="utf-8"))


def section(goldens, name):
    if name not in goldens:
        pytest.skip(f"{_PATH} has no section {name}")
    assert goldens[name], f"section {name} is empty"
    return goldens[name]


def test_normalising_equals_the_published_scorer(goldens):
    cases = section(goldens, "normalize")

    wrong = [case for case in cases if normalise(case["in"]) != case["out"]]

    assert wrong == []


def test_normalising_a_column_equals_the_published_scorer(goldens):
    cases = section(goldens, "normalize")

    out = normalised(pl.Series([case["in"] for case in cases])).to_list()

    assert out == [case["out"] for case in cases]


def test_published_extraction_equals_the_published_code(goldens):
    cases = section(goldens, "extract_answer")

    wrong = [case for case in cases if extract_answer_published(case["in"]) != case["out"]]

    assert wrong == []


@pytest.mark.parametrize("measure", [exact_match, substring_match, f1_score])
def test_paper_metrics_equal_the_published_code(goldens, measure):
    cases = section(goldens, "answer_metrics")

    for case in cases:
        references = [case["answer"], *case["answer_aliases"]]
        value = measure(case["predicted_answer"], references)
        assert value == pytest.approx(case[measure.__name__]), case


@pytest.mark.parametrize("benchmark", ["hotpotqa", "2wikimultihopqa", "musique"])
def test_official_metrics_equal_the_official_scorers(goldens, benchmark):
    cases = section(goldens, "official_answer_metrics")

    for case in cases:
        found = official(
            benchmark, case["predicted_answer"], case["answer"], case["answer_aliases"]
        )
        assert found.exact_match == case[benchmark]["em"], case
        assert found.f1 == pytest.approx(case[benchmark]["f1"]), case


@pytest.mark.parametrize("benchmark", ["hotpotqa", "2wikimultihopqa", "musique"])
def test_metrics_over_a_frame_equal_the_published_scorers(goldens, benchmark):
    # an empty prediction means "no answer" in a rollout and scores 0 by mbt's own rule
    paper, officially = (
        [case for case in section(goldens, name) if case["predicted_answer"]]
        for name in ("answer_metrics", "official_answer_metrics")
    )

    by_paper = answer_metrics(_rollouts(paper), OFFICIAL[benchmark])
    by_rules = answer_metrics(_rollouts(officially), OFFICIAL[benchmark])

    for name in ("exact_match", "substring_match", "f1_score"):
        assert by_paper[name].to_list() == pytest.approx([case[name] for case in paper])
    for name, key in (("official_exact_match", "em"), ("official_f1", "f1")):
        wanted = [case[benchmark][key] for case in officially]
        assert by_rules[name].to_list() == pytest.approx(wanted)
    assert set(METRICS) <= set(by_paper.columns)


def test_numbers_over_k_samples_equal_the_published_code_in_any_row_order(goldens):
    for case in section(goldens, "aggregate"):
        rows = pl.DataFrame(case["rows"]).sample(fraction=1.0, shuffle=True, seed=7)
        rows = rows.with_columns(
            question_id=pl.col("sample_id").cast(pl.String),
            sample=pl.col("rollout_id"),
            failure=pl.lit(None, pl.String),
        )
        samples = samples_of(rows)
        cast = ballots(samples, rows["predicted_answer"])
        for measure, numbers in case["out"].items():
            scores = rows[measure].cast(pl.Float64).to_numpy()
            for name, wanted in numbers.items():
                kind, k = name.split("@")
                values = _at_k(kind, samples, cast, scores, int(k))
                assert 100 * np.mean(values) == pytest.approx(wanted, abs=0.0051), (case, name)


def test_rrp_marks_and_counts_equal_the_published_code_and_malformed_replies_fail(goldens):
    for case in section(goldens, "rrp"):
        parts = paragraphs(case["trace"])
        assert mark(parts) == case["marked"]
        if not case["well_formed"]:
            with pytest.raises(JudgeReplyError):
                read_marks(case["reply"], len(parts))
            continue
        marks, out = read_marks(case["reply"], len(parts)), case["out"]
        counts = sentence_counts(marks, parts)
        assert marks.answer == out["answer_paragraph"], case
        assert list(marks.redundant) == out["redundant_paragraphs"], case
        assert marks.confidence == out["confidence"], case
        assert counts["first_correct"] == out["first_correct"], case
        assert counts["redundant_sentences"] == out["redundant_sentences"], case
        assert counts["total_sentences"] == out["total_sentences"], case
        share = counts["redundant_sentences"] / counts["total_sentences"]
        assert share == pytest.approx(out["redundant_fraction"]), case


def test_mqi_replies_read_as_the_published_code_reads_them_and_malformed_ones_fail(goldens):
    for case in section(goldens, "mqi"):
        if not case["well_formed"]:
            with pytest.raises(JudgeReplyError):
                read_observed(case["reply"])
            continue
        observed, out = read_observed(case["reply"]), case["out"]
        assert observed.level == out["l_obs"], case
        assert list(observed.phases) == out["phases"], case
        assert observed.confidence == out["confidence"], case


def test_difficulty_tiers_equal_the_published_code(goldens):
    cases = section(goldens, "difficulty")

    def tier(case):
        benchmark = TypeAdapter(AnyBenchmark).validate_python({"kind": case["benchmark"]})
        return benchmark.tier(case["row"]) or "medium"

    wrong = [case for case in cases if tier(case) != case["tier"]]

    assert wrong == []


def _at_k(kind, samples, cast, scores, k):
    if kind == "maj":
        return maj_at_k_published(samples, cast, scores, k)
    return {"avg": avg_at_k, "pass": pass_at_k}[kind](samples, scores, k)


def _rollouts(cases):
    return pl.DataFrame(
        {
            "question_id": [str(number) for number in range(len(cases))],
            "answer": [case["predicted_answer"] for case in cases],
            "gold_answer": [case["answer"] for case in cases],
            "gold_aliases": [case["answer_aliases"] for case in cases],
            "failure": [None] * len(cases),
        },
        schema_overrides={"gold_aliases": pl.List(pl.String), "failure": pl.String},
    )
