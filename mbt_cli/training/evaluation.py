"""Evaluation on held-out questions while a model trains: their loss, and a score of its replies.

An evaluation changes no weight: it takes no step, and the random state is put back after it. Only
the settings of `Recipe.evaluation_uses` let it decide the weights.
"""

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow.parquet as pq
import torch
from accelerate.utils import gather_object
from datasets import Dataset, concatenate_datasets
from torch.distributed.fsdp import FSDPModule
from transformers import GenerationConfig, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl.models import unwrap_model_for_generation

from mbt_cli.core import rows
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.core.recipe import Recipe
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.traces import opened_thinking
from mbt_cli.core.training_job import (
    EVALUATIONS,
    REPLIES,
    VALIDATION_TOKENS,
    TrainingJob,
    log_lines,
)
from mbt_cli.core.verifier import plugin_from
from mbt_cli.training.mask import IGNORED
from mbt_cli.training.problems import TrainingError
from mbt_cli.training.row_files import open_rows
from mbt_cli.training.tokenizer import ModelTokenizer
from mbt_cli.verifiers.text import extract_answer

_SHARE_OF_STEPS = 0.1
_ABOUT = re.compile("benchmark=[^/]+/split=[^/]+")

_ROWS_AT_ONCE = 100

Line = Mapping[str, Any]
_Key = tuple[str, str]
"""Benchmark and split, and the question's id."""


def default_settings(job: TrainingJob) -> dict[str, Json]:
    """Fields of TRL's configuration that decide when a model is evaluated; may be overridden."""
    if job.validation is None:
        return {}
    return {
        "eval_strategy": "steps",
        "eval_steps": _SHARE_OF_STEPS,
        "per_device_eval_batch_size": job.recipe.device_batch_size,
    }


def fixed_settings(job: TrainingJob) -> dict[str, Json]:
    """Fields that mbt decides: the best checkpoint is loaded by `load_best`."""
    fixed: dict[str, Json] = {"load_best_model_at_end": False, "metric_for_best_model": None}
    if job.recipe.evaluation_counts:
        metric = job.recipe.best_metric
        fixed |= {"metric_for_best_model": metric, "greater_is_better": metric == "score"}
    return fixed


def held_out_rows(job: TrainingJob, *, multiple: int) -> Dataset | None:
    """`input_ids` and `labels` of the held-out rows; None without a `validation`.

    They were made with the rows to train on. Rows without a trained token fill the set up to a
    multiple of what all devices read at once, so that no row is read twice.
    """
    if job.validation is None:
        return None
    found = open_rows(job, VALIDATION_TOKENS)
    filling = -len(found) % multiple
    if not filling:
        return found
    short = found[0]["input_ids"][:2]
    blank = {"input_ids": short, "labels": [IGNORED] * len(short)}
    blanks = Dataset.from_list([blank] * filling, features=found.features)
    return concatenate_datasets([found, blanks])


