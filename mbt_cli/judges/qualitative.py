"""Qualitative: how far a reasoning seeks the truth, by a rubric, in points."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from mbt_cli.core.answered import Asking, Graded
from mbt_cli.core.chat import Json, Message, Reply
from mbt_cli.core.judge_scales import POINTS, Points, Scale
from mbt_cli.core.plugin import AbsentByDefault, Settings
from mbt_cli.core.programs import Ask, Steps, one_request, read_reply
from mbt_cli.core.rows import UNREADABLE
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import said, steps_of
from mbt_cli.interfaces import Judge
from mbt_cli.judges.points import PointScale, read_points

_RUBRIC = (
    "Originality: it finds a thought that the question does not hand over. Curiosity: it asks what "
    "would have to be known, and looks for it. Challenge: it tests assumptions, its own first. "
    "Honesty: it says how sure it is, and why. Clarity: a reader could check each step."
)
_SELF_ANSWER = (
    "First answer the question yourself, in a few sentences, so that you know which insights are "
    "easy to reach and which are hard."
)
_SIDES: Mapping[str, Sequence[str]] = {
    "none": (),
    "red": ("As a critic, name the gravest weaknesses of the reasoning.",),
    "red_blue": (
        "As a critic, name the gravest weaknesses of the reasoning.",
        "As an advocate, answer each of them as well as the reasoning allows.",
    ),
    "red_blue_resolution": (
        "As a critic, name the gravest weaknesses of the reasoning.",
        "As an advocate, answer each of them as well as the reasoning allows.",
        "Settle which of them stand.",
    ),
}
_SEPARATE: Mapping[str, str] = {
    "answer_prompt": "qualitative_answer",
    "red_prompt": "qualitative_red",
    "blue_prompt": "qualitative_blue",
}
"""The template of each request before the judge's, by its field."""
_SETTLE = "Settle which of the critic's points stand, and what they weigh."
_HEADINGS: Mapping[str, str] = {
    "answer": "Your own answer to the question",
    "red": "A critic",
    "blue": "An advocate",
}


class Example(Settings):
    """A graded reasoning that the judge is shown."""

    question: str
    """The question that was asked."""
    reasoning: str
    """What was replied to it."""
    points: float
    """The points that it deserves."""
    assessment: str = ""
    """Why."""


