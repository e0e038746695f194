"""`mbt help`: every topic prints with its generated parts; a wrong name gets a suggestion."""

import re
import subprocess
import sys
from functools import cache
from inspect import isabstract
from typing import get_args

import pytest
from pydantic import BaseModel

from mbt_cli.cli import help
from mbt_cli.cli.help import found, sections, topics
from mbt_cli.core.benchmark_files import BenchmarkFiles
from mbt_cli.core.column_maps import SourcePreset
from mbt_cli.core.plugin import Settings, field_docs
from mbt_cli.core.recipe import Recipe
from mbt_cli.errors import UsageError
from mbt_cli.launchers.slurm import SlurmLauncher
from mbt_cli.manifest.docs import docstring_parts
from mbt_cli.manifest.presets import PresetFolders, prompt_names, shipped
from mbt_cli.manifest.schema import DocumentTables, ModelTable
from mbt_cli.plugins import FAMILIES
from mbt_cli.settings import Machine
from mbt_cli.stages.kinds import STAGES

TOPICS = (
    "quickstart", "manifest", "data", "metrics", "presets", "paper", "beliefs", "conventions",
    "cost", "evaluation", "extend", "models", "programs", "proofs", "python", "security",
    "studio", "training", "troubleshooting", "verified",
)  # fmt: skip
SECTIONS = {
    "backends": FAMILIES["backends"],
    "benchmarks": FAMILIES["benchmarks"],
    "judges": FAMILIES["judges"],
    "metrics": FAMILIES["scores"],
    "tables": FAMILIES["tables"],
    "figures": FAMILIES["figures"],
}
SCORES = FAMILIES["scores"].kinds()
topic_text = cache(help.topic_text)


