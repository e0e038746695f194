# ruff: noqa: TID253
"""Rounds of replies: a training that stops within one, or in a later epoch, ends like another."""

import pytest

pytest.importorskip("trl", reason="the training tests need the extra `train`")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from mbt_cli.training.problems import TrainingError
from mbt_cli.training.rounds import RoundTrainer, sampling_seed
from tests.integration.train.tiny_models import tiny_model

QUESTIONS = 12


class StopsAt(TrainerCallback):
    """Saves and stops after a step, as the training does on a signal."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_save = control.should_training_stop = state.global_step == self.step


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The model is so small that threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model(folder)
    return folder


def even_letters(completion_ids, **_):
    return [sum(token % 2 for token in ids) / len(ids) for ids in completion_ids]


def trained(
    tiny, folder, *, stop=None, resume=None, kind=RoundTrainer, reward=even_letters, **settings
):
    """A trainer after its run: rounds of 4 groups x 4 replies are trained on in 4 steps."""
    config = {
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 1,
        "num_train_epochs": 2,
        **settings,
    }
    trainer = kind(
        model=AutoModelForCausalLM.from_pretrained(tiny),
        reward_funcs=[reward],
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            seed=7,
            **config,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"question {n}"}]} for n in range(QUESTIONS)]
        ),
        processing_class=AutoTokenizer.from_pretrained(tiny, padding_side="left"),
        callbacks=[StopsAt(stop)] if stop else [],
    )
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer


def curve(trainer):
    """Step to what its log says of it."""
    names = ("loss", "reward", "group/reward_std", "entropy", "num_tokens")
    return {
        line["step"]: tuple(line.get(name) for name in names)
        for line in trainer.state.log_history
        if "loss" in line
    }


@pytest.fixture(scope="module")
def unbroken(tiny, tmp_path_factory):
    """Three rounds in each of two epochs: 24 steps."""
    trainer = trained(tiny, tmp_path_factory.mktemp("unbroken"))
    assert trainer.state.global_step == 24
    return trainer


# in the first, a middle and the last step of a round, at its end, at the end of an epoch, and in
# the next one
@pytest.mark.parametrize(
    "step", [1, 6, 7, *(pytest.param(step, marks=pytest.mark.long) for step in (8, 12, 13, 18))]
)
def test_a_training_goes_on_in_the_middle_of_a_round(unbroken, tiny, tmp_path, step):
    trained(tiny, tmp_path, stop=step)
    place = tmp_path / f"checkpoint-{step}"

    resumed = trained(tiny, tmp_path, resume=place)

    assert list(place.glob("mbt-round-*")) == ([place / "mbt-round-0.pt"] if step % 4 else [])
    assert curve(resumed) == curve(unbroken)
    pairs = zip(unbroken.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_an_unbroken_training_is_that_of_trl(unbroken, tiny, tmp_path):
    plain = trained(tiny, tmp_path, kind=GRPOTrainer)

    pairs = zip(unbroken.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"num_iterations": 2, "num_train_epochs": 1}, id="each round twice"),
        pytest.param({"gradient_accumulation_steps": 8}, id="two rounds a step"),
        pytest.param({"gradient_accumulation_steps": 6}, id="rounds and steps do not align"),
    ],
)
def test_other_sizes_of_rounds_go_on_too(tiny, tmp_path, settings):
    whole = trained(tiny, tmp_path / "whole", **settings)
    trained(tiny, tmp_path / "broken", stop=3, **settings)

    place = tmp_path / "broken/checkpoint-3"
    resumed = trained(tiny, tmp_path / "broken", resume=place, **settings)

    assert curve(resumed) == curve(whole)


def test_a_round_of_another_layout_is_sampled_again(tiny, tmp_path, capsys):
    trained(tiny, tmp_path, stop=6)

    # the same batch in two parts, as on other devices
    other = {"gradient_accumulation_steps": 2, "steps_per_generation": 8}
    resumed = trained(tiny, tmp_path, resume=tmp_path / "checkpoint-6", **other)

    assert "the round of the checkpoint is sampled again" in capsys.readouterr().out
    assert resumed.state.global_step == resumed.state.max_steps


def test_the_spread_is_that_within_groups(tiny, tmp_path):
    # 1 for every second group: the batch spreads, no group does
    def by_question(prompts, **_):
        return [float(int(p[0]["content"].split()[1]) % 2) for p in prompts]

    trainer = trained(tiny, tmp_path, reward=by_question, num_train_epochs=1)

    lines = [line for line in trainer.state.log_history if "group/reward_std" in line]
    assert [line["group/zero_std"] for line in lines] == [1.0] * len(lines)
    assert [line["group/reward_std"] for line in lines] == [0.0] * len(lines)


def test_rewards_that_fail_on_every_reply_end_the_training(tiny, tmp_path):
    def failing(completion_ids, **_):
        return [None for _ in completion_ids]

    with pytest.raises(TrainingError, match="failed on every reply"):
        trained(tiny, tmp_path, reward=failing)


def test_replies_differ_between_seeds_and_copies_of_the_model_and_not_within_one():
    seeds = {
        (seed, process): sampling_seed(seed, process, shared=2)
        for seed in (1, 2, 3)
        for process in range(8)
    }

    assert all(seeds[seed, 2 * n] == seeds[seed, 2 * n + 1] for seed in (1, 2, 3) for n in range(4))
    assert len(set(seeds.values())) == 3 * 4
    assert all(0 <= seed < 2**32 for seed in seeds.values())  # what NumPy takes
