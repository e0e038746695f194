"""Training data: joined by key, dropped with a reason, mixed by weight."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.progress import Silent
from mbt_cli.core.recipe import HeldOut
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.templates import parse_template
from mbt_cli.core.training_job import ROWS_PER_SHARD
from mbt_cli.errors import StageError
from mbt_cli.stages.base import LoadedInput, Resolution, Work
from mbt_cli.stages.train import DataDigest
from mbt_cli.stages.training_data import (
    chosen_examples,
    completion_of,
    held_out,
    mixed,
    without_questions,
)
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.lineage import InputRecord
from tests.unit.teaching import lineage_of

TEMPLATE = parse_template(
    "t", "=== user ===\n{{ documents }} {{ question }}", known=frozenset({"documents", "question"})
)
AXES = {"benchmark": "tiny", "split": "train"}


def cell(address, frame, **axes):
    return LoadedInput(address, {**AXES, **axes}, address.split("/")[0], None, frame.lazy(), None)


def questions(answers):
    made = [
        {
            **dict.fromkeys(rows.QUESTIONS),
            "question_id": name,
            "question": f"{name}?",
            "answer": answer,
            "answer_aliases": [],
            "context": [],
        }
        for name, answer in answers.items()
    ]
    return cell("questions/benchmark=tiny/split=train", pl.DataFrame(made, schema=rows.QUESTIONS))


def rollouts(*told, stage="base"):
    made = [
        {
            **dict.fromkeys(rows.ROLLOUTS),
            "question_id": question,
            "sample": sample,
            "answer": answer,
            "reply": f"<answer>{answer}</answer>" if answer else "",
            "finish_reason": finish,
            "failure": failure,
        }
        for question, sample, answer, finish, failure in told
    ]
    return cell(f"{stage}/model=m", pl.DataFrame(made, schema=rows.ROLLOUTS), model="m")


def traces(*told):
    made = [
        {
            **dict.fromkeys(rows.TRACES),
            "question_id": question,
            "sample": sample,
            "trace_id": trace_id,
            "trace": trace,
            "finish_reason": "stop",
        }
        for question, sample, trace_id, trace in told
    ]
    return cell("mbt/model=m", pl.DataFrame(made, schema=rows.TRACES), model="m")


def working(tmp_path, *, data, asked, verdicts=()):
    return Work(
        resolution=Resolution("s", 1, "sft/model=m", {}, templates={"prompt": TEMPLATE}),
        inputs={"data": data, "questions": (asked,), "verdicts": verdicts},
        journal=tmp_path,
        files=tmp_path,
        place=lambda run: None,
        open=lambda backend, place: None,
        hub=HubAccess(offline=True, endpoint=None, token=None),
        progress=Silent(),
    )


def examples(*data, asked, tmp_path, verdicts=(), **choice):
    work = working(tmp_path, data=data, asked=asked, verdicts=verdicts)
    (folder := tmp_path / "texts").mkdir(exist_ok=True)
    found = pl.concat(chosen_examples(work, **choice).batches(folder))
    assert not list(folder.iterdir())
    return found


def kept_keys(frame):
    chosen = frame.filter(pl.col("dropped").is_null())
    return list(chosen.select("question_id", "sample", "trace_id").iter_rows())


def test_rows_are_joined_with_their_question_by_key_in_any_order(tmp_path):
    asked = questions({"q1": "one", "q2": "two", "q3": "three"})
    data = traces(("q3", 0, 0, "c"), ("q1", 0, 0, "a"), ("q2", 0, 0, "b"))

    found = examples(data, asked=asked, tmp_path=tmp_path, target="trace")

    by_id = {row["question_id"]: row for row in found.iter_rows(named=True)}
    assert (by_id["q1"]["thinking"], by_id["q1"]["completion"]) == ("a", "<answer>one</answer>")
    assert (by_id["q3"]["thinking"], by_id["q3"]["completion"]) == ("c", "<answer>three</answer>")
    assert by_id["q2"]["messages"] == [{"role": "user", "content": " q2?"}]
    assert found["question_id"].to_list() == ["q1", "q2", "q3"]


def test_every_dropped_row_has_a_reason(tmp_path):
    asked = questions({"q1": "one"})
    data = rollouts(
        ("q1", 0, "one", "stop", None),
        ("q1", 1, "one", "length", None),
        ("q1", 2, None, "stop", None),
        ("q1", 3, "one", None, "http_400: too long"),
        ("q1", 4, "two", "stop", None),
    )

    found = examples(data, asked=asked, tmp_path=tmp_path, target="reply", keep="correct")

    assert found["dropped"].to_list() == [
        None,
        "truncated",
        "empty",
        "failed: http_400",
        "not correct",
    ]


def judged(address, grades):
    """A judge cell about the rollouts at an address."""
    votes = [{"question_id": q, "sample": n, "vote": 0, "grade": g} for q, n, g in grades]
    lineage = lineage_of("answers/model=m", {"judge": {"kind": "answer_match"}})
    read = {address: InputRecord(fingerprint="f" * 64, sha256="a" * 64)}
    lineage = lineage.model_copy(update={"inputs": read})
    return replace(cell("answers/model=m", pl.DataFrame(votes)), lineage=lineage)


def test_verdicts_decide_what_is_correct_instead_of_the_verifier(tmp_path):
    asked = questions({"q1": "one", "q2": "two"})
    data = rollouts(
        ("q1", 0, "1", "stop", None), ("q1", 1, "one", "stop", None), ("q2", 0, "two", "stop", None)
    )
    verdicts = judged(data.address, [("q1", 0, "A"), ("q1", 1, "B")])

    chosen = {"target": "reply", "asked": asked, "tmp_path": tmp_path, "verdicts": (verdicts,)}
    correct = examples(data, keep="correct", **chosen)
    wrong = examples(data, keep="wrong", **chosen)

    # q2 was never judged
    assert kept_keys(correct) == [("q1", 0, 0)]
    assert kept_keys(wrong) == [("q1", 1, 0)]


def test_verdicts_on_other_rollouts_are_refused(tmp_path):
    data = rollouts(("q1", 0, "one", "stop", None))
    verdicts = judged("other/model=m", [("q1", 0, "A")])

    with pytest.raises(StageError, match="judges `base/model=m`"):
        examples(
            data,
            asked=questions({"q1": "one"}),
            tmp_path=tmp_path,
            target="reply",
            keep="correct",
            verdicts=(verdicts,),
        )


def test_the_maxima_count_samples_and_traces_not_rows(tmp_path):
    asked = questions({"q1": "one", "q2": "two"})
    data = traces(*((q, s, t, "x") for q in ("q2", "q1") for s in (0, 1, 2) for t in (0, 1, 2)))

    limits = {"max_samples": 2, "max_traces": 1}
    found = examples(data, asked=asked, tmp_path=tmp_path, target="trace", **limits)

    assert kept_keys(found) == [("q1", 0, 0), ("q1", 1, 0), ("q2", 0, 0), ("q2", 1, 0)]


def test_a_dropped_sample_does_not_count_towards_the_maximum(tmp_path):
    asked = questions({"q1": "one"})
    data = rollouts(("q1", 0, None, "stop", None), ("q1", 1, "one", "stop", None))

    found = examples(data, asked=asked, tmp_path=tmp_path, target="reply", max_samples=1)

    assert kept_keys(found) == [("q1", 1, 0)]


def test_a_row_without_its_question_stops_the_training(tmp_path):
    with pytest.raises(StageError, match=r"no question for 1 row of .* `q9`"):
        examples(
            traces(("q9", 0, 0, "x")),
            asked=questions({"q1": "one"}),
            tmp_path=tmp_path,
            target="trace",
        )


def test_a_duplicate_row_stops_the_training(tmp_path):
    with pytest.raises(StageError, match="two rows with the same key, question `q1`"):
        examples(
            traces(("q1", 0, 0, "x"), ("q1", 0, 0, "y")),
            asked=questions({"q1": "one"}),
            tmp_path=tmp_path,
            target="trace",
        )


def test_the_error_without_trainable_rows_lists_the_reasons(tmp_path):
    with pytest.raises(StageError, match=r"none of 1 row is .* \(1 x truncated\)"):
        examples(
            rollouts(("q1", 0, "one", "length", None)),
            asked=questions({"q1": "one"}),
            tmp_path=tmp_path,
            target="reply",
        )


def forged(folder, questions_, texts):
    """Traces of questions in no order, two for each, with their questions, as files."""
    names = [f"q{number * 7919 % questions_:06}" for number in range(questions_)]
    asked = pl.DataFrame({"question_id": names, "question": names, "answer": "a"})
    asked = asked.with_columns(
        answer_aliases=pl.lit([], dtype=pl.List(pl.String)),
        context=pl.lit([{"title": texts, "sentences": [texts]}]),
    )
    made = pl.DataFrame({"question_id": [*names, *names[::-1]]}).with_columns(
        sample=pl.lit(0),
        trace_id=pl.int_range(pl.len()) // questions_,
        trace=pl.lit(f"{texts} ") + pl.col("question_id"),
        finish_reason=pl.lit("stop"),
        failure=pl.lit(None, dtype=pl.String),
    )
    folder.mkdir(exist_ok=True)
    cells = []
    for address, frame in (("questions/benchmark=tiny/split=train", asked), ("mbt/model=m", made)):
        path = folder / f"{address.split('/')[0]}.parquet"
        frame.write_parquet(path, row_group_size=700)
        cells.append(replace(cell(address, frame), rows=pl.scan_parquet(path)))
    return cells


def test_examples_come_in_order_and_in_full_batches_from_several_cells(tmp_path):
    asked, first = forged(tmp_path, 6_500, "x")
    second = replace(first, address="mbt/model=n")
    work = working(tmp_path, data=(second, first), asked=asked)

    found = list(chosen_examples(work, target="trace").batches(tmp_path))

    assert [batch.height for batch in found] == [ROWS_PER_SHARD] * 13
    whole = pl.concat(found)
    keys = whole.select("source", "question_id", "sample", "trace_id")
    assert keys.equals(keys.sort(keys.columns))
    assert keys.n_unique() == 4 * 6_500
    ends = whole.filter(pl.col("thinking") == pl.lit("x ") + pl.col("question_id"))
    prompt = pl.col("messages").list.last().struct.field("content")
    assert ends.filter(prompt.str.ends_with(pl.col("question_id"))).height == whole.height


PEAK = """
import resource, sys
from pathlib import Path
from mbt_cli.stages.training_data import chosen_examples
from tests.unit.test_train_data import forged, working
folder = Path(sys.argv[1])
asked, data = forged(folder, int(sys.argv[2]), "some words " * 400)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
examples = chosen_examples(working(folder, data=(data,), asked=asked), target="trace")
assert sum(batch.height for batch in examples.batches(folder)) == 2 * int(sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_the_memory_does_not_hold_the_texts_of_all_examples(tmp_path):
    def peak(questions_):
        words = [sys.executable, "-c", PEAK, str(tmp_path), str(questions_)]
        return int(subprocess.run(words, capture_output=True, check=True).stdout)

    # an example has 9 kB of prompt and 4 kB of completion
    assert peak(40_000) - peak(10_000) < 60_000 * 4_000


def one_stage(name, count):
    made = [
        {
            **dict.fromkeys(rows.EXAMPLES),
            "source": f"{name}/model=m",
            "question_id": f"q{n}",
            "sample": 0,
            "trace_id": 0,
        }
        for n in range(count)
    ]
    return pl.DataFrame(made, schema=rows.EXAMPLES)


def drawn(frame):
    chosen = frame.filter(pl.col("dropped").is_null())
    return Counter(source.split("/")[0] for source in chosen["source"])


def test_a_mixture_has_its_shares_and_is_as_large_as_possible():
    both = pl.concat([one_stage("a", 30), one_stage("b", 10)])

    # b has 10 rows for a share of 1, so a gives 2 x 10
    assert drawn(mixed(both, {"a": 2, "b": 1}, seed=1)) == {"a": 20, "b": 10}
    # a has 30 rows for a share of 6, so b gives 1 x 5
    assert drawn(mixed(both, {"a": 6, "b": 1}, seed=1)) == {"a": 30, "b": 5}


def test_a_mixture_is_drawn_by_the_seed_in_any_order_of_rows():
    both = pl.concat([one_stage("a", 30), one_stage("b", 10)])

    def keys(frame):
        chosen = frame.filter(pl.col("dropped").is_null())
        return set(chosen.select("source", "question_id").iter_rows())

    assert keys(mixed(both, {"a": 1, "b": 1}, 1)) == keys(mixed(both[::-1], {"a": 1, "b": 1}, 1))
    assert keys(mixed(both, {"a": 1, "b": 1}, 1)) != keys(mixed(both, {"a": 1, "b": 1}, 2))


@pytest.mark.parametrize(
    ("reply", "reasoning", "expected"),
    [
        pytest.param(" A\n", None, ("", " A\n"), id="no thinking"),
        pytest.param("\n\nA", "why ", ("why", "A"), id="taken out by the server"),
        pytest.param("<think>\nw\n</think>\n\nA", "w", ("w", "A"), id="still in the reply"),
        pytest.param("<think>\n\n</think>\n\nA", None, ("", "A"), id="an empty block"),
        pytest.param("w</think>A", "w", ("w", "A"), id="opened by the template"),
        pytest.param("[THINK]w[/THINK]A", "w", ("w", "A"), id="as Mistral writes it"),
        pytest.param("", "why", ("why", ""), id="thinking without a reply"),
        pytest.param("<think>why", "why", ("why", ""), id="a block that never closes"),
    ],
)
def test_a_completion_is_what_the_model_thought_and_wrote(reply, reasoning, expected):
    assert completion_of("reply", {"reply": reply, "reasoning": reasoning}) == expected


def rows_of(*named):
    """Two rows for each question of a benchmark."""
    made = [
        {
            **dict.fromkeys(rows.EXAMPLES),
            "source": f"{stage}/benchmark={benchmark}/split=train/model=m",
            "question_id": question,
            "sample": sample,
            "trace_id": 0,
            "prompt": f"{benchmark} {question}?",
        }
        for stage, benchmark, question in named
        for sample in (0, 1)
    ]
    return pl.DataFrame(made, schema={**rows.EXAMPLES, "prompt": pl.String})


def held_questions(frame):
    return set(frame.select("source", "question_id").unique().rows())


def test_a_question_is_held_out_with_all_its_rows_in_every_stage():
    names = [(stage, "tiny", f"q{n}") for stage in ("mbt-s", "base") for n in range(40)]
    frame = rows_of(*names)

    trained, held = held_out(frame, HeldOut(share=0.25, limit=None), 3)
    shuffled, again = held_out(
        frame.sample(fraction=1, shuffle=True, seed=1), HeldOut(share=0.25, limit=None), 3
    )

    assert held.height == 10 * 2 * 2
    dropped = trained.filter(pl.col("dropped") == "held_out")
    assert held_questions(dropped) == held_questions(held) == held_questions(again)
    assert trained.height == frame.height == shuffled.height
    assert not set(kept_keys(trained)) & set(kept_keys(held))
    other = held_out(frame, HeldOut(share=0.25, limit=None), 4)[1]
    assert held_questions(other) != held_questions(held)


def test_a_benchmark_can_give_all_held_out_questions():
    names = [("base", name, f"q{n}") for name in ("tiny", "tiny2") for n in range(8)]
    settings = HeldOut.model_validate({"from": "tiny", "share": 0.5, "limit": None})

    trained, held = held_out(rows_of(*names), settings, 1)

    assert held["source"].unique().to_list() == ["base/benchmark=tiny/split=train/model=m"]
    assert held["question_id"].n_unique() == 4  # half of the eight, not of all sixteen
    assert trained.filter(pl.col("dropped") == "held_out").height == held.height == 8


def test_the_number_of_held_out_questions_has_a_limit_and_leaves_one_to_train_on():
    frame = rows_of(*(("base", "tiny", f"q{n}") for n in range(10)))

    assert held_out(frame, HeldOut(share=0.5, limit=2), 1)[1]["question_id"].n_unique() == 2
    assert held_out(frame, HeldOut(share=0.01, limit=None), 1)[1]["question_id"].n_unique() == 1
    assert held_out(frame, HeldOut(share=0.99, limit=None), 1)[1]["question_id"].n_unique() == 9
    with pytest.raises(StageError, match="there is 1 question"):
        held_out(frame.filter(question_id="q1"), HeldOut(share=0.5, limit=None), 1)


def test_questions_of_other_validation_rows_are_taken_out_of_the_data():
    frame = rows_of(("base", "tiny", "q1"), ("base", "tiny", "q2"), ("base", "other", "q1"))
    same_id = rows_of(("traces", "tiny", "q1"))
    same_prompt = same_id.with_columns(
        pl.lit("traces/benchmark=copy/split=x").alias("source"), pl.lit("c7").alias("question_id")
    )

    for held in (same_id, same_prompt):
        left = without_questions(frame, held).filter(pl.col("dropped").is_null())
        assert held_questions(left) == {
            ("base/benchmark=tiny/split=train/model=m", "q2"),
            ("base/benchmark=other/split=train/model=m", "q1"),
        }


def test_the_digest_of_examples_is_that_of_their_whole_text():
    text = "".join(f'"{number:04}"\\ é\n' for number in range(4500))
    found = DataDigest([{"b": 1}, None])

    for start in range(0, len(text), 1000):
        found.add(text[start : start + 1000])

    assert found.hexdigest() == sha256_of([{"b": 1}, None, text])
