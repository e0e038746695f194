"""Manifests that are wrong: what is done, the words wanted, always exit code 2."""

import re

import pytest

from tests.cli.wrong import CANNED, TINY, Wrong, held, rows, typed
from tests.conftest import SMALL_STUDY

CHECK = "check study.toml"
HEAD = SMALL_STUDY.partition("[[stage]]")[0]


def edited(id: str, old: str, new: str, *words: str) -> Wrong:
    return Wrong(id, CHECK, words, edits={old: new})


def misspelled(id: str, old: str, new: str, *words: str) -> Wrong:
    """One mistyped name is one problem, whatever would follow from it."""
    return edited(id, old, new, "has 1 problem", *words)


def written(id: str, content: str | bytes, *words: str, **more: object) -> Wrong:
    return Wrong(id, CHECK, words, files={"study.toml": content}, **more)


FILES = (
    Wrong("a file that is not there", "check stduy.toml", ["no file `stduy.toml`", "`study.toml`"]),
    Wrong("a folder that is not there", "check no/x.toml", ["no file `no/x.toml`", "`study.toml`"]),
    Wrong("a folder", "check .", ["`.` cannot be read", "there are `study.toml`"]),
    written("an empty file", "", "is empty", "[study]", "mbt help manifest"),
    written("UTF-16", SMALL_STUDY.encode("utf-16"), "`file`: is not UTF-8", "save it as UTF-8"),
    written("Latin-1", "[study]\nname = 'ä'".encode("latin-1"), "is not UTF-8", "at byte 16"),
    written("JSON", '{"study": {}}', 'is not TOML: `{"study": {}}`', "line 1"),
    written("an open string", '[study]\nname = "x\n', 'is not TOML: `name = "x`', "line 2"),
    written("a key twice", "[study]\nseed = 1\nseed = 2\n", "`seed = 2`", "line 3"),
)
EXTENDS = (
    edited(
        "extends itself",
        "seed = 1",
        'seed = 1\nextends = "study.toml"',
        "leads back to",
    ),
    edited(
        "extends nothing",
        "seed = 1",
        'seed = 1\nextends = "bsae.toml"',
        *("`study.toml` has 1 problem", "`study.extends`: no file `bsae.toml`", "`study.toml`"),
    ),
    Wrong(
        "extends a broken file",
        CHECK,
        ["`base.toml` has 1 problem", "is not TOML: `[study`"],
        edits={"seed = 1": 'seed = 1\nextends = "base.toml"'},
        files={"base.toml": "[study\n"},
    ),
)
VERSIONS = (
    edited(
        "of a newer mbt",
        "seed = 1\n",
        'seed = 1\nmbt = "99.1"\nnew_key = 3\n',
        *("`study.mbt`: `99.1`", "this is mbt ", "install --upgrade", "has 1 problem"),
    ),
    edited("a version that is none", "seed = 1", 'seed = 1\nmbt = "new"', "`study.mbt`: `new`"),
)
MISSPELLED = (
    misspelled(
        "a key", "max_failed_share", "max_failled_share", "did you mean `max_failed_share`?"
    ),
    misspelled("a table", "[sampling.plain]", "[samplings.plain]", "`sampling`?"),
    misspelled("the stages", "[[stage]]", "[[stages]]", "did you mean `stage`?"),
    misspelled("a stage's kind", '"rollout"', '"rolout"', "did you mean `rollout`?"),
    misspelled("a benchmark's kind", '"tinyhop"', '"tinyhopp"', "did you mean `tinyhop`?"),
    edited("a backend", '"canned"', '"caned"', "models.parrot.backend", "did you mean `canned`?"),
    misspelled("a metric", '"f1_score"', '"f1_scor"', "metrics.1`", "did you mean `f1_score`?"),
    misspelled(
        "a table of results", '"main_results"', '"main_result"', "did you mean `main_results`"
    ),
    misspelled("an axis", "{ benchmark =", "{ benhcmark =", "unknown axis", "mean `benchmark`?"),
    misspelled(
        "a prompt", '"metacognitive"', '"metacognitiv"', "no prompt `metacognitiv`", "mean `m"
    ),
    misspelled("a benchmark", '["tiny"]', '["tinny"]', "no benchmark `tinny`", "mean `tiny`?"),
    misspelled("a model", '["parrot"]', '["parot"]', "no model `parot`", "did you mean `parrot`?"),
    misspelled("a judge", '"answer_match"', '"answer_mach"', "no judge", "mean `answer_match`?"),
    misspelled(
        "a split", '"validation"', '"validaton"', "no split `validaton`", "train, validation"
    ),
    edited("an input", 'rollouts = "base"', 'rollouts = "bse"', "no stage `bse`", "mean `base`?"),
    edited("a sampling", 'sampling = "plain"', 'sampling = "plian"', "mean `plain`?"),
    misspelled(
        "a preset",
        "[models.judge]",
        '[models.x]\npreset = "qwen3-0.6"\nsampling = "plain"\n[models.judge]',
        *("`models.x.preset`: no preset `qwen3-0.6`", "did you mean `qwen3-0.6b`?"),
    ),
)
VALUES = (
    edited(
        "a word for a number",
        "seed = 1",
        'seed = "one"',
        "`study.seed`: `one`: must be a whole number",
    ),
    edited("a word for a table", "[sampling.plain]", "sampling = 3\n[x]", "`sampling`", "table"),
    edited("a single stage", "[[stage]]\nkind", "[[stage]]\nkond", "did you mean `kind`?"),
    written("a table for stages", HEAD + "[stage]\nkind = 'x'", "write `[[stage]]` for each stage"),
    written("no stage", HEAD, "at least one `[[stage]]`"),
    edited(
        "below zero",
        "samples = 2",
        "samples = -2",
        "`stage.base.samples`: `-2`: must be at least 1",
    ),
    edited("a billion", "samples = 2", "samples = 1_000_000_000", "must be at most 100000"),
    edited(
        "a switch for a number", "samples = 2", "samples = true", "`true`: must be a whole number"
    ),
    edited("more than 64 bits", "max_tokens = ", f"max_tokens = 1{'0' * 30}\nx = ", "most 64 bits"),
    edited("a limit of nothing", "limit = 6", "limit = 0", "`benchmarks.tiny.limit`: `0`"),
    edited("NaN", "temperature = 0", "temperature = nan", "`nan`", "finite number"),
    edited("a fraction", "samples = 2", "samples = 2.5", "`2.5`: must be a whole number"),
    edited("text for a list", 'tables = ["main_results"]', 'tables = "x"', "`x`: must be a list"),
    edited("an empty axis", '["validation"]', "[]", "matrix.split`: is an empty list"),
    edited(
        "a name with a space", '"small"', '"my study"', "`my study`: is not a valid name", "letters"
    ),
    edited("a path as a name", '"small"', '"../up"', "`../up`: is not a valid name"),
    edited("a required key left out", 'name = "small"\n', "", "`study.name`: is required"),
)
STAGES = (
    edited(
        "two stages of a name",
        'name = "answers"',
        'name = "base"',
        "has 1 problem",
        "2 stages have this name",
    ),
    edited("reads itself", 'rollouts = "base"\nm', 'rollouts = "answers"\nm', "read itself"),
    edited("an input of another kind", 'scores = "scores"', 'scores = "base"', "a rollout stage"),
    edited(
        "a cycle",
        'rollouts = "base"\nmatrix',
        'rollouts = "scores"\nmatrix',
        *("stages read each other in a cycle", "`answers` -> `scores`"),
    ),
)
NEVER_MADE = (
    edited(
        "a baseline that no cell has",
        'baseline = { prompt = "answer" }',
        'baseline = { prompt = "answr" }',
        *("`stage.scores.baseline.prompt`: no cell has `answr`", "did you mean `answer`?"),
    ),
    edited(
        "a metric without its judge",
        '"f1_score"',
        '"f1_score", "mqi"',
        *("`mqi` needs verdicts of the judge `phases`", "add it to a judge stage"),
    ),
    Wrong(
        "a prompt that shows documents, for questions without",
        CHECK,
        ["`answer` shows documents, and the questions of `tiny` have none", "`math` or `question`"],
        edits={TINY: 'kind = "gsm8k"\nfiles = { validation = "q.jsonl" }'},
        files={"q.jsonl": '{"question": "1 + 1?", "answer": "#### 2"}\n'},
    ),
    edited(
        "a name on the hub without its owner",
        CANNED,
        'backend = { kind = "vllm", model = "Qwen3-4B" }',
        *("`Qwen3-4B`", "such as `Qwen/Qwen3-4B`"),
    ),
)
SHOWN = (
    edited(
        "more at k than there are samples",
        '"f1_score"',
        '"f1_score", { kind = "pass_at_k", k = [1, 8] }',
        *("metrics.2`: `k` is 8, and `base` has 2 samples", "raise `samples`"),
    ),
    edited(
        "a table of what is not scored",
        '"main_results"',
        '"mqi"',
        *("tables.0`: `mqi` shows `mqi`, `mqi_of_means`", "add it to `metrics`"),
    ),
    edited(
        "a figure of what is not scored",
        'tables = ["main_results"]',
        'tables = ["main_results"]\nfigures = ["mqi_bars"]',
        *("figures.0`: `mqi_bars` shows `mqi`", "add it to `metrics`"),
    ),
    Wrong(
        "differences without a baseline",
        CHECK,
        ["`paired_differences` compares with a baseline", "add `baseline = { AXIS = VALUE }`"],
        edits={
            'tables = ["main_results"]': 'tables = ["paired_differences"]',
            'baseline = { prompt = "answer" }\n': "",
        },
    ),
)
DATA = (
    Wrong(
        "a data file that is not there",
        CHECK,
        ["has 1 problem", "files.validation`: no file `q.json`", "correct the path"],
        edits={TINY: 'kind = "hotpotqa"\nfiles = { validation = "q.json" }'},
    ),
    Wrong(
        "a folder as a data file",
        CHECK,
        ["`q` is a folder", "`FOLDER/*.jsonl`"],
        edits={TINY: 'kind = "hotpotqa"\nfiles = { validation = "q" }'},
        files={"q/readme": ""},
    ),
    Wrong(
        "no file for the split",
        CHECK,
        ["no file for split `validation`; the splits in `files` are `train`", 'source = "hub"'],
        edits={TINY: 'kind = "hotpotqa"\nfiles = { train = "q.json" }'},
        files={"q.json": "[]"},
    ),
)


