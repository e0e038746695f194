"""What the tests of synthesize and rewrite share: small inputs in memory, and a cell to run."""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from mbt_cli.backends.canned import CannedBackend
from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.core import rows
from mbt_cli.core.model_settings import RunSettings, Sampling
from mbt_cli.core.progress import Silent
from mbt_cli.core.serving import ServerPlace
from mbt_cli.core.templates import parse_template
from mbt_cli.engine.runner import Servers
from mbt_cli.stages.base import LoadedInput, Model, Resolution, Work
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.lineage import Lineage

PROMPTS = Path(__file__).parents[2] / "mbt_cli" / "prompts"
GOOD = (
    "We look for the city of question {n}.\n\nFirst we read the document that may name it.\n\n"
    "The only document names it, and the name fits what is asked.\n\nCould another city be meant? "
    "No other one is named.\n\nWe check it once more, so we are sure: the answer is City{n}."
)


def table(schema, records):
    """Records as a frame of a stored schema; what a record leaves out is null."""
    return pl.DataFrame([{**dict.fromkeys(schema), **r} for r in records], schema=schema)


def questions(count, **changes):
    return table(
        rows.QUESTIONS,
        [
            {
                "question_id": f"q{n}",
                "position": n,
                "question": f"Which city is number {n}?",
                "answer": f"City{n}",
                "answer_aliases": [f"Town{n}"],
                "context": [{"title": f"Title {n}", "sentences": [f"It is City{n}."]}],
                **changes,
            }
            for n in range(count)
        ],
    )


def rollout(n, sample=0, **changes):
    return {
        "question_id": f"q{n}",
        "sample": sample,
        "answer": f"City{n}",
        "reply": f"trace of q{n} sample {sample} <answer>City{n}</answer>",
        "finish_reason": "stop",
        **changes,
    }


def solution(n, trace_id=0, **changes):
    return {
        "question_id": f"q{n}",
        "sample": 0,
        "trace_id": trace_id,
        "trace": f"solution {trace_id} of q{n}",
        **changes,
    }


def canned(*replies, **settings):
    return CannedBackend(replies=list(replies), **settings)


def lineage_of(name, spec):
    """The lineage of an input that is in memory."""
    return Lineage(
        study="s",
        stage=name,
        kind="",
        address=name,
        fingerprint="f" * 64,
        base_fingerprint="b" * 64,
        spec=spec,
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
    )


def work_of(stage, tmp_path, inputs, backend=None, progress=None, specs=None):
    """A cell as the runner gives it, with its inputs in memory and the specs of some of them."""
    lineages = {name: lineage_of(name, spec) for name, spec in (specs or {}).items()}
    source = (PROMPTS / f"{stage.prompt}.md").read_text(encoding="utf-8")
    template = parse_template(stage.prompt, source, known=stage.placeholders)
    sampling = Sampling(temperature=0.6, max_tokens=64)
    teacher = Model("teacher", "teacher", backend or canned("x"), sampling, {}, RunSettings())
    address = f"{stage.name}/benchmark=b/split=train"
    resolution = Resolution(
        study="s",
        seed=1,
        address=address,
        axes={"benchmark": "b", "split": "train"},
        models={"teacher": teacher},
        benchmark=HotpotQA(),
        templates={"prompt": template},
    )
    loaded = {
        name: tuple(
            LoadedInput(
                f"{name}{i}/benchmark=b", {}, "", tmp_path, frame.lazy(), lineages.get(name)
            )
            for i, frame in enumerate(frames if isinstance(frames, list) else [frames])
        )
        for name, frames in inputs.items()
    }
    return Work(
        resolution=resolution,
        inputs=loaded,
        journal=tmp_path / "journal",
        files=tmp_path,
        place=lambda run: ServerPlace(tmp_path / "log", tmp_path / "cache", {}),
        open=Servers().open,
        hub=HubAccess(),
        progress=progress or Silent(),
    )


def rows_of(stage, work):
    return pl.concat(list(stage.run(work)))
