"""The mixture of a reinforcement learning: which questions are asked, and in which order."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from mbt_cli.core.chat import Json
from mbt_cli.core.plugin import AbsentByDefault, RunOnly, Settings
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.errors import StageError
from mbt_cli.stages.curriculum import Direction, in_order
from mbt_cli.store.hub import HubRequest

HUB = "hub:"
_ON_HUB = re.compile(r"hub:(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[^@]+)(@(?P<revision>.+))?")
_SHOWN_IDS = 5
KEY = ("source", "question_id")


class MixturePart(Settings):
    """A benchmark of a mixture: `{ benchmark = "gsm8k", weight = 0.7, order = "easy.txt" }`."""

    benchmark: str
    """Name of the benchmark."""
    weight: float | None = Field(default=None, gt=0)
    """Share among the parts with a weight; the largest mixture with these shares is asked. Without
    weights, all questions."""
    count: int | None = Field(default=None, ge=1, strict=True)
    """Number of questions, in place of a weight."""
    # what it holds counts: `TrainStage.files_read`, `TrainStage.hub_files_read`
    order: Annotated[str | None, RunOnly] = None
    """File with the ids of questions, one a line: they are asked in this order, and no others. A
    path, `s3://BUCKET/FILE`, or `hub:OWNER/NAME/FILE@REVISION` in a data set of the hub. By default
    all questions, in an order drawn by the seed."""
    sort: Annotated[Direction | None, AbsentByDefault] = None
    """Order by the pass rates in the stage's `scores`, in place of a file."""


Interleaving = Literal["interleaved", "sequential"]
"""Whether each stretch of a mixture has all parts in their shares, or one part follows another."""


def mixture_problems(parts: Sequence[MixturePart]) -> Iterator[tuple[str, str]]:
    """What is wrong with a mixture: key path below the stage, and message."""
    names = Counter(part.benchmark for part in parts)
    for number, part in enumerate(parts):
        where = f"mixture.{number}"
        if part.weight is not None and part.count is not None:
            yield where, "has a `weight` and a `count`; keep one"
        if part.order is not None and part.sort is not None:
            yield where, "has an `order` and a `sort`; keep one"
        if names[part.benchmark] > 1:
            yield f"{where}.benchmark", f"`{part.benchmark}` is in the mixture twice"
        path, is_on_hub = order_path(part), (part.order or "").startswith(HUB)
        if is_on_hub and order_request(part) is None:
            yield f"{where}.order", f"`{part.order}` is not a file: `hub:OWNER/NAME/FILE@REVISION`"
        if path is not None and not path.is_file():
            what = f"no file `{part.order}` (relative to {Path.cwd()}): one question id a line"
            yield f"{where}.order", what
    if any(part.weight for part in parts) and not all(p.weight or p.count for p in parts):
        yield "mixture", "gives some parts a `weight`; give each one a `weight` or a `count`"


def order_path(part: MixturePart) -> Path | None:
    """The local file with a part's order; None if it has none, or if it is on the hub."""
    is_local = part.order is not None and not part.order.startswith(HUB)
    return Path(part.order).expanduser() if is_local and part.order else None


def order_request(part: MixturePart) -> HubRequest | None:
    """The file on the hub with a part's order; None if it has none there."""
    match = _ON_HUB.fullmatch(part.order or "")
    return match and HubRequest(match["repo"], (match["file"],), match["revision"] or "main")


@dataclass(frozen=True, slots=True)
class Mixture:
    """The questions of a mixture in the order in which they are asked.

    Args:
        order: `source` and `question_id`, one row for each time that a question is asked.
        facts: Benchmark to what became of its questions, for the lineage.
    """

    order: pl.DataFrame
    facts: Mapping[str, Json]


