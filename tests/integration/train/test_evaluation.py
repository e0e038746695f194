"""Held-out questions while a model trains: loss, score, best checkpoint, early stopping."""

import signal

import polars as pl
import pytest

pytest.importorskip("trl", reason="the training tests need the extra `train`")

from mbt_cli.core import rows
from mbt_cli.core.training_job import TrainingJob, Weights
from mbt_cli.core.verifier import plugin_reference
from mbt_cli.training.evaluation import Asked
from mbt_cli.training.tokenizer import ModelTokenizer
from mbt_cli.verifiers.text import TextVerifier
from tests.integration.train.conftest import STUDY, make_place
from tests.integration.train.tiny_models import tokenizer_of

CELL = "sft/model=tiny/variant=full"
HELD = "validation = { share = 0.3 }\n"
EVALUATED = STUDY.replace('target = "reply"\nprompt', f'target = "reply"\n{HELD}prompt').replace(
    "num_train_epochs = 2 }", "num_train_epochs = 2, eval_steps = 2 }"
)


def evaluations(place, address=CELL):
    return pl.read_parquet(place.cell(address) / "files/evaluations.parquet")


def with_recipe(text, line, *, trainer=""):
    text = text.replace("save_every_steps = 4\n", f"save_every_steps = 4\n{line}\n")
    return text.replace("eval_steps = 2 }", f"eval_steps = 2{trainer} }}")


SCORED = with_recipe(
    EVALUATED, "evaluation = { score = { questions = 3, max_tokens = 12, batch_size = 2 } }"
)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    made = make_place(tmp_path_factory.mktemp("scored"), SCORED)
    ran = made.run("run", "study.toml", "--only", "base", "--only", CELL)
    assert ran.code == 0, ran.out
    return made


def test_held_out_questions_are_never_trained_on_and_their_loss_is_a_curve(scored):
    files = scored.cell(CELL) / "files"
    trained = pl.read_parquet(files / "training_set.parquet")
    held = pl.read_parquet(files / "validation_set.parquet")

    # 12 questions x 2 samples: 30 % are 4 questions with 8 rows, 16 rows in batches of 4, twice
    assert held["question_id"].n_unique() == 4
    assert held.height == 8
    used = trained.filter(pl.col("dropped").is_null())
    assert used.height == 16
    assert not set(used["question_id"]) & set(held["question_id"])
    assert trained.filter(pl.col("dropped") == "held_out").height == 8
    found = evaluations(scored)
    assert found["step"].to_list() == [2, 4, 6, 8]
    assert found["eval_loss"].is_finite().all()
    assert found["eval_loss"][-1] < found["eval_loss"][0]
    curve = scored.lineage(CELL)["notes"]["training"]["curve"]
    losses = [point["eval_loss"] for point in curve if point.get("eval_loss") is not None]
    assert losses == found["eval_loss"].to_list()


def test_replies_to_held_out_questions_are_scored_by_the_verifier(scored):
    replies = pl.read_parquet(scored.cell(CELL) / "files/evaluation_replies.parquet")

    assert replies["step"].value_counts().sort("step")["count"].to_list() == [3, 3, 3, 3]
    held = pl.read_parquet(scored.cell(CELL) / "files/validation_set.parquet")
    assert set(replies["question_id"]) <= set(held["question_id"])
    means = replies.group_by("step").agg(pl.col("value").mean()).sort("step")["value"]
    assert means.to_list() == pytest.approx(evaluations(scored)["eval_score"].to_list())
    is_cut = replies["finish_reason"] == "length"
    assert (replies.filter(is_cut)["value"] == 0).all()
    assert is_cut.mean() == pytest.approx(evaluations(scored)["cut"].mean())