class Asked:
    """The held-out questions that the model answers at each evaluation.

    They are the same in every evaluation and for every seed of a training.

    Args:
        job: The training, with `recipe.evaluation.score`.
        tokenizer: As transformers has it.
        adapted: The same with the arguments of the chat template.
        end_token: The token that ends a turn.

    Raises:
        TrainingError: All prompts are too long.
    """

    def __init__(
        self, job: TrainingJob, tokenizer: Any, adapted: ModelTokenizer, end_token: int
    ) -> None:
        score = job.recipe.evaluation.score
        assert score is not None
        assert job.validation is not None
        self.settings, self.tokenizer = score, tokenizer
        self._verifiers = {about: plugin_from(one) for about, one in job.verifiers.items()}
        for verifier in self._verifiers.values():
            verifier.prepare()
        self._extractions = {a: plugin_from(b).extract_answer for a, b in job.extractions.items()}
        drawn, questions = _drawn(job.validation, score.questions)
        found = []
        for key in drawn:
            prompt = adapted.render(questions[key]["messages"], opens_reply=True)
            found.append({**questions[key], "prompt": prompt, "tokens": adapted.encode(prompt)})
        limit = job.recipe.max_length
        self.questions = [one for one in found if len(one["tokens"]) <= limit]
        self.questions.sort(key=lambda one: len(one["tokens"]))  # less padding in a batch
        if not self.questions:
            raise TrainingError(
                f"the prompts of all {len(found)} held-out questions are longer than {limit} "
                "tokens",
                "raise `recipe.max_length`",
            )
        self._ends = {end_token, tokenizer.eos_token_id} - {None}

    def generation(self) -> GenerationConfig:
        """Greedy decoding."""
        padding = self.tokenizer.pad_token_id
        return GenerationConfig(
            max_new_tokens=self.settings.max_tokens,
            do_sample=False,
            repetition_penalty=1.0,
            use_cache=True,
            eos_token_id=sorted(self._ends),
            pad_token_id=min(self._ends) if padding is None else padding,
        )

    def scored(self, question: Mapping[str, Any], tokens: Sequence[int]) -> dict[str, Any]:
        """A row of `rows.EVALUATION_REPLIES`, without its step.

        A reply that was cut scores 0.

        Args:
            question: One of `questions`.
            tokens: Generated tokens; what follows the end of the turn is ignored.
        """
        end = next((n for n, token in enumerate(tokens) if token in self._ends), None)
        text = self.tokenizer.decode(tokens[:end], skip_special_tokens=True)
        reply = f"{opened_thinking(question['prompt']) or ''}{text}"
        gold, *aliases = question["references"]
        value = 0.0
        if end is not None:
            more = orjson.loads(question.get("metadata") or "{}")
            asked = Question(question["question_id"], "", gold, tuple(aliases), metadata=more)
            about = f"questions/{_about(question['source'])}"
            tagged = self._extractions.get(about, extract_answer)(reply)
            value = self._verifiers[about].check(reply, asked, tagged=tagged).value
        return {
            "source": question["source"],
            "question_id": question["question_id"],
            "reply": reply,
            "finish_reason": "length" if end is None else "stop",
            "value": value,
        }


def _drawn(examples: str, most: int) -> tuple[Sequence[_Key], Mapping[_Key, Mapping[str, Any]]]:
    """The keys of the first questions in a fixed random order, and a row of each.

    Every process reads the file: the texts of replies, its largest part, stay out of memory.
    """
    names = ["source", "question_id"]
    every = pl.read_parquet(examples, columns=names).unique().iter_rows()
    keys = {(_about(source), question_id) for source, question_id in every}
    drawn = sorted(keys, key=lambda key: sha256_of(["evaluation", *key]))[:most]
    wanted, found = set(drawn), {}
    file = pq.ParquetFile(examples)
    read = [*names, "messages", "references", "metadata"]
    columns = [name for name in read if name in file.schema_arrow.names]
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
        for row in batch.to_pylist():
            key = (_about(row["source"]), row["question_id"])
            if key in wanted:
                found[key] = row
    return drawn, found


def _about(source: str) -> str:
    """Benchmark and split in the address of a cell."""
    found = _ABOUT.search(source)
    return found[0] if found else ""


