"""Few-shot prompting: examples stand before each question, and no weights are trained."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.few_shot import PLACEHOLDERS_OF_EXAMPLE, FewShotPrompt, ShownExample, Turn
from mbt_cli.core.random_draws import Draws
from mbt_cli.core.templates import EXAMPLES, placeholders_in
from mbt_cli.interfaces import PromptTrainer


class FewShot(PromptTrainer):
    """Few-shot prompting: the model sees examples before each question, and keeps its weights."""

    learns_from: ClassVar[Mapping[str, str]] = {"data": "the stages with the examples"}

    kind: Literal["few_shot"] = "few_shot"
    """Names the method in a preset."""
    shots: int = Field(default=4, ge=1)
    """Examples before a question, each of another question."""
    order: Literal["random", "best_first", "best_last"] = "random"
    """`random`: examples and their order are drawn by the seed. The others show the best of what
    `pick` picks, by its metric, from the best to the worst or the other way."""
    place: Literal["turns", "system"] = "turns"
    """As turns of user and assistant before the question, or in the system prompt."""
    system: str = "Here are questions with good replies.\n\n{{ examples }}"
    """The text that `place = "system"` adds to the system prompt."""
    example: str = "{{ prompt }}\n\nReply:\n{{ reply }}"
    """Form of an example there; `{{ prompt }}` is the question in the stage's `prompt`."""
    thinking: bool = False
    """Whether a reply has its thinking before it, as `<think>` block."""
    seed: int | None = None
    """Seed of the draw; by default that of the study."""

    def own_problems(self) -> Iterator[tuple[str, str]]:
        for field, known in (("system", {EXAMPLES}), ("example", PLACEHOLDERS_OF_EXAMPLE)):
            if placeholders_in(getattr(self, field)) != known:
                names = " and ".join(f"`{{{{ {name} }}}}`" for name in sorted(known))
                yield f"recipe.{field}", f"has other placeholders than {names}, which it needs"

    def ranks_by(self) -> str | None:
        return "order" if self.order != "random" else None

    def chosen(self, rows: pl.DataFrame, seed: int) -> pl.DataFrame:
        seed = seed if self.seed is None else self.seed
        order = list(range(rows.height))
        if self.order == "random":
            order = Draws(seed, "few_shot").shuffled(order)
        ranked = rows[order].with_columns(rank=pl.int_range(rows.height))
        # one more than is shown, for a question that is an example itself
        return ranked.unique("question", keep="first", maintain_order=True).head(self.shots + 1)

    def count_problem(self, found: int) -> str | None:
        return f"{found} examples for `shots = {self.shots}`" if found < self.shots else None

    def prompt_of(self, rows: Sequence[Mapping[str, Any]]) -> FewShotPrompt:
        return FewShotPrompt(
            count=self.shots,
            first_is_last=self.order == "best_last",
            system=self.system if self.place == "system" else None,
            form=self.example if self.place == "system" else "",
            examples=tuple(map(self._example, rows)),
        )

    def _example(self, row: Mapping[str, Any]) -> ShownExample:
        thinking, text = row["thinking"], row["completion"]
        if self.thinking and thinking:
            text = f"<think>\n{thinking}\n</think>\n\n{text}"
        asked = [Turn(**turn) for turn in row["messages"] if turn["role"] != "system"]
        keys: Collection[str] = ("source", "question_id", "sample", "trace_id")
        reply = Turn(role="assistant", content=text)
        return ShownExample(**{key: row[key] for key in keys}, turns=(*asked, reply))
