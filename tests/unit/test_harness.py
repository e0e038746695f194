"""Harnesses of others: their settings, where their numbers are, and what they are part of."""

import json

import polars as pl
import pytest
from pydantic import ValidationError

from mbt_cli.core import rows
from mbt_cli.core.harness import Harness, filled, placeholders
from mbt_cli.core.tables import ReportInputs
from mbt_cli.engine.beside import check_waiting_harnesses, watched_beside
from mbt_cli.engine.plan import make_plan
from mbt_cli.engine.states import States
from mbt_cli.engine.watch import to_watch
from mbt_cli.errors import ManifestError, StageError, UsageError
from mbt_cli.manifest.load import load_manifest
from mbt_cli.manifest.shown import unshown_metrics
from mbt_cli.report.seeds import merged_seeds
from mbt_cli.scores.comparison import compare_numbers
from mbt_cli.scores.harness_numbers import numbers_of, parsed

ARGV = ["eval", "--model", "{checkpoint}", "--out={output}"]
LM_EVAL = {
    "results": {
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.4,
            "exact_match_stderr,strict-match": 0.02,
            "exact_match,flexible-extract": 0.5,
        },
        "arc.easy": {"acc,none": 0.75, "acc_stderr,none": "N/A"},
        "mmlu_law": {"acc,none": 0.25, "acc_stderr,none": 0.01},
    },
    "n-samples": {
        "gsm8k": {"effective": 1319},
        "arc.easy": {"effective": 80},
        "mmlu_law": {"effective": 100},
    },
}


def harness(**more) -> Harness:
    return Harness.model_validate(
        {"argv": ARGV, "results": "results.json", "metrics": {"a": "x"}, **more}
    )


def numbers(metrics, documents=None, **more):
    """Metric to number, found in documents by their file."""
    found = {"results.json": LM_EVAL} if documents is None else documents
    return {n.metric: n for n in numbers_of(found, harness(metrics=metrics, **more).rules())}


def refused(metrics, documents=None, **more) -> str:
    with pytest.raises(StageError) as raised:
        numbers(metrics, documents, **more)
    return raised.value.message


# Settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"argv": [*ARGV, "{checkpont}"]}, "did you mean `checkpoint`?"),
        ({"argv": ["eval", "{checkpoint}"]}, "lacks `{output}`"),
        ({"argv": ["eval", "{output}"]}, "every model would have the same numbers"),
        ({"argv": ["{checkpoint}", "{output}"]}, "has no placeholder"),
        ({"results": "/tmp/results.json"}, "must be a path in the folder"),
        ({"results": "../results.json"}, "must be a path in the folder"),
        ({"results": "results.yaml"}, "must end in .json, .jsonl or .csv"),
        ({"metrics": {"a": {"value": "x", "error": "e", "low": "l"}}}, "one kind of interval"),
        ({"metrics": {"a": {"value": "x", "low": "l"}}}, "`low` without `high`"),
        ({"metrics": {"a": {"value": "x", "error": "e.*"}}}, "has more `*` than `value`"),
        ({"metrics": ["x.y"]}, "has no `*` that could name its number"),
        ({"metrics": {"a b": "x"}}, "is not the name of a metric"),
        ({"metrics": [{"name": "a", "value": "x"}, {"name": "a", "value": "y"}]}, "two metrics"),
        ({"environment": {"MY_TOKEN": "x"}}, "looks like a secret"),
    ],
)
def test_what_cannot_be_run_or_read_is_refused(wrong, message):
    with pytest.raises(ValidationError) as raised:
        harness(**wrong)

    assert message in str(raised.value)


def test_a_key_in_place_of_its_variable_is_not_shown():
    with pytest.raises(ValidationError) as raised:
        harness(key_env=["sk-live-123456"])

    (detail,) = raised.value.errors()
    assert detail["type"] == "secret"
    assert "sk-live" not in detail["msg"]


