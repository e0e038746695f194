"""How many math answers are compared in a second of processor time, beside math-verify alone.

    python tests/bench/math_answers.py math500.jsonl [--wrong 4] [--before-rows 120]

For each gold answer of MATH-500: distinct wrong answers, made by changing one digit (or, without
digits, one letter) of the gold answer, and one answer of another question. Before: each pair parsed
and compared by math-verify with its defaults, parsed answers kept, in this process, on a sample of
the pairs. After: `MathVerifier.same` on all pairs, with the processor time of its worker processes,
their start and imports included. No pair occurs twice. Ends with the pairs on which both disagree.
"""

import argparse
import json
import logging
import random
import re
import resource
import time
from functools import lru_cache
from pathlib import Path

from math_verify import parse, verify

from mbt_cli.verifiers import algebra
from mbt_cli.verifiers.math import MathVerifier


def wrong_answers(gold: str, others: list[str], count: int, draws: random.Random) -> list[str]:
    """Up to `count` changed gold answers and one answer of another question."""
    places = [found.start() for found in re.finditer(r"\d", gold)]
    signs = "0123456789"
    if not places:
        places = [found.start() for found in re.finditer(r"(?<![\\a-zA-Z])[a-zA-Z]\b", gold)]
        signs = "abcdkmnpqrtuvwz"
    found = {draws.choice(others)}
    for _ in range(10 * count):
        if places and len(found) <= count:
            place = draws.choice(places)
            found.add(gold[:place] + draws.choice(signs) + gold[place + 1 :])
    return sorted(found - {gold})


@lru_cache(maxsize=4096)
def parsed(text: str) -> list:
    return parse(f"${text}$")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--wrong", type=int, default=4)
    arguments.add_argument("--before-rows", type=int, default=120)
    given = arguments.parse_args()
    logging.disable()

    golds = [json.loads(line)["answer"] for line in given.file.read_text().splitlines()]
    draws = random.Random(1)
    pairs = sorted({(w, g) for g in golds for w in wrong_answers(g, golds, given.wrong, draws)})
    few = draws.sample(pairs, given.before_rows)

    parse("$x+1$")  # builds the parser
    start = time.process_time()
    before = [verify(parsed(gold), parsed(wrong)) for wrong, gold in few]
    slow = len(few) / (time.process_time() - start)

    start = time.process_time()
    same = MathVerifier().same
    after = {pair: same(*pair) for pair in pairs}
    own = time.process_time() - start
    algebra._POOLS["meaning"].end()  # so that the time of its processes is known
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = own + workers.ru_utime + workers.ru_stime
    fast = len(pairs) / used
    print(f"{len(pairs):,} distinct pairs, {sum(after.values())} found equal")  # noqa: T201
    print(f"before: {slow:,.1f} rows a processor-second ({len(few)} rows)")  # noqa: T201
    print(f"after: {fast:,.0f} rows a processor-second: {own:.2f} s here,", end=" ")  # noqa: T201
    print(f"{used - own:.2f} s in workers; {fast / slow:,.0f} times as many")  # noqa: T201
    for pair, verdict in zip(few, before, strict=True):
        if verdict != after[pair]:
            print(f"  math-verify {verdict}, mbt {after[pair]}: {pair}")  # noqa: T201


if __name__ == "__main__":
    main()
