"""A wrong manifest: every problem at once, in the user's words, with what is valid."""

import pytest

from mbt_cli.errors import ManifestError, UsageError
from tests.conftest import SMALL_STUDY


def problems_of(load, text, *overrides):
    with pytest.raises(ManifestError) as caught:
        load(text, *overrides)
    assert caught.value.exit_code == 2
    return {p.where: p.what for p in caught.value.problems}


def test_all_problems_in_tables_come_at_once(load):
    text = (
        SMALL_STUDY.replace("samples = 2", "sampels = 2")
        .replace("temperature = 0", "temperature = -1")
        .replace("limit = 6", "limti = 6")
    )

    found = problems_of(load, text)

    assert list(found) == [
        "sampling.plain.temperature",
        "benchmarks.tiny.limti",
        "stage.base.sampels",
    ]
    assert "did you mean `samples`?" in found["stage.base.sampels"]
    assert "-1" in found["sampling.plain.temperature"]


def test_all_problems_in_names_come_at_once(load):
    text = (
        SMALL_STUDY.replace('prompt = ["answer", "metacognitive"]', 'prompt = ["answer", "mine"]')
        .replace('judge_model = "judge"', 'judge_model = "jugde"')
        .replace('verdicts = "answers"', 'verdicts = "answer"')
    )

    found = problems_of(load, text)

    assert "no prompt `mine`" in found["stage.base.prompt"]
    assert "did you mean `judge`?" in found["stage.answers.judge_model"]
    assert "did you mean `answers`?" in found["stage.scores.verdicts"]


@pytest.mark.parametrize(
    ("before", "after", "where", "words"),
    [
        ("max_tokens = 32", "max_tokens = -1", "sampling.plain.max_tokens", "-1"),
        ('name = "small"\n', "", "study.name", "required"),
        ('kind = "report"', 'kind = "reprot"', "stage.tables.kind", "did you mean `report`?"),
        ("seed = 1", "sed = 1", "study.sed", "did you mean `seed`?"),
        (
            'backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>", "no idea"] }',
            "",
            "models.parrot",
            "neither a `preset` nor a `backend`",
        ),
        (
            '[models.judge]\n',
            '[models.judge]\nrequest = { n = 4 }\n',
            "models.judge.request",
            "`n` is set by mbt: set `samples`",
        ),
        ('model = ["parrot"]', 'model = ["@all"]', "stage.base.matrix.model", "no group `@all`"),
        ('model = ["parrot"]', "model = []", "stage.base.matrix.model", "empty"),
        (
            'judge = ["answer_match"]',
            'judge = ["answer_mach"]',
            "stage.answers.matrix.judge",
            "did you mean `answer_match`?",
        ),
        (
            'metrics = ["exact_match"',
            'metrics = ["exact_mach"',
            "stage.scores.metrics.0",
            "did you mean `exact_match`?",
        ),
        ('"metacognitive"]', '"metacog"]', "stage.base.prompt", "did you mean `metacognitive`?"),
        ('limit = 6', 'limti = 6', "benchmarks.tiny.limti", "did you mean `limit`?"),
        ('kind = "tinyhop"', 'kind = "tinyhopp"', "benchmarks.tiny", "did you mean `tinyhop`?"),
        (
            "kind = \"canned\", replies = ['",
            "kind = \"caned\", replies = ['",
            "models.judge.backend",
            "did you mean `canned`?",
        ),
        ('name = "base"\n', 'name = "ba se"\n', "stage.ba se.name", "ba se"),
        (
            'verdicts = "answers"\n',
            'verdicts = "answers"\nwhere = { modl = "parrot" }\n',
            "stage.scores.where.modl",
            "unknown axis; did you mean `model`?",
        ),
        (
            'verdicts = "answers"\n',
            'verdicts = "answers"\nexclude = [{ modl = "parrot" }]\n',
            "stage.scores.exclude[0].modl",
            "unknown axis; did you mean `model`?",
        ),
        (
            'baseline = { prompt',
            'baseline = { promt',
            "stage.scores.baseline.promt",
            "unknown axis; did you mean `prompt`?",
        ),
        (
            'samples = 2',
            'samples = 2\nsource = { fro = "x.parquet" }',
            "stage.base.source.fro",
            "unknown key; did you mean `from`?",
        ),
        (
            'samples = 2',
            'samples = 2\nsource = { columns = {} }',
            "stage.base.source.from",
            "is required: `hub:ORG/NAME` or a path",
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)  # fmt: skip
def test_each_mistake_has_its_own_clear_line(load, before, after, where, words):
    assert before in SMALL_STUDY

    found = problems_of(load, SMALL_STUDY.replace(before, after))

    assert where in found, found
    assert words in found[where]


def test_a_misspelled_key_of_an_input_is_one_problem(load):
    text = SMALL_STUDY.replace('scores = "scores"', 'scores = { stage = "scores", were = {} }')

    assert problems_of(load, text) == {
        "stage.tables.scores.were": "unknown key; did you mean `where`?"
    }


def test_a_trainer_key_in_a_recipe_says_where_it_belongs(load):
    train = (
        '\n[[stage]]\nkind = "train"\nname = "sft"\nmatrix = { model = "parrot" }\ndata = "base"\n'
        'recipe = { method = "sft", learning_rate = 1e-5 }\n'
    )

    what = problems_of(load, SMALL_STUDY + train)["stage.sft.recipe.learning_rate"]

    assert "write `trainer = { learning_rate = ... }`" in what


def test_stages_that_read_each_other_are_named_as_a_cycle(load):
    text = SMALL_STUDY + (
        '\n[[stage]]\nkind = "train"\nname = "one"\nmatrix = { model = ["parrot"] }\n'
        'start = "two"\n[[stage]]\nkind = "train"\nname = "two"\n'
        'matrix = { model = ["parrot"] }\nstart = "one"\n'
    )

    found = problems_of(load, text)

    assert "cycle: `one` -> `two` -> `one`" in found["stage.one"]


def test_a_stage_that_reads_a_later_one_is_a_problem(load):
    late = SMALL_STUDY.split("[[stage]]")[1].replace('"base"', '"late"')
    text = SMALL_STUDY.replace('rollouts = "base"\nmatrix', 'rollouts = "late"\nmatrix')

    found = problems_of(load, f"{text}\n[[stage]]{late}")

    assert "`late` is defined later" in found["stage.answers.rollouts"]


@pytest.mark.parametrize(
    ("line", "number", "words"),
    [
        (
            'verdicts = "answers"\n',
            3,
            "needs verdicts of the judge `answer_equivalence` or",
        ),
        ('baseline = { prompt = "answer" }\n', 6, "`aes` compares with a baseline"),
    ],
)
def test_a_metric_without_what_it_reads_is_a_problem(load, line, number, words):
    text = SMALL_STUDY.replace('"degeneration"]', '"degeneration", "aes"]').replace(line, "")

    found = problems_of(load, text)

    assert words in found[f"stage.scores.metrics.{number}"]


def test_a_missing_file_of_a_benchmark_is_a_problem(load):
    text = SMALL_STUDY.replace(
        'kind = "tinyhop"', 'kind = "hotpotqa"\nfiles = { validation = "no/such.json" }'
    )

    found = problems_of(load, text)

    assert "no/such.json" in found["benchmarks.tiny.files.validation"]


def test_two_cells_where_one_is_needed_name_the_axes_left_over(load):
    text = SMALL_STUDY + (
        '\n[[stage]]\nkind = "train"\nname = "sft"\nmatrix = { model = ["parrot"] }\n'
        'data = "base"\ntarget = "reply"\n'
    )

    found = problems_of(load, text)

    assert "choose a value of `prompt` in `where`" in found["stage.sft.data"]


def test_broken_toml_says_where(load):
    found = problems_of(load, "[study\nname = 1")

    assert "`[study`: close the bracket" in found["file"]


def test_a_missing_manifest_names_its_neighbours(tmp_path, presets):
    from mbt_cli.manifest.load import load_manifest

    (tmp_path / "there.toml").write_text("")

    with pytest.raises(UsageError, match="no file") as caught:
        load_manifest(tmp_path / "here.toml", presets=presets)

    assert "there.toml" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("study.seed", "KEY=VALUE"),
        ("stage.bas.samples=1", "no stage `bas`"),
        ("study.seed.deep=1", "not a table"),
        ("=3", "KEY=VALUE"),
    ],
)
def test_a_wrong_override_says_what_is_wrong(load, override, words):
    with pytest.raises(UsageError, match="--set") as caught:
        load(SMALL_STUDY, override)

    assert words in caught.value.message + str(caught.value.hint)


