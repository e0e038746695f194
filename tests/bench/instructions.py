"""How fast instructions are checked, beside lm-eval, in one process and in turns.

    PYTHONPATH=FOLDER python -m tests.bench.instructions --checks 20000

FOLDER has lm-eval (0.4.11 was measured); NLTK_DATA and MBT_SHARED name NLTK's data and the samples.
Both check every instruction of the IFEval samples strictly and loosely, over and over; neither
keeps anything of a reply. Processor time counts.
"""

import argparse
import logging
from time import process_time

import langdetect
import orjson
from lm_eval.tasks.ifeval.utils import process_results

from mbt_cli.core.questions import Question
from mbt_cli.verifiers.instructions.verifier import InstructionsVerifier
from tests.unit.test_benchmarks import SHARED

_FILES = ("ifeval_gpt4o.jsonl", "ifeval_qwen05b.jsonl")
_TURNS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=20_000)
    wanted = parser.parse_args().checks
    logging.disable()  # lm-eval reports each text without letters
    langdetect.DetectorFactory.seed = 0
    folder = SHARED.parent / "goldens"
    rows = [orjson.loads(line) for name in _FILES for line in (folder / name).open("rb")]
    parts = [rows[turn::_TURNS] for turn in range(_TURNS)]
    verifier = InstructionsVerifier(checkers="ifeval")
    for side in (theirs, ours):  # imports, models and profiles
        side(rows[:40], verifier)
    seconds, done, differs = {theirs: 0.0, ours: 0.0}, 0, set()
    while done < wanted:
        part = parts[0]
        parts.append(parts.pop(0))
        found = {}
        for side in (theirs, ours) if done % 2 else (ours, theirs):
            start = process_time()
            found[side] = side(part, verifier)
            seconds[side] += process_time() - start
        done += sum(len(row["instruction_id_list"]) for row in part)
        differs |= {
            row["key"] for row, a, b in zip(part, found[ours], found[theirs], strict=True) if a != b
        }
    rates = {side: done / spent for side, spent in seconds.items()}
    print(f"{done:,} checks, strict and loose; rows that differ: {sorted(differs)}")  # noqa: T201
    print(f"lm-eval {rates[theirs]:,.0f}/s, mbt {rates[ours]:,.0f}/s")  # noqa: T201
    print(f"mbt is {rates[ours] / rates[theirs]:.1f} times as fast")  # noqa: T201


def ours(rows: list, verifier: InstructionsVerifier) -> list:
    checks = [verifier.check(row["response"], Question("", "", "", metadata=row)) for row in rows]
    return [([p.passed for p in c.parts], [p.passed_loose for p in c.parts]) for c in checks]


def theirs(rows: list, verifier: InstructionsVerifier) -> list:
    found = [process_results(row, [row["response"]]) for row in rows]
    return [(one["inst_level_strict_acc"], one["inst_level_loose_acc"]) for one in found]


if __name__ == "__main__":
    main()
