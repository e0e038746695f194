"""Gates on written traces: at most 2 % of the good ones dropped, at most 2 % of the bad ones kept.

data/gates/README.md says how the cases were made. Those of the set `rules` may be read when rules
change; `held_out` is for measuring alone.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from mbt_cli.core.chat import Reply
from mbt_cli.stages.gates import Asked, GateResults, Gates
from mbt_cli.verifiers.number import NumberVerifier
from mbt_cli.verifiers.text import TextVerifier

FOLDER = Path(__file__).parent / "data" / "gates"
SETS = ("rules", "held_out")
MOST = 0.02
PHASES = 5


@dataclass(frozen=True)
class Case:
    """A trace and the gate that must stop it; None: it must pass."""

    set: str
    phase: int | None
    origin: str
    answers: tuple[str, ...]
    gate: str | None
    text: str
    about: str


def records(name):
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def with_sentence(text, phase, sentence):
    """A trace with one more sentence in the paragraph of a phase.

    It ends the paragraph, except for the last one, which ends with the answer.
    """
    parts = text.split("\n\n")
    if phase < PHASES:
        parts[phase - 1] += f" {sentence}"
    else:
        start, _, end = parts[-1].rpartition(". ")
        parts[-1] = f"{start}. {sentence} {end}"
    return "\n\n".join(parts)


def cases():
    traces = {record["id"]: record for record in records("traces")}
    for trace in traces.values():
        answers = (trace["gold"], *trace["aliases"])
        yield Case(
            trace["set"], None, trace["origin"], answers, trace["gate"], trace["text"], trace["id"]
        )
    for record in records("sentences"):
        trace = traces[record["trace"]]
        yield Case(
            record["set"],
            record["phase"],
            trace["origin"],
            (trace["gold"], *trace["aliases"]),
            record["gate"],
            with_sentence(trace["text"], record["phase"], record["sentence"]),
            record["sentence"],
        )


CASES = list(cases())


def stopped_by(case):
    """The failure of a case as a five-phase trace of a teacher; None if it passes."""
    verifier = NumberVerifier() if case.origin.startswith("gsm8k") else TextVerifier()
    results = GateResults(Gates(), verifier, "mbt_s")
    return results.check(Asked("q", case.answers), Reply(case.text, None, "stop"))["failure"]


@pytest.mark.parametrize("name", SETS)
def test_good_traces_pass(name):
    good = [case for case in CASES if case.set == name and case.gate is None]
    dropped = [(case.about, why) for case in good if (why := stopped_by(case))]

    assert len(dropped) <= MOST * len(good), dropped


@pytest.mark.parametrize("name", SETS)
def test_bad_traces_are_stopped(name):
    bad = [case for case in CASES if case.set == name and case.gate is not None]
    kept = [case.about for case in bad if stopped_by(case) is None]

    assert len(kept) <= MOST * len(bad), kept


@pytest.mark.parametrize("name", SETS)
def test_bad_traces_are_stopped_by_the_gate_that_says_what_is_wrong(name):
    bad = [case for case in CASES if case.set == name and case.gate is not None]
    found = [(case, (stopped_by(case) or "").partition(":")[0]) for case in bad]

    other = [(case.about, gate) for case, gate in found if gate != f"gate_{case.gate}"]
    assert len(other) <= MOST * len(bad), other


def test_the_cases_cover_both_kinds_all_phases_and_three_data_sets():
    kinds = Counter(case.gate is None for case in CASES)
    assert min(kinds.values()) >= 120
    for name in SETS:
        own = [case for case in CASES if case.set == name]
        assert {1, 2, 3, 4, 5} <= {case.phase for case in own}
        assert {case.origin.partition(":")[0] for case in own} >= {
            "hotpotqa",
            "musique",
            "2wikimultihopqa",
        }


def test_a_student_of_the_question_is_no_leak():
    text = CASES[0].text + " The student has 24 pencils left."

    def failure(question):
        results = GateResults(Gates(conclusion=False, phases="off"))
        asked = Asked("q", CASES[0].answers, question)
        return results.check(asked, Reply(text, None, "stop"))["failure"]

    assert failure("How many pencils does the student have left?") is None
    assert failure("How many pencils are left?").startswith("gate_leak")
