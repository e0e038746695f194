"""Plug-ins from outside mbt: files of a study, and packages with an entry point."""

import sys

import pytest

from mbt_cli.api import run
from mbt_cli.cli.doctor_study import notes
from mbt_cli.cli.machine_checks import plugin_findings
from mbt_cli.engine.plan import make_plan
from mbt_cli.engine.states import States
from mbt_cli.engine.submit import NewSubmission
from mbt_cli.errors import ManifestError, MbtError
from mbt_cli.launchers.local import LocalLauncher
from mbt_cli.manifest.docs import manifest_reference, schema_text
from mbt_cli.manifest.load import load_manifest
from mbt_cli.plugins import benchmark_of, installed_plugins
from tests.conftest import SMALL_STUDY

CODE = '''
from typing import Literal
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark

class Mine(Benchmark):
    """Questions of mine."""

    kind: Literal["mine"] = "mine"
    """Names the benchmark in a manifest."""
    shout: bool = False
    """Whether questions are in capitals."""

    def question(self, record):
        return Question(question_id=record["id"], question=record["q"], answer=record["a"])
'''
STUDY = SMALL_STUDY.replace('kind = "tinyhop"', 'kind = "mine"\nfiles = { validation = "q.jsonl" }')
WITH_FILE = STUDY.replace("seed = 1\n", 'seed = 1\nplugins = ["plug/mine.py"]\n')
QUESTIONS = "questions/benchmark=tiny/split=validation"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text('{"id": "1", "q": "?", "a": "x"}\n')
    (tmp_path / "plug").mkdir()
    (tmp_path / "plug" / "mine.py").write_text(CODE)
    installed_plugins.cache_clear()
    yield tmp_path
    installed_plugins.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put packages with entry points on the path: name to (value, code of its module)."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def installed(name: str, value: str, code: str) -> None:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (site / f"{name}.py").write_text(code)
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[mbt]\n{name} = {value}\n")
        installed_plugins.cache_clear()

    return installed


def problems_of(load, text):
    with pytest.raises(ManifestError) as caught:
        load(text)
    return {p.where: p.what for p in caught.value.problems}


def test_a_file_beside_the_manifest_adds_a_kind_to_check_schema_and_help(load):
    manifest = load(WITH_FILE)

    assert manifest.document.benchmarks["tiny"].kind == "mine"
    assert '"shout"' in schema_text()
    assert "`shout` (true or false; default `false`): Whether questions are" in manifest_reference()


def test_the_hash_of_the_file_counts_for_the_cells_that_use_it_and_for_no_other(load, folder):
    before = load(WITH_FILE).cells
    (folder / "plug" / "mine.py").write_text(CODE + "\n# changed\n")
    after = load(WITH_FILE).cells

    changed = [address for address, cell in after.items() if cell.spec != before[address].spec]
    assert changed == [QUESTIONS]
    assert len(after[QUESTIONS].spec["benchmark"]["file_sha256"]) == 64
    assert "file_sha256" not in str(load(SMALL_STUDY).cells[QUESTIONS].spec)


def test_the_plug_ins_of_one_study_are_unknown_to_the_next(load):
    load(WITH_FILE)

    assert "no kind of benchmark `mine`" in problems_of(load, STUDY)["benchmarks.tiny"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_package\n", "cannot be loaded: ModuleNotFoundError: No module named 'no"),
        ("x = 1\ny = (\n", "cannot be loaded: SyntaxError: '(' was never closed"),
        ("\n1 / 0\n", "cannot be loaded: ZeroDivisionError: division by zero (line 2)"),
        ("class Mine: pass\n", "defines no plug-in: no class below `Backend`, `Benchmark`"),
        (CODE.replace("def question", "def qestion"), "`Mine`: does not define `question`"),
        (CODE.replace('"mine"', '"gsm8k"'), "`Mine`: the kind `gsm8k` of benchmarks ships"),
        (CODE.replace(': Literal["mine"] = "mine"', ": int = 3"), "`Mine`: has no kind"),
        (CODE.replace('Literal["mine"]', 'Literal["o"]'), '`Mine`: needs `kind: Literal["mine"]'),
        ("import sys; sys.exit(3)\n", "cannot be loaded: SystemExit: 3"),
        (CODE.replace("shout: bool", "shout: 'Bool'"), "`Mine`: PydanticUndefinedAnnotation: name"),
        (None, "no such file"),
    ],
)  # fmt: skip
def test_a_broken_file_is_the_only_problem_and_says_what_is_wrong(load, folder, code, words):
    path = folder / "plug" / "mine.py"
    path.unlink() if code is None else path.write_text(code)

    (where, what), *more = problems_of(load, WITH_FILE).items()

    assert (where, more) == ("study.plugins.0", [])
    assert f"plug/mine.py`: {words}" in what