class Evaluations(TrainerCallback):  # type: ignore[misc]
    """Records evaluations, asks for checkpoints of the best model, and stops early.

    Every process holds the same record; one of them writes it.

    Args:
        folder: The job's folder.
        recipe: The training's settings.
        resumed_step: Step of the checkpoint that is resumed; later evaluations are removed.
        writes: Whether this process writes the record.
    """

    def __init__(
        self, folder: Path, recipe: Recipe, resumed_step: int, *, writes: bool = True
    ) -> None:
        self._folder, self._recipe, self._writes = folder, recipe, writes
        self.lines = [line for line in _lines(folder, EVALUATIONS) if line["step"] <= resumed_step]
        if writes:
            for name in (EVALUATIONS, REPLIES):
                _rewrite(folder / name, resumed_step)

    @property
    def best(self) -> Line | None:
        """The best evaluation so far, the first of equal ones; that of the start does not count."""
        name, sign = f"eval_{self._recipe.best_metric}", self._sign
        known = [
            line
            for line in self.lines
            if line["step"] and line.get(name) is not None and math.isfinite(line[name])
        ]
        return max(known, key=lambda line: sign * line[name], default=None)

    @property
    def is_over(self) -> bool:
        """Whether the last evaluations were not better, as many as `patience` says."""
        patience, best = self._recipe.evaluation.patience, self.best
        if patience is None:
            return False
        last = best["step"] if best else 0
        later = [line for line in self.lines if line["step"] > last]
        return len(later) >= patience

    @property
    def _sign(self) -> int:
        return 1 if self._recipe.best_metric == "score" else -1

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """The last step is always evaluated."""
        if state.global_step >= state.max_steps and args.eval_strategy != "no":
            control.should_evaluate = True
        return control

    def add(
        self,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        replies: Sequence[Mapping[str, Any]],
    ) -> None:
        """Record an evaluation and decide what follows from it."""
        step = state.global_step
        if all(line["step"] != step for line in self.lines):  # a resumed run may evaluate again
            line = {"step": step, "epoch": state.epoch, **metrics}
            self.lines.append(line)
            if self._writes:
                _append(self._folder / EVALUATIONS, [line])
                _append(self._folder / REPLIES, [{"step": step, **reply} for reply in replies])
        if self._recipe.evaluation_counts and step:
            best = self.best
            if self._recipe.keeps_best and best is not None and best["step"] == step:
                control.should_save = True
            if self.is_over:
                print(f"stopped early at step {step}", flush=True)  # noqa: T201
                control.should_save = True
                control.should_training_stop = True

    def facts(self) -> dict[str, Json]:
        """The last evaluation and the best one, for the lineage."""
        if not self.lines:
            return {}
        last, best = self.lines[-1], self.best if self._recipe.evaluation_counts else None
        return {
            **{name: last[name] for name in ("eval_loss", "eval_score") if name in last},
            **({"best_step": best["step"]} if best else {}),
        }


class EvaluatesHeldOut:
    """Added to a trainer of TRL, before it: what an evaluation is.

    Set `evaluations` before the training begins, and `asked` if replies are scored.
    """

    has_loss: bool = True
    """Whether `eval_dataset` holds rows whose loss is measured."""
    asked: Asked | None = None
    evaluations: Evaluations

    def evaluate(
        self: Any,
        eval_dataset: object = None,
        ignore_keys: object = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate, log and record; the numbers are equal in every process."""
        start = time.monotonic()
        metrics: dict[str, Any] = {}
        replies: list[dict[str, Any]] = []
        with _evaluating(self):
            if self.has_loss:
                metrics["eval_loss"] = _held_out_loss(self)
            if self.asked is not None:
                replies = _replies(self, self.asked)
                count = len(replies)
                metrics["eval_score"] = sum(one["value"] for one in replies) / count
                cut = sum(one["finish_reason"] == "length" for one in replies)
                metrics |= {"questions": count, "cut": cut / count}
            metrics["seconds"] = round(time.monotonic() - start, 3)
            logged: dict[str, float] = {
                name: value for name, value in metrics.items() if name.startswith("eval_")
            }
            self.log(dict(logged))
        handler = self.callback_handler
        self.control = handler.on_evaluate(self.args, self.state, self.control, logged)
        self.evaluations.add(self.state, self.control, metrics, replies)
        return logged

    def held_out_count(self, inputs: Any) -> Any:
        """Over how many things the loss of a batch of held-out rows is a mean: trained tokens."""
        return (inputs["labels"] != IGNORED).sum()

    def _determine_best_metric(self: Any, metrics: dict[str, float], trial: Any) -> bool:
        if not self.state.global_step:  # an untrained model is never the best one
            return False
        is_new_best: bool = super()._determine_best_metric(metrics, trial)  # type: ignore[misc]
        return is_new_best


@contextmanager
def _evaluating(trainer: Any) -> Iterator[None]:
    """The model and the optimizer in evaluation mode; the random state is put back."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    modes = [trainer.model_wrapped]
    if hasattr(trainer.optimizer, "eval"):  # a schedule-free optimizer evaluates other weights
        modes.append(trainer.optimizer)
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        for one in modes:
            one.eval()
        yield
        for one in modes:
            one.train()
    # without a backward pass, FSDP leaves the outermost weights gathered
    for module in trainer.model_wrapped.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _held_out_loss(trainer: Any) -> float:
    """Mean loss over the held-out rows, by `held_out_count`, whatever the batches are."""
    if _shares_rows(trainer):
        loop = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation", True)
        return float(loop.metrics["eval_loss"])
    # the sum of losses, and what they are the mean of
    totals = torch.zeros(2, dtype=torch.float64, device=trainer.args.device)
    for batch in trainer.get_eval_dataloader():
        inputs = trainer._prepare_inputs(batch)
        count = trainer.held_out_count(inputs)
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model_wrapped, inputs)
        totals += torch.stack([loss.detach() * count, count]).to(totals)
    total, number = trainer.accelerator.reduce(totals, reduction="sum").tolist()
    return float(total / number)


