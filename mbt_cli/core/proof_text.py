"""The proof in a reply: without the thinking, and without the prover's verdict on itself."""

import re
from typing import Literal

from mbt_cli.core.traces import answering_text

Cut = Literal["self_evaluation"]
"""What is taken off a reply before its proof is graded. `self_evaluation`: the prover's own
verdict; of a reply with the headings, what stands between `## Solution` and `## Self Evaluation`
is left, and either may lack. A bold line, `**Solution**`, is a heading as well."""

_BOLD = r"(?:\*\*|__)"
_HEADING = (
    rf"^[ \t]*(?:#{{1,6}}[ \t]*{_BOLD}?|{_BOLD})[ \t]*%s[ \t]*[.:]?[ \t]*{_BOLD}?"
    r"[ \t]*#*[.:]?[ \t]*$"
)
_EVALUATION = re.compile(
    _HEADING % r"Self[ \t_-]*(?:Evaluation|Assessment)", re.IGNORECASE | re.MULTILINE
)
_SOLUTION = re.compile(
    _HEADING % r"(?:(?:Final|Revised|Corrected)[ \t]+)?Solution(?:[ \t]+[0-9]{1,3})?",
    re.IGNORECASE | re.MULTILINE,
)
# `... overall score should be: \boxed{0.5}` as the last line, where no heading announces it
_OWN_SCORE = re.compile(
    r"^(?=[^\n]*\b(?:score|self[ _-]?(?:evaluation|assessment)|rating)\b)[^\n]*"
    r"(?:\n\s*)?(?:\$+|\\\[|\\\()?\s*\\boxed\{\s*[0-9]+(?:\.[0-9]+)?(?:\s*/\s*[0-9]+)?\s*\}[ \t]*"
    r"(?:\$+|\\\]|\\\))?[ \t.]*\Z",
    re.IGNORECASE | re.MULTILINE,
)


def proof_of(reply: str | None, cut: Cut | None = None) -> str:
    """The proof of a reply: what stands outside its thinking; empty if there is nothing.

    Thinking that never ended is not a proof, whether the reply was truncated or not.

    Args:
        reply: The whole reply.
        cut: What is taken off.

    Example:
        >>> proof_of("<think>Hm.</think>By symmetry."), proof_of("<think>Hm, by symmetry")
        ('By symmetry.', '')
    """
    text = answering_text(reply or "", "length")
    return without_self_evaluation(text) if cut == "self_evaluation" else text.strip()


def without_self_evaluation(text: str) -> str:
    r"""A proof without the prover's own verdict on it.

    Of several solutions, each with its verdict, the last one is left. Solutions without a verdict
    between them are one proof, which may have parts.

    Args:
        text: Text outside the thinking.

    Example:
        >>> without_self_evaluation("## Solution\nObvious.\n## Self Evaluation\nFine: \\boxed{1}")
        'Obvious.'
        >>> without_self_evaluation("So $x = \\boxed{1}$.")
        'So $x = \\boxed{1}$.'
    """
    first, *later = _EVALUATION.split(text)
    found = [_after_heading(first)]
    # text behind a verdict is part of it, up to the heading of another solution
    found += [_after_heading(part) for part in later if _SOLUTION.search(part)]
    proof = next((one for one in reversed(found) if one), "")
    return _OWN_SCORE.sub("", proof).strip()


def _after_heading(text: str) -> str:
    """What follows the first heading of a solution; all of it without one."""
    heading = _SOLUTION.search(text)
    return (text[heading.end() :] if heading else text).strip()
