"""`mbt data`: sizes first, then everything a study needs, and what could not be had at the end."""

import pytest

from tests.unit.hub_stand_in import Hub, running

STUDY = """
[study]
name = "needs"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 32

[models.small]
backend = { kind = "vllm", model = "org/small" }
sampling = "plain"

[models.gated]
backend = { kind = "vllm", model = "org/gated" }
sampling = "plain"

[models.hosted]
backend = { kind = "openai", base_url = "https://example.org/v1", id = "x" }
sampling = "plain"

[benchmarks.musique]
kind = "musique"
source = "hub"
revision = "0123456789abcdef0123456789abcdef01234567"

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = ["musique"], split = ["validation"], model = ["small", "gated", "hosted"] }
prompt = "answer"
samples = 1
"""
DEV = "musique_ans_v1.0_dev.jsonl"


@pytest.fixture
def hub():
    repos = {
        "models/org/small": {
            "config.json": b"{}",
            "model.safetensors": b"w" * 5000,
            "original/consolidated.00.pth": b"w" * 5000,
        },
        "models/org/gated": {"config.json": b"{}"},
        "datasets/dgslibisey/MuSiQue": {DEV: b"{}" * 100, "other.jsonl": b"{}"},
    }
    with running(Hub(repos, refuses={"models/org/gated": "GatedRepo"})) as stand_in:
        yield stand_in


@pytest.fixture
def ran(mbt, workplace, hub):
    (workplace / "needs.toml").write_text(STUDY)

    def run(*arguments, **environment):
        usual = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(workplace / "hf"), "HF_TOKEN": ""}
        return mbt("data", *arguments, **{**usual, **environment})

    return run


def test_a_dry_run_tells_sizes_and_fetches_nothing(ran, hub):
    told = ran("fetch", "needs.toml", "--dry-run", "--model", "small", "--benchmark", "musique")

    assert told.code == 0, told.err
    # config.json and model.safetensors; the copy in another format is left out
    assert "5.0 kB" in told.out
    assert "benchmark musique validation" in told.out
    assert hub.downloads() == []


def test_without_the_network_an_unknown_size_is_not_told_as_nothing(ran):
    told = ran("fetch", "needs.toml", "--dry-run", "--model", "small", HF_HUB_OFFLINE="1")

    assert "to fetch: 1 of unknown size" in told.out
    assert "mbt is offline" in told.out


def test_one_that_cannot_be_had_keeps_no_other_away_and_ends_with_exit_1(ran, hub):
    told = ran("fetch", "needs.toml")

    assert told.code == 1
    assert "1 of 3 downloads failed" in told.err
    assert "model gated: `org/gated` is gated" in told.err
    assert "HF_TOKEN" in told.err
    fetched = {path.rpartition("/")[2] for path in hub.downloads()}
    assert fetched == {"config.json", "model.safetensors", DEV}
    assert "org/small" in ran("ls").out


def test_what_is_here_is_found_again_without_the_network(ran, hub):
    ran("fetch", "needs.toml", "--benchmark", "musique")
    before = len(hub.downloads())

    again = ran("fetch", "needs.toml", "--benchmark", "musique", HF_HUB_OFFLINE="1")

    assert again.code == 0, again.err
    assert len(hub.downloads()) == before


def test_a_name_that_the_study_does_not_have_is_exit_2(ran):
    told = ran("fetch", "needs.toml", "--model", "smal")

    assert told.code == 2
    assert "did you mean `small`?" in told.err


def test_a_study_made_by_rule_needs_nothing(ran):
    assert "nothing to fetch" in ran("fetch", "study.toml").out


@pytest.mark.parametrize(
    ("load_format", "weights"),
    [
        ("mistral", {"consolidated-1.safetensors"}),
        ("safetensors", {"model-1.safetensors"}),
        ("auto", {"consolidated-1.safetensors", "model-1.safetensors"}),
    ],
)
def test_the_weights_that_the_load_format_reads_are_fetched(
    ran, hub, workplace, load_format, weights
):
    files = {"consolidated-1.safetensors": b"c" * 50, "model-1.safetensors": b"m" * 50}
    hub.repos["models/org/small"] = {"config.json": b"{}", **files}
    text = STUDY.replace('"org/small" }', f'"org/small" }}\nserve.load_format = "{load_format}"')
    (workplace / "needs.toml").write_text(text)

    told = ran("fetch", "needs.toml", "--model", "small")

    assert told.code == 0, told.err
    fetched = {path.rpartition("/")[2] for path in hub.downloads()}
    assert fetched == {"config.json", *weights}


INSTRUCTIONS = """
[study]
name = "rules"
seed = 1
max_failed_share = 0

[sampling.plain]
temperature = 0
max_tokens = 32

[models.parrot]
backend = { kind = "canned", replies = ["no"] }
sampling = "plain"

[benchmarks.rules]
kind = "ifbench"
files = { test = "rules.jsonl" }

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "rules", split = "test", model = "parrot" }
prompt = "as_is"
samples = 1
"""
RECORD = """{"key": "1", "prompt": "Is it?", "instruction_id_list": ["format:no_whitespace"],
"kwargs": [{}]}"""


@pytest.fixture
def rules(workplace):
    """A study whose verifier needs data of NLTK."""
    (workplace / "rules.toml").write_text(INSTRUCTIONS)
    (workplace / "rules.jsonl").write_text(RECORD.replace("\n", " "))


@pytest.mark.usefixtures("rules")
def test_data_of_a_verifier_that_are_here_are_cached(mbt, shared):
    told = mbt("data", "fetch", "rules.toml", "--dry-run", NLTK_DATA=str(shared / "data/nltk_data"))

    assert told.code == 0, told.err
    lines = {
        line.split("NLTK ")[1].split()[0]: line for line in told.out.splitlines() if "NLTK" in line
    }
    assert lines.keys() == {"punkt_tab", "stopwords", "averaged_perceptron_tagger_eng"}
    assert "cached" in lines["punkt_tab"]
    assert "cached" in lines["stopwords"]


@pytest.mark.usefixtures("rules")
def test_data_of_a_verifier_that_are_missing_are_said_by_fetch_and_doctor(mbt, workplace):
    empty = workplace / "empty"
    environment = {"NLTK_DATA": str(empty), "HOME": str(empty), "MBT_OFFLINE": "1"}

    fetched = mbt("data", "fetch", "rules.toml", **environment)
    examined = mbt("doctor", "rules.toml", **environment)

    assert fetched.code == 1
    assert "3 of 3 downloads failed" in fetched.err
    assert "verifier instructions: mbt is offline" in fetched.err
    missing = [line for line in examined.out.splitlines() if "NLTK" in line]
    assert len(missing) == 3
    assert "mbt data fetch rules.toml" in examined.out
