"""Verifier: a rule gives the verdict on a rollout, and no model is asked."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import orjson
import polars as pl

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.judge_scales import VERIFIED, Points, Scale
from mbt_cli.core.plugin import AbsentByDefault
from mbt_cli.core.templates import Template
from mbt_cli.interfaces import Judge, Verifier
from mbt_cli.plugins import OfFamily


class VerifierJudge(Judge):
    """The verdict of a verifier, by default the one of the benchmark. It needs no `judge_model`.

    Replies without text are checked as empty ones. Of a truncated reply only what follows its
    thinking is checked. If no verdict can be reached, as when the sandbox dies, the row fails with
    `no_verdict` and the next run checks it again; it never counts as wrong.
    """

    quantity: ClassVar[str] = VERIFIED
    scale: ClassVar[Scale] = Points("value")
    placeholders: ClassVar[frozenset[str]] = frozenset()
    columns: ClassVar[Mapping[str, pl.DataType]] = {
        "value": pl.Float64(),  # how right the reply is, from 0 to 1
        "passed": pl.Boolean(),
        "passed_loose": pl.Boolean(),  # null if the verifier makes no such difference
        "parts": pl.List(
            pl.Struct(
                {
                    "name": pl.String(),
                    "passed": pl.Boolean(),
                    "passed_loose": pl.Boolean(),
                    "detail": pl.String(),
                }
            )
        ),
        "output": pl.String(),  # of a program that was run, the last 4 kB
        "cpu_seconds": pl.Float64(),  # of such programs
    }
    reply_schema: ClassVar[Mapping[str, Json]] = {}

    kind: Literal["verifier"] = "verifier"
    verifier: Annotated[Annotated[Verifier, OfFamily("verifiers")] | None, AbsentByDefault] = None
    """Another rule than the benchmark's own: a name, or a table such as
    `{ kind = "number", rule = "strict" }`."""
    # not a field: a rule has no prompt, so that a manifest cannot name one
    template: ClassVar[str] = ""  # type: ignore[misc]

    def rule(self, own: Verifier) -> Verifier:
        return self.verifier or own

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        return [
            {"role": "reply", "content": row["reply"] or ""},
            {"role": "answer", "content": row["answer"] or ""},
        ]

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        found: dict[str, Any] = orjson.loads(reply)
        return found
