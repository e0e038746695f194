"""Training data: joined by key, dropped with a reason, mixed by weight."""

from collections import Counter

import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.progress import Silent
from mbt_cli.core.templates import parse_template
from mbt_cli.errors import StageError
from mbt_cli.stages.base import LoadedInput, Resolution, Work
from mbt_cli.stages.training_data import chosen_examples, completion_of, mixed
from mbt_cli.store.hub import HubAccess

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


def examples(*data, asked, tmp_path, **choice):
    work = Work(
        resolution=Resolution("s", 1, "sft/model=m", {}, templates={"prompt": TEMPLATE}),
        inputs={"data": data, "questions": (asked,)},
        journal=tmp_path,
        files=tmp_path,
        place=lambda run: None,
        open=lambda backend, place: None,
        hub=HubAccess(offline=True, endpoint=None, token=None),
        progress=Silent(),
    )
    return chosen_examples(work, **choice)


def kept_keys(frame):
    chosen = frame.filter(pl.col("dropped").is_null())
    return list(chosen.select("question_id", "sample", "trace_id").iter_rows())


def test_rows_are_joined_with_their_question_by_key_in_any_order(tmp_path):
    asked = questions({"q1": "one", "q2": "two", "q3": "three"})
    data = traces(("q3", 0, 0, "c"), ("q1", 0, 0, "a"), ("q2", 0, 0, "b"))

    found = examples(data, asked=asked, tmp_path=tmp_path, target="trace")

    by_id = {row["question_id"]: row for row in found.iter_rows(named=True)}
    assert by_id["q1"]["completion"] == "<think>\na\n</think>\n\n<answer>one</answer>"
    assert by_id["q3"]["completion"] == "<think>\nc\n</think>\n\n<answer>three</answer>"
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
    with pytest.raises(StageError, match=r"1 rows .* no question .* `q9`"):
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
    with pytest.raises(StageError, match=r"none of 1 rows .* \(1 x truncated\)"):
        examples(
            rollouts(("q1", 0, "one", "length", None)),
            asked=questions({"q1": "one"}),
            tmp_path=tmp_path,
            target="reply",
        )


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
        pytest.param("A", None, "A", id="no thinking"),
        pytest.param("\n\nA", "why ", "<think>\nwhy\n</think>\n\nA", id="taken out by the server"),
        pytest.param("<think>w</think>A", "w", "<think>w</think>A", id="still in the reply"),
        pytest.param("w</think>A", "w", "w</think>A", id="opened by the template"),
        pytest.param("", "why", "", id="thinking without a reply"),
    ],
)
def test_a_completion_is_the_text_that_the_model_wrote(reply, reasoning, expected):
    assert completion_of("reply", {"reply": reply, "reasoning": reasoning}) == expected