@pytest.mark.parametrize(
    ("style", "reply", "value", "text"),
    [
        (
            "smollm2",
            "It is <answer>Oslo</answer><|im_end|>Oslo",
            1.0,
            "It is <answer>Oslo</answer>",
        ),
        ("smollm2", "It is <answer>Rome</answer><|im_end|>", 0.0, "It is <answer>Rome</answer>"),
        ("smollm2", "It is <answer>Oslo</answer>", 0.0, "It is <answer>Oslo</answer>"),  # cut
        (
            "qwen3-thinking",
            "look\n</think>\n\n<answer>Oslo</answer><|im_end|>",
            1.0,
            "<think>look\n</think>\n\n<answer>Oslo</answer>",
        ),
    ],
    ids=["right", "wrong", "cut", "the prompt opens the thinking"],
)
def test_a_reply_is_scored_as_far_as_its_turn_goes(tmp_path, style, reply, value, text):
    tokenizer = tokenizer_of(style)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    asked = Asked(job_of(tmp_path), tokenizer, ModelTokenizer(tokenizer, {}), end)
    (question,) = asked.questions
    found = asked.scored(question, tokenizer(reply, add_special_tokens=False)["input_ids"])

    assert (found["value"], found["reply"]) == (value, text)
    assert found["finish_reason"] == ("stop" if "<|im_end|>" in reply else "length")


def job_of(folder):
    source = {
        "source": "base/benchmark=b/split=s/model=m",
        "question_id": "q",
        "references": ["Oslo"],
    }
    example = {**dict.fromkeys(rows.EXAMPLES), **source, "completion": "x"}
    example["messages"] = [{"role": "user", "content": "Which capital?"}]
    pl.DataFrame([example], schema=rows.EXAMPLES).write_parquet(folder / "validation.parquet")
    recipe = {"method": "sft", "tuning": "full", "dtype": "float32", "batch_size": 1}
    recipe |= {"max_length": 99, "evaluation": {"score": {}}}
    places = dict.fromkeys(("examples", "folder", "files"), str(folder))
    return TrainingJob(
        **{"address": "sft", "study": "s", "template": {}, "method": {}, "seed": 1, **places},
        weights=Weights(model="m"),
        recipe=recipe,
        validation=str(folder / "validation.parquet"),
        verifiers={"questions/benchmark=b/split=s": plugin_reference(TextVerifier())},
    )


def losses_without_evaluation(folder_of):
    """The same training on the same rows, evaluated only at its last step."""
    rarely = folder_of(EVALUATED.replace("eval_steps = 2 }", "eval_steps = 100 }"))
    assert rarely.run("run", "study.toml", "--only", "base", "--only", CELL).code == 0
    assert evaluations(rarely)["step"].to_list() == [8]
    return rarely.rows(CELL)["loss"].to_list()


@pytest.mark.long
def test_an_evaluation_changes_no_step(scored, fresh):
    assert scored.rows(CELL)["loss"].to_list() == losses_without_evaluation(fresh)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_broken_training_has_the_evaluations_of_an_unbroken_one(scored, fresh, number):
    broken = fresh(SCORED)
    assert broken.run("run", "study.toml", "--only", "base").code == 0

    broken.run_until_step(5, number, "train", "study.toml", "--only", CELL)
    assert broken.run("train", "study.toml", "--only", CELL).code == 0

    kept = ["step", "eval_loss", "eval_score", "questions", "cut"]
    found = evaluations(broken).select(kept)
    assert found.rows() == [
        pytest.approx(row, rel=1e-4) for row in evaluations(scored).select(kept).rows()
    ]
    replies = pl.read_parquet(broken.cell(CELL) / "files/evaluation_replies.parquet")
    assert replies["step"].value_counts()["count"].to_list() == [3, 3, 3, 3]


# the rate rises up to the last step, and ruins what the first steps have learned
RUINED = EVALUATED.replace("learning_rate = 1e-2", "learning_rate = 1.0, warmup_steps = 16")
RUINED = RUINED.replace("num_train_epochs = 2", "num_train_epochs = 4")


