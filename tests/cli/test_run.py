"""The verbs end to end, on the canned backend, as a user types them."""

import json

import polars as pl
import pytest

from tests.conftest import SMALL_STUDY

CELL = "base/benchmark=tiny/split=validation/model=parrot/prompt=answer"


def test_a_study_runs_from_questions_to_a_table(mbt, workplace):
    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    assert "parrot" in ran.out
    table = pl.read_parquet(
        workplace / "runs/small/tables/files/main_results.parquet", hive_partitioning=False
    )
    assert table.height == 2


def test_a_second_run_asks_nothing_and_says_so(mbt):
    mbt("run", "study.toml")

    again = mbt("run", "study.toml")

    assert again.code == 0
    assert "0 cells run" in again.out
    assert "0 model calls" in again.out


def test_every_stage_is_one_parquet_with_its_axes_as_columns(mbt, workplace):
    mbt("run", "study.toml")

    rows = pl.scan_parquet(workplace / "runs/small/base/**/rows.parquet", hive_partitioning=True)

    # 6 questions x 2 samples x 2 prompts
    assert rows.select(pl.len()).collect().item() == 24
    assert {"benchmark", "split", "model", "prompt"} <= set(rows.collect_schema())


def test_verbs_run_in_turn_and_name_what_is_missing(mbt):
    early = mbt("judge", "study.toml")
    assert early.code == 2
    assert "mbt rollout study.toml" in early.err

    assert mbt("rollout", "study.toml").code == 0
    assert mbt("judge", "study.toml").code == 0
    assert mbt("score", "study.toml").code == 0
    report = mbt("report", "study.toml")
    assert report.code == 0
    assert "parrot" in report.out


def test_stale_cells_are_named_field_by_field_until_replace(mbt, workplace):
    mbt("run", "study.toml")

    stale = mbt("run", "study.toml", "--set", "sampling.plain.temperature=0.5")
    assert stale.code == 1
    assert "`models.parrot.sampling.temperature`: 0.0 -> 0.5" in stale.err
    assert "--replace" in stale.err

    replaced = mbt("run", "study.toml", "--set", "sampling.plain.temperature=0.5", "--replace")
    assert replaced.code == 0, replaced.err
    assert list((workplace / "runs/.replaced/small").rglob("lineage.json"))


def test_more_samples_and_a_larger_limit_need_no_flag_and_ask_only_what_is_new(mbt, workplace):
    mbt("rollout", "study.toml")

    grown = mbt(
        "rollout", "study.toml", "--set", "stage.base.samples=3", "--set", "benchmarks.tiny.limit=7"
    )

    assert grown.code == 0, grown.err
    lineage = json.loads((workplace / "runs/small" / CELL / "lineage.json").read_text())
    # 7 questions x 3 samples, of which 6 x 2 were there
    assert lineage["rows"] == 21
    assert lineage["requests"]["reused"] == 12
    assert lineage["requests"]["sent"] == 9


METRICS = ["exact_match", "f1_score", "answer_rate", "judge_accuracy", "tokens", "degeneration"]
MORE = [
    *("--set", f"stage.scores.metrics={[*METRICS, 'substring_match', 'math_match']}"),
    *("--set", 'stage.tables.tables=["main_results", "paired_differences"]'),
    *("--set", 'stage.tables.figures=["response_lengths"]'),
]


def test_more_metrics_tables_and_figures_need_no_flag_and_ask_nothing(mbt, workplace):
    mbt("run", "study.toml")

    planned = mbt("run", "study.toml", "--dry-run", *MORE)
    grown = mbt("run", "study.toml", *MORE)

    assert "scores/benchmark=tiny" in planned.out
    assert "`stage.scores.metrics` has `substring_match` now" in planned.out
    assert "`stage.scores.metrics` has `math_match` now" in planned.out
    assert grown.code == 0, grown.err
    assert "0 model calls" in grown.out
    assert "substring" in grown.out
    files = workplace / "runs/small/tables/files"
    assert (files / "paired_differences.parquet").is_file()
    assert (files / "response_lengths.png").is_file()


def test_fewer_metrics_make_scores_stale(mbt):
    mbt("run", "study.toml")

    fewer = mbt("run", "study.toml", "--set", 'stage.scores.metrics=["exact_match"]')

    assert fewer.code == 1
    assert "`metrics`: ['exact_match', 'f1_score'" in fewer.err
    assert "-> ['exact_match']" in fewer.err
    assert "--replace" in fewer.err


def test_a_study_that_gains_a_prompt_and_questions_asks_for_what_is_new_alone(mbt, workplace):
    whole = (workplace / "study.toml").read_text()
    first = whole.replace('["answer", "metacognitive"]', '["answer"]').replace(
        "limit = 6", "limit = 4"
    )
    (workplace / "study.toml").write_text(first)
    assert mbt("run", "study.toml", "-q").code == 0
    (workplace / "study.toml").write_text(whole)

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    # 2 samples: 2 more questions under the old prompt, all 6 under the new one
    base = [
        json.loads(path.read_text())["requests"]
        for path in sorted((workplace / "runs" / "small" / "base").rglob("lineage.json"))
    ]
    assert [(made["sent"], made["reused"]) for made in base] == [(4, 8), (12, 0)]
    assert "metacognitive" in ran.out


