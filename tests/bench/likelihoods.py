"""Log-probabilities of the same texts by vLLM and by transformers, both in float32 on the CPU.

    .venv-vllm/bin/python -m tests.bench.likelihoods FOLDER --model MODEL_FOLDER
        [--texts 200] [--python PYTHON_WITH_TRANSFORMERS]

Each text is the first document of a made question, as the reply to that question, and each goes
through mbt's own requests, with its journal in FOLDER: a second run asks nothing again. Printed are
the differences of the log-probabilities of tokens between the two backends, and, for each of them,
whether the answer to a question is likelier after its own documents than after those of another
question, with a paired t-test over questions.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mbt_cli.backends.transformers_likelihood import TransformersLikelihoodBackend
from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.benchmarks.tinyhop.benchmark import TinyHop
from mbt_cli.core.chat import Message
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.programs import Result, Task, one_request
from mbt_cli.core.progress import Silent
from mbt_cli.core.questions import Question
from mbt_cli.core.serving import ServerPlace
from mbt_cli.inference.ask import ask
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.interfaces import Backend

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
AIM_NATS = 0.02


def turns_of(questions: list[Question]) -> dict[str, tuple[str, str]]:
    """Name of each request to its prompt and the text that is scored."""
    found = {}
    for number, question in enumerate(questions):
        other = questions[(number + 1) % len(questions)]
        text = " ".join(question.context[0].sentences)
        found[f"text {number}"] = question.question, text
        for name, whose in (("true", question), ("other", other)):
            shown = "\n".join(" ".join(one.sentences) for one in whose.context[:3])
            found[f"{name} {number}"] = f"{shown}\n\n{question.question}", question.answer
    return found


def scored(backend: Backend, turns: dict[str, tuple[str, str]], folder: Path) -> dict[str, list]:
    """The log-probabilities of the tokens of each text."""

    def tasks() -> Iterator[Task]:
        for name, (prompt, text) in turns.items():
            messages = (
                Message(role="user", content=prompt),
                Message(role="assistant", content=text),
            )
            yield Task(name, 0, one_request("score", messages, wants="likelihood"))

    found: dict[str, list] = {}

    def keep(result: Result) -> None:
        if result.reply.failure is not None:
            raise SystemExit(f"{result.task.question_id}: {result.reply.failure}")
        found[result.task.question_id] = json.loads(result.reply.text or "")["logprobs"]

    batch = RequestBatch(
        tasks=tasks,
        total=len(turns),
        purpose="bench",
        study_seed=1,
        identity=backend.identity(),
        sampling={},
        body={},
        open=backend.open,
        place=ServerPlace(folder / f"{backend.kind}.log", folder / "cache", dict(os.environ)),
        max_tokens=1,
        run=RunSettings(concurrency=8),
    )
    began = time.monotonic()
    report = ask(batch, folder / f"journal-{backend.kind}", Silent(), emit=keep)
    say(f"{backend.kind}: {report.sent} requests in {time.monotonic() - began:.1f} s")
    return found


def compare(one: dict[str, list], two: dict[str, list]) -> None:
    texts = [name for name in one if name.startswith("text ")]
    gaps = [abs(a - b) for name in texts for a, b in zip(one[name], two[name], strict=True)]
    means = [abs(statistics.mean(one[name]) - statistics.mean(two[name])) for name in texts]
    gaps.sort()
    say(
        f"{len(texts)} texts, {len(gaps)} tokens: mean difference "
        f"{statistics.mean(gaps):.2g} nats, "
        f"99th percentile {gaps[int(len(gaps) * 0.99)]:.2g}, largest {gaps[-1]:.2g}; largest "
        f"difference of a text's mean {max(means):.2g} (aim: below {AIM_NATS} a token)"
    )


def prefers(name: str, scores: dict[str, list]) -> None:
    """Whether true contexts make answers likelier than those of another question."""
    count = sum(1 for one in scores if one.startswith("true "))
    raised = [
        math.fsum(scores[f"true {number}"]) - math.fsum(scores[f"other {number}"])
        for number in range(count)
    ]
    mean, error = statistics.mean(raised), statistics.stdev(raised) / math.sqrt(count)
    t = mean / error
    p = math.erfc(abs(t) / math.sqrt(2))  # normal: there are many questions
    say(f"{name}: own documents add {mean:.2f} nats to the answer, t = {t:.1f}, p = {p:.2g}")


def main(options: argparse.Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    made = TinyHop(seed=1).generate("validation") or iter(())
    turns = turns_of([next(made) for _ in range(options.texts)])
    vllm = VLLMBackend(
        model=options.model,
        serve={"max_model_len": 2048, "dtype": "float32"},
        place={"environment": CPU, "flags": {"enforce_eager": True}},
    )
    plain = TransformersLikelihoodBackend(model=options.model, place={"python": options.python})
    found = {one.kind: scored(one, turns, options.folder) for one in (plain, vllm)}
    compare(*found.values())
    for name, scores in found.items():
        prefers(name, scores)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--python", default=sys.executable)
    main(parser.parse_args())
