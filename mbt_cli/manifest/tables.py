"""The tables of a manifest, read one by one, so that one wrong table hides no other's mistakes."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mbt_cli.core.model_settings import RunSettings, Sampling
from mbt_cli.core.names import nearest
from mbt_cli.manifest.problems import BAD_NAME, Problems
from mbt_cli.manifest.schema import NAME_PATTERN, Document, DocumentTables, ModelTable, StudyTable
from mbt_cli.plugins import FAMILIES
from mbt_cli.registry import AnyBenchmark, AnyJudge

_FAMILIES: Mapping[str, TypeAdapter[Any]] = {
    "groups": TypeAdapter(list[str]),
    "sampling": TypeAdapter(Sampling),
    "models": TypeAdapter(ModelTable),
    "benchmarks": TypeAdapter(AnyBenchmark),
    "judges": TypeAdapter(AnyJudge),
}
_NAME = re.compile(NAME_PATTERN)
_STAND_IN = StudyTable(name="study", seed=0, max_failed_share=0)


def read_document(tree: Mapping[str, Any], problems: Problems) -> Document:
    """Every table that is right; what is wrong becomes a problem."""
    tree = _respelled(tree, problems)
    found: dict[str, dict[str, Any]] = {}
    broken: set[str] = set()
    for family in _FAMILIES:
        found[family], wrong = _read_family(family, tree.get(family, {}), problems)
        broken |= wrong
    stages = tree.get("stage", [])
    if not isinstance(stages, list) or not all(isinstance(s, dict) for s in stages):
        problems.add("stage", "is written `[[stage]]`, once for each stage")
        stages = []
    study = _read_table("study", StudyTable, tree.get("study", {}), problems)
    run = _read_table("run", RunSettings, tree.get("run", {}), problems)
    return Document(
        study=study or _STAND_IN,
        run=run or RunSettings(),
        stage=stages,
        broken=frozenset(broken),
        **found,
    )


def _respelled(tree: Mapping[str, Any], problems: Problems) -> Mapping[str, Any]:
    """The tree with misspelled tables under the name they are near, so that each is told once."""
    known = DocumentTables.model_fields
    found = {key: table for key, table in tree.items() if key in known}
    for key in tree:
        if key in known:
            continue
        problems.add(key, f"unknown table; {nearest(key, known)}")
        if meant := get_close_matches(key, known, n=1, cutoff=0.5):
            found.setdefault(meant[0], tree[key])
    return found


_Table = TypeVar("_Table", StudyTable, RunSettings)


def _read_table(name: str, kind: type[_Table], written: Any, problems: Problems) -> _Table | None:
    try:
        return kind.model_validate(written)
    except ValidationError as error:
        problems.add_validation(name, error, kind.model_fields)
        return None


def _read_family(family: str, written: Any, problems: Problems) -> tuple[dict[str, Any], set[str]]:
    """Tables by name, and the key paths of those that are wrong."""
    if not isinstance(written, dict):
        problems.add(family, f"is a table of names, as in `[{family}.NAME]`")
        return {}, set()
    good: dict[str, Any] = {}
    broken = set()
    for name, table in written.items():
        where = f"{family}.{name}"
        if not _NAME.match(name):
            problems.add(where, BAD_NAME)
        try:
            good[name] = _FAMILIES[family].validate_python(table)
        except ValidationError as error:
            broken.add(where)
            problems.add_validation(where, error, _valid_keys(family, table))
    return good, broken


def _valid_keys(family: str, table: Any) -> Iterable[str]:
    """Keys that the table may have, for suggestions."""
    if family == "sampling":
        return Sampling.model_fields
    if family == "models":
        return ModelTable.model_fields
    kinds = FAMILIES[family].kinds()
    kind = kinds.get(str(table.get("kind"))) if isinstance(table, dict) else None
    return kinds if kind is None else kind.model_fields
