"""Batches that several processes share without computing a row twice."""

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import BatchSamplerShard
from datasets import Dataset, concatenate_datasets
from transformers.trainer_pt_utils import LengthGroupedSampler

from mbt_cli.training.mask import IGNORED


class FullBatches:
    """A batch sampler that fills up the last batches, so that every process gets as many.

    Args:
        batches: The batches of all processes; the last one may have fewer rows.
        processes: Processes that take turns with the batches.
        blank: Index of a row without trained tokens.
    """

    drop_last = False

    def __init__(self, batches: Any, processes: int, blank: int) -> None:
        self._batches = batches
        self._processes = processes
        self._blank = blank
        self.batch_size: int = batches.batch_size

    @property
    def sampler(self) -> Any:
        """The order of the rows, which accelerate changes between epochs."""
        return self._batches.sampler

    def __len__(self) -> int:
        return -(-len(self._batches) // self._processes) * self._processes

    def __iter__(self) -> Iterator[list[int]]:
        made = 0
        for batch in self._batches:
            made += 1
            yield [*batch, *[self._blank] * (self.batch_size - len(batch))]
        for _ in range(len(self) - made):
            yield [self._blank] * self.batch_size


def share_exactly(trainer: Any, batch_size: int) -> None:
    """Give several processes the batches that one process computes.

    Where the last rows of an epoch do not fill a batch on every process, accelerate repeats the
    first rows; here it gets rows without trained tokens, which add nothing to loss and gradient.
    Rows grouped by length are grouped within whole batches, not within those of a process.

    Args:
        trainer: A trainer of tokenized rows with `labels`.
        batch_size: Rows of an optimizer step on all devices.
    """
    if trainer.accelerator.num_processes == 1:
        return
    rows = trainer.train_dataset
    sampler_of, loader_of = trainer._get_train_sampler, trainer.get_train_dataloader

    def sampler(_: Any = None) -> Any:
        made = sampler_of(rows)
        if isinstance(made, LengthGroupedSampler):
            made.batch_size = batch_size
        return made

    def loader() -> Any:
        made = loader_of()
        shard = made.batch_sampler
        if isinstance(shard, BatchSamplerShard) and shard.num_processes > 1:
            full = FullBatches(shard.batch_sampler, shard.num_processes, blank=len(rows))
            shard.batch_sampler = full
            # no row is a repetition that accelerate would leave out of its counts
            made.dataset.total_dataset_length = len(full) * full.batch_size
        return made

    token = trainer.processing_class.pad_token_id
    blank = {**rows[0], "input_ids": [token], "labels": [IGNORED]}
    if "seq_lengths" in blank:  # of packed rows
        blank["seq_lengths"] = [1]
    one = Dataset.from_list([blank], features=rows.features)
    trainer.train_dataset = concatenate_datasets([rows, one])
    trainer._get_train_sampler, trainer.get_train_dataloader = sampler, loader