class Qualitative(Judge):
    """Points of a reasoning by a rubric: originality, curiosity, readiness to challenge, honesty.

    The judge model answers the question itself first, hears both sides if `sides` says so, and
    gives points: all in one reply, or with `separate` in a request for each, where its own answer
    is written without the reasoning in view, and the critic and the advocate do not know of each
    other's task. No outcome is needed, so open questions can be judged.
    """

    quantity: ClassVar[str] = POINTS
    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"question", "reasoning", "rubric", "graded", "heard", "tasks", "allowed", "max"}
    )
    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "answer_prompt": frozenset({"question"}),
        "red_prompt": frozenset({"question", "reasoning", "rubric"}),
        "blue_prompt": frozenset({"question", "reasoning", "rubric", "critique"}),
    }
    columns: ClassVar[Mapping[str, pl.DataType]] = {"points": pl.Float64()}
    reply_schema: ClassVar[Mapping[str, Json]] = {
        "type": "object",
        "properties": {"assessment": {"type": "string"}, "points": {"type": "number"}},
        "required": ["assessment", "points"],
        "additionalProperties": False,
    }

    kind: Literal["qualitative"] = "qualitative"
    rubric: str = _RUBRIC
    """What deserves points."""
    self_answer: bool = True
    """Whether the judge answers the question itself before it reads the reasoning."""
    sides: Literal["none", "red", "red_blue", "red_blue_resolution"] = "red_blue_resolution"
    """Who is heard before the points: nobody; a critic; an advocate too; and which of the critic's
    points stand."""
    separate: Annotated[bool, AbsentByDefault] = False
    """Whether the judge's own answer, the critic and the advocate are requests of their own, before
    one that settles and gives the points."""
    examples: tuple[Example, ...] = ()
    """Graded examples: tables with `question`, `reasoning`, `points` and `assessment`."""
    graded_examples: Annotated[int, Field(ge=0, le=100), AbsentByDefault] = 0
    """So many of the best graded rollouts of the stage's `graded` are shown as examples too, each
    with the mean of its points: never one of the same question."""
    order: Literal["fixed", "permuted", "per_vote"] = "permuted"
    """Order of the examples: as written; for each question another one, by the hash of its id, so
    that no example is always the last; or for each vote another one, by the study's seed, so that
    the mean over votes does not hang on the order."""
    scale: PointScale = PointScale(max=10)  # type: ignore[misc, assignment]  # a setting here
    """The points that it can give: `{ min = 0, max = 10 }`."""
    template: str = "qualitative"
    """Prompt template: the name of a shipped one, or a path. Default: `qualitative`, or
    `qualitative_resolution` with `separate`, where `{{ heard }}` is what was said before."""
    answer_prompt: Annotated[str | None, AbsentByDefault] = None
    """With `separate`, the template of the judge's own answer; default: `qualitative_answer`."""
    red_prompt: Annotated[str | None, AbsentByDefault] = None
    """With `separate`, the template of the critic; default: `qualitative_red`."""
    blue_prompt: Annotated[str | None, AbsentByDefault] = None
    """With `separate`, the template of the advocate, where `{{ critique }}` is what the critic
    says; default: `qualitative_blue`."""

    @classmethod
    def usual_templates(cls, given: Mapping[str, Any]) -> Mapping[str, str]:
        if given.get("separate") is not True:
            return {}
        sides, self_answer = given.get("sides", "red_blue_resolution"), given.get("self_answer")
        fields = [f"{name}_prompt" for name in _requests(sides, self_answer is not False)]
        return {"template": "qualitative_resolution"} | {f: _SEPARATE[f] for f in fields}

    @model_validator(mode="after")
    def _has_parts(self) -> Self:
        wanted = _requests(self.sides, self.self_answer) if self.separate else ()
        if self.separate and not wanted:
            raise ValueError("nothing to separate: set `sides` or `self_answer`, or leave it out")
        for field in _SEPARATE:
            if getattr(self, field) is not None and field.removesuffix("_prompt") not in wanted:
                raise ValueError(f"`{field}` is for a request that these settings do not make")
        return self

    def expected_requests(self) -> int:
        return 1 + (len(_requests(self.sides, self.self_answer)) if self.separate else 0)

    def graded_shown(self) -> int:
        return self.graded_examples

    def verdict_scale(self) -> Scale:
        return Points("points", low=self.scale.min, high=self.scale.max)

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        return self._filled(row, template, self._order(row))

    def steps(self, row: Mapping[str, Any], asking: Asking) -> Steps:
        order = self._order(row)
        if self.order == "per_vote":
            name, count = str(row["question_id"]), len(order)
            order = asking.draw(self.kind, name, asking.vote).shuffled(range(count))
        if self.separate:
            return self._apart(row, asking, order)
        messages = tuple(self._filled(row, asking.templates["judge"], order))
        return one_request(self.kind, messages, asking.body)

    def _apart(self, row: Mapping[str, Any], asking: Asking, order: Sequence[int]) -> Steps:
        """Own answer and critic side by side, then the advocate, then the judge."""
        wanted = _requests(self.sides, self.self_answer)
        values = {
            "question": row["question"],
            "reasoning": "\n\n".join(steps_of(row)),
            "rubric": self.rubric,
        }
        replies, heard = dict[str, Reply](), dict[str, str]()
        for names in (("answer", "red"), ("blue",)):
            asked = [name for name in names if name in wanted]
            if not asked:
                continue
            filled = {**values, "critique": heard.get("red", "")}
            built_on = tuple(replies[name] for name in ("red",) if name in replies)
            found = yield [
                read_reply(
                    Ask(
                        name,
                        asking.templates[f"{name}_prompt"].fill(filled),
                        built_on=built_on,
                        reads=said,
                        trainable=False,
                    )
                )
                for name in asked
            ]
            for name, (reply, text) in zip(asked, found, strict=True):
                if text is None:  # without one side, the points would be those of another judge
                    what = f"{UNREADABLE}: the request `{name}` had no text"
                    return replace(reply, failure=reply.failure or what)
                replies[name], heard[name] = reply, text
        spoken = "\n\n".join(f"{_HEADINGS[name]}:\n{heard[name]}" for name in wanted)
        messages = self._filled(row, asking.templates["judge"], order, heard=spoken)
        last = Ask(self.kind, messages, asking.body, built_on=tuple(replies.values()))
        (reply,) = yield [last]
        return reply

    def _filled(
        self, row: Mapping[str, Any], template: Template, order: Sequence[int], heard: str = ""
    ) -> tuple[Message, ...]:
        tasks = [*([_SELF_ANSWER] if self.self_answer else []), *_SIDES[self.sides]]
        if self.separate:
            tasks = [_SETTLE] if self.sides == "red_blue_resolution" else []
        tasks.append("Say how far the reasoning meets each part of the rubric.")
        values = {
            "question": row["question"],
            "reasoning": "\n\n".join(steps_of(row)),
            "rubric": self.rubric,
            "graded": self._shown(row, order),
            "heard": heard,
            "tasks": "\n".join(f"{number}. {task}" for number, task in enumerate(tasks, 1)),
            "allowed": self.scale.words(),
            "max": f"{self.scale.max:g}",
        }
        return tuple(template.fill(values))

    def schema_for(self, row: Mapping[str, Any]) -> Mapping[str, Json]:
        return self.scale.in_schema(self.reply_schema)

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"points": read_points(reply, self.scale)["points"]}

    def verdict_without_model(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return None if steps_of(row) else {"points": float(self.scale.min)}

    def _examples(self, row: Mapping[str, Any]) -> Sequence[Example]:
        """Those of the settings, then the best graded of other questions."""
        graded: Sequence[Graded] = row.get("graded") or ()
        others = [one for one in graded if one.question_id != row["question_id"]]
        best = [
            Example(question=one.question, reasoning=one.reasoning, points=round(one.points, 1))
            for one in others[: self.graded_examples]
        ]
        return [*self.examples, *best]

    def _order(self, row: Mapping[str, Any]) -> Sequence[int]:
        """The numbers of the examples in the order for a question."""
        name, order = str(row["question_id"]), list(range(len(self._examples(row))))
        if self.order == "permuted":
            order.sort(key=lambda n: hashlib.sha256(f"{name}\n{n}".encode()).hexdigest())
        return order

    def _shown(self, row: Mapping[str, Any], order: Sequence[int]) -> str:
        """The examples in an order."""
        examples, parts = self._examples(row), []
        for number in order:
            one = examples[number]
            texts = [f"Question:\n{one.question}", f"Reasoning:\n{one.reasoning}", one.assessment]
            points = f"<points>{one.points:g} out of {self.scale.max:g}</points>"
            parts.append("\n\n".join(text for text in (*texts, points) if text))
        return "\n\n---\n\n".join(parts) or "(none)"


def _requests(sides: str, self_answer: bool) -> tuple[str, ...]:
    """The requests before the judge's."""
    names = {"none": (), "red": ("red",)}.get(sides, ("red", "blue"))
    return (*(("answer",) if self_answer else ()), *names)
