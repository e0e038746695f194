"""A kind is known in one file: its plug-in's module or package, and registry.py."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from mbt_cli.plugins import FAMILIES
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "mbt_cli"
REGISTRY = PACKAGE / "registry.py"
PACKAGES = {"openai", "transformers", "vllm"}
"""Backends that are named like the Python package which they use."""
PACKAGE_LISTS = {
    "core/findings.py",  # extras and their packages
    "store/provenance.py",  # packages whose versions the lineage records
    "training/loop.py",  # packages whose versions the training records
    "training/grpo.py",  # looks for the package vllm
}
FIELDS = {"tokens", "degeneration", "difficulty", "efficiency"}


def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


TREES = trees()


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every string constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name.name) for name in node.names)


def home_of(cls: type) -> list[Path]:
    """The module of a plug-in, or its whole package below the family's folder."""
    module = Path(inspect.getfile(cls))
    folder = module.parent
    return sorted(folder.rglob("*.py")) if folder.parent.parent == PACKAGE else [module]


@pytest.mark.parametrize(
    "family", ["benchmarks", "backends", "judges", "verifiers", "launchers", "trainers", "programs"]
)
def test_no_other_file_names_a_kind_or_imports_its_class(family):
    found = []
    for kind, cls in FAMILIES[family].shipped.items():
        known = {REGISTRY, *home_of(cls)}
        for path, tree in TREES.items():
            name = str(path.relative_to(PACKAGE))
            if path in known:
                continue
            for line, text in literals(tree):
                if text == kind or f"`{kind}`" in text:
                    found.append(f"{name}:{line} names `{kind}`: {text[:60]!r}")
            for line, what in imported(tree):
                if what == cls.__name__:
                    found.append(f"{name}:{line} imports {what}")

    assert not found, "\n".join(found)
