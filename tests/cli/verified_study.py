"""A study whose replies are checked by a rule of its own: two questions, four samples each."""

import hashlib
import json

STUDY = """
[study]
name = "v"
max_failed_share = {allowed}
plugins = ["rule.py"]

[models.m]
backend = {{ kind = "recorded", file = "replies.jsonl" }}
sampling = {{ temperature = 1, max_tokens = 64 }}

[benchmarks.sums]
kind = "gsm8k"
files = {{ test = "test.jsonl" }}

[judges.strict]
kind = "verifier"
verifier = "letters"

[[stage]]
kind = "rollout"
prompt = "math"
matrix = {{ benchmark = "sums", model = "m" }}
samples = {samples}

[[stage]]
kind = "judge"
name = "checked"
rollouts = "rollout"
matrix = {{ judge = ["verifier", "strict"] }}

[[stage]]
kind = "score"
rollouts = "rollout"
verdicts = "checked"
metrics = [
    "verified", "instruction_accuracy", {{ kind = "verified", judge = "strict" }},
    {{ kind = "pass_at_k", of = "verified", k = [1, 2] }}, "exact_match",
]

[[stage]]
kind = "report"
tables = ["main_results"]
"""

RULE = '''
from pathlib import Path
from typing import ClassVar, Literal

from mbt_cli.core.verifier import Check, Part, Verifier
from mbt_cli.errors import VerificationError


class Letters(Verifier):
    """The reply has a digit, and no capital; `dead` has no verdict while `sick` exists."""

    kind: Literal["letters"] = "letters"
    reads_metadata: ClassVar[bool] = True
    runs_programs: ClassVar[bool] = True

    def answer(self, reply, *, tagged=None):
        return reply

    def same(self, given, wanted):
        return given == wanted

    def check(self, reply, question, *, tagged=None):
        with Path("checks.log").open("a") as file:
            file.write("check\\n")
        if "dead" in reply and Path("sick").exists():
            raise VerificationError("the sandbox died")
        digit, small = any(map(str.isdigit, reply)), reply == reply.lower() and bool(reply)
        parts = (
            Part("form:digit", digit, digit, "" if digit else "wanted a digit"),
            Part("case:small", small, bool(reply), "" if small else "wanted no capitals"),
        )
        passed = digit and small
        loose = digit and bool(reply)
        return Check(float(passed), passed, parts, loose, output=question.metadata["solution"])
'''


TEXTS = ("it is <answer>{right}</answer>", "The <answer>7</answer>", "", "dead 1")
"""The replies to each question: right, wrong, empty and dead."""


def write_study(folder, *, samples=4, allowed=0.0, texts=TEXTS):
    """Write the manifest `v.toml` and all that it reads."""
    questions = [
        {"question": f"What is {n} + 1?", "answer": f"Add.\n#### {n + 1}"} for n in range(2)
    ]
    ids = [hashlib.sha256(one["question"].encode()).hexdigest()[:16] for one in questions]
    replies = [
        {"question_id": f"gsm8k-{name}", "sample": s, "reply": text.replace("{right}", str(n + 1))}
        for n, name in enumerate(ids)
        for s, text in enumerate(texts)
    ]
    for name, records in (("test", questions), ("replies", replies)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "rule.py").write_text(RULE)
    (folder / "v.toml").write_text(STUDY.format(samples=samples, allowed=allowed))
