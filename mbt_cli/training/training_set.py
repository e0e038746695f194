"""The exact rows of a training: rendered, counted, written down before the first step."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.training_job import TRAINING_SET, TrainingJob
from mbt_cli.training.mask import UntrainableError, example_of
from mbt_cli.training.models import ModelTokenizer
from mbt_cli.training.problems import TrainingError

_TOKENS = "tokens.parquet"
_SAMPLE = "sample.txt"


def training_set(job: TrainingJob, tokenizer: ModelTokenizer) -> pl.DataFrame:
    """input_ids and labels of every row that is trained, in the order of the examples.

    Made once: a run that is resumed reads what the first one wrote, so that a template that knows
    the date cannot change the data in between. The text of all rows goes into the artifact.

    Raises:
        ChatTemplateError: The template cannot be trained with.
        TrainingError: No row is left.
    """
    folder, files = Path(job.folder), Path(job.files)
    tokens = folder / _TOKENS
    if not tokens.is_file():
        _make(job, tokenizer, folder)
    for name in (TRAINING_SET, _SAMPLE):
        shutil.copyfile(folder / name, files / name)
    found = pl.read_parquet(tokens)
    if found.is_empty():
        dropped = pl.read_parquet(folder / TRAINING_SET)["dropped"]
        told = dropped.str.split(":").list.first()
        reasons = "; ".join(f"{n} x {why}" for why, n in told.value_counts(sort=True).rows())
        lengths = dropped.str.extract(r"^over_long: (\d+)").cast(pl.Int64).drop_nulls().to_list()
        shortest = f"; the shortest has {min(lengths)} tokens" if lengths else ""
        raise TrainingError(
            f"no row is left to train on ({reasons}{shortest})",
            f"raise `recipe.max_length`, or look at {folder / TRAINING_SET}",
        )
    return found


def token_counts(job: TrainingJob) -> dict[str, int]:
    """Rows that are trained and dropped, and their tokens, for the lineage."""
    told = pl.read_parquet(Path(job.folder) / TRAINING_SET)
    trained = told.filter(pl.col("dropped").is_null())
    reasons = told["dropped"].drop_nulls().str.split(":").list.first().value_counts()
    return {
        "rows": trained.height,
        "row_tokens": int(trained["tokens"].sum()),
        "trained_tokens": int(trained["trained_tokens"].sum()),
        **{f"dropped_{reason.replace(' ', '_')}": n for reason, n in reasons.rows()},
    }


def _make(job: TrainingJob, tokenizer: ModelTokenizer, folder: Path) -> None:
    texts: list[dict[str, Any]] = []
    tokens: list[dict[str, list[int]]] = []
    for row in pl.read_parquet(job.examples).iter_rows(named=True):
        told = {name: row[name] for name in ("source", "question_id", "sample", "trace_id")}
        told["dropped"] = row["dropped"]
        if row["dropped"] is None:
            try:
                example = example_of(
                    tokenizer, row["messages"], row["completion"], max_length=job.recipe.max_length
                )
            except UntrainableError as error:
                told["dropped"] = str(error)
            else:
                told |= {
                    "prompt": example.prompt,
                    "completion": example.completion,
                    "tokens": len(example.input_ids),
                    "trained_tokens": example.trained,
                }
                tokens.append({"input_ids": example.input_ids, "labels": example.labels})
        texts.append({**dict.fromkeys(rows.TRAINING_SET), **told})
    frame = pl.DataFrame(texts, schema=rows.TRAINING_SET)
    frame.write_parquet(folder / TRAINING_SET)
    first = frame.filter(pl.col("dropped").is_null()).head(1).rows(named=True)
    sample = "".join(f"{r['prompt']}\n>>> trained from here\n{r['completion']}" for r in first)
    (folder / _SAMPLE).write_text(f"{sample}\n<<< to here\n" if first else "", encoding="utf-8")
    ids = pl.List(pl.Int64())
    partial = folder / f"{_TOKENS}.partial"
    pl.DataFrame(tokens, schema={"input_ids": ids, "labels": ids}).write_parquet(partial)
    partial.replace(folder / _TOKENS)
