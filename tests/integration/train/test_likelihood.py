# ruff: noqa: TID253
"""Log-probabilities of given texts by transformers, against the model itself."""

import json

import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.train.conftest import STUDY

HEAD = STUDY.partition('[[stage]]\nkind = "train"')[0]
PREDICTED = """
[models.predictor]
backend = { kind = "transformers_likelihood", model = "tiny" }
sampling = { temperature = 0, max_tokens = 1 }

[judges.mutual]
kind = "predictability"
text = "reply"
context_count = 2

[[stage]]
kind = "judge"
name = "predicted"
rollouts = "base"
matrix = { judge = "mutual", judge_model = "predictor" }

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
verdicts = "predicted"
metrics = ["mutual_predictability"]
"""
PREDICTOR = "predicted/benchmark=tiny/split=train/model=teacher/judge=mutual/judge_model=predictor"


def direct(tokenizer, model, messages):
    """Log-probabilities of the tokens of the last turn, from one forward pass of the model."""
    *asked, answer = messages
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    text = tokenizer(answer["content"], add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([start + text])).logits[0].float().log_softmax(-1)
    return [logits[len(start) + i - 1, token].item() for i, token in enumerate(text)]


def test_mutual_predictability_reads_the_models_own_log_probabilities(fresh):
    study = fresh(HEAD + PREDICTED)

    ran = study.run("run", "study.toml")

    assert ran.code == 0, ran.out
    address = (
        "predicted/benchmark=tiny/split=train/model=teacher/judge=mutual/judge_model=predictor"
    )
    rows = study.rows(address)
    tokenizer = AutoTokenizer.from_pretrained(study.folder / "tiny")
    model = AutoModelForCausalLM.from_pretrained(study.folder / "tiny", dtype=torch.float32).eval()
    for row in rows.sample(8, seed=1).iter_rows(named=True):
        found = json.loads(row["reply"])["logprobs"]
        assert found == pytest.approx(direct(tokenizer, model, row["messages"]), abs=1e-4)
    assert rows["messages"].n_unique() > 1
    scored = pl.read_parquet(next((study.folder / "runs/loop/scores").rglob("summary.parquet")))
    metrics = dict(scored.select("metric", "failed").rows())
    assert metrics["mutual_predictability"] == 0
    assert "0 model calls" in study.run("run", "study.toml").out
