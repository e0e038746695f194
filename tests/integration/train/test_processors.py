# ruff: noqa: TID253
"""Shortcuts on processors change the time of a training, and nothing else of it."""

import pytest

pytest.importorskip("torch")

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer

from mbt_cli.training.processors import score_trained_positions
from tests.integration.train.tiny_models import tiny_model

ROWS = [
    ([7, 8, 9, 10, 11, 12], [-100, -100, -100, 10, 11, 12]),
    ([20, 21, 22, 23], [-100, -100, 22, 23]),
    ([30, 31, 32, 33, 34], [-100, 31, -100, 33, 34]),
    ([40, 41, 42, 43, 44, 45, 46], [-100] * 6 + [46]),
]
PROMPT_ALONE = ([50, 51, 52], [-100, -100, -100])
TRAINED = {"loss", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens"}


def trained(folder, *, narrowed, adapter=False, rows=ROWS, at_once=2):
    """What two steps of two rows log, and how many positions the vocabulary's head saw in each."""
    set_seed(3)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        args=SFTConfig(
            output_dir=str(folder / "out"),
            use_cpu=True,
            bf16=False,
            max_steps=2,
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=2 // at_once,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_dict(
            {"input_ids": [ids for ids, _ in rows], "labels": [labels for _, labels in rows]}
        ),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if adapter else None,
    )
    model = trainer.model.get_base_model() if adapter else trainer.model
    if narrowed:
        score_trained_positions(trainer.model)
    seen = []
    model.base_model.register_forward_hook(
        lambda _, __, output: seen.append(tuple(output.last_hidden_state.shape[:2]))
    )
    trainer.train()
    logged = [
        {name: entry[name] for name in TRAINED}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    return logged, seen


@pytest.mark.parametrize("adapter", [False, True], ids=["all weights", "adapter"])
def test_the_head_sees_trained_positions_alone_and_the_steps_stay_the_same(tmp_path, adapter):
    folder = tiny_model(tmp_path / "model")

    plain, positions = trained(folder, narrowed=False, adapter=adapter)
    narrowed, kept = trained(folder, narrowed=True, adapter=adapter)

    assert len(plain) == len(narrowed) == 2
    for before, after in zip(plain, narrowed, strict=True):
        assert after == pytest.approx(before, rel=1e-5, abs=1e-6)
    assert all(rows == 2 for rows, _ in positions)
    assert sum(length for _, length in kept) == 3 + 2 + 3 + 1
    assert all(rows == 1 for rows, _ in kept)


def test_a_row_with_nothing_to_train_is_left_whole_and_the_next_is_narrowed(tmp_path):
    folder = tiny_model(tmp_path / "model")
    rows = [PROMPT_ALONE, *ROWS[:3]]

    plain, _ = trained(folder, narrowed=False, rows=rows, at_once=1)
    narrowed, kept = trained(folder, narrowed=True, rows=rows, at_once=1)

    assert len(plain) == len(narrowed) == 2
    for before, after in zip(plain, narrowed, strict=True):
        assert after == pytest.approx(before, rel=1e-5, abs=1e-6)
    assert sorted(length for _, length in kept) == [2, 3, 3, 3]