def test_braces_that_are_no_placeholders_stay():
    argv = ["run", '{"a": {"b": 1}}', "{{task}}", "{output}/{seed}"]

    assert placeholders(argv) == ["output", "seed"]
    assert filled(argv, {"output": "/o", "seed": "7"}) == [
        *("run", '{"a": {"b": 1}}', "{task}", "/o/7")
    ]


# Numbers


def test_a_number_has_the_interval_of_its_error_and_its_count():
    found = numbers(
        {
            "gsm8k": {
                "value": "results.gsm8k.exact_match,strict-match",
                "error": "results.gsm8k.exact_match_stderr,strict-match",
                "n": "n-samples.gsm8k.effective",
            }
        }
    )["gsm8k"]

    # 0.4 plus and minus 1.959964 x 0.02
    assert (found.value, found.n, found.unit) == (0.4, 1319, "percent")
    assert (found.low, found.high) == pytest.approx((0.3608007, 0.4391993))


def test_one_path_finds_many_tasks_with_what_belongs_to_each():
    found = numbers(
        [
            {
                "value": "results.*.acc,none",
                "error": "results.*.acc_stderr,none",
                "n": "n-samples.*.effective",
            },
            {"value": ["results", "*", "exact_match,strict-match"], "name": "*_strict"},
        ]
    )

    assert {name: (n.value, n.n) for name, n in found.items()} == {
        "arc.easy": (0.75, 80),
        "mmlu_law": (0.25, 100),
        "gsm8k_strict": (0.4, None),
    }
    assert found["arc.easy"].low is None  # its error is "N/A"
    assert found["mmlu_law"].low == pytest.approx(0.25 - 0.01959964)


def test_rows_are_chosen_by_a_field_and_names_have_only_letters_that_names_can_have():
    lines = [
        {"task_name": "gsm8k::olmes", "metrics": {"primary_score": 41.5}, "num_instances": 1319},
        {"task_name": "arc:mc", "metrics": {"primary_score": 80}, "num_instances": 99},
    ]
    documents = {"m.jsonl": parsed("m.jsonl", "\n".join(map(json.dumps, lines)).encode())[0]}
    path = ["task_name=*", "metrics", "primary_score"]
    of_rows = {"value": path, "n": ["task_name=*", "num_instances"], "unit": "percent"}

    found = numbers([of_rows], documents)
    one = numbers({"g": {**of_rows, "value": ["task_name=gsm8k*", *path[1:]]}}, documents)

    assert {k: (v.value, v.n) for k, v in found.items()} == {
        "gsm8k_olmes": (0.415, 1319),
        "arc_mc": (0.8, 99),
    }
    assert one["g"].value == 0.415


def test_a_table_of_text_has_numbers_and_no_others():
    (document,) = parsed("r.csv", b"\xef\xbb\xbftask,score,low,high\ng,7.5,7.1,7.9\nh,none,1,2\n")
    table = {"value": "task=g.score", "low": "task=g.low", "high": "task=g.high"}

    found = numbers({"g": table}, {"r.csv": document}, unit="points")["g"]

    assert (found.value, found.low, found.high, found.unit) == (7.5, 7.1, 7.9, "points")
    assert "is `none`, which is not a number" in refused({"h": "task=h.score"}, {"r.csv": document})


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            {"a": "results.gsm8k.exact_match,strict"},
            "`results.gsm8k` in `results.json` has no key `exact_match,strict`; the closest are "
            "`exact_match,strict-match`",
        ),
        ({"a": "result.gsm8k"}, "`results.json` has no key `result`; the closest is `results`"),
        ({"a": "results.gsm8k"}, "`results.gsm8k` is an object, which is not a number; it has"),
        ({"a": "results.gsm8k.alias"}, "is the text `gsm8k`, which is not a number"),
        ({"a": "results.*.acc,none"}, "2 numbers are called `a`"),
        ({"a": "results.gsm8k.alias.x"}, "is a single value, without keys"),
        (["results.*.acc,some"], "has no key `acc,some`"),
        (
            {"a": {"value": "results.mmlu_law.acc,none", "error": "results.mmlu_law.stderr"}},
            "`results.mmlu_law.stderr` is not there",
        ),
        (
            {"a": {"value": "results.mmlu_law.acc,none", "n": "results.mmlu_law.acc,none"}},
            "is 0.25, and `n` is a number of questions",
        ),
        (
            {"*": "results.*.acc,none", "mmlu_law": "results.gsm8k.exact_match,strict-match"},
            "are both called `mmlu_law`",
        ),
    ],
)
def test_a_number_that_is_not_there_is_one_clear_message(metrics, message):
    assert message in refused(metrics)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NaN", "`x` is NaN"),
        ("Infinity", "`x` is infinite"),
        ("true", "`x` is true or false, which is not a number"),
        ("null", "`x` is null, which is not a number"),
        ('"0.5"', "`x` is the text `0.5`, which is not a number"),
        ("71.2", "`x` is 71.2, and a share is from 0 to 1"),
        ("-0.5", "`x` is -0.5, and a share is from 0 to 1"),
    ],
)
def test_a_value_that_is_no_number_is_never_taken(text, message):
    (document,) = parsed("results.json", f'{{"x": {text}}}'.encode())

    assert message in refused({"a": "x"}, {"results.json": document})


