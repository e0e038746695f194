"""The doctor on backends: one tiny reply from each, by the same way that a run asks."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from mbt_cli.backends.llamacpp import LlamaCppBackend
from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.transformers import TransformersBackend
from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.core.chat import Message, Reply, Request
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.progress import Silent
from mbt_cli.errors import Interrupted, MbtError, Stopped
from mbt_cli.inference.asking import Asking, ask, replies
from mbt_cli.machine.findings import Finding, broken, ok
from mbt_cli.settings import Machine
from mbt_cli.stages.runner import server_place
from mbt_cli.stages.work import Model

_TOKENS = 16
_SECONDS = 120
_QUESTION = Message(role="user", content="Is water wet? Say yes or no.")


def reply_findings(
    models: Mapping[str, Model], machine: Machine, *, starts_servers: bool
) -> Iterator[Finding]:
    """What each model says, or why it says nothing.

    Args:
        models: Models by name.
        machine: Keys and caches.
        starts_servers: Whether servers that take long and hold GPUs are started for it.
    """
    for name, model in models.items():
        if isinstance(model.backend, VLLMBackend | TransformersBackend) and not starts_servers:
            found = f"`{model.backend.kind}` was not started; --replies starts it and asks"
            yield ok("replies", name, found)
        elif not isinstance(model.backend, _WITH_SERVERS):
            yield ok("replies", name, f"`{model.backend.kind}` answers in this process")
        elif _can_be_asked(model, machine):
            yield _finding(name, model, machine)


_WITH_SERVERS = (LlamaCppBackend, OpenAIBackend, TransformersBackend, VLLMBackend)


def _can_be_asked(model: Model, machine: Machine) -> bool:
    """Whether there is its key; without one, another line says so."""
    variable = getattr(model.backend, "api_key_env", None)
    return variable is None or bool(machine.environment.get(variable, "").strip())


def _finding(name: str, model: Model, machine: Machine) -> Finding:
    try:
        reply = _ask(name, model, machine)
    except (Interrupted, Stopped):
        raise
    except MbtError as error:
        return broken("replies", name, error.message, error.hint or "mend it and look again")
    if reply.failure is None or reply.failure.startswith("empty"):
        words = f"{reply.completion_tokens or 0} tokens" if reply.failure is None else "no text"
        return ok("replies", name, f"answered within {reply.seconds:.1f} s: {words}")
    return broken("replies", name, reply.failure, _hint(reply.failure, name))


def _hint(failure: str, name: str) -> str:
    if failure.startswith("connection"):
        return "start the server, or correct `base_url`"
    if failure.startswith("timeout"):
        return "look at the server: it takes longer for 16 tokens than a study should wait"
    return f"change what the endpoint complains of in the sampling or `request` of {name}"


def _ask(name: str, model: Model, machine: Machine) -> Reply:
    """One request with the model's own sampling, but for its length."""
    body = {**model.sampling.body(), **model.request}
    request = Request(
        sha256_of(name), "doctor", 0, (_QUESTION,), seed=0, body=body, purpose="doctor"
    )
    seconds = min(_SECONDS, model.run.request_timeout_seconds)
    run = model.run.model_copy(
        update={"max_attempts": 1, "request_timeout_seconds": seconds, "server_restarts": 0}
    )
    place = server_place(machine, machine.cache / "doctor", run)
    with tempfile.TemporaryDirectory() as folder:
        asking = Asking(
            requests=lambda: [request],
            total=1,
            open=model.backend.open,
            place=replace(place, log=place.log.with_name(f"{name}.server.log")),
            max_tokens=_TOKENS,
            run=run,
            sends_seed=model.sampling.seedable,
            model_id=model.id,
        )
        ask(asking, Path(folder), Silent())
        return next(reply for _, reply in replies(asking, Path(folder)))
