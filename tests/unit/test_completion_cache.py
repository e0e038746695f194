"""The cache of completion: right after every edit, and where the machine's settings say."""

import pytest

from mbt_cli.cli.completion import Entry, Folders
from mbt_cli.cli.completion_hints import hints_for, set_keys
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.settings import read_machine
from tests.conftest import SMALL_STUDY

PLACES = ("runs", "cache", "config", "presets")


@pytest.mark.parametrize(
    ("environment", "dotenv"),
    [
        ({}, ""),
        ({"MBT_RUNS": "elsewhere", "MBT_CACHE": "c", "MBT_CONFIG": "f", "MBT_PRESETS": "p"}, ""),
        ({"XDG_CACHE_HOME": "/x/cache", "XDG_CONFIG_HOME": "/x/config"}, ""),
        ({}, "MBT_RUNS=from_file\nexport MBT_CACHE='quoted'\nMBT_PRESETS=\n# MBT_CONFIG=no\n"),
        ({"MBT_RUNS": "wins"}, "MBT_RUNS=loses\n"),
        ({"MBT_NO_DOTENV": "1"}, "MBT_RUNS=unread\n"),
    ],
    ids=["nothing", "variables", "xdg", "dotenv", "both", "dotenv off"],
)
def test_folders_are_those_of_the_machines_settings(environment, dotenv, tmp_path, monkeypatch):
    names = [f"MBT_{place.upper()}" for place in PLACES]
    for name in (*names, "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MBT_NO_DOTENV"):
        monkeypatch.setenv(name, "")  # for the end of the test: read_machine fills them in
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / ".env").write_text(dotenv)
    monkeypatch.chdir(tmp_path)

    light = Folders.of(dict(environment))

    machine = read_machine()
    assert [getattr(light, p) for p in PLACES] == [getattr(machine, p) for p in PLACES]


@pytest.fixture
def entry(tmp_path):
    manifest = tmp_path / "study.toml"
    manifest.write_text(SMALL_STUDY)
    presets = PresetFolders((tmp_path / "presets",))
    return Entry(manifest, presets, tmp_path / "cache")


def test_what_was_kept_is_read_until_something_changes(entry, tmp_path):
    hints = hints_for(entry.manifest, entry.presets)
    entry.write(hints)
    assert entry.read() == hints

    (tmp_path / "presets/models").mkdir(parents=True)
    (tmp_path / "presets/models/new.toml").write_text("")
    assert entry.read() is None

    entry.write(hints)
    assert entry.read() == hints
    entry.manifest.write_text(SMALL_STUDY.replace("limit = 6", "limit = 60"))
    assert entry.read() is None


def test_other_presets_have_an_entry_of_their_own(entry, tmp_path):
    entry.write(hints_for(entry.manifest, entry.presets))

    assert Entry(entry.manifest, PresetFolders((tmp_path / "x",)), entry.cache).read() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"stamp": []}', '{"stamp": [], "hints": {"x": 1}}']
)
def test_a_damaged_entry_is_made_again(entry, text):
    entry.write(hints_for(entry.manifest, entry.presets))
    (path,) = (entry.cache / "completion").iterdir()

    path.write_text(text)

    assert entry.read() is None


def test_every_key_that_is_offered_is_taken(load):
    manifest = load()

    for key, values in set_keys(manifest).items():
        for value in values[:1]:
            load(SMALL_STUDY, f"{key}={value}")


def test_keys_have_their_present_value_first(load):
    keys = set_keys(load())

    assert keys["stage.base.samples"] == ["2", "1"] or keys["stage.base.samples"] == ["2"]
    assert keys["stage.base.optional"] == ["false", "true"]
    assert keys["run.concurrency"] == ["64"]
    assert keys["study.name"] == ["small"]