@pytest.mark.parametrize("name", ["r.json", "r.jsonl"])
def test_a_file_that_is_cut_off_is_not_read(name):
    with pytest.raises(StageError, match=f"`{name}` is not JSON"):
        parsed(name, b'{"results": {"gsm8k"')


def test_an_interval_that_does_not_hold_its_value_is_refused():
    documents = {"r.json": {"v": 0.5, "l": 0.6, "h": 0.7}}

    what = refused({"a": {"value": "v", "low": "l", "high": "h"}}, documents)

    assert what == "`v` is 0.5, outside of its interval 0.6 to 0.7"


# Its place in a study

STUDY = """
[study]
name = "steps"
seed = 1

[sampling.plain]
temperature = 0
max_tokens = 32

[models.qwen]
backend = { kind = "vllm", model = "Qwen/Qwen3-1.7B" }
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 6

[harnesses.mine]
argv = ["python3", "eval.py", "{checkpoint}", "{output}"]
results = "results.json"
metrics = { gsm8k = "gsm8k" }

[[stage]]
kind = "train"
name = "rl"
preset = "grpo"
matrix = { model = ["qwen"] }
questions = { benchmark = "tiny", split = "train" }
reward = "exact_match"

[[stage]]
kind = "harness"
name = "evals"
checkpoints = { stage = "rl", where = { step = "all" } }
matrix = { harness = ["mine"] }

[[stage]]
kind = "report"
name = "tables"
"""
CELL = "evals/model=qwen/harness=mine/step=20"
SERVED = ("{checkpoint}", "{base_url}")


@pytest.fixture
def study(tmp_path, presets):
    """Load the study with changes of its text, and with step 20 published unless told not to."""

    def loaded(*changes, steps=(20,)):
        text = STUDY
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        for step in steps:
            folder = tmp_path / "runs/steps/rl/model=qwen" / f"step={step}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "lineage.json").touch()
        path = tmp_path / "study.toml"
        path.write_text(text)
        return load_manifest(path, presets=presets, runs=tmp_path / "runs")

    return loaded


def fingerprint(manifest, tmp_path, address="evals/model=qwen/harness=mine"):
    return States(manifest, tmp_path / "empty")[address].fingerprint


def test_a_step_is_evaluated_like_a_rollout_of_it(study):
    manifest = study(('name = "evals"', 'name = "evals"\nbeside = { gpus = [1] }'))

    assert CELL in manifest.cells
    assert set(to_watch(manifest)) >= {CELL, "tables"}
    found = watched_beside(manifest, ["rl/model=qwen"])
    assert (found.stages, found.gpus) == (["evals"], [1])
    assert manifest.cells["tables"].resolution.inputs["scores"] == (CELL,)


