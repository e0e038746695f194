"""Runs code instead of writing text: what plays the role `python` of programs with tools."""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Literal

from pydantic import Field

from mbt_cli.core.chat import Json, Request, Responder, completion
from mbt_cli.core.cpus import usable_cpus
from mbt_cli.core.serving import ServerPlace
from mbt_cli.interfaces import Backend
from mbt_cli.sandbox.pool import Examination, Limits, pool

_MEGABYTE = 1 << 20
_FRAMES_OF_SANDBOX = re.compile(
    r'(?<=Traceback \(most recent call last\):\n)(?:.*\n)*?(?=  File "<program>")'
)


class PythonBackend(Backend):
    """Runs the last turn of each request as a Python program, in the sandbox of verifiers.

    Its reply is the last 4 kB of what the program printed, errors included, and why it ended if
    that was a limit. Each request starts a fresh process without network, files or environment.
    """

    kind: Literal["python"] = "python"
    """Names the backend in a manifest."""
    timeout_seconds: float = Field(default=5, gt=0, le=600)
    """Processor time of a program."""
    memory_mb: int = Field(default=1024, ge=128, le=1 << 20)
    """Memory of a program, in MiB of address space."""
    packages: tuple[str, ...] = ("numpy",)
    """Packages beside the standard library that programs can import, each by its name."""

    has_model: ClassVar[bool] = False

    def identity(self) -> Mapping[str, Json]:
        return {**self.model_dump(mode="json"), "version": self.version}

    def check(self, environment: Mapping[str, str]) -> None:
        pool(self.packages)

    def open(self, place: ServerPlace) -> AbstractContextManager[Responder]:
        return self._open()

    @contextmanager
    def _open(self) -> Iterator[Responder]:
        pool(self.packages)
        yield Responder(self._respond, version="sandbox", threads=usable_cpus())

    def _respond(self, request: Request) -> Mapping[str, Json]:
        source = request.messages[-1]["content"]
        limits = Limits(self.timeout_seconds, self.memory_mb * _MEGABYTE)
        outcome = pool(self.packages).examine(Examination(source, cases=[("", "")], limits=limits))
        reasons = [reason for _, _, reason in outcome.parts if "the limit" in reason]
        printed = _FRAMES_OF_SANDBOX.sub("", outcome.output).strip()
        said = [printed, *reasons]
        text = "\n".join(part for part in said if part) or "(the program printed nothing)"
        return completion(request, text, None, "stop")
