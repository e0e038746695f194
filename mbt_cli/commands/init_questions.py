"""What `mbt init` asks on a terminal; whatever a flag says is not asked."""

from pathlib import Path

import typer

from mbt_cli.machine.first_study import KINDS
from mbt_cli.machine.wishes import (
    DEFAULT_BENCHMARKS,
    DEFAULT_MODELS,
    OPENAI_KEY,
    OPENAI_URL,
    Wishes,
    checked_kind,
    has_own_key,
)

_KINDS = """Where does the model run?
  embedded   in this process: a toy model, needs nothing
  gpu        on this machine's GPU, served by vLLM
  cluster    the same as Slurm jobs
  api        at an endpoint that already runs, hosted or yours"""


def asked(told: Wishes) -> Wishes:
    """The wishes with answers from the terminal filled in."""
    kind = told.kind
    if not kind:
        typer.echo(_KINDS, err=True)
        kind = _ask(f"Kind ({', '.join(KINDS)})", "embedded")
    checked_kind(kind)
    url, key, model = told.base_url, told.api_key_env, told.model
    if kind == "api":
        url = url or _ask("Address of the endpoint, up to and including /v1", OPENAI_URL)
        model = model or _ask("The endpoint's name for the model", None)
        if key is None:
            usual = OPENAI_KEY if has_own_key(url) else ""
            key = _ask(
                "NAME of the variable that holds the key (never the key; may be empty)", usual
            )
    elif model is None:
        model = _ask("Model: a preset, see presets/models/", DEFAULT_MODELS[kind])
    questions, benchmark = told.questions, told.benchmark
    if questions is None and benchmark is None:
        usual = DEFAULT_BENCHMARKS[kind]
        said = _ask("Questions: your own file (JSON lines or JSON), or a benchmark", usual)
        is_file = "." in said or Path(said).exists()
        questions, benchmark = (said, None) if is_file else (None, said)
    return Wishes(kind, told.study, model, benchmark, questions, url, key)


def _ask(question: str, usual: str | None) -> str:
    answer: str = typer.prompt(question, default=usual, err=True)
    return answer.strip()
