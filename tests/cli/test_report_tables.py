"""Tables of real studies: their labels, what is missing, and the notes that say so."""

import polars as pl

STUDY = """
[study]
name = "try"
seed = 1
max_failed_share = 1

[sampling.plain]
temperature = 0
max_tokens = 32

[models.parrot]
backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>", "<answer>x y</answer>"] }
sampling = "plain"

[models.judge]
backend = { kind = "canned", replies = ['{"grade": "B"}', "what?"] }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 60

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["tiny"], split = ["validation"], model = "parrot", prompt = PROMPTS }
samples = 1

[[stage]]
kind = "judge"
name = "answers"
rollouts = "base"
matrix = { judge = ["answer_match"] }
judge_model = "judge"
"""
SCORE = """
[[stage]]
kind = "score"
name = "{name}"
rollouts = {rollouts}
verdicts = "answers"
metrics = ["exact_match", "judge_accuracy", "tokens"]
"""
REPORT = """
[[stage]]
kind = "report"
name = "tables"
tables = ["main_results"]
scores = {}
"""


def study(prompts, *scores):
    """The study with these prompts and score stages, from (name, rollouts)."""
    made = [SCORE.format(name=name, rollouts=rollouts) for name, rollouts in scores]
    report = REPORT.format([name for name, _ in scores])
    return "".join([STUDY.replace("PROMPTS", str(prompts)), *made, report])


def read(workplace, suffix):
    return workplace / f"runs/try/tables/files/main_results.{suffix}"


def test_two_score_stages_over_two_prompts_show_the_prompt(mbt, workplace):
    where = '{{ stage = "base", where = {{ prompt = "{}" }} }}'
    prompts = ["answer", "metacognitive"]
    scores = [(f"of-{prompt}", where.format(prompt)) for prompt in prompts]
    (workplace / "study.toml").write_text(study(prompts, *scores))

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    rows = pl.read_csv(read(workplace, "csv")).select("model", "prompt").rows()
    assert sorted(rows) == [("parrot", "answer"), ("parrot", "metacognitive")]


def test_two_score_stages_over_the_same_rollouts_show_the_stage(mbt, workplace):
    (workplace / "study.toml").write_text(study(["answer"], ("one", '"base"'), ("two", '"base"')))

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    assert sorted(pl.read_csv(read(workplace, "csv"))["stage"]) == ["one", "two"]


def test_unread_verdicts_count_as_failed_and_the_note_has_both_bounds(mbt, workplace):
    (workplace / "study.toml").write_text(study(["answer"], ("scores", '"base"')))

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    verdicts = pl.read_parquet(workplace / "runs/try/answers/**/rows.parquet")
    unread = verdicts["failure"].is_not_null().sum()
    assert 10 < unread < 50
    (row,) = pl.read_csv(read(workplace, "csv")).to_dicts()
    assert (row["n"], row["failed"]) == (60, unread)
    assert (row["judge_accuracy"], row["judge_accuracy_n"]) == (0.0, 60 - unread)
    text = read(workplace, "md").read_text()
    high = f"{100 * unread / 60:.1f}"
    bounds = f"toy judge's accuracy 0.0 or {high} (parrot: {unread} missing)"
    assert f"Missing samples all wrong, or all right: {bounds}." in text


def test_a_table_says_that_no_reply_follows_the_format(mbt, workplace):
    text = study(["answer"], ("scores", '"base"'))
    silent = text.replace("<answer>Oslo</answer>", "Oslo").replace("<answer>x y</answer>", "x y")
    (workplace / "study.toml").write_text(
        silent.replace('"exact_match", ', '"exact_match", "answer_rate", ')
    )

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    note = "In 1 row no reply has an answer in "
    assert note in read(workplace, "md").read_text()


def test_a_table_with_answers_does_not_say_so(mbt, workplace):
    text = study(["answer"], ("scores", '"base"'))
    (workplace / "study.toml").write_text(
        text.replace('"exact_match", ', '"exact_match", "answer_rate", ')
    )

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    assert "no reply has an answer" not in read(workplace, "md").read_text()