def prompt(id: str, content: str | bytes, *words: str) -> Wrong:
    edits = {
        ', prompt = ["answer", "metacognitive"] }': ' }\nprompt = "p.md"',
        'baseline = { prompt = "answer" }\n': "",
    }
    return Wrong(id, CHECK, ["`stage.base.prompt`", *words], edits=edits, files={"p.md": content})


PROMPTS = (
    prompt("a prompt without a heading", "Say {{ question }}", "`p.md` has no `=== user ===`"),
    prompt("an empty prompt", "", "`=== user ===`"),
    prompt(
        "an unknown placeholder",
        "=== user ===\nSay {{ quesiton }}",
        *("unknown placeholder {{ quesiton }}", "there are", "question"),
    ),
    prompt(
        "a prompt that fills in nothing",
        "=== user ===\nSay something.",
        *("has no placeholder", "{{ question }}"),
    ),
    prompt("a prompt in Latin-1", "=== user ===\nä".encode("latin-1"), "is not UTF-8", "save it"),
)


@rows(*FILES, *EXTENDS, *VERSIONS, *MISSPELLED, *VALUES)
def test_a_wrong_file_or_key_is_said_in_the_users_words(wrong, tmp_path, capfd):
    said_with_its_place(wrong, tmp_path, capfd)