def test_a_path_counts_from_the_folder_of_the_manifest_that_names_it(load, folder, presets):
    load(WITH_FILE)
    child = folder / "deep" / "child.toml"
    child.parent.mkdir()
    child.write_text('[study]\nname = "child"\nextends = "../study.toml"\n')

    assert load_manifest(child, presets=presets).document.benchmarks["tiny"].kind == "mine"


def test_the_copy_of_a_submission_holds_the_file(load, folder, presets):
    manifest = load(WITH_FILE)
    plan = make_plan(manifest, States(manifest, folder / "runs"))
    copy_to = folder / "record"
    NewSubmission(plan, manifest, presets, LocalLauncher(), copy_to, (), {}, "").write_copy()
    (folder / "plug" / "mine.py").unlink()

    copy = load_manifest(folder / "record" / "manifest.toml", presets=presets)

    assert copy.cells[QUESTIONS].spec == manifest.cells[QUESTIONS].spec


@pytest.mark.parametrize("value", ["mbt_mine", "mbt_mine:Mine"])
def test_an_installed_package_adds_a_kind(load, install, value):
    install("mbt_mine", value, CODE)

    manifest = load(STUDY)

    assert type(manifest.document.benchmarks["tiny"]).__module__ == "mbt_mine"
    assert '"shout"' in schema_text()
    assert [f.found for f in plugin_findings()] == ["benchmarks, from `mbt_mine`"]


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        ("broken", "import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_p"),
        ("broken:Gone", CODE, "AttributeError: module 'broken' has no attribute 'Gone'"),
        ("broken:CODE", "CODE = 1\n", "`broken:CODE` is not a plug-in"),
        ("broken", CODE.replace('"mine"', '"tinyhop"'), "the kind `tinyhop` of benchmarks ships"),
        ("broken", CODE.replace("def question", "def qestion"), "does not define `question`"),
    ],
)
def test_a_broken_package_is_named_and_stops_only_studies_that_use_it(
    load, install, value, code, words
):
    install("broken", value, code)

    manifest = load(SMALL_STUDY)

    (note,) = notes(manifest, {})
    assert note.startswith("the package `broken`, entry point `broken`: ")
    assert words in note
    assert words in problems_of(load, STUDY)["benchmarks.tiny"]
    assert [f.state for f in plugin_findings()] == ["absent"]


def test_what_a_file_prints_does_not_reach_stdout(load, folder, capsys):
    (folder / "plug" / "mine.py").write_text("print('loading')\n" + CODE)

    load(WITH_FILE)

    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loading\n")


def test_a_record_without_a_field_that_question_reads_is_a_malformed_row(load, folder):
    (folder / "q.jsonl").write_text('{"id": "1", "a": "x"}\n')

    with pytest.raises(MbtError, match=r"q\.jsonl:1 \(id `1`\): `q` is missing"):
        run(load(WITH_FILE))


def test_a_manifest_runs_with_its_own_plug_ins_after_another_was_loaded(load):
    manifest = load(WITH_FILE)
    load(SMALL_STUDY)

    run(manifest)

    assert benchmark_of(manifest.cells[QUESTIONS].spec).__name__ == "Mine"
