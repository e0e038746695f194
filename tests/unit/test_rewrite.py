"""Rewrite: every trace is paired with its own question and solution, and records its origin."""

import random
import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mbt_cli.core import rows
from mbt_cli.errors import StageError
from mbt_cli.stages.gates import Gates
from mbt_cli.stages.rewrite import RewriteStage
from tests.unit.teaching import GOOD, canned, questions, rollout, rows_of, solution, table, work_of

PATIENT = Gates(max_overlap=None)


def stage(**fields):
    fields = {"make": "mbt_r", "traces_per_rollout": 1, "gates": PATIENT, **fields}
    return RewriteStage(name="mbt-r", rollouts="b", solutions="s", teacher="t", **fields)


def inputs(count, rollouts, solutions):
    return {
        "questions": questions(count),
        "rollouts": table(rows.ROLLOUTS, rollouts),
        "solutions": table(rows.TRACES, solutions),
    }


def conversations(made, work):
    return {
        (task.question_id, *map(task.row["made_from"].get, ("sample", "trace_id"))): asked.messages
        for task in made.request_batch(work).tasks()
        for asked in next(task.steps)
    }


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    gaps=st.floats(0, 0.6),
    copies=st.floats(0, 0.6),
)
def test_every_trace_is_paired_with_its_own_question_in_any_order(
    tmp_path_factory, seed, count, gaps, copies
):
    draws = random.Random(seed)
    rollouts = [
        rollout(n, s) for n in range(count) for s in range(draws.choice([1, 3])) if n or not s
    ]
    solutions = [solution(n, t) for n in range(1, count) for t in range(draws.choice([1, 2]))]
    solutions = [s for s in solutions if draws.random() >= gaps] + [solution(0)]
    solutions += [s for s in solutions if draws.random() < copies]
    draws.shuffle(rollouts)
    draws.shuffle(solutions)
    shuffled = inputs(count, rollouts, solutions)
    shuffled["questions"] = shuffled["questions"].sample(fraction=1, shuffle=True, seed=seed)
    work = work_of(stage(), tmp_path_factory.mktemp("cell"), shuffled)

    found = conversations(stage(), work)

    solved = {s["question_id"] for s in solutions}
    assert set(found) == {
        (r["question_id"], r["sample"], 0) for r in rollouts if r["question_id"] in solved
    }
    for (question_id, sample, _), (first, second, third) in found.items():
        n = question_id[1:]
        assert re.findall(r"Which city is number (\d+)\?", first["content"]) == [n]
        assert re.findall(r"It is City(\d+)\.", first["content"]) == [n]
        assert re.fullmatch(rf"solution \d of q{n}", second["content"])
        assert re.findall(r"trace of (q\d+) sample (\d)", third["content"]) == [
            (question_id, str(sample))
        ]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_of_rows_does_not_change_requests(tmp_path_factory, seed):
    rollouts = [rollout(n, s) for n in range(6) for s in range(2)]
    # two different solutions with one key: the same one is used in any order
    solutions = [solution(n) for n in range(6)] + [solution(3, trace="another text")]
    folder = tmp_path_factory.mktemp("cell")
    straight = work_of(stage(), folder, inputs(6, rollouts, solutions))
    draws = random.Random(seed)
    draws.shuffle(rollouts)
    draws.shuffle(solutions)
    shuffled = work_of(stage(), folder, inputs(6, rollouts, solutions))

    assert conversations(stage(), straight) == conversations(stage(), shuffled)


def test_a_rollout_without_a_solution_is_a_failed_row_with_that_reason(tmp_path):
    given = inputs(
        4,
        [rollout(n) for n in range(4)],
        [solution(0), solution(2, trace=None, failure="gate_leak: a draft (the draft)")],
    )
    given["rollouts"] = given["rollouts"].with_columns(
        pl.when(pl.col("question_id") == "q3").then(pl.lit("timeout")).alias("failure")
    )
    work = work_of(stage(), tmp_path, given, canned(GOOD.format(n=0)))

    made = rows_of(stage(), work)

    failures = dict(made.select("question_id", "failure").iter_rows())
    assert failures == {
        "q0": None,
        "q1": "no_solution",
        "q2": "solution_failed: gate_leak: a draft (the draft)",
        "q3": "rollout_failed: timeout",
    }
    assert made.filter(pl.col("trace").is_not_null())["question_id"].to_list() == ["q0"]


def test_a_row_records_its_rollout_and_solution(tmp_path):
    given = inputs(1, [rollout(0, 0), rollout(0, 1)], [])
    failed = table(rows.TRACES, [solution(0, trace=None, failure="timeout")])
    good = table(rows.TRACES, [solution(0, 4)])
    given["solutions"] = [failed, good]
    work = work_of(stage(traces_per_rollout=2), tmp_path, given, canned(GOOD.format(n=0)))

    made = rows_of(stage(traces_per_rollout=2), work)

    origin = ["sample", "trace_id", "rollout_sample", "solution_address", "solution_id"]
    assert made.select(origin).rows() == [
        (0, 0, 0, "solutions1/benchmark=b", 4),
        (0, 1, 0, "solutions1/benchmark=b", 4),
        (1, 0, 1, "solutions1/benchmark=b", 4),
        (1, 1, 1, "solutions1/benchmark=b", 4),
    ]
    assert made["rollout_address"].unique().to_list() == ["rollouts0/benchmark=b"]
    assert made["seed"].n_unique() == 4