def test_a_dry_run_of_a_grown_study_says_what_waits_for_what_grows(mbt, workplace):
    assert mbt("run", "study.toml", "-q").code == 0
    text = (workplace / "study.toml").read_text()
    (workplace / "study.toml").write_text(text.replace("samples = 2", "samples = 3"))

    ran = mbt("run", "study.toml", "--dry-run")

    assert ran.code == 0, ran.err
    assert "waits for base/" in ran.out
    assert "requests new" in ran.out


def test_a_dry_run_shows_requests_and_prompts_and_writes_nothing(mbt, workplace):
    ran = mbt("rollout", "study.toml", "--dry-run")

    assert ran.code == 0, ran.err
    assert "12 requests new, 0 reused" in ran.out
    assert "Document [0] (Title:" in ran.out
    assert not (workplace / "runs").exists()


def test_a_dry_run_counts_what_failed_where_that_is_asked_again(mbt, workplace):
    text = (workplace / "study.toml").read_text().replace("share = 0", "share = 1")
    (workplace / "study.toml").write_text(text.replace('"no idea"', '""'))
    assert mbt("rollout", "study.toml", "-q").code == 0

    plain = mbt("rollout", "study.toml", "--dry-run")
    again = mbt("rollout", "study.toml", "--dry-run", "--retry-failed")

    assert "0 requests new, 12 reused" in plain.out
    assert again.out.count("  7 requests new, 5 reused") == 2


def test_a_judge_counts_by_its_kind_whatever_its_name(mbt, workplace):
    study = SMALL_STUDY.replace('judge = ["answer_match"]', 'judge = ["strict"]')
    (workplace / "study.toml").write_text(f'{study}\n[judges.strict]\nkind = "answer_match"\n')

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    (cell, *_) = (workplace / "runs/small/scores").rglob("summary.parquet")
    assert "judge_accuracy" in pl.read_parquet(cell)["metric"].to_list()


def test_a_baseline_has_no_difference_from_itself_and_other_cells_have_one(mbt, workplace):
    tables = 'tables = ["main_results", "paired_differences"]\nreference = "published.csv"'
    (workplace / "published.csv").write_text("metric,value\nexact_match,40\n")
    (workplace / "study.toml").write_text(SMALL_STUDY.replace('tables = ["main_results"]', tables))

    ran = mbt("run", "study.toml")

    assert ran.code == 0, ran.err
    found = {
        path.parent.parent.name: pl.read_parquet(path)
        for path in (workplace / "runs/small/scores").rglob("summary.parquet")
    }
    baseline = found.pop("prompt=answer")
    assert (
        baseline.select("baseline", "difference", "p").null_count().row(0) == (baseline.height,) * 3
    )
    for other in found.values():
        assert other.select("difference", "p").null_count().row(0) == (0, 0)
        shares = other.filter(metric="exact_match")
        assert shares["difference_low"].null_count() == 0
    files = workplace / "runs/small/tables/files"
    assert "published" in (files / "main_results.md").read_text()
    assert "published" not in (files / "paired_differences.md").read_text()
    table = pl.read_parquet(files / "paired_differences.parquet")
    assert table["prompt"].to_list() == [name.removeprefix("prompt=") for name in found]


def test_show_follows_a_score_back_to_the_questions(mbt, workplace):
    mbt("run", "study.toml")
    cell = "runs/small/scores/benchmark=tiny/split=validation/model=parrot/prompt=answer"

    shown = mbt("show", cell)

    assert shown.code == 0, shown.err
    assert "reads base/benchmark=tiny" in shown.out
    assert "reads questions/benchmark=tiny/split=validation" in shown.out


def test_show_of_a_manifest_says_where_each_flag_of_a_server_comes_from(mbt, workplace):
    (workplace / "study.toml").write_text(
        SMALL_STUDY.replace(
            "[benchmarks.tiny]",
            '[models.big]\npreset = "qwen3-4b"\nsampling = "plain"\n'
            "serve = { max_model_len = 8192 }\n\n[benchmarks.tiny]",
        )
    )

    shown = mbt("show", "study.toml")

    assert shown.code == 0, shown.err
    lines = {line.split("│")[1].strip(): line for line in shown.out.splitlines() if "│" in line}
    assert "8192" in lines["serve.max_model_len"]
    assert "models.big" in lines["serve.max_model_len"]
    assert "preset qwen3-4b" in lines["serve.reasoning_parser"]
    assert "mbt" in lines["serve.generation_config"]
    assert "plain" in lines["sampling.like"]
    assert "sampling.temperature" not in lines


