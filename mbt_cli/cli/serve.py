"""`mbt serve`: the server of one model preset, until a signal ends it."""

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

import typer
from pydantic import ValidationError

from mbt_cli.cli.signals import raising_stopped
from mbt_cli.cli.streams import log_text
from mbt_cli.core.chat import Endpoint
from mbt_cli.core.names import nearest, own_utc_name
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import ManifestError, Stopped, UsageError
from mbt_cli.inference.nodes import join
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.resolve import Resolver
from mbt_cli.manifest.schema import Document, ModelTable, StudyTable
from mbt_cli.manifest.toml import Tree, apply_override
from mbt_cli.settings import Machine, read_machine
from mbt_cli.stages.base import Model, SamplingChoice


def client_lines(endpoint: Endpoint, *, shows_key: bool) -> str:
    """Lines to copy: the key, a request, and a manifest's model.

    Args:
        endpoint: The server.
        shows_key: Whether to show the key, because mbt generated it.
    """
    lines = [""]
    if endpoint.api_key and shows_key:
        lines += [
            "the key, generated for this process and shown only once; in the client's shell:",
            f"  export {ENDPOINT_KEY}={endpoint.api_key}",
            "",
        ]
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "Hello"}]}
    has_key = endpoint.api_key is not None
    bearer = f' -H "Authorization: Bearer ${ENDPOINT_KEY}"' if has_key else ""
    variable = f', api_key_env = "{ENDPOINT_KEY}"' if has_key else ""
    lines += [
        "example request:",
        f"  curl {endpoint.base_url}/chat/completions{bearer} "
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'",
        "",
        "in a manifest:",
        "  [models.NAME]",
        f'  backend = {{ kind = "openai", base_url = "{endpoint.base_url}"{variable} }}',
        f"  id = {json.dumps(endpoint.model)}",
        '  sampling = "..."',
        "",
        "stop with Ctrl-C",
    ]
    return "\n".join(lines)


ENDPOINT_KEY = "MBT_ENDPOINT_KEY"
"""Variable that holds the key of a server started by hand, for the server and its clients."""
_MIN_KEY_LENGTH = 16
_POLL_SECONDS = 0.5
_STUDY = StudyTable(name="serve", seed=0, max_failed_share=0)
_ANY_SAMPLING: SamplingChoice = {"temperature": 0.0, "max_tokens": "rest"}


def preset_model(preset: str, overrides: Sequence[str], presets: PresetFolders) -> Model:
    """The model of a preset, with overrides applied.

    Args:
        preset: Name of a file in presets/models/.
        overrides: `KEY=VALUE` with keys as in `[models.NAME]`, such as `serve.max_model_len=4096`.
        presets: Folders with presets.

    Raises:
        UsageError: The preset does not exist, or an override is not KEY=VALUE.
        ManifestError: The resulting model is invalid; holds every problem.
    """
    names = presets.names("models")
    if preset not in names:
        raise UsageError(f"no model preset `{preset}`", hint=nearest(preset, names))
    tree: Tree = {}
    for override in overrides:
        apply_override(tree, override)
    problems = Problems()
    model = _model(preset, tree, presets, problems)
    if model is None or problems:
        raise ManifestError(f"preset {preset}", problems.all())
    return model


def _model(preset: str, tree: Tree, presets: PresetFolders, problems: Problems) -> Model | None:
    where = f"models.{preset}"
    try:
        table = ModelTable.model_validate({"preset": preset, **tree})
    except ValidationError as error:
        problems.add_validation(where, error, ModelTable.model_fields, kind=ModelTable)
        return None
    document = Document(study=_STUDY, models={preset: table})
    return Resolver(document, presets, problems).model(preset, _ANY_SAMPLING, where)