def test_beside_is_for_steps_here_too(study):
    with pytest.raises(ManifestError, match=r"`stage.evals.beside`: is for the checkpoints"):
        study(
            ('{ stage = "rl", where = { step = "all" } }', '"rl"'),
            ('name = "evals"', 'name = "evals"\nbeside = { gpus = [1] }'),
        )


LAST = ('{ stage = "rl", where = { step = "all" } }', '"rl"')


@pytest.mark.parametrize(
    "change",
    [
        ('"python3"', '"~/envs/mine/bin/python3"'),
        ('results = "', 'key_env = ["MY_KEY"]\nresults = "'),
        ('results = "', 'place = { gpus = 4 }\nresults = "'),
        ('results = "', 'timeout_seconds = 60\nresults = "'),
        ("temperature = 0", "temperature = 1"),
        ("seed = 1", "seed = 2"),
    ],
    ids=["folder", "keys", "gpus", "time", "sampling", "seed"],
)
def test_what_no_number_depends_on_is_in_no_fingerprint(study, tmp_path, change):
    hub = ("checkpoints", "#"), ('harness = ["mine"]', 'harness = ["mine"], model = ["qwen"]')

    assert fingerprint(study(*hub), tmp_path) == fingerprint(study(*hub, change), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        ('"eval.py"', '"other.py"'),
        ('results = "', 'version = "2"\nresults = "'),
        ('results = "', 'environment = { SHOTS = "5" }\nresults = "'),
        ('results = "', 'unit = "percent"\nresults = "'),
        ('gsm8k = "gsm8k"', 'gsm8k = "gsm8k.score"'),
        ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B"),
    ],
    ids=["arguments", "version", "environment", "unit", "path", "model"],
)
def test_what_numbers_depend_on_is_in_the_fingerprint(study, tmp_path, change):
    hub = ("checkpoints", "#"), ('harness = ["mine"]', 'harness = ["mine"], model = ["qwen"]')

    assert fingerprint(study(*hub), tmp_path) != fingerprint(study(*hub, change), tmp_path)


def test_a_seed_counts_where_it_is_an_argument(study, tmp_path):
    seeded = ('"{output}"]', '"{output}", "{seed}"]')

    first = fingerprint(study(LAST, seeded), tmp_path)

    assert fingerprint(study(LAST, seeded, ("seed = 1", "seed = 2")), tmp_path) != first


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ((), 1),  # as many as its server
        ((('results = "', 'place = { gpus = 4 }\nresults = "'),), 4),
        ((SERVED,), 1),
        ((SERVED, ('results = "', 'place = { gpus = 2 }\nresults = "')), 3),
    ],
    ids=["weights", "own", "served", "both"],
)
def test_a_plan_books_the_gpus_of_program_and_server(study, tmp_path, changes, gpus):
    manifest = study(LAST, *changes)

    plan = make_plan(manifest, States(manifest, tmp_path / "empty"))

    (job,) = [job for job in plan.jobs if job.kind == "harness"]
    assert job.resources.gpus == gpus


def test_a_missing_program_is_found_before_the_training_whose_steps_it_evaluates(study):
    manifest = study(('"python3"', '"no-such-program"'), steps=())

    assert "evals" in manifest.waiting
    with pytest.raises(UsageError, match="starts `no-such-program`, and there is no such"):
        check_waiting_harnesses(manifest, {"PATH": "/usr/bin"})


def test_a_missing_key_is_found_too(study):
    manifest = study(('results = "', 'key_env = ["MY_KEY"]\nresults = "'), steps=())

    with pytest.raises(UsageError, match="needs the variable `MY_KEY`, which is not set"):
        check_waiting_harnesses(manifest, {"PATH": "/usr/local/bin:/usr/bin:/bin"})


def test_a_harness_that_is_not_there_is_refused(study):
    with pytest.raises(ManifestError, match="no harness `mine2`; did you mean `mine`"):
        study(('harness = ["mine"]', 'harness = ["mine2"]'))


