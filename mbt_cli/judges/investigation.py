"""Investigation: tasks out in the world that a reasoning bears on, and what comes of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import orjson
import polars as pl
from pydantic import Field

from mbt_cli.core.answered import Asking
from mbt_cli.core.chat import Json, Message, Reply
from mbt_cli.core.judge_scales import INVESTIGATIONS, Points, Scale
from mbt_cli.core.plugin import AbsentByDefault
from mbt_cli.core.programs import Ask, Steps, read_reply
from mbt_cli.core.rows import UNREADABLE
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import answering_text, said, steps_of
from mbt_cli.errors import JudgeReplyError
from mbt_cli.interfaces import Judge

_MOST_TASKS = 20
_ITEM = re.compile(r"^\s*(?:\d+[.)]|[-*])\s+(.+)$")
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)
_TASK = pl.Struct({"task": pl.String(), "finding": pl.String()})


class Investigation(Judge):
    """Tasks for an investigator whose results would tell whether claims of a reasoning hold.

    The judge model, another than the one that reasoned, proposes `count` tasks from the claims
    without saying what the reasoning expects, and then works on each in a request of its own that
    does not see the reasoning: from what it knows and its own tools (a model whose `request` turns
    on a search, or an agent behind the backend `command`), or from a `report` that the question
    brings. What it finds is what the judge `uplift` asks a forecaster to predict. A task without a
    finding is left out; a rollout without any is a failure of the verdict. Where there is no
    reasoning, or no report though one is wanted, there are no tasks.
    """

    quantity: ClassVar[str] = INVESTIGATIONS
    scale: ClassVar[Scale] = Points("findings", low=0, high=_MOST_TASKS)
    placeholders: ClassVar[frozenset[str]] = frozenset({"question", "reasoning", "count"})
    reads_metadata: ClassVar[bool] = True
    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "investigate_prompt": frozenset({"question", "task", "report"}),
        "rephrase_prompt": frozenset({"task", "finding"}),
    }
    columns: ClassVar[Mapping[str, pl.DataType]] = {
        "findings": pl.Int64(),  # tasks with a finding
        "proposed": pl.Int64(),  # tasks
        "tasks": pl.List(_TASK),  # those with a finding
    }
    reply_schema: ClassVar[Mapping[str, Json]] = {
        "type": "object",
        "properties": {
            "tasks": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        },
        "required": ["tasks"],
        "additionalProperties": False,
    }

    kind: Literal["investigation"] = "investigation"
    count: Annotated[int, Field(ge=1, le=_MOST_TASKS)] = 3
    """Tasks that are proposed for each rollout."""
    report: Annotated[str | None, AbsentByDefault] = None
    """Key of the question's metadata with a report to investigate in, such as `report` or
    `resolution.text`. Default: none; the investigator finds out by itself."""
    rephrase: Annotated[bool, AbsentByDefault] = False
    """Whether each finding is said again in neutral words by another request, so that a forecaster
    does not go by the investigator's style."""
    template: str = "investigation"
    """Prompt template of the tasks: the name of a shipped one, or a path."""
    investigate_prompt: str = "investigation_find"
    """Template of the work on one task; `{{ task }}`, `{{ report }}` (a block, or empty)."""
    rephrase_prompt: Annotated[str | None, AbsentByDefault] = None
    """With `rephrase`, the template of that; default: `investigation_rephrase`."""

    @classmethod
    def usual_templates(cls, given: Mapping[str, Any]) -> Mapping[str, str]:
        issaid_again = given.get("rephrase") is True
        return {"rephrase_prompt": "investigation_rephrase"} if issaid_again else {}

    def expected_requests(self) -> int:
        return 1 + self.count * (1 + self.rephrase)

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        values = {
            "question": row["question"],
            "reasoning": "\n\n".join(steps_of(row)),
            "count": str(self.count),
        }
        return template.fill(values)

    def schema_for(self, row: Mapping[str, Any]) -> Mapping[str, Json]:
        tasks: Json = {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": self.count,
        }
        return {**self.reply_schema, "properties": {"tasks": tasks}}

    def steps(self, row: Mapping[str, Any], asking: Asking) -> Steps:
        messages = tuple(self.prompt(row, asking.templates["judge"]))
        reads = partial(tasks_in, most=self.count)
        asked = Ask("tasks", messages, asking.body, reads=reads, trainable=False)
        reply, tasks = yield from read_reply(asked)
        if tasks is None:
            failure = reply.failure or f"{UNREADABLE}: the reply proposes no tasks"
            return replace(reply, failure=failure)
        text = self._report(row) if self.report else ""
        report = f"Report to go by:\n<report>\n{text}\n</report>\n\n" if text else ""
        found = yield [self._finding(row, asking, reply, task, report) for task in tasks]
        pairs = zip(tasks, found, strict=True)
        done = [{"task": task, "finding": text} for task, text in pairs if text]
        text = orjson.dumps({"proposed": len(tasks), "tasks": done}).decode()
        return replace(reply, text=text)

    def _finding(
        self, row: Mapping[str, Any], asking: Asking, proposal: Reply, task: str, report: str
    ) -> Steps:
        """What comes of a task; None without a text."""
        values = {"question": row["question"], "task": task, "report": report}
        messages = asking.templates["investigate_prompt"].fill(values)
        built_on = (proposal,)
        asked = Ask("investigate", messages, built_on=built_on, reads=said, trainable=False)
        reply, text = yield from read_reply(asked)
        if text is None or not self.rephrase:
            return text
        messages = asking.templates["rephrase_prompt"].fill({"task": task, "finding": text})
        asked = Ask("rephrase", messages, built_on=(reply,), reads=said, trainable=False)
        _, again = yield from read_reply(asked)
        return again

    def _report(self, row: Mapping[str, Any]) -> str:
        """The report of the question; empty if it has none."""
        found: Any = row["metadata"]
        for key in (self.report or "").split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is None:
            return ""
        return (found if isinstance(found, str) else orjson.dumps(found).decode()).strip()

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        found = orjson.loads(reply)
        if not found["tasks"]:
            raise JudgeReplyError(f"none of {found['proposed']} tasks has a finding")
        return {
            "findings": len(found["tasks"]),
            "proposed": found["proposed"],
            "tasks": found["tasks"],
        }

    def verdict_without_model(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if steps_of(row) and (self.report is None or self._report(row)):
            return None
        return {"findings": 0, "proposed": 0, "tasks": []}


def tasks_in(reply: str, *, most: int) -> Sequence[str] | None:
    r"""The tasks that a reply proposes outside its thinking, at most so many; None for none.

    Read are a JSON object with `tasks`, a JSON list, or the items of a list in text.

    Example:
        >>> tasks_in('{"tasks": ["Count the boats.", " "]}', most=3)
        ['Count the boats.']
        >>> tasks_in("Two tasks:\n1. Count the boats.\n2) Ask the port.\n- Rest.", most=2)
        ['Count the boats.', 'Ask the port.']
        >>> tasks_in("I have none.", most=2) is None
        True
    """
    text = answering_text(reply, "length").strip()
    fenced = _FENCE.search(text)
    try:
        found: Any = orjson.loads(fenced[1] if fenced else text)
    except orjson.JSONDecodeError:
        found = [item[1] for line in text.splitlines() if (item := _ITEM.match(line))]
    if isinstance(found, Mapping):
        found = found.get("tasks")
    if not isinstance(found, list):
        return None
    tasks = [task.strip() for task in found if isinstance(task, str) and task.strip()]
    return list(dict.fromkeys(tasks))[:most] or None
