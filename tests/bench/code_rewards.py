"""Rewards of programs as a GRPO training gives them, a second.

    python -m tests.bench.code_rewards mbpp.jsonl [--completions 4000] [--round 512] [--endless 500]

The completions are the references of MBPP, each fourth one with a fault: it raises, prints much
and exits, or defines nothing. Each `--endless`th one never ends and takes 5 s of a processor, so
their share decides the rate. They are graded in rounds by the training's own `Grader`, whose
sandbox has as many workers as there are processors. Prints the completions a second, and the same
of the rules alone for a bare check of the reply's form: what the sandbox costs a round.
"""

import argparse
import json
import time
from pathlib import Path

from mbt_cli.benchmarks.mbpp import MBPP
from mbt_cli.training.grading import Grader
from mbt_cli.verifiers.code_tests import CodeTestsVerifier

FAULTS = ("raise ValueError('x')", "print('x' * 100_000)\nraise SystemExit", "x = 1")
END = 0


class Characters:
    """Tokens are characters, so that only the grading is measured."""

    def decode(self, ids, **_):
        return "".join(map(chr, ids[:-1]))


def completion(number, records, endless):
    """A reply and its question's row, as the trainer hands them over."""
    record = records[number % len(records)]
    code = record["code"]
    if number % 4 == 3:
        code = FAULTS[number // 4 % len(FAULTS)]
    if endless and number % endless == endless - 1:
        code = "while True: pass"
    return [*map(ord, f"```python\n{code}\n```"), END]


def seconds(grader, names, replies, given, size):
    start = time.perf_counter()
    rewards = []
    for begin in range(0, len(replies), size):
        part = slice(begin, begin + size)
        columns = {name: values[part] for name, values in given.items()}
        found = [grader.function(name)(replies[part], **columns) for name in names]
        rewards += found[0]
    return time.perf_counter() - start, rewards


def say(line):
    print(line)  # noqa: T201


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--completions", type=int, default=4_000)
    arguments.add_argument("--round", type=int, default=512)
    arguments.add_argument("--endless", type=int, default=500)
    options = arguments.parse_args()
    lines = options.file.read_text(encoding="utf-8").split("\n")
    records = [one for one in map(json.loads, filter(None, lines)) if one["task_id"] != 123]
    questions = [MBPP().question(record) for record in records]
    replies = [
        completion(number, records, options.endless) for number in range(options.completions)
    ]
    asked = [questions[number % len(questions)] for number in range(options.completions)]
    given = {
        "source": ["mbpp"] * len(replies),
        "question_id": [question.question_id for question in asked],
        "references": [[question.answer, *question.answer_aliases] for question in asked],
        "opens_thinking": [False] * len(replies),
        "metadata": [json.dumps(question.metadata) for question in asked],
    }
    rates = {}
    for name in ("verified", "format"):
        verifier = CodeTestsVerifier(packages=())
        if name == "verified":
            verifier.prepare()
        grader = Grader(Characters(), {name: 1.0}, 0, {"mbpp": verifier}, {}, frozenset({END}))
        took, rewards = seconds(grader, [name], replies, given, options.round)
        rates[name] = len(replies) / took
        failed = sum(value is None for value in rewards)
        mean = sum(value or 0 for value in rewards) / len(rewards)
        say(f"{name}: {rates[name]:,.0f} completions/s, mean {mean:.3f}, {failed} without a value")
    say(f"the sandbox takes {rates['format'] / rates['verified']:,.0f} times the form alone")


if __name__ == "__main__":
    main()