def chosen_key(environment: Mapping[str, str], *, is_shown: bool) -> str | None:
    """The server's key from the environment; None to generate one and show it.

    Args:
        environment: May hold `MBT_ENDPOINT_KEY`.
        is_shown: Whether stderr is a terminal, the only place where a key is shown.

    Raises:
        UsageError: The key is too short; or there is none and a generated one cannot be shown.
    """
    key = environment.get(ENDPOINT_KEY, "").strip()
    if key and len(key) < _MIN_KEY_LENGTH:
        raise UsageError(
            f"`{ENDPOINT_KEY}` has {len(key)} characters; at least {_MIN_KEY_LENGTH} are required",
            hint=f"export {ENDPOINT_KEY}=$(openssl rand -hex 24)",
        )
    if not key and not is_shown:
        raise UsageError(
            "a generated key is shown only on a terminal, and stderr is not one",
            hint=f"set the key yourself: export {ENDPOINT_KEY}=$(openssl rand -hex 24)",
        )
    return key or None


def serving_place(machine: Machine, model: Model, port: int | None, key: str | None) -> ServerPlace:
    """The server's log, port, key and limits."""
    return ServerPlace(
        log=machine.cache / "serve" / f"{model.name}-{own_utc_name()}.server.log",
        cache=machine.cache,
        environment=machine.environment,
        ready_timeout_seconds=model.run.server_ready_timeout_seconds,
        parallel=model.run.concurrency,
        port=port,
        key=key,
    )


@contextmanager
def served(model: Model, place: ServerPlace) -> Iterator[Endpoint]:
    """The preset's endpoint; its server is stopped when the context ends.

    Raises:
        UsageError: The preset does not start a server.
        BackendError: The server did not start.
    """
    with model.backend.open(place) as endpoint:
        if not isinstance(endpoint, Endpoint) or endpoint.alive is None:
            raise UsageError(
                f"the backend `{model.backend.kind}` does not start a server",
                hint="choose a preset that serves weights on this machine",
            )
        yield endpoint


def wait_for_end(endpoint: Endpoint) -> None:
    """Wait for Ctrl-C.

    Raises:
        BackendError: The server exited; the message has its last lines.
    """
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(_POLL_SECONDS)
            if endpoint.alive is not None:
                endpoint.alive()


@contextmanager
def following(log: Path, out: TextIO) -> Iterator[None]:
    """Copy new lines of a server's log to `out` until the context ends; the log holds no key."""
    done = threading.Event()

    def copy() -> None:
        while not log.is_file() and not done.wait(_POLL_SECONDS):
            pass
        if not log.is_file():
            return
        with log.open(encoding="utf-8", errors="replace") as lines:
            while not done.wait(_POLL_SECONDS):
                out.write(log_text(lines.read()))
                out.flush()
            out.write(log_text(lines.read()))

    copying = threading.Thread(target=copy, daemon=True)
    copying.start()
    try:
        yield
    finally:
        done.set()
        copying.join()


def can_show_key() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


_NOTHING_LEFT = "all processes of the server have ended"


def join_nodes() -> None:
    """Run this node's part of the servers of a job over several nodes, until the job ends it."""
    with suppress(Stopped):
        join(read_machine().environment)


def serve(
    preset: str,
    overrides: Sequence[str],
    port: int | None,
    presets: Path | None,
    *,
    verbose: bool,
) -> None:
    """Start the server of a model preset and keep it until a signal ends it."""
    machine = read_machine()
    folders = PresetFolders.usual(extra=presets or machine.presets, config=machine.config)
    model = preset_model(preset, overrides, folders)
    key = chosen_key(machine.environment, is_shown=can_show_key())
    place = serving_place(machine, model, port, key)
    follow = following(place.log, sys.stderr) if verbose else nullcontext()
    with raising_stopped(_NOTHING_LEFT):
        typer.echo(f"starting {preset} ({model.backend.kind}); log: {place.log}", err=True)
        with follow, served(model, place) as endpoint:
            typer.echo(f"base_url: {endpoint.base_url}\nmodel: {endpoint.model}")
            typer.echo(client_lines(endpoint, shows_key=key is None), err=True)
            wait_for_end(endpoint)
    typer.echo(f"stopped; {_NOTHING_LEFT}", err=True)
