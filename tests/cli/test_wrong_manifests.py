"""Manifests that are wrong: what is done, the words wanted, always exit code 2."""

import pytest

from tests.cli.wrong import TINY, Wrong, held, rows, typed
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
    edited("a word for a number", "seed = 1", 'seed = "one"', "`study.seed`: `one`", "integer"),
    edited("a word for a table", "[sampling.plain]", "sampling = 3\n[x]", "`sampling`", "table"),
    edited("a single stage", "[[stage]]\nkind", "[[stage]]\nkond", "did you mean `kind`?"),
    written("a table for stages", HEAD + "[stage]\nkind = 'x'", "write `[[stage]]` for each stage"),
    written("no stage", HEAD, "at least one `[[stage]]`"),
    edited("below zero", "samples = 2", "samples = -2", "`stage.base.samples`: `-2`"),
    edited("a limit of nothing", "limit = 6", "limit = 0", "`benchmarks.tiny.limit`: `0`"),
    edited("NaN", "temperature = 0", "temperature = nan", "`nan`", "finite number"),
    edited("a fraction", "samples = 2", "samples = 2.5", "`2.5`", "integer"),
    edited("text for a list", 'tables = ["main_results"]', 'tables = "x"', "`x`", "valid list"),
    edited("an empty axis", '["validation"]', "[]", "matrix.split`: is an empty list"),
    edited(
        "a name with a space", '"small"', '"my study"', "`my study`: is not a valid name", "letters"
    ),
    edited("a path as a name", '"small"', '"../up"', "`../up`: is not a valid name"),
    edited("a required key left out", "seed = 1\n", "", "`study.seed`: is required"),
    edited("a stage without a name", 'name = "scores"\n', "", "`stage[2].name`: is required"),
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
        *("has no placeholder", "{{ documents }}, {{ question }}"),
    ),
    prompt("a prompt in Latin-1", "=== user ===\nä".encode("latin-1"), "is not UTF-8", "save it"),
)


@rows(*FILES, *EXTENDS, *VERSIONS, *MISSPELLED, *VALUES, *STAGES, *DATA, *PROMPTS)
def test_a_wrong_manifest_is_said_in_the_users_words(wrong, tmp_path, capfd):
    wrong.prepare(tmp_path)

    held(wrong, typed(wrong.words_typed, tmp_path, wrong.env, capfd))


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
