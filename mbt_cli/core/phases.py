"""What the judge of metacognition says of a trace: level, phases, confidence."""

import re
from dataclasses import dataclass

from mbt_cli.core.judge_replies import (
    as_text,
    confidence,
    first_line,
    is_none,
    json_verdict,
    labelled_lines,
    list_items,
    shown,
)
from mbt_cli.errors import JudgeReplyError

LEVEL, PHASES, CONFIDENCE = "L_OBS", "PHASES", "CONFIDENCE"
_LEVEL = re.compile(
    r"(?:level\s*)?([0-5])(?:\.0+)?(?:\s*/\s*5)?\s*(?:\([^()]*\))?\.?", re.IGNORECASE
)
_PHASE = re.compile(r"(?:phase\s*)?([1-5])(?:\.0+)?\s*(?:\([^()]*\))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the judge saw.

    Args:
        level: L_obs, 0..5.
        phases: Phases present, 1..5, each once, in the order they were given.
        confidence: In [0, 1].
    """

    level: int
    phases: tuple[int, ...]
    confidence: float


def read_observed(text: str) -> Observed:
    r"""Level, phases and confidence: JSON with the three keys, or the three lines asked for.

    Args:
        text: The reply; plain lines may bear no decoration (see `judge_replies.undecorated`).

    Raises:
        JudgeReplyError: A line is missing, the level is no integer from 0 to 5, a phase none from
            1 to 5, phases are not separated, or the confidence is not in [0, 1].

    Example:
        >>> read_observed("L_OBS: 3\nPHASES: 1, 2, 2\nCONFIDENCE: 90%")
        Observed(level=3, phases=(1, 2), confidence=0.9)
    """
    keys = (LEVEL, PHASES, CONFIDENCE)
    verdict = json_verdict(text, [key.lower() for key in keys])
    if verdict is not None:
        level, listed, sure = (as_text(verdict[key.lower()]) for key in keys)
    else:
        lines = labelled_lines(text, keys, ends=["NOTES"])
        if missing := [key for key in keys if not lines.get(key)]:
            raise JudgeReplyError(f"no {missing[0]} in {shown(text)}")
        level, listed, sure = (lines[key] for key in keys)
    found = _LEVEL.fullmatch(first_line(level).strip())
    if found is None:
        raise JudgeReplyError(f"{LEVEL} is not an integer from 0 to 5: {shown(level)}")
    phases = [] if is_none(listed) else [_phase(item) for item in list_items(listed)]
    return Observed(int(found[1]), tuple(dict.fromkeys(phases)), confidence(first_line(sure)))


def _phase(item: str) -> int:
    match = _PHASE.fullmatch(item)
    if match is None:
        raise JudgeReplyError(f"{PHASES} holds {shown(item)}, which is no phase from 1 to 5")
    return int(match[1])
