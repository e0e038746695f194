"""Every shipped model preset is whole, asks for flags that its server has, and names its source."""

import re
import tomllib
from pathlib import Path

import pytest

from mbt_cli.backends.flags import unknown_flags
from mbt_cli.backends.vllm import _checked_version, known_flags
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.model_settings import Sampling
from mbt_cli.errors import ManifestError
from mbt_cli.manifest.load import load_manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.schema import ModelTable
from mbt_cli.registry import BACKENDS

FOLDER = Path(__file__).parents[2] / "presets" / "models"
PRESETS = sorted(FOLDER.glob("*.toml"))
STUDY = [
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b-fp8",
    "qwen3-235b-a22b-thinking-2507-fp8",
    "qwen3-235b-a22b-instruct-2507-fp8",
    "qwen3.5-0.8b",
    "qwen3.5-2b",
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen3.5-27b",
    "qwen3.5-35b-a3b",
    "qwen3.5-122b-a10b-fp8",
    "qwen3.5-397b-a17b-fp8",
    "qwen3.6-27b",
    "qwen3.6-35b-a3b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "gemma-4-26b-a4b-it",
    "gemma-4-31b-it",
    "llama-4-scout-fp8",
    "nemotron-3-nano-4b",
    "nemotron-3-nano-30b-a3b",
    "nemotron-3-super-120b-a12b-fp8",
    "mistral-small-4",
    "glm-4.7-flash",
    "deepseek-v4-flash",
    "smollm2-135m",
]


def test_there_is_a_preset_for_every_model_of_the_study():
    assert {path.stem for path in PRESETS} >= set(STUDY)


SERVED = [path for path in PRESETS if "vllm" in path.read_text()]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_makes_a_backend(path):
    table = tomllib.loads(path.read_text())
    known = {*ModelTable.model_fields} - {"preset"}
    assert set(table) <= known

    over = {name: table[name] for name in ("serve", "place", "size") if name in table}
    backend = BACKENDS.make({**table["backend"], **over})

    assert backend.identity()
    flags = {**table.get("serve", {}), **table.get("place", {}).get("flags", {})}
    assert not unknown_flags(flags, known_flags())
    if backend.kind == "vllm":
        release = _checked_version().rpartition(".")[0]
        assert table["note"].startswith(f"flags checked against vLLM {release};")


@pytest.mark.parametrize("path", SERVED, ids=lambda path: path.stem)
def test_a_preset_recommends_a_sampling_that_its_context_holds_and_names_the_source(path):
    text = path.read_text()
    table = tomllib.loads(text)

    sampling = Sampling.model_validate(table["sampling"])

    assert sampling.max_tokens == "rest" or sampling.max_tokens < table["serve"]["max_model_len"]
    comment = " ".join(line for line in text.splitlines() if line.startswith("#"))
    assert re.search(
        r"(Card|Sampling: .*) \(20\d\d-\d\d\)|vLLM recipe \S+ \(20\d\d-\d\d\)", comment
    )


def test_a_field_at_its_default_is_neither_sent_nor_part_of_a_fingerprint():
    plain = Sampling(temperature=0.6, top_p=0.95, top_k=20, max_tokens="rest")
    full = {"min_p": 0.05, "presence_penalty": -0.5, "repetition_penalty": 1.1}

    said = plain.model_copy(
        update={"min_p": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    )
    changed = plain.model_copy(update=full)

    assert plain.body() == said.body() == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert spec_of(said) == spec_of(plain)
    assert spec_of(plain).keys() == {"temperature", "top_p", "top_k", "max_tokens", "seedable"}
    assert changed.body() == {**plain.body(), **full}
    assert spec_of(changed) == {**spec_of(plain), **full}


MODEL = """
[study]
name = "s"
seed = 1
max_failed_share = 0

[sampling.short]
temperature = 0
max_tokens = 8

[models.m]
preset = "own"
{more}

[benchmarks.b]
kind = "tinyhop"

[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = "b", split = "train", model = "m", prompt = "answer" }}
samples = 1
{stage}
"""
OWN = """
[backend]
kind = "{kind}"
{fields}

[sampling]
temperature = 1.0
top_k = 20
presence_penalty = 1.5
max_tokens = 64
"""
CANNED = ("canned", 'replies = ["x"]')
RECOMMENDED = {"temperature": 1.0, "top_p": 1.0, "top_k": 20, "presence_penalty": 1.5}


@pytest.fixture
def sampling_of(tmp_path):
    """The sampling that a study gives a model of the preset `own`."""
    (tmp_path / "models").mkdir()
    study = tmp_path / "study.toml"

    def found(more="", stage="", kind=CANNED):
        own = OWN.format(kind=kind[0], fields=kind[1])
        (tmp_path / "models" / "own.toml").write_text(own)
        study.write_text(MODEL.format(more=more, stage=stage))
        manifest = load_manifest(study, presets=PresetFolders((tmp_path,)))
        (rollout,) = [cell for cell in manifest.cells.values() if cell.kind == "rollout"]
        return rollout.resolution.models["model"].sampling

    return found


@pytest.mark.parametrize(
    ("more", "stage", "body", "limit"),
    [
        pytest.param("", "", RECOMMENDED, 64, id="said nowhere"),
        pytest.param(
            "sampling = { temperature = 0.5, max_tokens = 9 }",
            "",
            {**RECOMMENDED, "temperature": 0.5},
            9,
            id="some keys",
        ),
        pytest.param('sampling = "short"', "", {"temperature": 0, "top_p": 1.0}, 8, id="a name"),
        pytest.param(
            'sampling = { like = "short", top_p = 0.9 }',
            "",
            {"temperature": 0, "top_p": 0.9},
            8,
            id="like a name",
        ),
        pytest.param("", 'sampling = "short"', {"temperature": 0, "top_p": 1.0}, 8, id="the stage"),
    ],
)
def test_the_recommended_sampling_is_used_unless_the_manifest_says_another(
    sampling_of, more, stage, body, limit
):
    found = sampling_of(more, stage)

    assert (found.body(), found.max_tokens) == (body, limit)


def test_a_server_without_a_field_of_the_sampling_is_refused(sampling_of):
    transformers = ("transformers", 'model = "org/model"\ncontext = 2048')

    with pytest.raises(ManifestError, match=r"presence_penalty.*`transformers` has no") as caught:
        sampling_of(kind=transformers)
    assert "models.m.sampling.presence_penalty" in str(caught.value)
    assert sampling_of("sampling = { presence_penalty = 0 }", kind=transformers).top_k == 20
