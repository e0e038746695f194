"""DPO: its loss is the one of its paper, and real runs learn pairs, resume and are published."""

import json
import signal
from types import SimpleNamespace

import polars as pl
import pytest

from tests.integration.train.conftest import STUDY
from tests.integration.train.tiny_models import tiny_model, tokenizer_of

HEAD, TRAIN = STUDY.split('[[stage]]\nkind = "train"\nname = "sft"\n', 1)
DPO = """
[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
metrics = ["exact_match"]

[[stage]]
kind = "train"
name = "sft"
pick = { scores = "scores", metric = "exact_match" }
"""
CANNED = HEAD[HEAD.index('kind = "canned"') : HEAD.index(" }\n", HEAD.index('kind = "canned"'))]
PAIRS = HEAD.replace(CANNED, 'kind = "recorded", file = "replies.jsonl"') + DPO + TRAIN
for old, new in (
    ('preset = "sft"', 'preset = "dpo"'),
    ("num_train_epochs = 2", "num_train_epochs = 6, warmup_steps = 0"),
    ("save_every_steps = 4", 'save_every_steps = 2\nmaster_weights = "float32"'),
):
    PAIRS = PAIRS.replace(old, new, 1)
HELD = 'validation = { from = "tiny", share = 0.3 }\n'
FULL, LORA = (f"sft/model=tiny/variant={name}" for name in ("full", "lora"))


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """A model, another one as its reference, and two pairs."""
    import torch

    folder = tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    tokenizer = tokenizer_of("smollm2")
    texts = [
        ("Who wrote it?", "It is Oslo, of Norway.", "Oslo."),
        ("What is the capital of Norway?", "The", "We look at the documents first."),
    ]
    rows = [
        {
            name: tokenizer(text)["input_ids"]
            for name, text in zip(("prompt_ids", "chosen_ids", "rejected_ids"), row, strict=True)
        }
        for row in texts
    ]
    torch.manual_seed(3)
    return SimpleNamespace(folder=folder, tokenizer=tokenizer, rows=rows)


