"""Defaults that depend on other tables of a manifest: names, splits, inputs, metrics and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from mbt_cli.interfaces import Benchmark
from mbt_cli.stages.kinds import STAGES

Blocks = Sequence[Mapping[str, Any]]

_WORDS = ("exact_match", "f1_score")
_MATH = ("math_match",)
_ALWAYS = ("answer_rate", "tokens")
_TABLES = ("main_results",)


def with_defaults(blocks: Blocks, benchmarks: Mapping[str, Benchmark]) -> list[Mapping[str, Any]]:
    """The `[[stage]]` tables with what follows from the other tables where they say nothing.

    A stage is named like its kind; `split` is the one that all benchmarks of its matrix have, if
    they have one; a score stage reads all rollouts before it, and a report all scores.
    """
    made: list[Mapping[str, Any]] = []
    for block in blocks:
        kind = block.get("kind")
        if not isinstance(kind, str) or kind not in STAGES:
            made.append(block)
            continue
        found: dict[str, Any] = {"name": kind, **block}
        if kind == "score":
            found = {"rollouts": _names(made, "rollout"), "metrics": _metrics(benchmarks), **found}
        elif kind == "report":
            scores = _names(made, "score", "harness")
            found = {"scores": scores, "tables": list(_TABLES), **found}
        elif isinstance(mixed := found.get("mixture"), list):
            names = [part.get("benchmark") for part in mixed if isinstance(part, Mapping)]
            asked = found.get("questions", {})
            if isinstance(asked, Mapping) and "benchmark" not in asked:
                found["questions"] = {"split": "train", **asked, "benchmark": names}
        if "split" in STAGES[kind].axes:
            found |= _with_split(found.get("matrix"), benchmarks)
        made.append(found)
    return made


def _names(before: Blocks, *kinds: str) -> list[str]:
    return [str(block["name"]) for block in before if block.get("kind") in kinds]


def _metrics(benchmarks: Mapping[str, Benchmark]) -> list[str]:
    found: list[str] = []
    for one in benchmarks.values():
        if one.verifier.replaces_words:
            found += _WORDS[:1]
        else:
            found += _MATH if one.official is None else _WORDS
    order = (*_WORDS, *_MATH)
    return [*sorted(set(found) if found else (), key=order.index), *_ALWAYS]


def _with_split(matrix: Any, benchmarks: Mapping[str, Benchmark]) -> dict[str, Any]:
    """The matrix with the only split of its benchmarks; nothing if that is not clear."""
    if not isinstance(matrix, Mapping) or "benchmark" not in matrix or "split" in matrix:
        return {}
    written = matrix["benchmark"]
    names = written if isinstance(written, list) else [written]
    found = {split for name in names for split in _splits(benchmarks.get(str(name)))}
    return {"matrix": {**matrix, "split": sorted(found)}} if len(found) == 1 else {}


def _splits(benchmark: Benchmark | None) -> list[str]:
    if benchmark is None:
        return []
    return list(benchmark.splits or benchmark.files or benchmark.official_sizes)