def test_more_traces_per_rollout_keep_the_seeds_of_the_first_ones(tmp_path):
    work = work_of(stage(), tmp_path, inputs(2, [rollout(1, 1)], [solution(1)]))

    few = [t.sample for t in stage(traces_per_rollout=2).request_batch(work).tasks()]
    many = [t.sample for t in stage(traces_per_rollout=5).request_batch(work).tasks()]

    assert many[:2] == few


@pytest.mark.parametrize(
    ("keep", "truncated", "left"),
    [
        (None, True, ["q0", "q1", "q2", "q3", "q4"]),
        (None, False, ["q0", "q1", "q4"]),
        ("correct", True, ["q0", "q3"]),
        ("correct", False, ["q0"]),
        ("wrong", True, ["q1", "q2"]),
        ("wrong", False, ["q1"]),
        ("answered", True, ["q0", "q1", "q3"]),
        ("not_truncated", True, ["q0", "q1"]),
    ],
)
def test_keep_filters_before_any_request(tmp_path, keep, truncated, left):
    rollouts = [
        rollout(0),
        rollout(1, answer="Rome"),
        rollout(2, answer=None, finish_reason="length"),
        rollout(3, answer="town3", finish_reason="length"),
        rollout(4, reply=None, answer=None, finish_reason=None, failure="timeout"),
    ]
    work = work_of(stage(), tmp_path, inputs(5, rollouts, [solution(n) for n in range(5)]))

    batch = stage(keep=keep, truncated=truncated).request_batch(work)

    asked = [t.question_id for t in batch.tasks()]
    # a failed rollout is never rewritten; without `keep` it stays as a failed row
    assert asked == [q for q in left if q != "q4"]
    assert batch.total == len(asked)


def test_verdicts_decide_what_is_correct_if_given(tmp_path):
    given = inputs(4, [rollout(n) for n in range(4)], [solution(n) for n in range(4)])
    grades = {"q0": "AAB", "q1": "BBA", "q2": "AB"}
    given["verdicts"] = pl.DataFrame(
        [
            {"question_id": q, "sample": 0, "vote": vote, "grade": grade}
            for q, votes in grades.items()
            for vote, grade in enumerate(votes)
        ]
    )
    work = work_of(
        stage(), tmp_path, given, specs={"verdicts": {"judge": {"kind": "answer_match"}}}
    )

    correct = [t.question_id for t in stage(keep="correct").request_batch(work).tasks()]
    wrong = [t.question_id for t in stage(keep="wrong").request_batch(work).tasks()]

    # q2 is undecided, q3 was never judged
    assert (correct, wrong) == (["q0"], ["q1"])


def test_the_funnel_counts_every_step(tmp_path):
    rollouts = [rollout(0), rollout(1), rollout(2, answer="Rome"), rollout(3)]
    replies = {"q0": GOOD.format(n=0), "q1": "The draft says City1." + " word" * 30}
    work = work_of(
        stage(),
        tmp_path,
        inputs(4, rollouts, [solution(0), solution(1), solution(2)]),
        canned("x", by_question=replies),
    )
    made = stage(keep="correct", traces_per_rollout=2)

    rows_of(made, work)

    funnel = work.result.notes["funnel"]
    assert funnel["rollouts"] == 4
    assert funnel["kept"] == 3
    assert funnel["with a solution"] == 2
    assert (funnel["asked"], funnel["replied"]) == (4, 4)
    assert (funnel["no leak"], funnel["passed"]) == (2, 2)
    # gates that stopped nothing are a step too
    assert funnel["no markdown"] == 4
    gates = work.result.notes["gates"]
    assert (gates["leak"], gates["markdown"], sum(gates.values())) == (2, 0, 2)


def test_near_duplicates_of_one_question_are_dropped_across_its_rollouts(tmp_path):
    given = inputs(2, [rollout(0, 0), rollout(1, 0), rollout(0, 1)], [solution(0), solution(1)])
    replies = {f"q{n}": GOOD.format(n=n) for n in range(2)}
    strict = stage(gates=Gates(), traces_per_rollout=2)
    work = work_of(strict, tmp_path, given, canned("x", by_question=replies))

    made = rows_of(strict, work)

    passed = made.filter(pl.col("failure").is_null())
    assert passed.select("question_id", "sample", "trace_id").rows() == [("q0", 0, 0), ("q1", 0, 0)]
    assert made["failure"].drop_nulls().str.starts_with("gate_near_duplicate").all()


def test_solutions_of_another_benchmark_stop_the_cell_before_any_request(tmp_path):
    work = work_of(
        stage(), tmp_path, inputs(2, [rollout(0), rollout(1)], [solution(7), solution(8)])
    )

    with pytest.raises(StageError, match="none of 2 rollouts has a solution"):
        stage().request_batch(work)


@pytest.mark.parametrize(
    ("rollouts", "words"),
    [
        ([rollout(0), rollout(0)], "`q0` has sample 0 twice"),
        ([rollout(0), rollout(9)], "1 rollouts have no question; first: `q9`"),
    ],
    ids=["twice", "no question"],
)
def test_duplicate_rollouts_and_unknown_questions_are_refused(tmp_path, rollouts, words):
    work = work_of(stage(), tmp_path, inputs(2, rollouts, [solution(0)]))

    with pytest.raises(StageError, match=words):
        stage().request_batch(work)
