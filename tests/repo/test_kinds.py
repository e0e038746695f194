"""A kind is known in one file: its plug-in's module or package, and registry.py."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import mbt_cli.registry  # noqa: F401 - fills FAMILIES
from mbt_cli.plugins import FAMILIES
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "mbt_cli"
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
ENGLISH = {
    "command",
    "constraint",
    "human",
    "instructions",
    "local",
    "math",
    "number",
    "option",
    "provider",
    "python",
    "text",
    "uplift",
    "verifier",
}
"""Kinds that are common words; only imports of their classes are checked."""
ALLOWED = {
    # Python packages that have the name of a backend
    ("core/findings.py", "skypilot"),
    ("core/findings.py", "transformers"),
    ("core/findings.py", "vllm"),
    ("engine/export.py", "transformers"),
    ("store/provenance.py", "openai"),
    ("store/provenance.py", "transformers"),
    ("store/provenance.py", "vllm"),
    # whose API it is, and what the APIs call their methods
    ("trainers/provider.py", "dpo"),
    ("trainers/provider.py", "openai"),
    ("trainers/provider.py", "sft"),
    # a loss of TRL's DPO, by TRL's name
    ("trainers/dpo.py", "sft"),
    ("training/grpo.py", "vllm"),
    ("training/loop.py", "transformers"),
    ("training/shards.py", "transformers"),
    # sets of rules with the name of the benchmark that they were made for
    ("verifiers/instructions/verifier.py", "ifbench"),
    ("verifiers/instructions/verifier.py", "ifeval"),
    # the scorer of the data set is the published default for data sets without one
    ("core/verifier.py", "2wikimultihopqa"),
    # the option --slurm and the help topic
    ("cli/commands.py", "slurm"),
    ("cli/help.py", "slurm"),
    # the option --ssh
    ("cli/commands.py", "ssh"),
    # the option --sagemaker, and the extra that installs what it needs
    ("cli/commands.py", "sagemaker"),
    ("core/findings.py", "sagemaker"),
    # the option --sky
    ("cli/commands.py", "skypilot"),
    # metrics and quantities with the name of the judge that measures them
    ("report/metrics.py", "answer_hit"),
    ("report/metrics.py", "redundancy"),
    ("report/tables.py", "answer_hit"),
    ("scores/judged.py", "answer_hit"),
    ("scores/mqi.py", "phases"),
    ("scores/rrp.py", "redundancy"),
    # a type of question on Metaculus
    ("benchmarks/forecasting.py", "multiple_choice"),
    # the gate of this name, which asks no judge
    ("stages/gates.py", "phases"),
    # metrics that are defined by one rule, and the default of benchmarks
    ("scores/scoring.py", "MathVerifier"),
    ("scores/scoring.py", "TextVerifier"),
    ("interfaces.py", "TextVerifier"),
    ("stages/gates.py", "TextVerifier"),
    # texts that `ask` is given, which have no answers
    ("api.py", "conceptual"),
    # data sets that its records name
    ("benchmarks/rlvr_mixed.py", "gsm8k"),
    ("benchmarks/rlvr_mixed.py", "ifeval"),
    # how a sentence states an answer in words, and how one states a number
    ("gates/conclusion.py", "TextVerifier"),
    ("gates/conclusion.py", "NumberVerifier"),
}


@pytest.fixture(scope="module")
def names() -> dict[str, list[tuple[int, str]]]:
    """File to the lines and texts of its strings, docstrings excepted, and of its imports."""
    return {
        file: list(names_in(ast.parse(path.read_text("utf-8")))) for file, path in FILES.items()
    }


@pytest.mark.parametrize(
    "family", ["backends", "benchmarks", "judges", "launchers", "trainers", "verifiers"]
)
def test_only_its_own_file_and_the_registry_name_a_kind(family, names):
    found = []
    for kind, cls in FAMILIES[family].shipped.items():
        wanted = {cls.__name__} | ({kind, f"`{kind}`"} if kind not in ENGLISH else set())
        for file in FILES.keys() - {"registry.py", *home_of(cls)}:
            for line, text in names[file]:
                named = {text} & wanted or {
                    name for name in wanted if name[0] == "`" and name in text
                }
                is_default = family == "verifiers" and file.startswith("benchmarks/")
                if named and not is_default and not {(file, n.strip("`")) for n in named} & ALLOWED:
                    found.append(f"mbt_cli/{file}:{line} names the kind `{kind}`: {text[:60]!r}")

    assert not found, "\n".join(sorted(found))


def home_of(cls: type) -> list[str]:
    """The module of a plug-in, or all of its package below the folder of the family."""
    module = Path(inspect.getfile(cls)).relative_to(PACKAGE)
    if len(module.parts) == 2:
        return [module.as_posix()]
    return [file for file in FILES if file.startswith(f"{module.parent.as_posix()}/")]


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield node.lineno, str(node.value)
