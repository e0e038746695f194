"""What counts as a trace, and its paragraphs, markers and sentences."""

import polars as pl
import pytest

from mbt_cli.core.traces import cut_column, is_cut, paragraphs, trace_column, trace_of
from mbt_cli.judges.redundancy import mark, sentence_count
from mbt_cli.scores.judged import trace_hits

TRACES = [
    ("Thinking.", "<answer>x</answer>", "Thinking."),
    (None, "Look here. <answer>x</answer> bye", "Look here."),
    (" \n", "a <answer>x</answer> b <ANSWER>y</ANSWER> c <answer>", "a <answer>x</answer> b"),
    (None, "no answer at all", "no answer at all"),
    (None, "<answer>x</answer>", ""),
    ("", None, ""),
]


@pytest.mark.parametrize(("reasoning", "reply", "trace"), TRACES)
def test_a_trace_is_the_reasoning_or_the_reply_before_its_last_answer(reasoning, reply, trace):
    assert trace_of(reasoning, reply) == trace


def test_the_traces_of_a_frame_are_those_of_its_rows():
    frame = pl.DataFrame(
        {"reasoning": [t[0] for t in TRACES], "reply": [t[1] for t in TRACES]},
        schema={"reasoning": pl.String, "reply": pl.String},
    )

    assert frame.select(trace_column())["trace"].to_list() == [t[2] for t in TRACES]


@pytest.mark.parametrize(
    ("reason", "cut"),
    [
        ("length", True),
        ("content_filter", True),
        ("stop", False),
        ("tool_calls", False),
        ("function_call", False),
        (None, False),
    ],
)
def test_a_reply_is_cut_unless_the_model_stopped_itself(reason, cut):
    frame = pl.DataFrame({"finish_reason": [reason]}, schema={"finish_reason": pl.String})

    assert is_cut(reason) is cut
    assert frame.select(cut_column()).item() is cut


def test_paragraphs_lie_between_blank_lines_of_any_white_space():
    trace = "\n\nOne.\nstill one\n \t\nTwo.\n\n\n\nThree.  \n"

    assert paragraphs(trace) == ["One.\nstill one", "Two.", "Three."]
    assert paragraphs(" \n\n ") == []


def test_markers_stand_after_every_paragraph_but_the_last():
    parts = [f"p{number}" for number in range(1, 12)]

    marked = mark(parts)

    assert marked.startswith("p1\n\n[[M01]]\n\np2\n\n[[M02]]")
    assert marked.endswith("[[M10]]\n\np11")
    assert mark(["alone"]) == "alone"


@pytest.mark.parametrize(
    ("paragraph", "count"),
    [
        ("One. Two! Three?", 3),
        ("No end", 1),
        ("3.14 is pi", 1),
        ("e.g. this", 2),  # the published rule knows no abbreviations
        ("Wait... what", 2),
        ("", 1),
    ],
)
def test_sentences_end_at_white_space_behind_an_end_mark(paragraph, count):
    assert sentence_count(paragraph) == count


def test_gold_answers_are_looked_for_in_traces_with_and_without_word_borders():
    frame = pl.DataFrame(
        {
            "reasoning": ["I know it.", "The answer: New  York!", "", "anything", "x"],
            "reply": ["", "", "no", "", ""],
            "gold_answer": ["no", "new york", "no", "the", "z"],
            "gold_aliases": [[], None, [], [], ["y", "x"]],
        },
        schema_overrides={"gold_aliases": pl.List(pl.String)},
    )

    hits = trace_hits(frame)

    # `no` in `know`; `the` normalises to nothing, which is in every text but no word of it
    assert hits.substring.tolist() == [1, 1, 1, 1, 1]
    assert hits.words.tolist() == [0, 1, 1, 0, 1]


def test_traces_are_looked_through_in_pieces_without_losing_the_order():
    count = 4_500
    frame = pl.DataFrame(
        {
            "reasoning": [f"it is number{i}" for i in range(count)],
            "reply": [""] * count,
            "gold_answer": [f"number{i if i % 2 else -1}" for i in range(count)],
            "gold_aliases": [[]] * count,
        },
        schema_overrides={"gold_aliases": pl.List(pl.String)},
    )

    assert trace_hits(frame).words.tolist() == [i % 2 for i in range(count)]