def test_show_of_a_manifest_says_which_sampling_a_preset_recommends(mbt, workplace):
    (workplace / "study.toml").write_text(
        SMALL_STUDY.replace(
            "[benchmarks.tiny]",
            '[models.big]\npreset = "qwen3.5-4b"\nsampling = { top_p = 0.9 }\n\n[benchmarks.tiny]',
        )
    )

    shown = json.loads(mbt("show", "study.toml", "--json").out)["models"]["big"]["flags"]

    assert shown["sampling.presence_penalty"] == {"value": 1.5, "from": "preset qwen3.5-4b"}
    assert shown["sampling.top_p"] == {"value": 0.9, "from": "models.big"}
    assert shown["request.chat_template_kwargs"]["value"] == {"enable_thinking": True}


def test_show_as_json_has_the_recipe_of_each_training(mbt, workplace):
    training = """
[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = ["big"], "trainer.learning_rate" = [1e-5, 2e-5] }
data = { stage = "base", where = { model = "parrot", prompt = "answer" } }
target = "reply"
recipe = { batch_size = 4 }
"""
    big = '[models.big]\npreset = "qwen3.5-4b"\n'
    (workplace / "study.toml").write_text(f"{SMALL_STUDY}{big}{training}")

    ran = mbt("show", "study.toml", "--json")
    assert ran.code == 0, ran.out + ran.err
    shown = json.loads(ran.out)

    rates = {
        one["address"]: one["recipe"]["trainer"]["learning_rate"] for one in shown["trainings"]
    }
    assert sorted(rates.values()) == [1e-5, 2e-5]
    (first, _) = shown["trainings"]
    assert first["recipe"]["batch_size"] == 4
    assert first["recipe"]["trainer"]["lr_scheduler_type"]  # of the preset
    assert first["recipe"]["trained_dtype"] == first["recipe"]["dtype"]
    assert first["method"] == {"kind": "sft"}
    assert first["estimate"]["address"] == first["address"]


def test_show_prompt_gives_what_a_judge_was_asked(mbt, workplace):
    mbt("run", "study.toml")
    cell = workplace / "runs/small/answers"
    rows = pl.scan_parquet(cell / "**/rows.parquet", hive_partitioning=False).collect()
    asked = rows.filter(pl.col("asked"))["question_id"][0]

    shown = mbt("show", "runs/small/answers", "--prompt", asked)
    unknown = mbt("show", "runs/small/answers", "--prompt", "no-such-question")

    assert "--- user" in shown.out
    assert '{"grade": "A"}' in shown.out
    assert unknown.code == 2
    assert "no-such-question" in unknown.err


def test_verify_refuses_an_artifact_with_other_bytes(mbt, workplace):
    mbt("rollout", "study.toml")
    rows = workplace / "runs/small" / CELL / "rows.parquet"
    content = bytearray(rows.read_bytes())
    content[50] ^= 1
    rows.write_bytes(bytes(content))

    shown = mbt("show", "--verify", f"runs/small/{CELL}")
    judged = mbt("judge", "study.toml")

    assert shown.code == 1
    assert "rows.parquet" in shown.err
    assert judged.code == 1
    assert "rows.parquet" in judged.err


def test_too_many_failed_rows_fail_the_stage_and_keep_the_replies(mbt, workplace):
    text = (workplace / "study.toml").read_text()
    (workplace / "study.toml").write_text(
        text.replace("""replies = ['{"grade": "A"}']""", 'replies = ["who knows"]')
    )

    ran = mbt("run", "study.toml")

    assert ran.code == 1
    assert "unreadable_verdict" in ran.err
    assert "max_failed_share" in ran.err
    allowed = mbt("run", "study.toml", "--set", "study.max_failed_share=1")
    assert allowed.code == 0, allowed.err


TABLES = (("samples = 2", "sampels = 2"), ("max_tokens = 32", "max_tokens = -1"))
NAMES = (
    ("samples = 2", "samples = 0"),
    ('judge_model = "judge"', 'judge_model = "jugde"'),
    ('scores = "scores"', 'scores = "score"'),
)


@pytest.mark.parametrize(
    ("mistakes", "count"),
    [(TABLES, 2), (NAMES, 3), (TABLES + NAMES[1:], 2)],
    ids=["tables", "names", "both"],
)
def test_each_mistake_is_one_line_and_tables_come_before_names(mbt, workplace, mistakes, count):
    text = (workplace / "study.toml").read_text()
    for right, wrong in mistakes:
        text = text.replace(right, wrong)
    (workplace / "study.toml").write_text(text)

    ran = mbt("check", "study.toml")

    assert ran.code == 2
    lines = [line for line in ran.err.splitlines() if line.startswith("  line ")]
    assert len(lines) == count, ran.err
    assert "Traceback" not in ran.err


def test_check_counts_cells_and_prints_a_schema(mbt):
    assert "base" in mbt("check", "study.toml").out

    schema = json.loads(mbt("check", "--schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "rollout" in str(schema["properties"]["stage"])


def test_secrets_of_the_environment_stand_nowhere_on_the_disk(mbt, workplace):
    secret = "sk-very-secret-value-0123456789"

    mbt("run", "study.toml", "-v", OPENAI_API_KEY=secret)

    for path in (workplace / "runs").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
