"""One trace as the HTML report takes it: paragraphs, verdicts, and signs to filter by."""

from collections.abc import Mapping, Sequence
from typing import Any

from mbt_cli.core.chat import Json
from mbt_cli.core.traces import is_cut, paragraphs, trace_of

SIGNS = (
    "judged",  # a judge's verdict on the answer could be read
    "judge_right",
    "matched",  # exact match has a value
    "match_right",
    "cut",
    "failed",
    "votes_differ",
    "unread",  # a verdict could not be read
    "no_answer",
)
"""Bit k of a trace's signs says `SIGNS[k]`."""

_ANSWER_JUDGE = "answer_match"
_RIGHT_GRADE = "A"
_INHERITED = "rollout_failed"
_NOT_OWN = ("reply", "failure", "vote", "asked")


def page_trace(row: Mapping[str, Any], verdicts: Mapping[int, Sequence[Mapping[str, Any]]]) -> Json:
    """Everything the page shows of one rollout.

    Args:
        row: `rows.ROLLOUTS` without its messages.
        verdicts: Number of a judge to its verdicts on this rollout, one a vote.
    """
    trace = trace_of(row["reasoning"], row["reply"])
    reply = row["reply"] or ""
    before, found, after = reply.partition(trace) if trace else (reply, "", "")
    return {
        "paragraphs": paragraphs(trace),
        "thinks": bool((row["reasoning"] or "").strip()),
        # the reply as it was sent is `before`, then the trace if `within`, then `after`
        "before": before,
        "within": bool(found),
        "after": after,
        "answer": row["answer"],
        "finish": row["finish_reason"],
        "failure": row["failure"],
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["completion_tokens"],
        "reasoning_tokens": row["reasoning_tokens"],
        "seed": str(row["seed"]),
        "attempts": row["attempts"],
        "seconds": row["seconds"],
        "key": row["request_key"],
        "verdicts": [_verdict(judge, v) for judge, votes in verdicts.items() for v in votes],
    }


def _verdict(judge: int, verdict: Mapping[str, Any]) -> Json:
    return {
        "judge": judge,
        "vote": verdict["vote"],
        "asked": verdict.get("asked", True),
        "reply": verdict["reply"],
        "failure": verdict["failure"],
        "said": {key: value for key, value in verdict.items() if key not in _NOT_OWN},
    }


def signs(
    row: Mapping[str, Any],
    exact_match: float | None,
    verdicts: Mapping[str, Sequence[Mapping[str, Any]]],
) -> int:
    """`SIGNS` of one rollout as bits.

    The judge is right or wrong by the majority of the votes that could be read; a tie is neither.

    Args:
        row: A rollout.
        exact_match: Its exact match, None where it has none.
        verdicts: Name of a judge to its verdicts on this rollout.
    """
    grades = [v["grade"] for v in verdicts.get(_ANSWER_JUDGE, ()) if v.get("grade") is not None]
    yes = sum(grade == _RIGHT_GRADE for grade in grades)
    own = [v for votes in verdicts.values() for v in votes]
    held = {
        "judged": bool(grades) and 2 * yes != len(grades),
        "judge_right": 2 * yes > len(grades),
        "matched": exact_match is not None,
        "match_right": exact_match == 1,
        "cut": is_cut(row["finish_reason"]),
        "failed": row["failure"] is not None,
        "votes_differ": len(set(grades)) > 1,
        "unread": any(v["failure"] and not v["failure"].startswith(_INHERITED) for v in own),
        "no_answer": not (row["answer"] or "").strip(),
    }
    return sum(1 << bit for bit, sign in enumerate(SIGNS) if held[sign])