def mixture_of(
    questions: pl.DataFrame,
    parts: Sequence[MixturePart],
    mixing: Interleaving,
    seed: int,
    orders: Mapping[str, Path] | None = None,
    rates: Mapping[str, pl.DataFrame] | None = None,
) -> Mixture:
    """Order the questions of a mixture. Shares are exact, up to one question of each part.

    Args:
        questions: `source`, `question_id` and `benchmark` of each question, and `dropped`: null for
            those that may be asked.
        parts: The mixture.
        mixing: How the parts follow each other.
        seed: Draws the order of parts without a file.
        orders: Benchmark to the file with its order; by default the parts' own local files.
        rates: Benchmark to the pass rates of its questions, for parts with `sort`.

    Raises:
        StageError: A part has fewer questions than its `count`, or none.
    """
    listed: dict[str, list[tuple[str, str]]] = {}
    facts: dict[str, Json] = {}
    for part in parts:
        found = order_path(part) if orders is None else orders.get(part.benchmark)
        every = questions.filter(benchmark=part.benchmark)
        own = every.filter(pl.col("dropped").is_null()).select(KEY)
        left_out = set(every["question_id"]) - set(own["question_id"])
        if part.sort is not None:
            by_rate = in_order((rates or {})[part.benchmark], part.sort)
            sources = dict(own.select("question_id", "source").iter_rows())
            asked = [(sources[name], name) for name in by_rate["question_id"] if name in sources]
            listed[part.benchmark] = asked
            facts[part.benchmark] = {"questions": own.height, "with_pass_rate": len(asked)}
            continue
        listed[part.benchmark], facts[part.benchmark] = _listed(own, left_out, part, seed, found)
    counts = _counts(parts, {name: len(keys) for name, keys in listed.items()})
    chosen = [listed[part.benchmark][: counts[part.benchmark]] for part in parts]
    for part, keys in zip(parts, chosen, strict=True):
        facts[part.benchmark]["asked"] = len(keys)
    keys = [key for own in chosen for key in own]
    if mixing == "interleaved":
        # each question at the middle of its share of the whole: every stretch has all parts
        places = [
            (Fraction(2 * n + 1, 2 * len(own)), number, key)
            for number, own in enumerate(chosen)
            for n, key in enumerate(own)
        ]
        keys = [key for *_, key in sorted(places, key=lambda place: place[:2])]
    schema = dict.fromkeys(KEY, pl.String())
    return Mixture(pl.DataFrame(keys, schema=schema, orient="row"), facts)


def _listed(
    own: pl.DataFrame, left_out: Collection[str], part: MixturePart, seed: int, path: Path | None
) -> tuple[list[tuple[str, str]], dict[str, Json]]:
    """The questions of a part in their order, and facts about the order's file."""
    keys: list[tuple[str, str]] = own.rows()
    if path is None:
        keys.sort(key=lambda key: sha256_of(["mixture", seed, *key]))
        return keys, {"questions": len(keys)}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StageError(f"cannot read the order `{part.order}`: {error}") from error
    wanted = [line.strip() for line in lines if line.strip()]
    sources = {name: source for source, name in keys}
    lacking = list(dict.fromkeys(name for name in wanted if name not in sources))
    unknown = [name for name in lacking if name not in left_out]
    found = [(sources[name], name) for name in wanted if name in sources]
    facts = {"questions": len(keys), "in_order": len(wanted), "unknown": len(unknown)}
    if len(lacking) > len(unknown):
        facts["left_out"] = len(lacking) - len(unknown)  # held out, or not in `keep`
    if not found:
        raise StageError(
            f"none of the {len(wanted):,} ids in `{part.order}` is a question of `{part.benchmark}`"
            + (f"; first: `{wanted[0]}`" if wanted else ""),
            hint="write the column `question_id` of its questions, one id a line",
        )
    return found, {**facts, "unknown_ids": unknown[:_SHOWN_IDS]}


def _counts(parts: Sequence[MixturePart], available: Mapping[str, int]) -> dict[str, int]:
    """How many questions each part gives."""
    found = {}
    for part in parts:
        have = available[part.benchmark]
        if part.count is not None and part.count > have:
            raise StageError(
                f"the mixture wants {part.count:,} questions of `{part.benchmark}`, which has "
                f"{have:,}",
                hint="lower `count`, or raise the benchmark's `limit`",
            )
        found[part.benchmark] = have if part.count is None else part.count
    weighted = {p.benchmark: Fraction(str(p.weight)) for p in parts if p.weight is not None}
    if not weighted:
        return found
    total = sum(weighted.values())
    shares = {name: weight / total for name, weight in weighted.items()}
    # the largest number of questions in which every part has its share
    size = min(Fraction(available[name]) / share for name, share in shares.items())
    return found | {name: int(size * share) for name, share in shares.items()}
