"""Records of runs: what ran when, by which command, and the state of its checkout.

Each run leaves a folder below `runs/STUDY/.runs/`, named like the logs of its cells, with
`manifest.toml` as it ran, `run.json`, `git_status.txt`, `git_diff.patch` and `git_untracked/`. A
job that was submitted has the state of the checkout in its submission. Records are written beside
the run: what cannot be written, or is not known when the run ends, is left out.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock, Thread
from typing import Protocol

import orjson
import tomli_w

from mbt_cli.core.chat import Json
from mbt_cli.core.names import own_utc_name
from mbt_cli.core.secrets import mask, mask_json, without_secrets
from mbt_cli.engine.queues import current_job
from mbt_cli.engine.submit import SUBMISSIONS
from mbt_cli.errors import Interrupted, MbtError
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine
from mbt_cli.store import provenance

RECORDS = ".runs"
RUN = "run.json"
MANIFEST = "manifest.toml"

_KEPT = 200
_SHOWN_CELLS = 1_000
_SHOWN_ERROR = 4_000
_END_SECONDS = 2.0
"""How long the end of a run waits for a state of the checkout that is not known yet."""
_HEAD = "# as it ran: with `extends` and `--set` applied\n"


class Made(Protocol):
    """What says which cells it has made."""

    @property
    def made(self) -> Sequence[str]:
        """Their addresses."""


@contextmanager
def recording(manifest: Manifest, machine: Machine, runner: Made, command: str) -> Iterator[None]:
    """Keep a record of what runs in this context.

    Args:
        manifest: The study.
        machine: Settings of this machine.
        runner: What runs; it knows the cells that it has made.
        command: The command as typed.
    """
    record = _Record(manifest, machine, command)
    code, message = 0, ""
    try:
        yield
    except BaseException as error:
        is_interrupt = isinstance(error, KeyboardInterrupt)
        code = getattr(error, "exit_code", Interrupted.exit_code if is_interrupt else 1)
        message = error.message if isinstance(error, MbtError) else repr(error)
        raise
    finally:
        record.end(code, message, runner)


class _Record:
    """The record of one run; a thread writes what is known at its begin."""

    def __init__(self, manifest: Manifest, machine: Machine, command: str) -> None:
        self._manifest = manifest
        self._runs = machine.runs
        study = machine.runs / manifest.study
        self._folder = study / RECORDS / own_utc_name()
        self._writing = Lock()
        job = current_job(machine.environment)
        self._known: dict[str, Json] = {
            "schema_version": 1,
            "command": without_secrets(command),
            "folder": _below(Path.cwd(), study),
            "job": None if job is None else asdict(job),
            "submission": _submission(manifest.path, study),
            "process": os.getpid(),
            "started": _now(),
            "ended": None,
            "exit_code": None,
        }
        self._thread = Thread(target=self._begin, name="run record", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        with suppress(Exception):  # a record never stops a run
            while self._folder.exists():  # two runs of a process within a second
                self._folder = self._folder.with_name(f"{self._folder.name}+")
            self._folder.mkdir(parents=True)
            text = _HEAD + tomli_w.dumps(dict(self._manifest.tree))
            (self._folder / MANIFEST).write_text(mask(text), encoding="utf-8")
            self._write({})
            _remove_old(self._folder.parent)
            git = None
            if self._known["submission"] is None:
                git = provenance.write_checkout(
                    self._manifest.path.parent, self._folder, self._runs
                )
            found = provenance.collected()
            self._write(
                {
                    "git": git,
                    "code": found.code.model_dump(mode="json"),
                    "packages": found.packages,
                    "host": found.host.model_dump(mode="json"),
                }
            )

    def end(self, code: int, message: str, runner: Made) -> None:
        """Add how the run ended."""
        with suppress(Exception):
            self._thread.join(_END_SECONDS)
            made = list(runner.made)
            error = {"error": without_secrets(message)[:_SHOWN_ERROR]} if message else {}
            self._write(
                {
                    "ended": _now(),
                    "exit_code": code,
                    **error,
                    "cells_made": len(made),
                    "cells": made[:_SHOWN_CELLS],
                }
            )

    def _write(self, more: Mapping[str, Json]) -> None:
        with self._writing:
            self._known |= more
            content = orjson.dumps(mask_json(self._known), option=orjson.OPT_INDENT_2)
            # not flushed to the disk: that takes longer than some runs
            partial = self._folder / f"{RUN}.partial"
            partial.write_bytes(content + b"\n")
            partial.replace(self._folder / RUN)


def _remove_old(folder: Path) -> None:
    """Keep the newest records; other runs may do the same at this moment."""
    records = sorted(path.name for path in folder.iterdir())
    for name in records[:-_KEPT]:
        shutil.rmtree(folder / name, ignore_errors=True)


def _below(inner: Path, study: Path) -> str | None:
    """The working folder as seen from the study's, if that is below it."""
    own, where = study.resolve(), inner.resolve()
    return os.path.relpath(where, own) if own.is_relative_to(where) else None


def _submission(manifest: Path, study: Path) -> str | None:
    """The submission whose copy of the manifest a job reads."""
    record = manifest.resolve().parent
    return record.name if record.parent == study.resolve() / SUBMISSIONS else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