JUDGED = """
[[stage]]
kind = "judge"
name = "grades"
rollouts = { stage = "base", where = { prompt = "answer" } }
matrix = { judge = ["answer_match"] }
judge_model = "judge"
[[stage]]
kind = "train"
name = "sft"
preset = "sft"
matrix = { model = ["learner"] }
where = { benchmark = "tiny", split = "validation" }
data = { stage = "base", where = { model = "parrot", prompt = "answer" } }
target = "reply"
keep = "correct"
verdicts = "grades"
[models.learner]
preset = "smollm2-135m"
sampling = "plain"
"""


def test_a_training_reads_the_verdicts_on_its_own_data(load):
    manifest = load(f"{SMALL_STUDY}{JUDGED}")

    (address,) = [one for one in manifest.cells if one.startswith("sft/")]
    inputs = manifest.cells[address].resolution.inputs
    (data,), (verdicts,) = inputs["data"], inputs["verdicts"]
    assert manifest.cells[verdicts].resolution.inputs["rollouts"] == (data,)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('prompt = "answer" } }\ntarget', 'prompt = "metacognitive" } }\ntarget', "judges `base/"),
        (
            'judge = ["answer_match"] }\n',
            'judge = ["answer_match", "answer_hit"] }\n',
            "2 cells of",
        ),
        ('keep = "correct"', 'keep = "answered"', "set `keep`"),
        ('keep = "correct"', "", "set `keep`"),
    ],
)
def test_verdicts_that_do_not_fit_the_data_are_reported(load, before, after, words):
    text = f"{SMALL_STUDY}{JUDGED}"
    start, changed = text[: -len(JUDGED)], JUDGED.replace(before, after)
    assert changed != JUDGED

    found = problems_of(load, start + changed)

    assert words in found["stage.sft.verdicts"]