def test_a_model_that_answers_inside_mbt_has_no_address(study):
    canned = 'kind = "canned", replies = ["x"]'
    with pytest.raises(ManifestError, match=r"asks a server \(`\{base_url\}`\)"):
        study(
            ('kind = "vllm", model = "Qwen/Qwen3-1.7B"', canned),
            ("checkpoints", "#"),
            ('harness = ["mine"]', 'harness = ["mine"], model = ["qwen"]'),
            SERVED,
        )


def test_numbers_that_nothing_shows_are_told(study):
    shown = ('name = "tables"', 'name = "tables"\ntables = [{ kind = "main_results", METRICS }]')

    def told(names):
        change = (shown[0], shown[1].replace("METRICS", f"metrics = [{names}]"))
        manifest = study(change, ('gsm8k = "gsm8k"', 'gsm8k = "g", arc = "a"'))
        return list(unshown_metrics(manifest.cells))

    assert not list(unshown_metrics(study().cells))
    assert not told('"gsm8k", "arc"')
    (line,) = told('"gsm8k"')
    assert line.startswith("no table or figure shows `arc` of `mine`")
    with pytest.raises(ManifestError, match="`arcs`: no metric has this name; did you mean `arc`"):
        told('"arcs"')


def test_published_numbers_of_a_harness_may_stand_beside_its_own(study, tmp_path):
    (tmp_path / "published.csv").write_text("model,metric,value\nqwen,gsm8k,61.2\nqwen,gsm9k,1\n")
    named = ('name = "tables"', f'name = "tables"\nreference = "{tmp_path}/published.csv"')

    with pytest.raises(ManifestError) as raised:
        study(named)
    found = study(named, ('{ gsm8k = "gsm8k" }', '["*.acc"]'))

    (problem,) = raised.value.problems
    assert "line 3: no metric `gsm9k`; did you mean `gsm8k`?" in str(problem)
    assert CELL in found.cells


# Summary rows


def summary(**row):
    settings = json.dumps({"harness": "mine", **row.pop("settings", {})})
    base = {"metric": "g", "unit": "percent", "failed": 0, "settings": settings}
    return pl.DataFrame([{**base, **row}], schema=rows.SUMMARY)


def test_two_numbers_with_errors_have_a_difference_with_an_interval_and_a_test():
    first = summary(value=0.5, low=0.4412, high=0.5588, settings={"error": 0.03})
    second = summary(value=0.4, low=0.3216, high=0.4784, settings={"error": 0.04})

    (row,) = compare_numbers(first, second).metrics.to_dicts()

    # errors of 3 and 4 points are one of 5: 0.1 plus and minus 1.96 x 0.05, z = 2
    assert row["difference"] == pytest.approx(0.1)
    assert (row["low"], row["high"]) == pytest.approx((0.002, 0.198), abs=1e-6)
    assert row["p"] == row["p_holm"] == pytest.approx(0.0455, abs=1e-4)
    assert (row["test"], row["questions"]) == ("z", None)


def test_numbers_without_errors_have_a_difference_alone():
    (row,) = compare_numbers(summary(value=0.5), summary(value=0.4)).metrics.to_dicts()

    assert row["difference"] == pytest.approx(0.1)
    assert row["low"] is row["high"] is row["p"] is None


def test_seeds_of_numbers_without_counts_become_their_mean():
    parts = [
        summary(value=value, low=value - 0.1, high=value + 0.1).with_columns(
            address=pl.lit(f"evals/model=m/seed={seed}"), seed=pl.lit(str(seed))
        )
        for seed, value in ((1, 0.4), (2, 0.6))
    ]
    inputs = ReportInputs(pl.concat(parts), pl.LazyFrame(), ["model", "seed"])

    merged = merged_seeds(inputs).summary.row(0, named=True)

    assert (merged["value"], merged["n"], merged["seeds"]) == (0.5, None, 2)
    assert merged["low"] < 0.4