@pytest.mark.parametrize(
    ("variant", "rate"), [("full", "1.0"), pytest.param("lora", "0.1", marks=pytest.mark.long)]
)
def test_the_best_evaluated_model_is_kept(fresh, variant, rate):
    text = RUINED.replace("learning_rate = 1.0", f"learning_rate = {rate}")
    place = fresh(with_recipe(text, "", trainer=", load_best_model_at_end = true"))
    address = f"sft/model=tiny/variant={variant}"
    ran = place.run("run", "study.toml", "--only", "base", "--only", address)
    assert ran.code == 0, ran.out

    found = evaluations(place, address)
    assert found["step"].to_list() == list(range(2, 17, 2))
    best = found.sort("eval_loss")["step"][0]
    assert best < 16
    assert place.lineage(address)["notes"]["training"]["best_step"] == best
    assert loss_of(place.cell(address)) == pytest.approx(found["eval_loss"].min(), rel=1e-3)


def test_a_training_stops_early_and_stays_stopped(fresh):
    text = with_recipe(RUINED, "evaluation = { patience = 2 }")
    place = fresh(text)
    ran = place.run("run", "study.toml", "--only", "base", "--only", CELL)
    assert ran.code == 0, ran.out

    found = evaluations(place)
    best = found.sort("eval_loss")["step"][0]
    assert found["step"].to_list() == list(range(2, best + 5, 2))
    assert place.rows(CELL)["step"].to_list() == list(range(1, best + 5))
    # the last weights are kept, as no best model was asked for
    assert loss_of(place.cell(CELL)) == pytest.approx(found["eval_loss"][-1], rel=1e-3)


def loss_of(cell):
    """Loss of a cell's checkpoint on the held-out rows, computed without mbt or TRL."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        kind.from_pretrained(cell / "files/checkpoint")
        for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    total = count = 0.0
    held = pl.read_parquet(cell / "files/validation_set.parquet")
    for row in held.iter_rows(named=True):
        before = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        after = tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1]
        total += float(
            torch.nn.functional.cross_entropy(logits, torch.tensor(after), reduction="sum")
        )
        count += len(after)
    return total / count


def test_reinforcement_learning_is_scored_on_questions_that_it_does_not_ask(fresh):
    text = STUDY.replace("reward = {", "validation = { share = 0.3 }\nreward = {")
    score = "reward_words = 12, evaluation = { score = { questions = 4, max_tokens = 8 } }"
    text = text.replace("reward_words = 12", score)
    place = fresh(text.replace("max_steps = 12", "max_steps = 4\neval_steps = 2"))
    ran = place.run("run", "study.toml", "--only", "rl")
    assert ran.code == 0, ran.out

    address = "rl/model=tiny"
    found = evaluations(place, address)
    assert found["step"].to_list() == [2, 4]
    assert found["eval_loss"].is_null().all()
    assert found["eval_score"].is_between(0, 1).all()
    prompts = pl.read_parquet(place.cell(address) / "files/training_set.parquet")
    asked = prompts.filter(pl.col("dropped").is_null())
    replies = pl.read_parquet(place.cell(address) / "files/evaluation_replies.parquet")
    assert replies["question_id"].n_unique() == 4
    assert asked["question_id"].n_unique() == 8
    assert not set(asked["question_id"]) & set(replies["question_id"])


@pytest.mark.long
def test_two_processes_measure_what_one_does(scored, fresh):
    place = fresh(SCORED)
    assert place.run("run", "study.toml", "--only", "base").code == 0
    launch = 'stage.sft.launch={ accelerate = "multi_gpu", processes = 2 }'

    ran = place.run("train", "study.toml", "--only", CELL, "--set", launch)

    assert ran.code == 0, ran.out
    assert place.lineage(CELL)["notes"]["training"]["processes"] == 2
    kept = ["step", "eval_loss", "questions"]
    assert evaluations(place).select(kept).rows() == [
        pytest.approx(row, rel=1e-3) for row in evaluations(scored).select(kept).rows()
    ]
    replies = pl.read_parquet(place.cell(CELL) / "files/evaluation_replies.parquet")
    assert replies.select("step", "question_id").is_unique().all()
    assert replies.height == 4 * 3
