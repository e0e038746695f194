"""Examples that stand before each question, in place of trained weights."""

import polars as pl

from mbt_cli.core.few_shot import FEW_SHOT
from mbt_cli.core.lineage_notes import FUNNEL, TRAINING
from mbt_cli.core.number_text import counted
from mbt_cli.errors import StageError
from mbt_cli.interfaces import PromptTrainer
from mbt_cli.stages.base import Work
from mbt_cli.stages.pick import KEY, PICK
from mbt_cli.stages.training_data import EXAMPLE_KEY, Examples, question_key
from mbt_cli.store.disk import write_atomically

_SHOWN = "shown"
"""The note of a training with the rows that its prompt shows."""


def write_few_shot(
    work: Work, trainer: PromptTrainer, examples: Examples, picked: pl.DataFrame | None
) -> None:
    """Choose examples and write them into the artifact's files; the notes name them.

    Args:
        work: The running cell.
        trainer: The method.
        examples: The rows that can be chosen.
        picked: `KEY` of the rows that `pick` leaves, the best first; None: there is no order.

    Raises:
        StageError: There are too few.
    """
    usable = examples.index.filter(pl.col("dropped").is_null())
    usable = usable.with_columns(question=question_key())
    if picked is not None:
        usable = picked.join(usable, on=[*KEY], how="inner", maintain_order="left")
    chosen = trainer.chosen(usable, work.resolution.seed)
    if what := trainer.count_problem(chosen.height):
        questions = counted(usable["question"].n_unique(), "question")
        raise StageError(
            f"`{work.resolution.address}`: {what}: the rows are about {questions}",
            hint="lower it, widen `pick` or `keep`, or sample more questions",
        )
    keys = list(EXAMPLE_KEY)
    only = Examples(
        work, chosen.select(examples.index.columns).sort(keys), examples.cells, examples.target
    )
    work.journal.mkdir(parents=True, exist_ok=True)
    texts = pl.concat(only.batches(work.journal))
    ranked = texts.join(chosen.select(*keys, "rank"), on=keys).sort("rank")
    prompt = trainer.prompt_of(ranked.to_dicts())
    write_atomically(work.files / FEW_SHOT, prompt.model_dump_json(indent=2).encode())
    shown = list(prompt.named())
    work.result.notes[TRAINING] = {"method": trainer.kind, **trainer.model_dump(exclude={"kind"})}
    work.result.notes[TRAINING] |= {"examples": len(shown), _SHOWN: shown}
    own = work.result.notes.get(PICK)
    work.result.notes[FUNNEL] = {
        "rows": examples.index.height,
        **({"picked": own["picked"]} if isinstance(own, dict) else {}),
        "chosen": usable.height,
        "shown": len(shown),
    }
