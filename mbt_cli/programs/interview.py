"""Bootstrap interview: auxiliary questions first, then the question, in one conversation."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mbt_cli.core.chat import Message, Reply
from mbt_cli.core.programs import Ask, Problem, Steps, read_reply
from mbt_cli.interfaces import Program
from mbt_cli.programs.pieces import all_tags, assistant, last_tag, said, task_text, user

Instruction = Literal["curriculum", "contradiction_seeking", "synergistic", "socratic"]
_INSTRUCTIONS: Mapping[str, str] = {
    "curriculum": "Begin with something easy and let each question demand more than the last.",
    "contradiction_seeking": "Look for questions whose answers may contradict each other.",
    "synergistic": "Connect the task with fields that it does not mention.",
    "socratic": "Ask for the assumptions that an answer would rest on, and test them.",
}
_QUESTIONS = (
    "What would you have to know before you could trust an answer to a hard question?",
    "When you hold a belief, what observation would make you give it up?",
    "How do you notice that you argue for a conclusion instead of looking for one?",
    "What is the strongest case against a view that most experts share, and when does it matter?",
    "How should the confidence that you state depend on how often you have been wrong?",
)


class Interview(Program):
    """Ask the model auxiliary questions, and the stage's question after them.

    1. `auxiliary` questions, chosen by `selection`:
       - `fixed_sequence`: the first of `questions`, in their order;
       - `iid`: drawn from `same_domain`;
       - `stationary_ood`: drawn from `other_domains`, first the domain, then the question;
       - `llm_preset`: one request (`ask`) writes all of them;
       - `llm_adaptive`: one request writes the next of them, with the conversation in view.
    2. `interview`: the model answers each in one conversation.
    3. `answer`: the stage's prompt, at the end of that conversation.

    Draws take no question twice, nor the question of the rollout itself. Questions and answers that
    are unread are left out.
    """

    kind: Literal["interview"] = "interview"
    """Names the program in a manifest."""
    auxiliary: int = Field(default=3, ge=0, le=100)
    """Auxiliary questions before the main one."""
    selection: Literal["fixed_sequence", "iid", "stationary_ood", "llm_preset", "llm_adaptive"] = (
        "fixed_sequence"
    )
    """How the auxiliary questions are chosen."""
    questions: tuple[str, ...] = _QUESTIONS
    """Questions of `fixed_sequence`; by default five about how to find out what is true."""
    same_domain: tuple[str, ...] = ()
    """Questions of the same domain, for `iid`."""
    other_domains: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Domain to its questions, for `stationary_ood`."""
    instructions: tuple[Instruction, ...] = ("curriculum",)
    """What a model that writes the questions is told to aim at: `curriculum` (from easy to hard),
    `contradiction_seeking`, `synergistic` (across fields) or `socratic` (assumptions)."""
    ask_prompt: str = "interview_ask"
    """Template that asks for each question in `<question>...</question>`; `{{ task }}`,
    `{{ count }}`, `{{ instructions }}`, `{{ interview }}` (the conversation so far)."""

    prompts: ClassVar[Mapping[str, frozenset[str]]] = {
        "ask_prompt": frozenset({"task", "count", "instructions", "interview"})
    }
    roles: ClassVar[Mapping[str, str]] = {"interviewer": "writes the auxiliary questions"}

    @model_validator(mode="after")
    def _check_questions(self) -> "Interview":
        pools = {
            "fixed_sequence": ("questions", len(self.questions)),
            "iid": ("same_domain", len(self.same_domain)),
            "stationary_ood": ("other_domains", sum(map(len, self.other_domains.values()))),
        }
        field, count = pools.get(self.selection, ("", self.auxiliary))
        if count < self.auxiliary:
            raise ValueError(
                f"`auxiliary` is {self.auxiliary}, and `{field}` has {count} for "
                f"`{self.selection}`: add questions to it"
            )
        if self._is_written and not self.instructions:
            raise ValueError(f"`{self.selection}` needs one of `instructions`")
        return self

    @property
    def _is_written(self) -> bool:
        return self.selection in ("llm_preset", "llm_adaptive")

    def expected_requests(self) -> int:
        written = {"llm_preset": min(1, self.auxiliary), "llm_adaptive": self.auxiliary}
        return self.auxiliary + 1 + written.get(self.selection, 0)

    def run(self, problem: Problem) -> Steps:
        system = [turn for turn in problem.messages if turn["role"] == "system"]
        rest = [turn for turn in problem.messages if turn["role"] != "system"]
        held: list[Message] = []
        replies: list[Reply] = []
        chosen, source = self._drawn(problem), None
        if self.selection == "llm_preset" and self.auxiliary:
            source, found = yield from read_reply(self._ask(problem, self.auxiliary, held, replies))
            chosen = (found or [])[: self.auxiliary]
        for number in range(self.auxiliary):
            if self.selection == "llm_adaptive":
                source, written = yield from read_reply(self._ask(problem, 1, held, replies))
                question = written
            else:
                question = chosen[number] if number < len(chosen) else None
            if question is None:
                continue
            turns = (*system, *held, user(question))
            built_on = (*replies, *([source] if source is not None else []))
            ask = Ask("interview", turns, built_on=built_on, reads=said)
            reply, found = yield from read_reply(ask)
            if found is not None:
                held += [user(question), assistant(reply)]
                replies.append(reply)
        ask = Ask("answer", (*system, *held, *rest), built_on=tuple(replies), reads=said)
        answer, _ = yield from read_reply(ask)
        return answer

    def _drawn(self, problem: Problem) -> Sequence[str]:
        """The questions that are known before the interview."""
        if self.selection == "fixed_sequence":
            return self.questions[: self.auxiliary]
        draws, own = problem.draw("questions"), str(problem.question["question"]).strip()
        if self.selection == "iid":
            pool = [question for question in self.same_domain if question.strip() != own]
            return draws.shuffled(pool)[: self.auxiliary]
        left = {name: list(questions) for name, questions in sorted(self.other_domains.items())}
        found: list[str] = []
        while self.selection == "stationary_ood" and len(found) < self.auxiliary:
            left = {
                name: [one for one in questions if one.strip() != own and one not in found]
                for name, questions in left.items()
            }
            if not (names := [name for name, questions in left.items() if questions]):
                break
            found.append(draws.pick(left[draws.pick(names)]))
        return found

    def _ask(
        self, problem: Problem, count: int, held: Sequence[Message], replies: Sequence[Reply]
    ) -> Ask:
        turns = (f"{turn['role'].capitalize()}: {turn['content']}" for turn in held)
        messages = problem.filled(
            "ask_prompt",
            task=task_text(problem),
            count=str(count),
            instructions="\n".join(f"- {_INSTRUCTIONS[name]}" for name in self.instructions),
            interview="\n\n".join(turns) or "(nothing has been asked yet)",
        )
        reads = partial(
            all_tags if self.selection == "llm_preset" else last_question, tag="question"
        )
        return Ask("ask", messages, {}, "interviewer", tuple(replies), reads, trainable=False)


def last_question(text: str, tag: str) -> str | None:
    """The last question in a reply; None if it is empty or not there."""
    return last_tag(text, tag) or None
