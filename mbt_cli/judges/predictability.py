"""Mutual predictability: whether a policy's answers help to predict other answers."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.answered import Answered, Others
from mbt_cli.core.chat import Json, Message, Wants
from mbt_cli.core.judge_scales import LIKELIHOOD, Points, Scale
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.templates import Template
from mbt_cli.core.traces import outside_thinking
from mbt_cli.interfaces import Judge
from mbt_cli.judges.scored_texts import PLACE, SCORE, scored_text

_CONSISTENT, _INCONSISTENT = "Yes", "No"
_CONSISTENCY = "judge_consistency"


class Predictability(Judge):
    """The log-probability of an answer, with answers to other questions before it and without.

    The judge model is the predictor. For each rollout, in each trial, it is given a target
    question and answers of the judged policy to other questions as context, and the target answer
    is scored: its log-probability given the context, minus that without (`uplift`); only the first
    (`conditional_only`); or the log-probability of Yes minus that of No as its reply to whether the
    answer is consistent with the context (`judge_consistency`). Each text that is scored has a row;
    the sum of `sign * logprob` over the `texts` rows of a trial is its value. Trials that cannot be
    drawn are left out: no other question has an answer, the policy to be predicted would be the
    predictor, or context and target would be the same answer to the same question.
    """

    quantity: ClassVar[str] = LIKELIHOOD
    scale: ClassVar[Scale] = Points("logprob", low=-math.inf, high=0.0)
    placeholders: ClassVar[frozenset[str]] = frozenset(
        {"behavior", "context", "question", "answer"}
    )
    columns: ClassVar[Mapping[str, pl.DataType]] = {
        **PLACE,
        "scoring": pl.String(),
        "target_question": pl.String(),  # id
        "target_policy": pl.String(),  # model whose answer is predicted
        **SCORE,
    }
    reply_schema: ClassVar[Mapping[str, Json]] = {}

    kind: Literal["predictability"] = "predictability"
    predicted: Literal["evaluated", "random_other", "random_any"] = "evaluated"
    """Whose answer is predicted: the judged policy's, that of one of the policies in `peers` of the
    stage, or that of any of them; never the predictor's own."""
    target_question: Literal["evaluated", "random_other", "random_any"] = "evaluated"
    """Which question's answer is predicted: that of the rollout, another one, or any."""
    context_questions: Literal["evaluated", "random_other"] = "random_other"
    """The questions of the context: that of the rollout, for other policies' answers to the same
    question; or others, drawn at random. Their answers are the judged policy's."""
    context_count: Annotated[int, Field(ge=1, le=1000)] = 3
    """With `random_other`, how many questions the context has; fewer if there are fewer."""
    scoring: Literal["uplift", "conditional_only", "judge_consistency"] = "uplift"
    """What is scored."""
    trials: Annotated[int, Field(ge=1, le=1000)] = 3
    """Trials of each rollout, whose mean is its value."""
    behavior_examples: Annotated[int, Field(ge=0, le=1000)] = 0
    """Further answers of the predicted policy, to other questions, that the predictor always
    sees, with the context and without."""
    text: Literal["answer", "reply"] = "answer"
    """What counts as an answer: the answer that the benchmark finds in a reply, or the whole reply
    outside its thinking."""
    template: str = "predictability"
    """Prompt template: the name of a shipped one, or a path. Default: `predictability`, or
    `predictability_consistency` with `judge_consistency`."""

    @classmethod
    def usual_templates(cls, given: Mapping[str, Any]) -> Mapping[str, str]:
        is_judged = given.get("scoring") == _CONSISTENCY
        return {"template": "predictability_consistency"} if is_judged else {}

    def wants(self) -> Wants:
        return "likelihood"

    def reads_others(self) -> bool:
        return True

    def refuses(self, judge_model: str, policy: str | None, *, has_peers: bool) -> str | None:
        if self.predicted != "evaluated" and not has_peers:
            return (
                f'`predicted = "{self.predicted}"` needs `peers`: rollouts of other policies, such '
                'as `peers = { stage = "replies", where = { model = ["other"] } }`'
            )
        if self.predicted == "evaluated" and judge_model == policy:
            return f"`{policy}` would predict its own answers: name another `judge_model`"
        return None

    def views(self, row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        others: Others = row["others"]
        found: list[Mapping[str, Any]] = []
        for trial in range(self.trials):
            draw = others.draw(self.kind, row["question_id"], row["sample"], trial)
            drawn = self._drawn(row, others, draw)
            if drawn is None:
                continue
            parts = self._parts(drawn["context"], drawn["target"])
            for number, (sign, context, text) in enumerate(parts):
                found.append(
                    {
                        "question_id": row["question_id"],
                        "sample": row["sample"],
                        "step": 2 * trial + number,
                        "trial": trial,
                        "texts": len(parts),
                        "sign": sign,
                        **drawn,
                        "context": context,
                        "scored": text,
                    }
                )
        return found

    def prompt(self, row: Mapping[str, Any], template: Template) -> Sequence[Message]:
        target: Answered = row["target"]
        values = {
            "behavior": self._shown("Answers of the respondent to be predicted", row["examples"]),
            "context": self._shown("Answers to go by", row["context"]),
            "question": target.question,
            "answer": self._text(target),
        }
        reply: Message = {"role": "assistant", "content": row["scored"]}
        return [*template.fill(values), reply]

    def parse(self, reply: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        target: Answered = row["target"]
        return {
            **scored_text(reply, row),
            "scoring": self.scoring,
            "target_question": target.question_id,
            "target_policy": target.policy,
        }

    def _parts(
        self, context: Sequence[Answered], target: Answered
    ) -> Sequence[tuple[int, Sequence[Answered], str]]:
        """Sign, context and text of each part of a trial."""
        if self.scoring == _CONSISTENCY:
            return [(1, context, _CONSISTENT), (-1, context, _INCONSISTENT)]
        given = (1, context, self._text(target))
        return [given, (-1, (), self._text(target))] if self.scoring == "uplift" else [given]

    def _drawn(
        self, row: Mapping[str, Any], others: Others, draw: Draws
    ) -> Mapping[str, Any] | None:
        """Target, context and examples of a trial; None if there are none."""
        own_id, own = row["question_id"], self._own(row, others)
        if not self._text(own):
            return None
        evaluated = others.once("evaluated", lambda: self._by_question(others.evaluated))
        targets = {
            "evaluated": [own_id],
            "random_other": [name for name in evaluated if name != own_id],
            "random_any": list(evaluated),
        }[self.target_question]
        if not targets:
            return None
        target_id = draw.pick(targets)
        target = self._target(own, others, target_id, draw)
        if target is None:
            return None
        context = [own]
        taken = {target_id, own_id}
        if self.context_questions == "random_other":
            names = draw.shuffled([name for name in evaluated if name not in taken])
            context = [draw.pick(evaluated[name]) for name in names[: self.context_count]]
        elif target_id == own_id and self._text(target) == self._text(own):
            return None
        if not context:
            return None
        seen = taken | {one.question_id for one in context}
        return {
            "target": target,
            "context": context,
            "examples": self._examples(others, target, seen, draw),
        }

    def _own(self, row: Mapping[str, Any], others: Others) -> Answered:
        """The judged rollout."""
        policy = others.evaluated[0].policy if others.evaluated else ""
        reply = outside_thinking(row["reply"] or "").strip()
        return Answered(row["question_id"], policy, row["question"], row["answer"] or "", reply)

    def _target(
        self, own: Answered, others: Others, question_id: str, draw: Draws
    ) -> Answered | None:
        """The answer to be predicted."""
        answers = others.once("targets", lambda: self._targets(others)).get(question_id)
        if not answers:
            return None
        policy = draw.pick(sorted(answers))
        is_own = policy == own.policy and question_id == own.question_id
        return own if is_own else draw.pick(answers[policy])

    def _examples(
        self, others: Others, target: Answered, seen: set[str], draw: Draws
    ) -> Sequence[Answered]:
        if not self.behavior_examples:
            return ()
        policy = target.policy
        known = others.once(
            f"answers of {policy}",
            lambda: self._by_question(
                [one for one in (*others.evaluated, *others.peers) if one.policy == policy]
            ),
        )
        names = draw.shuffled([name for name in known if name not in seen])
        return [draw.pick(known[name]) for name in names[: self.behavior_examples]]

    def _targets(self, others: Others) -> Mapping[str, Mapping[str, Sequence[Answered]]]:
        """What may be predicted, by question and policy."""
        pool = {
            "evaluated": others.evaluated,
            "random_other": others.peers,
            "random_any": (*others.evaluated, *others.peers),
        }[self.predicted]
        found: dict[str, dict[str, list[Answered]]] = {}
        for one in pool:
            if one.policy != others.judge_model and self._text(one):
                found.setdefault(one.question_id, {}).setdefault(one.policy, []).append(one)
        return found

    def _by_question(self, answers: Sequence[Answered]) -> Mapping[str, Sequence[Answered]]:
        """Those with a text, by question, in the order of the ids."""
        found = defaultdict(list)
        for one in answers:
            if self._text(one):
                found[one.question_id].append(one)
        return dict(sorted(found.items()))

    def _text(self, one: Answered) -> str:
        return (one.answer if self.text == "answer" else one.reply).strip()

    def _shown(self, heading: str, answers: Sequence[Answered]) -> str:
        """A block of questions with answers; empty for none."""
        blocks = [f"Question: {one.question}\nAnswer: {self._text(one)}" for one in answers]
        return "\n\n".join([f"{heading}:", *blocks]) + "\n\n" if blocks else ""
