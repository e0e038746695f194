"""The published scorers one answer at a time: what the product's frames are compared with."""

from collections import Counter
from dataclasses import dataclass

from mbt_cli.core.verifier import OfficialScorer
from mbt_cli.verifiers.text import normalise

OFFICIAL = {
    "hotpotqa": OfficialScorer("hotpotqa", aliases=False),
    "2wikimultihopqa": OfficialScorer("2wikimultihopqa"),
    "musique": OfficialScorer("musique", strict_closed=False, empty_equal=True),
}
CLOSED_WORDS = ("yes", "no", "noanswer")


def extract_answer_published(reply):
    """Text between the last `<answer>` and the next `</answer>`; empty when either is missing."""
    start = reply.rfind("<answer>")
    if start < 0:
        return ""
    start += len("<answer>")
    end = reply.find("</answer>", start)
    return "" if end < 0 else reply[start:end].strip()


def substring_match(prediction, references):
    """1 when a normalised reference stands anywhere among the prediction's characters."""
    given = normalise(prediction)
    return float(bool(given) and any(normalise(r) in given for r in references))


@dataclass(frozen=True)
class Official:
    """What an official scorer gives one prediction."""

    exact_match: float
    f1: float


def official(rules, prediction, gold, aliases=()):
    """Exact match and F1 as the benchmark's own scorer computes them.

    HotpotQA knows the gold answer only. 2Wiki (v1.1) and MuSiQue take the best over gold and
    aliases, each measure for itself. HotpotQA and 2Wiki give F1 0 when either side is yes, no or
    noanswer and they differ. MuSiQue gives F1 1 when nothing is left of both sides.
    """
    references = [gold] if rules == "hotpotqa" else [gold, *aliases]
    given = normalise(prediction)
    wanted = [normalise(r) for r in references]
    one_f1 = _musique_f1 if rules == "musique" else _closed_f1
    return Official(
        exact_match=float(given in wanted), f1=max(one_f1(given, reference) for reference in wanted)
    )


def _words_f1(given, wanted):
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


def _closed_f1(given, wanted):
    if given != wanted and (given in CLOSED_WORDS or wanted in CLOSED_WORDS):
        return 0.0
    return _words_f1(given.split(), wanted.split())


def _musique_f1(given, wanted):
    if not given or not wanted:
        return float(given == wanted)
    return _words_f1(given.split(), wanted.split())
