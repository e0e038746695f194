"""The manifest language: groups, extends, overrides, matrix, variants, where, and addresses."""

from mbt_cli.manifest.load import load_manifest
from tests.conftest import SMALL_STUDY


def addresses(manifest, stage):
    return [a for a in manifest.cells if a.split("/")[0] == stage]


def test_a_matrix_makes_a_cell_of_every_combination(load):
    manifest = load()

    assert addresses(manifest, "base") == [
        "base/benchmark=tiny/split=validation/model=parrot/prompt=answer",
        "base/benchmark=tiny/split=validation/model=parrot/prompt=metacognitive",
    ]
    assert manifest.counts()["answers"] == 2


def test_questions_come_once_for_everything_that_reads_them(load):
    manifest = load()

    assert addresses(manifest, "questions") == ["questions/benchmark=tiny/split=validation"]


def test_a_stage_without_variants_joined_with_others_enters_under_its_own_name(load):
    text = SMALL_STUDY.replace(', prompt = ["answer", "metacognitive"] }', ' }\nprompt = "answer"')
    text = text.replace(
        '[[stage]]\nkind = "judge"',
        '[[stage]]\nkind = "rollout"\nname = "meta"\nmatrix = { benchmark = "tiny", '
        'split = "validation", model = "parrot" }\nprompt = "metacognitive"\nsamples = 1\n\n'
        '[[stage]]\nkind = "judge"',
    ).replace('rollouts = "base"', 'rollouts = ["base", "meta"]')
    text = text.replace('baseline = { prompt = "answer" }', 'baseline = { variant = "base" }')

    manifest = load(text)

    scores = addresses(manifest, "scores")
    assert scores == [
        "scores/benchmark=tiny/split=validation/model=parrot/variant=base",
        "scores/benchmark=tiny/split=validation/model=parrot/variant=meta",
    ]
    inputs = manifest.cells[scores[1]].resolution.inputs
    assert inputs["rollouts"] == ("meta/benchmark=tiny/split=validation/model=parrot",)
    assert inputs["baseline_rollouts"] == ("base/benchmark=tiny/split=validation/model=parrot",)
    assert inputs["verdicts"] == (
        "answers/benchmark=tiny/split=validation/model=parrot/variant=meta/judge=answer_match",
    )
    assert inputs["baseline_verdicts"] == (
        "answers/benchmark=tiny/split=validation/model=parrot/variant=base/judge=answer_match",
    )


def test_groups_stand_for_their_names(load):
    text = SMALL_STUDY.replace('model = ["parrot"]', 'model = ["@all"]')

    manifest = load(text + '\n[groups]\nall = ["parrot", "judge"]\n')

    assert manifest.counts()["base"] == 4


def test_exclude_leaves_combinations_out(load):
    text = SMALL_STUDY.replace(
        "samples = 2", 'samples = 2\nexclude = [{ prompt = "metacognitive" }]'
    )

    assert load(text).counts()["base"] == 1


def test_an_override_reaches_into_a_stage_by_name(load):
    manifest = load(SMALL_STUDY, "stage.base.samples=8", "study.seed=9", "sampling.plain.top_k=3")

    cell = manifest.cells[addresses(manifest, "base")[0]]
    assert cell.stage.samples == 8
    assert cell.resolution.seed == 9
    assert cell.resolution.models["model"].sampling.top_k == 3


def test_extends_lays_one_manifest_on_another(load, tmp_path, presets):
    load()
    child = tmp_path / "child.toml"
    child.write_text(
        '[study]\nname = "child"\nextends = "study.toml"\n'
        '[[stage]]\nname = "base"\nsamples = 1\n[benchmarks.tiny]\nlimit = 2\n'
    )

    manifest = load_manifest(child, presets=presets)

    cell = manifest.cells[addresses(manifest, "base")[0]]
    assert manifest.study == "child"
    assert cell.stage.samples == 1
    assert cell.resolution.seed == 1
    assert manifest.document.benchmarks["tiny"].limit == 2


def test_a_sampling_may_be_like_another(load):
    text = SMALL_STUDY.replace(
        "samples = 2", 'samples = 2\nsampling = { like = "plain", temperature = 0.5 }'
    )

    manifest = load(text)

    sampling = manifest.cells[addresses(manifest, "base")[0]].resolution.models["model"].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.5, 32)


def test_matrix_values_keep_their_types_in_the_stage_and_their_text_in_the_address(load):
    text = (
        SMALL_STUDY.replace("samples = 2\n", "")
        .replace('prompt = ["answer", "metacognitive"] }', 'prompt = "answer", samples = [1, 2] }')
        .replace('baseline = { prompt = "answer" }\n', "")
    )

    manifest = load(text)

    found = {
        a.rpartition("=")[2]: manifest.cells[a].stage.samples for a in addresses(manifest, "base")
    }
    assert found == {"1": 1, "2": 2}


def test_run_only_settings_stay_out_of_specs(load):
    plain = load().cells
    busy = load(SMALL_STUDY + "\n[run]\nconcurrency = 7\nrequest_timeout_seconds = 5\n").cells

    assert {a: c.spec for a, c in plain.items()} == {a: c.spec for a, c in busy.items()}


def test_a_prompt_file_of_ones_own_is_found_beside_the_manifest(load, tmp_path):
    (tmp_path / "mine.md").write_text("=== user ===\nSay {{ question }}\n")

    manifest = load(SMALL_STUDY.replace('"metacognitive"]', '"mine.md"]'))

    template = manifest.cells[addresses(manifest, "base")[1]].resolution.templates["prompt"]
    assert template.placeholders == {"question"}