@rows(*STAGES, *NEVER_MADE, *SHOWN, *DATA, *PROMPTS)
def test_a_wrong_manifest_is_said_in_the_users_words(wrong, tmp_path, capfd):
    said_with_its_place(wrong, tmp_path, capfd)


def said_with_its_place(wrong, tmp_path, capfd):
    wrong.prepare(tmp_path)

    done = typed(wrong.words_typed, tmp_path, wrong.env, capfd)

    held(wrong, done)
    listed = [line for line in done.err.splitlines() if line.startswith("  ")]
    unplaced = [line for line in listed if not re.match(r"  (\S+\.toml, )?line \d+: `", line)]
    assert all(line.startswith(("  `file`: ", "  `stage`: ")) for line in unplaced)


LINES = """
[study]
name = "lines"
seed = "a"

[sampling.plain]
temperature = 9

[models]
parrot = { backend = { kind = "canned", replies = [
    "one",
    2,
] } }

[[stage]]
kind = "rollout"
name = "base"
samples = 0
matrix = {}
"""


def test_every_problem_has_the_line_of_its_key(tmp_path, capfd):
    Wrong("", "", (), files={"own.toml": LINES}).prepare(tmp_path)

    done = typed(["check", "own.toml"], tmp_path, {}, capfd)

    found = dict(re.findall(r"line (\d+): `([^`]+)`", done.err))
    assert found.items() >= {
        ("4", "study.seed"),
        ("7", "sampling.plain.temperature"),
        ("12", "models.parrot.backend.replies.1"),
    }


def test_a_problem_in_an_extended_manifest_names_its_file(tmp_path, capfd):
    own = '[study]\nextends = "study.toml"\nname = "own"\n'
    edits = {"samples = 2": "samples = 0"}
    Wrong("", "", (), files={"own.toml": own}, edits=edits).prepare(tmp_path)
    number = SMALL_STUDY.splitlines().index("samples = 2") + 1

    done = typed(["check", "own.toml"], tmp_path, {}, capfd)

    assert f"study.toml, line {number}: `stage.base.samples`: `0`" in done.err


def test_a_problem_of_a_value_of_set_has_no_line(tmp_path, capfd):
    Wrong("", "", ()).prepare(tmp_path)

    done = typed(["check", "study.toml", "--set", "stage.base.samples=0"], tmp_path, {}, capfd)

    assert "  `stage.base.samples`: `0`: must be at least 1 (from `--set " in done.err


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xef\xbb\xbf" + SMALL_STUDY.encode(), id="a byte order mark"),
        pytest.param(SMALL_STUDY.replace("\n", "\r\n").encode(), id="lines of another system"),
        pytest.param(SMALL_STUDY.replace("seed = 1", 'seed = 1\nmbt = "0.1"').encode(), id="old"),
    ],
)
def test_what_is_not_wrong_is_taken_as_it_is(content, tmp_path, capfd):
    folder = tmp_path / "my studies ü"
    Wrong("", "", (), files={"a study ü.toml": content}).prepare(folder)

    done = typed(["check", "a study ü.toml"], folder, {}, capfd)

    assert done.code == 0, done.err
    assert "no problems" in done.out
