"""Phases: whether the paragraphs of a trace show the five phases in their order.

Each phase has signs, common English words and phrases. The signs are loose, since a good trace
has its own wording: the gate finds traces that lack a phase or have them in another order, and
leaves fine judgement to the `phases` judge.
"""

import re
from collections.abc import Sequence

from mbt_cli.core.traces import paragraphs

PHASES = (
    "understanding",
    "planning",
    "execution",
    "self-correction",
    "verification",
)

_SIGNS = tuple(
    re.compile(rf"\b(?:{words})\b{more}", re.IGNORECASE)
    for words, more in (
        (
            r"question|ask(?:s|ed|ing)?|want(?:s|ed)?|need(?:s|ed)?|look(?:s|ing)? for|after|find"
            r"|thing|seek|required?|compar\w+|answer|task|say (?:who|which|whether)|how many"
            r"|decide|determine|problem|unknown",
            "",
        ),
        (
            r"first(?:ly)?|second|then|next|afterwards?|after that|plan|steps?|begin|start\w*"
            r"|approach|hops?|moves?|route|strategy|order|separately|each|collect|will|we'll|once"
            r"|need|require|before|list|let us|let's|way to|go (?:through|from)|path|find out"
            r"|identify|look up|chain|stages?|compute|work out|should",
            "",
        ),
        (
            r"documents?|passages?|paragraphs?|articles?|texts?|sources?|says?|said|states?|tells?"
            r"|read|according|gives?|names?|described?|lists?|called|learn\w*|facts?|found|here"
            r"|shows?|mentions?|mentioned|credits?|was|were|is|are|so",
            "",
        ),
        (
            r"wait|hmm+|hold on|careful|but|however|actually|doubts?|mistaken?|mistakes?|slip|wrong"
            r"|wrongly|correct(?:s|ed|ion|ing)?|could|might|may|possibl[ey]|tempt\w*|tempting|worr\w+"
            r"|bother\w*|confus\w+|mix\w*|pause|stop|overlook\w*|treacherous|suspici?on|suspicious"
            r"|danger\w*|trap|pitfall|what about|what if|sure|at first|easy to|easily|error"
            r"|reconsider|rethink|second thoughts?|instead|problem|ambiguous|objection|caution"
            r"|surprising|odd|strange|puzzling|uneasy|misled|misread\w*|yet|although|though|still",
            r"|\?",
        ),
        (
            r"check\w*|verif\w+|confirm\w*|test\w*|once more|again|backwards?|other (?:side|way)"
            r"|revers\w+|re-?read\w*|double|fits?|holds?|consistent|sure|review\w*|turn(?:ing|ed)"
            r"|insert\w*|from the end|around|last|finally|end|sound|agrees?|compar\w+|against"
            r"|works? out|matches|right|conditions?|so|therefore|thus|hence|both|each|all"
            r"|every\w*|put(?:ting)?",
            "",
        ),
    )
)


def phase_problem(trace: str, *, is_english: bool = True) -> str | None:
    """What is missing: paragraphs, or the signs of a phase after those of the one before it.

    The first paragraph shows the first phase, and the last one the last.

    Args:
        trace: The trace; its paragraphs are separated by blank lines.
        is_english: Whether signs are looked for; otherwise paragraphs are only counted.
    """
    parts = paragraphs(trace)
    if len(parts) < len(PHASES):
        return f"phases: {len(parts)} paragraphs for {len(PHASES)} phases"
    if not is_english:
        return None
    first, *between, last = parts
    shown = [_SIGNS[0].search(first) is not None, *_in_order(between)]
    shown.append(_SIGNS[-1].search(last) is not None)
    if all(shown):
        return None
    return f"phases: no {PHASES[shown.index(False)]} in its place"


def _in_order(parts: Sequence[str]) -> list[bool]:
    """Whether each phase but the first and the last has signs, each after those of the one before.

    A paragraph shows one phase.
    """
    rest = iter(parts)
    return [any(signs.search(part) for part in rest) for signs in _SIGNS[1:-1]]
