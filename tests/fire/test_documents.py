"""Plans and manifests that nobody wrote: one message and exit code 2, or success; never a hang."""

import copy
import json
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.wrong import Done, Wrong, typed
from tests.conftest import REPOSITORY, SMALL_STUDY

SECONDS = 60
"""Far more than any document takes; a hang ends here."""


@contextmanager
def no_hang():
    def late(number, frame):
        raise AssertionError(f"still busy after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answered(done: Done, codes: tuple[int, ...] = (0, 2)) -> None:
    """Success, or one message and no traceback."""
    assert done.code in codes, done.err
    assert "Traceback" not in done.err
    errors = [line[:6] for line in done.err.splitlines()].count("error:")
    assert errors == (done.code != 0), done.err


WORDS = ("", "x", "other", "\x00", "a\x00b", "../x", "$(id)", "a\nb", "done", "stale", "mbt", "ü")
NUMBERS = (0, -1, 1, 2, 5, 2**63, -(2**63), 10**30, 10**400, 1.5, 1e308)
json_values = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(WORDS) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def paths(value, path=()):
    """The key path of every value below a document."""
    inside = value.items() if isinstance(value, dict) else ()
    for key, child in enumerate(value) if isinstance(value, list) else inside:
        yield (*path, key)
        yield from paths(child, (*path, key))


def edit(data: st.DataObject, document, values: st.SearchStrategy) -> None:
    """Set, remove, double, move or copy one value."""
    *path, key = data.draw(st.sampled_from(list(paths(document))))
    parent = document
    for part in path:
        parent = parent[part]
    what = data.draw(st.sampled_from(("set", "remove", "copy", "double", "shuffle")))
    if what == "set":
        parent[key] = data.draw(values)
    elif what == "remove":
        del parent[key]
    elif what == "copy":
        found = document
        for part in data.draw(st.sampled_from(list(paths(document)))):
            found = found[part]
        parent[key] = copy.deepcopy(found)
    elif isinstance(parent, list):
        parent[:] = (
            [*parent, parent[key]] if what == "double" else data.draw(st.permutations(parent))
        )
    else:
        parent[data.draw(st.sampled_from(("more", "needs", "shards")))] = parent[key]


@dataclass(frozen=True)
class Planned:
    """A folder with the small study, its plan, and the commands that the plan submits."""

    folder: Path
    plan: dict
    commands: set[str]


SUBMIT = ("submit", "plan.json", "--slurm", "--preset", "one-gpu", "--dry-run")


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> Planned:
    folder = tmp_path_factory.mktemp("planned")
    Wrong("", "", ()).prepare(folder)

    def ran(*words: str) -> str:
        command = [sys.executable, "-m", "mbt_cli", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout

    # with an array, so that there are shards and a merge
    text = ran("plan", "study.toml", "--json", "--max-rows", "5")
    (folder / "plan.json").write_text(text)
    plan, first = json.loads(text), commands(ran(*SUBMIT))
    assert len(first) == len(plan["jobs"])
    return Planned(folder, plan, first)


def submitted(planned: Planned, plan: bytes, capfd) -> Done:
    (planned.folder / "plan.json").write_bytes(plan)
    with no_hang():
        return typed(SUBMIT, planned.folder, {}, capfd)


def commands(shown: str) -> set[str]:
    """The commands of the scripts that a dry run shows, without the time in their folder."""
    found = re.findall(r"^command=\((.*?)^\)", shown, flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"submissions/[^/]*", "submissions/T", command) for command in found}


@given(data=st.data())
def test_an_edited_plan_is_refused_or_means_the_same_commands(data, planned, capfd):
    plan = copy.deepcopy(planned.plan)
    for _ in range(data.draw(st.integers(1, 3))):
        edit(data, plan, json_values)

    done = submitted(planned, json.dumps(plan).encode(), capfd)

    # a cell that the plan calls stale is answered by `--replace`, with exit code 1
    answered(done, (0, 1, 2) if "made with other settings" in done.err else (0, 2))
    assert commands(done.out) <= planned.commands
    assert not (planned.folder / "runs").exists()


@given(text=st.binary(max_size=200) | st.builds(lambda v: json.dumps(v).encode(), json_values))
def test_bytes_that_are_no_plan_are_refused(text, planned, capfd):
    done = submitted(planned, text, capfd)

    answered(done, (2,))


@pytest.mark.parametrize("text", ["[" * 10_000, '{"jobs":' * 10_000 + "1" + "}" * 10_000])
def test_a_plan_nested_10_000_deep_is_refused(text, planned, capfd):
    answered(submitted(planned, text.encode(), capfd), (2,))


toml_values = st.recursive(
    st.booleans()
    | st.sampled_from([number for number in NUMBERS if abs(number) <= 2**63])
    | st.integers()
    | st.floats()
    | st.sampled_from((*WORDS, "qwen3-4b", "answer", "hub:a/b", "base", "*", "!base", "{model}"))
    | st.text()
    | st.dates()
    | st.times()
    | st.datetimes(timezones=st.none() | st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(st.sampled_from(("a", "b", "name", "kind", "seed")), toml_values)
named = st.dictionaries(st.sampled_from(("a", "b.c", "ü", "")), tables | toml_values)
documents = st.fixed_dictionaries(
    {},
    optional={
        "study": tables | toml_values,
        "run": tables | toml_values,
        "stage": st.lists(tables | toml_values, max_size=3) | toml_values,
        "other": toml_values,
        **dict.fromkeys(("groups", "sampling", "models", "benchmarks", "judges"), named),
    },
)
SHIPPED = {path.name: path.read_text() for path in (REPOSITORY / "manifests").glob("*.toml")}
SHIPPED["small.toml"] = SMALL_STUDY
OFFLINE = {"MBT_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder without anything that a manifest could name."""
    return tmp_path_factory.mktemp("manifests")


def checked(folder: Path, text: bytes, capfd) -> None:
    """`check` answers, and so does `plan` to a manifest that is right."""
    (folder / "study.toml").write_bytes(text)
    with no_hang():
        done = typed(["check", "study.toml"], folder, OFFLINE, capfd)
        answered(done)
        if done.code == 0:
            answered(typed(["plan", "study.toml", "--json"], folder, OFFLINE, capfd))
    assert not (folder / "runs").exists()


@given(document=documents)
def test_any_toml_is_answered(document, folder, capfd):
    checked(folder, tomli_w.dumps(document).encode(), capfd)


@given(data=st.data(), name=st.sampled_from(sorted(SHIPPED)))
def test_an_edited_manifest_is_answered(data, name, folder, capfd):
    document = tomllib.loads(SHIPPED[name])
    for _ in range(data.draw(st.integers(1, 3))):
        edit(data, document, toml_values)

    checked(folder, tomli_w.dumps(document).encode(), capfd)


@given(data=st.data(), name=st.sampled_from(sorted(SHIPPED)))
def test_a_manifest_with_damaged_text_is_answered(data, name, folder, capfd):
    text = SHIPPED[name].encode()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 40, len(text))))

    checked(folder, text[:start] + data.draw(st.binary(max_size=20)) + text[end:], capfd)


@pytest.mark.parametrize(
    "line",
    [
        "x = " + "[" * 10_000 + "]" * 10_000,
        "x = " + "{a = " * 10_000 + "1" + "}" * 10_000,
        "x" + ".a" * 10_000 + " = 1",
        "[x" + ".a" * 10_000 + "]",
        "x = 1" + "0" * 5_000,
        "x = 0x" + "f" * 5_000,
    ],
    ids=lambda line: line[:10],
)
def test_deep_and_huge_values_are_refused(line, folder, capfd):
    (folder / "study.toml").write_text(f"{line}\n{SMALL_STUDY}")
    with no_hang():
        answered(typed(["check", "study.toml"], folder, OFFLINE, capfd), (2,))