def log_probability(model, prompt, completion):
    """By the whole logits of one row alone."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
    before = len(prompt) - 1
    return sum(logits[before + n, token].item() for n, token in enumerate(completion))


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_the_loss_of_a_batch_is_that_of_the_log_probabilities(batch, tmp_path, tuning):
    import torch
    from datasets import Dataset
    from trl import DPOConfig

    from mbt_cli.core.recipe import Recipe
    from mbt_cli.core.training_job import Weights
    from mbt_cli.training import models
    from mbt_cli.training.dpo import PairTrainer, reference_model

    beta = 0.3
    recipe = Recipe(
        **{
            "method": "dpo",
            "tuning": tuning,
            "dtype": "float32",
            "batch_size": 2,
            "max_length": 90,
        },
        trainer={"bf16": False},
        lora={"r": 4, "target_modules": "all-linear"},
    )
    weights = Weights(model=str(batch.folder))
    settings = DPOConfig(
        **{"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "bf16": False},
        **{"beta": beta, "max_length": None, "gradient_checkpointing": False},
    )
    trainer = PairTrainer(
        model=models.load_model(weights, recipe, to_train=True),
        ref_model=reference_model(weights, recipe),
        args=settings,
        train_dataset=Dataset.from_list(batch.rows),
        processing_class=batch.tokenizer,
        peft_config=models.adapter_config(recipe),
    )
    assert (trainer.ref_model is None) == (tuning == "lora")
    inputs = trainer.data_collator(batch.rows)
    at_first = trainer.compute_loss(trainer.model, inputs).item()
    with torch.no_grad():
        for weight in trainer.model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn_like(weight)

    found = trainer.compute_loss(trainer.model, inputs).item()

    reference = models.load_model(weights, recipe)
    losses = []
    for row in batch.rows:
        ratios = [
            log_probability(trainer.model, row["prompt_ids"], row[name])
            - log_probability(reference, row["prompt_ids"], row[name])
            for name in ("chosen_ids", "rejected_ids")
        ]
        assert abs(ratios[0] - ratios[1]) > 0.01
        losses.append(-torch.tensor(beta * (ratios[0] - ratios[1])).sigmoid().log().item())
    assert at_first == pytest.approx(torch.tensor(2.0).log().item(), abs=1e-6)
    assert found == pytest.approx(sum(losses) / 2, abs=1e-5)
    assert abs(found - at_first) > 1e-3


def replies(place):
    """A right reply to each question after a wrong one; one question has two right ones."""
    (place.folder / "replies.jsonl").write_text("")
    ran = place.run("run", "study.toml", "--only", "questions")
    assert ran.code == 0, ran.out
    (path,) = (place.folder / "runs/loop/questions").rglob("split=train/**/rows.parquet")
    asked = pl.read_parquet(path).sort("question_id")
    lines = [
        {"question_id": row["question_id"], "sample": sample, "reply": f"<answer>{text}</answer>"}
        for number, row in enumerate(asked.iter_rows(named=True))
        for sample, text in enumerate((row["answer"] if number == 0 else "never", row["answer"]))
    ]
    (place.folder / "replies.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return asked


def curve(place, address, column):
    return place.rows(address)[column].to_list()


def test_pairs_are_learned_published_and_resumed(fresh):
    place = fresh(PAIRS)
    asked = replies(place)
    ran = place.run("run", "study.toml", "--only", "base", "--only", "scores")
    assert ran.code == 0, ran.out
    stopped = place.run_until_step(3, signal.SIGTERM, "run", "study.toml", "--only", FULL)
    assert stopped.code == 75, stopped.out

    ran = place.run("run", "study.toml", "--only", "sft")

    assert ran.code == 0, ran.out
    assert "22 of 24 samples are picked (best and worst reply by `exact_match`)" in ran.out
    log = "".join(path.read_text() for path in place.cell(FULL).glob("logs/*.train.log"))
    assert "resuming from step" in log
    texts = pl.read_parquet(place.cell(FULL) / "files/training_set.parquet").sort("question_id")
    chosen = texts.filter(pl.col("dropped").is_null())
    ids = asked["question_id"].to_list()
    assert chosen["question_id"].to_list() == ids[1:]
    assert set(chosen.select("sample", "rejected_sample").rows()) == {(1, 0)}
    assert "never" in chosen["rejected"][0]
    assert asked["answer"][1] in chosen["completion"][0]
    dropped = texts.filter(pl.col("dropped").is_not_null())
    assert dropped["dropped"].value_counts().sort("dropped").rows() == [
        ("not_picked", 2),
        ("rejected", 11),
    ]
    # an adapter of rank 4 begins at zero and learns more slowly; without learning all is log 2
    for address, most in ((FULL, 0.4), (LORA, 0.6)):
        losses, margins = (curve(place, address, name) for name in ("loss", "reward_margin"))
        assert losses[0] == pytest.approx(0.6931, abs=1e-3)
        assert sum(losses[-3:]) / 3 < most
        assert margins[-1] > margins[0] == 0
        assert (place.cell(address) / "files/checkpoint/model.safetensors").is_file()
        assert place.lineage(address)["notes"]["funnel"] == {
            **{"rows": 24, "picked": 22, "chosen": 11, "trained": 11}
        }
    (place.folder / "study.toml").write_text(PAIRS.replace('name = "loop"', 'name = "whole"'))
    ran = place.run("run", "study.toml", "--only", "base", "--only", "scores", "--only", FULL)
    assert ran.code == 0, ran.out
    whole = pl.read_parquet(place.folder / "runs/whole" / FULL / "rows.parquet")
    assert whole["loss"].to_list() == pytest.approx(curve(place, FULL, "loss"), rel=1e-4)


def test_pairs_are_held_out_and_their_loss_is_logged(fresh):
    text = PAIRS.replace('target = "reply"\n', f'target = "reply"\n{HELD}', 1)
    text = text.replace(
        "warmup_steps = 0", "warmup_steps = 0, eval_on_start = true, eval_steps = 4"
    )
    place = fresh(text)
    replies(place)

    ran = place.run("run", "study.toml", "--only", "base", "--only", "scores", "--only", FULL)

    assert ran.code == 0, ran.out
    trained, held = (
        pl.read_parquet(place.cell(FULL) / f"files/{name}_set.parquet")
        for name in ("training", "validation")
    )
    # 30 % of 11 questions with a pair
    assert held.height == held["question_id"].n_unique() == 3
    assert held["dropped"].is_null().all()
    used = trained.filter(pl.col("dropped").is_null())
    assert used.height == 8
    assert not set(used["question_id"]) & set(held["question_id"])
    found = pl.read_parquet(place.cell(FULL) / "files/evaluations.parquet")
    assert found["step"].to_list() == [0, 4, 8, 12]  # 8 pairs in batches of 4, six times
    losses = found["eval_loss"].to_list()
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < losses[0]  # "never" is the worse reply to all questions
    curve_of = place.lineage(FULL)["notes"]["training"]["curve"]
    assert losses == [one["eval_loss"] for one in curve_of if one.get("eval_loss") is not None]
