"""Grades of sampled replies: their rewards, which of them were cut, and a few to read."""

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.cpus import usable_cpus
from mbt_cli.core.questions import Question
from mbt_cli.core.training_job import SAMPLED_REPLIES, TrainingJob, log_lines
from mbt_cli.core.verifier import Verifier, plugin_from
from mbt_cli.verifiers.rewards import REWARDS, VERIFIED_REWARDS, GradedReply
from mbt_cli.verifiers.text import extract_answer

RewardFunction = Callable[..., list[float | None]]

_SHOWN_ERRORS = 5
_KEPT = "sampled_replies.jsonl"
_COLUMNS = ("source", "question_id", "references", "opens_thinking", "metadata")
"""Columns of a question that the rewards read."""


@dataclass(frozen=True, slots=True)
class Grade:
    """One reply with its rewards.

    Args:
        truncated: Whether it was cut at the token limit, so that every reward is 0.
        rewards: Reward to value; None if a reward failed.
        error: Why it failed.
    """

    source: str
    question_id: str
    text: str
    tokens: int
    truncated: bool
    rewards: Mapping[str, float] | None
    error: str | None = None


@dataclass
class Grader:
    """Grades replies by all rewards at once, as a score stage would.

    Args:
        tokenizer: Decodes replies.
        weights: Reward to its weight.
        words: Words from which on the reward `length` is 0.
        verifiers: Source of a question to its verifier.
        extractions: Source of a question to how its benchmark finds an answer, if in its own way.
        ends: Tokens that end a reply; one that ends in another was cut.
    """

    tokenizer: Any
    weights: Mapping[str, float]
    words: int
    verifiers: Mapping[str, Verifier]
    extractions: Mapping[str, Callable[[str], str]]
    ends: frozenset[int] = frozenset()
    grades: Sequence[Grade] = ()
    """Of the last replies."""
    _graded: Any = None
    _errors: int = 0

    def __post_init__(self) -> None:
        # programs run in a sandbox, several side by side; other rules would only wait in threads
        runs_programs = any(v.runs_programs for v in self.verifiers.values())
        self._threads = ThreadPoolExecutor(usable_cpus() if runs_programs else 1)

    @classmethod
    def of(cls, job: TrainingJob, tokenizer: Any) -> "Grader":
        """The grader of a job, with its verifiers ready."""
        verifiers = {source: plugin_from(found) for source, found in job.verifiers.items()}
        weights, words = job.method["rewards"], job.method["reward_words"]
        if VERIFIED_REWARDS & weights.keys():
            for verifier in verifiers.values():
                verifier.prepare()
        extractions = {s: plugin_from(found).extract_answer for s, found in job.extractions.items()}
        return cls(tokenizer, weights, words, verifiers, extractions)

    def function(self, name: str) -> RewardFunction:
        """One reward as TRL calls it: a number for each reply, None where a reward failed."""

        def rewarded(completion_ids: Sequence[Sequence[int]], **given: Any) -> list[float | None]:
            if self._graded is not completion_ids:  # TRL asks for each reward of the same replies
                nothing = [None] * len(completion_ids)  # a folder of mbt 0.2 has no metadata
                columns = (given.get(column, nothing) for column in _COLUMNS)
                self.grades = list(self._threads.map(self.grade, completion_ids, *columns))
                self._graded = completion_ids
            return [None if g.rewards is None else g.rewards[name] for g in self.grades]

        rewarded.__name__ = name
        return rewarded

    def grade(
        self,
        ids: Sequence[int],
        source: str,
        question_id: str,
        references: Sequence[str],
        is_open: bool,
        metadata: str | None = None,
    ) -> Grade:
        """Grade one reply.

        Args:
            ids: Its tokens.
            source: Address of the question's cell.
            question_id: Id of the question.
            references: Gold answer and aliases.
            is_open: Whether the prompt has opened the think block.
            metadata: JSON of the question's other fields, if a verifier reads them.
        """
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        truncated = not ids or ids[-1] not in self.ends
        rewards: dict[str, float] | None = dict.fromkeys(self.weights, 0.0)
        error = None
        try:
            if not truncated:
                extract = self.extractions.get(source, extract_answer)
                gold, *aliases = references
                more = orjson.loads(metadata or "{}")
                question = Question(question_id, "", gold, tuple(aliases), metadata=more)
                reply = GradedReply(
                    text, extract(text), question, self.verifiers[source], is_open, self.words
                )
                rewards = {name: float(REWARDS[name](reply)) for name in self.weights}
        except Exception as failed:  # noqa: BLE001 - one reply must not end a training of days
            rewards, error = None, f"{type(failed).__name__}: {failed}"
            self._errors += 1
            if self._errors <= _SHOWN_ERRORS:
                print(f"no reward for a reply to {question_id}:", file=sys.stderr)  # noqa: T201
                traceback.print_exc(file=sys.stderr)
        return Grade(source, question_id, text, len(ids), truncated, rewards, error)


class KeptReplies:
    """A few replies of some rounds, for people to read.

    They are written into the training folder as they come, and into the artifact at the end. Only
    replies of the first process are kept.
    """

    def __init__(self, job: TrainingJob, grader: Grader, round_steps: int) -> None:
        self._grader = grader
        self._number, self._every = job.method["kept_replies"], job.method["kept_replies_every"]
        self._round_steps = round_steps
        self._file = Path(job.folder) / _KEPT
        self._target = Path(job.files) / SAMPLED_REPLIES
        self._last_step: int | None = None

    def add(self, step: int) -> None:
        """Keep some of the replies that the optimizer step `step` is the first to train on."""
        if self._last_step is None and self._file.is_file():
            # a killed process went further than the checkpoint
            before = [line for line in log_lines(self._file.read_bytes()) if line["step"] < step]
            partial = self._file.with_suffix(".partial")
            partial.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in before))
            partial.replace(self._file)
        before_round = max(step - 1 - self._round_steps, -1)
        is_due = step == 1 or (step - 1) // self._every > before_round // self._every
        is_new, self._last_step = step != self._last_step, step
        if not is_due or not is_new:
            return
        grades, number = self._grader.grades, min(self._number, len(self._grader.grades))
        chosen = [grades[place * len(grades) // number] for place in range(number)]
        with self._file.open("ab") as file:
            for grade in chosen:
                line = {"step": step, **{name: getattr(grade, name) for name in Grade.__slots__}}
                file.write(orjson.dumps(line) + b"\n")

    def write(self) -> None:
        """Write the artifact's table: one column for each reward, and their weighted sum."""
        if not self._file.is_file():
            return
        weights = self._grader.weights
        named = {name: f"reward_{name}" for name in weights}
        schema = rows.SAMPLED_REPLIES | dict.fromkeys(["reward", *named.values()], pl.Float64())
        table = []
        for line in log_lines(self._file.read_bytes()):
            found = line.pop("rewards")
            own = {} if found is None else {named[name]: value for name, value in found.items()}
            total = None if found is None else sum(weights[name] * found[name] for name in weights)
            table.append({**line, "reward": total, **own})
        pl.DataFrame(table, schema=schema).write_parquet(self._target)
