"""Data sets from a hub: pinned, cached, offline, and what is said when they cannot be had."""

import io
from pathlib import Path

import polars as pl
import pytest

from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.errors import MbtError, MissingInputError
from mbt_cli.store import hub as hub_module
from mbt_cli.store.hub import HubAccess, HubRequest, cached_repos, fetch_files, size_of
from mbt_cli.store.questions import source_fingerprint
from tests.unit.hub_stand_in import COMMIT, Hub, running
from tests.unit.split_reading import read_split

HERE = Path(__file__).parent / "data"
MUSIQUE = (HERE / "musique" / "dev.jsonl").read_bytes()
REPO = "datasets/dgslibisey/MuSiQue"
DEV = "musique_ans_v1.0_dev.jsonl"


def hotpotqa_parquet():
    """The hand-written questions in the hub's layout."""
    made = HotpotQA(files={"validation": str(HERE / "hotpotqa" / "dev.json")})
    frame = read(made, HubAccess()).frame
    hub = pl.DataFrame(
        {
            "id": frame["question_id"],
            "question": frame["question"],
            "answer": frame["answer"],
            "type": frame["question_type"],
            "level": ["hard", "hard", "easy"],
            "supporting_facts": [
                {"title": [f["title"] for f in row], "sent_id": [f["sentence"] for f in row]}
                for row in frame["supporting"].to_list()
            ],
            "context": [
                {"title": [d["title"] for d in row], "sentences": [d["sentences"] for d in row]}
                for row in frame["context"].to_list()
            ],
        }
    )
    buffer = io.BytesIO()
    hub.write_parquet(buffer)
    return buffer.getvalue()


@pytest.fixture
def hub():
    files = {
        "distractor/validation-00000-of-00001.parquet": hotpotqa_parquet(),
        "distractor/train-00000-of-00001.parquet": b"not to be fetched",
    }
    repos = {
        REPO: {DEV: MUSIQUE, "musique_ans_v1.0_train.jsonl": b"{}", "README.md": b"card"},
        "datasets/hotpotqa/hotpot_qa": files,
        "models/org/tiny": {
            "config.json": b"{}",
            "model.safetensors": b"w" * 1000,
            "old.bin": b"o",
        },
    }
    with running(Hub(repos)) as served:
        yield served


@pytest.fixture
def access(hub, tmp_path):
    return HubAccess(cache=tmp_path / "cache", endpoint=hub.endpoint)


def read(benchmark, access):
    return read_split(benchmark, hub=access)


def musique(**settings):
    return MuSiQue(**{"source": "hub", "revision": "main"} | settings)


def test_only_the_split_that_is_wanted_is_fetched_and_its_commit_is_recorded(hub, access):
    found = read(musique(), access)

    assert found.frame["question_id"].to_list() == ["2hop__1_2", "4hop1__1_2_3_4"]
    assert found.revision == COMMIT
    assert list(found.files) == [DEV]
    assert [path.rpartition("/")[2] for path in hub.downloads()] == [DEV]


def test_the_hubs_parquet_gives_the_rows_of_the_official_file(access):
    local = HotpotQA(files={"validation": str(HERE / "hotpotqa" / "dev.json")})

    found = read(HotpotQA(source="hub", revision=COMMIT), access)

    assert found.frame.equals(read(local, access).frame)


def test_what_is_cached_is_read_without_the_hub(hub, access):
    pinned = musique(revision=COMMIT)
    first = read(pinned, access)
    asked = len(hub.asked)

    again = read(pinned, HubAccess(cache=access.cache, offline=True))

    assert again.frame.equals(first.frame)
    assert again.revision == COMMIT
    assert len(hub.asked) == asked


def test_offline_without_a_cache_says_what_to_type(access):
    with pytest.raises(MissingInputError, match="the network is off") as error:
        read(musique(), HubAccess(cache=access.cache, offline=True))

    assert "mbt data fetch" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        ("GatedRepo", "`dgslibisey/MuSiQue` is gated", "HF_TOKEN"),
        ("RepoNotFound", "is not on the hub, or is private", "hf auth login"),
    ],
)
def test_a_repository_that_cannot_be_read_is_named_with_what_is_missing(
    hub, access, code, message, hint
):
    hub.refuses[REPO] = code

    with pytest.raises(MissingInputError, match=message) as error:
        read(musique(), access)

    assert hint in (error.value.hint or "")


def test_an_unknown_revision_and_an_unknown_file_are_named(access):
    with pytest.raises(MissingInputError, match="no revision `v9`"):
        read(musique(revision="v9"), access)
    with pytest.raises(MissingInputError, match=r"no file `musique_ans_v1\.0_test\.jsonl`"):
        read(musique(splits={"validation": "test"}), access)


def test_a_hub_that_is_busy_is_asked_again_a_bounded_number_of_times(hub, access, monkeypatch):
    monkeypatch.setattr(hub_module, "_FIRST_PAUSE_SECONDS", 0.0)
    request = HubRequest("dgslibisey/MuSiQue", (DEV,))
    hub.fails = 2
    assert fetch_files(request, access, attempts=3).commit == COMMIT

    nowhere = HubAccess(cache=access.cache.parent / "other", endpoint="http://127.0.0.1:9")
    with pytest.raises(MbtError, match="dgslibisey/MuSiQue"):
        fetch_files(request, nowhere, attempts=2)


def test_sizes_are_told_before_anything_is_fetched(hub, access):
    request = HubRequest("org/tiny", ("*.json", "*.safetensors"), type="model", skip=("*.bin",))

    before = size_of(request, access)
    assert (before.files, before.bytes, before.missing_files) == (2, 1002, 2)
    assert hub.downloads() == []

    names = [path.name for path in fetch_files(request, access).paths]
    assert names == ["config.json", "model.safetensors"]
    assert size_of(request, access).missing_bytes == 0


def test_the_cache_is_listed(access):
    assert cached_repos(access) == ()

    fetch_files(HubRequest("org/tiny", ("config.json",), type="model"), access)

    (repo,) = cached_repos(access)
    assert (repo.repo, repo.type, repo.commits) == ("org/tiny", "model", (COMMIT,))


def test_a_local_folder_in_the_hubs_layout_stands_in_for_a_repository(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    (folder / DEV).write_bytes(MUSIQUE)
    made = MuSiQue(source="hub", repo=str(folder))

    found = read(made, HubAccess(offline=True))

    assert found.frame.height == 2
    assert found.revision is None
    first = source_fingerprint(made, "validation", generate=made.generate)
    (folder / DEV).write_bytes(MUSIQUE + b"\n")
    assert source_fingerprint(made, "validation", generate=made.generate) != first