def tables_inside(annotation) -> set[type[BaseModel]]:
    """Every settings class that an annotation holds, and those inside them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = [tables_inside(f.annotation) for f in annotation.model_fields.values()]
        return {annotation}.union(*inner)
    return set().union(*(tables_inside(part) for part in get_args(annotation)))


def every_table() -> set[type[BaseModel]]:
    roots = [DocumentTables, Recipe, SourcePreset, SlurmLauncher, ModelTable, *STAGES.values()]
    roots += [cls for family in SECTIONS.values() for cls in family.kinds().values()]
    found = set().union(*(tables_inside(root) for root in roots))
    return {table for table in found if not isabstract(table)}


def test_the_topics_are_listed_with_one_line_each(mbt):
    ran = mbt("help")

    listed = [line.split()[0] for line in ran.out.split("\n\n")[0].splitlines()[1:]]
    assert ran.code == 0
    assert listed == list(TOPICS)
    assert all(0 < len(line) <= 110 and line.endswith(".") for line in topics().values())


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_its_generated_parts(topic):
    text = topic_text(topic)

    assert text.startswith("# ")
    assert "<!--" not in text
    assert sections(text)


def test_a_pipe_receives_markdown(mbt):
    ran = mbt("help", "conventions")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == topic_text("conventions")


def test_the_list_of_topics_loads_no_heavy_package():
    code = (
        "import sys\n"
        "sys.argv = ['mbt', 'help']\n"
        "from mbt_cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(' '.join(m for m in ('polars', 'numpy', 'aiohttp') if m in sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == ""
    assert done.stdout.startswith("Topics:")


def test_a_terminal_receives_rendered_text(mbt):
    ran = mbt("help", "conventions", FORCE_COLOR="1", NO_COLOR="")

    assert "\x1b[" in ran.out
    assert "## Exit codes" not in ran.out
    assert "Exit codes" in ran.out


@pytest.mark.parametrize(
    ("words", "opens"),
    [
        (("manifest", "rollout"), "## `rollout`: ask a model every question"),
        (("manifest.rollout",), "## `rollout`: ask a model every question"),
        (("backends.vllm",), '## `backends.vllm`: `backend = { kind = "vllm" }`'),
        (("vllm",), "## `backends.vllm`"),
        (("metrics", "aes"), "## `aes`"),
        (("exit-codes",), "## Exit codes"),
        (("presets", "slurm"), "## `slurm`: clusters"),
    ],
    ids=" ".join,
)
def test_a_section_is_shown_alone(words, opens):
    text = found(*words, *[None] * (2 - len(words)), commands=())

    assert text.startswith(opens)
    assert text.count("\n## ") == 0


def test_a_name_with_two_meanings_shows_both():
    shown = found("answer_hit", None, commands=())

    assert list(sections(shown)) == ["judges.answer_hit", "answer_hit"]


def test_a_command_shows_its_options_and_its_manifest_keys(mbt):
    ran = mbt("help", "rollout")

    assert "--retry-failed" in ran.out
    assert "- `samples` (whole number, at least 1, at most 100000; default `1`" in ran.out


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("metrcs",), "did you mean `metrics`?"),
        (("rolout",), "did you mean `rollout`?"),
        (("manifest", "sampeling"), "did you mean `sampling`?"),
    ],
    ids=" ".join,
)
def test_an_unknown_name_gets_the_nearest_as_hint(words, nearest):
    with pytest.raises(UsageError) as caught:
        found(*words, *[None] * (2 - len(words)), commands=())

    assert nearest in caught.value.hint


def test_an_unknown_name_is_a_usage_error(mbt):
    ran = mbt("help", "metrcs")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error: no help on `metrcs`\nhint: did you mean `metrics`? (topics: `mbt help`)\n"
    )


@pytest.mark.parametrize("table", sorted(every_table(), key=lambda cls: cls.__name__))
def test_the_manifest_topic_names_every_field_of_every_table(table):
    text = topic_text("manifest")

    written = set(re.findall(r"^\s*- `(?:\w+\.)*(\w+)` \(", text, re.MULTILINE))
    written |= set(sections(text)) | {"kind"}
    wanted = {field.alias or name for name, field in table.model_fields.items()}
    wanted -= {"stage"} if table is DocumentTables else set()
    assert wanted <= written, wanted - written


@pytest.mark.parametrize("table", sorted(every_table(), key=lambda cls: cls.__name__))
def test_the_manifest_topic_documents_every_field(table):
    text = topic_text("manifest")

    for name, doc in field_docs(table).items():
        if name in table.model_fields and name not in ("kind", "name"):
            assert " ".join(doc.split()) in text, name


@pytest.mark.parametrize("family", SECTIONS)
def test_the_manifest_topic_lists_every_kind(family):
    there = sections(topic_text("manifest"))

    for kind in SECTIONS[family].kinds():
        assert f"{family}.{kind}" in there or f"- `{kind}`: " in there[family]


def test_a_field_is_listed_with_type_default_and_mark():
    lines = sections(topic_text("manifest"))["run"].splitlines()

    assert (
        "- `concurrency` (whole number, at least 1, at most 10000; default `64`): "
        "Maximum number of requests in flight; unless set, this many for each replica of a server."
    ) in lines
    assert (
        "- `max_bad_rows` (whole number, at least 0; default `0`; never changes results)"
        in (sections(topic_text("manifest"))["benchmarks"])
    )
    assert BenchmarkFiles.model_fields["max_bad_rows"].default == 0
    assert issubclass(BenchmarkFiles, Settings)


@pytest.mark.parametrize("kind", SCORES)
def test_every_score_documents_formula_unit_columns_and_holes(kind):
    parts = {name.partition(",")[0]: text for name, text in docstring_parts(SCORES[kind])}

    for part in ("Formula", "Unit", "Reads", "Known holes"):
        assert parts.get(part), f"the docstring of {SCORES[kind].__name__} has no `{part}:`"
    assert "`" in parts["Reads"]  # names columns, or the setting that names them
    assert f"- **Unit**: {parts['Unit']}" in sections(topic_text("metrics"))[kind]


def test_every_preset_and_prompt_is_listed():
    there = sections(topic_text("presets"))
    folders = PresetFolders((shipped("presets"),))

    for family in ("models", "train", "accelerate", "sources", "slurm"):
        for name in folders.names(family):
            told = re.search(rf"^- `{re.escape(name)}`: (.+)$", there[family], re.MULTILINE)
            assert told is not None, (family, name)
    for name in prompt_names():
        assert f"`{name}`" in there["prompts"], name


def test_a_preset_of_the_user_is_marked(mbt, workplace):
    folder = workplace / "presets" / "models"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('# My own model. More words.\n[backend]\nkind = "scripted"\n')

    ran = mbt("help", "presets", "models")

    assert "- `mine`: My own model (yours: presets/models/mine.toml)" in ran.out


def test_every_variable_of_the_machine_is_listed():
    text = topic_text("conventions")

    assert all(f"- `MBT_{name.upper()}`: " in text for name in Machine.model_fields)