def _replies(trainer: Any, asked: Asked) -> list[dict[str, Any]]:
    """The scored reply to each question; processes answer in step, each its share."""
    rank, processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
    if _shares_rows(trainer):
        rank, processes = 0, 1
    count, questions = len(asked.questions), asked.questions
    # every process answers equally many, as all of them compute each token together
    mine = range(rank, math.ceil(count / processes) * processes, processes)
    found = []
    # processes that hold parts of the weights compute as many tokens as the longest reply has
    synced = processes > 1 and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
    checkpointing = trainer.args.gradient_checkpointing_kwargs
    with unwrap_model_for_generation(
        trainer.model_wrapped, trainer.accelerator, gradient_checkpointing_kwargs=checkpointing
    ) as model:
        for start in range(0, len(mine), asked.settings.batch_size):
            numbers = mine[start : start + asked.settings.batch_size]
            batch = [questions[number % count] for number in numbers]
            found += [
                asked.scored(question, tokens)
                for number, question, tokens in zip(
                    numbers, batch, _generated(model, asked, batch, synced=synced), strict=True
                )
                if number < count
            ]
    return found if processes == 1 else gather_object(found)


def _generated(
    model: Any, asked: Asked, questions: Sequence[Mapping[str, Any]], *, synced: bool
) -> list[list[int]]:
    longest = max(len(one["tokens"]) for one in questions)
    generation = asked.generation()
    gaps = [longest - len(one["tokens"]) for one in questions]
    tokens = [
        [generation.pad_token_id] * gap + one["tokens"]
        for gap, one in zip(gaps, questions, strict=True)
    ]
    mask = [[0] * gap + [1] * (longest - gap) for gap in gaps]
    device = next(model.parameters()).device
    made = model.generate(
        input_ids=torch.tensor(tokens, device=device),
        attention_mask=torch.tensor(mask, device=device),
        generation_config=generation,
        synced_gpus=synced,
    )
    replies: list[list[int]] = made[:, longest:].tolist()
    return replies


def _shares_rows(trainer: Any) -> bool:
    """Whether several processes compute the same row together."""
    found = trainer.accelerator.parallelism_config
    return found is not None and (found.cp_enabled or found.sp_enabled or found.tp_enabled)


def load_best(trainer: Any, recipe: Recipe) -> None:
    """Load the weights of the best evaluation, if the recipe asks for them.

    Raises:
        TrainingError: No evaluation has a value.
    """
    state = trainer.state
    if not recipe.keeps_best:
        return
    if not state.best_global_step:
        raise TrainingError(
            f"no evaluation has a {recipe.best_metric} to choose the best model by",
            "evaluate more often: lower `trainer.eval_steps`",
        )
    if state.best_global_step == state.global_step:
        return
    print(f"the best model is that of step {state.best_global_step}", flush=True)  # noqa: T201
    best = f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    # by its name: the folder may have moved since
    state.best_model_checkpoint = str(Path(trainer.args.output_dir) / best)
    trainer._load_best_model()


def write_evaluations(folder: Path, files: Path) -> None:
    """Write the record of evaluations as Parquet into the artifact's files."""
    for name, schema in ((EVALUATIONS, rows.EVALUATIONS), (REPLIES, rows.EVALUATION_REPLIES)):
        if found := _lines(folder, name):
            known = [{column: line.get(column) for column in schema} for line in found]
            frame = pl.DataFrame(known, schema=schema, strict=False)
            frame.write_parquet((files / name).with_suffix(".parquet"))


def _lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    return log_lines(path.read_bytes()) if path.is_file() else []


def _rewrite(path: Path, last_step: int) -> None:
    """Remove the lines of later steps."""
    if path.is_file():
        kept = [line for line in _lines(path.parent, path.name) if line["step"] <= last_step]
        partial = path.with_suffix(".partial")
        partial.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in kept))
        partial.replace(path)


def _append(path: Path, lines: Sequence[Line]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(orjson.dumps(line) + b"\n" for line in lines))
