"""Forecasting: questions about events, with dates, the crowd's forecast and the outcome.

Three layouts, told apart by their fields:

- ForecastBench: `{id, source, question, resolution_criteria, background, freeze_datetime,
  freeze_datetime_value, resolution_date, resolved_to}`.
- Metaculus: `{id, title, description, resolution_criteria, fine_print, type, options, open_time,
  scheduled_close_time, actual_resolve_time, resolution, aggregations}`, or a post with all but the
  title in `question`.
- Polymarket: `{id, question, description, outcomes, outcomePrices, startDate, endDate, closedTime,
  closed}`; lists may be JSON texts.

    Q: Will it snow in Oslo on 1 May?   A. Yes   B. No   Answer: B, crowd 0.03
"""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from mbt_cli.benchmarks import records
from mbt_cli.benchmarks.beliefs import YES_NO, BeliefBenchmark, one_hot
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question

_SHARES = 1e-3
"""How near to 0 and 1 the last prices of a closed market are."""


def _date(text: str) -> str:
    if _day(text) is None:
        raise ValueError("should be a date such as `2025-10-26`")
    return text


class Forecasting(BeliefBenchmark):
    """Questions of ForecastBench, Metaculus and Polymarket.

    The metadata have `crowd` (the crowd's forecast for each option, in the order shown, or null),
    `asked`, `closes` and `resolved` (dates), `platform` and `url`. A question that has not
    resolved, or whose outcome is ambiguous or annulled, has no answer.
    """

    kind: Literal["forecasting"] = "forecasting"
    """Names the benchmark in a manifest."""
    resolved_after: Annotated[str | None, AfterValidator(_date)] = None
    """Leave out questions that resolved on this date or before, such as `2025-06-30`, the day to
    which a model's data goes. Those that have not resolved stay."""

    layout: ClassVar[frozenset[str]] = frozenset(
        {"question", "resolution_criteria", "freeze_datetime_value", "resolved_to"}
    )

    def has(self, record: Mapping[str, Json], split: str) -> bool:
        if self.resolved_after is not None:
            found, after = _read(record), _day(self.resolved_after)
            when = _day(found.resolved)
            if found.outcome and when is None:
                raise ValueError("has an outcome and no date of it, which `resolved_after` needs")
            if found.outcome and after is not None and when is not None and when <= after:
                return False
        return super().has(record, split)

    def question(self, record: Mapping[str, Json]) -> Question:
        found = _read(record)
        asked = f"This is asked on {found.asked[:10]}." if found.asked else ""
        closes = f"It closes on {found.closes[:10]}." if found.closes else ""
        dates = " ".join(part for part in (asked, closes) if part)
        parts = (
            found.question,
            f"Background: {found.background}" if found.background else "",
            f"Resolution: {found.criteria}" if found.criteria else "",
            dates,
        )
        metadata = {
            "platform": found.platform,
            "asked": found.asked,
            "closes": found.closes,
            "resolved": found.resolved if found.outcome else None,
            "url": record.get("url"),
        }
        made = self.with_options(
            found.id, parts, found.options, found.outcome, metadata, found.platform
        )
        # the crowd stays with the options when they are put in another order
        crowd = dict(zip(found.options, found.crowd, strict=True)) if found.crowd else None
        shown = [crowd[text] for text in made.options] if crowd else None
        return Question(
            question_id=made.question_id,
            question=made.question,
            answer=made.answer,
            answer_aliases=made.answer_aliases,
            question_type=made.question_type,
            metadata={**metadata, "crowd": shown},
            options=made.options,
            resolution=made.resolution,
        )


@dataclass(frozen=True, slots=True)
class _Market:
    """A question of any platform, its options in the order of the data."""

    id: str
    platform: str
    question: str
    background: str
    criteria: str
    options: Sequence[str]
    outcome: Sequence[float]
    crowd: Sequence[float]
    asked: str | None
    closes: str | None
    resolved: str | None


def _read(record: Mapping[str, Json]) -> _Market:
    if "outcomes" in record:
        return _polymarket(record)
    if "title" in record:
        return _metaculus(record)
    return _forecastbench(record)


def _forecastbench(record: Mapping[str, Json]) -> _Market:
    question = records.text(record, "question")
    share = _probability(record.get("resolved_to"), "resolved_to")
    crowd = _probability(record.get("freeze_datetime_value"), "freeze_datetime_value", lax=True)
    return _Market(
        id=records.own_id(record, "id") or records.hashed_id(question),
        platform=records.optional_text(record, "source") or "forecastbench",
        question=question,
        background=records.optional_text(record, "background") or "",
        criteria=records.optional_text(record, "resolution_criteria") or "",
        options=YES_NO,
        outcome=_pair(share),
        crowd=_pair(crowd),
        asked=records.optional_text(record, "freeze_datetime"),
        closes=records.optional_text(record, "market_info_close_datetime"),
        resolved=records.optional_text(record, "resolution_date"),
    )


def _metaculus(record: Mapping[str, Json]) -> _Market:
    inner = record.get("question")
    body = {**record, **inner} if isinstance(inner, Mapping) else dict(record)
    title = records.text(record, "title")
    kind = body.get("type", "binary")
    if kind not in ("binary", "multiple_choice"):
        raise ValueError(f"`type` is {kind!r}; binary and multiple_choice have options")
    given = records.texts(body.get("options"), "options") if kind == "multiple_choice" else YES_NO
    said = body.get("resolution")
    words = "" if said is None else str(said).strip().casefold()
    names = [option.casefold() for option in given]
    right = names.index(words) if words in names else None
    if right is None and words not in ("", "ambiguous", "annulled"):
        raise ValueError(f"`resolution` {said!r} is none of the options {list(given)}")
    fine = records.optional_text(body, "fine_print")
    criteria = records.optional_text(body, "resolution_criteria")
    return _Market(
        id=records.own_id(record, "id") or records.hashed_id(title),
        platform="metaculus",
        question=title,
        background=records.optional_text(body, "description") or "",
        criteria="\n".join(text for text in (criteria, fine) if text),
        options=given,
        outcome=one_hot(right, len(given)),
        crowd=_metaculus_crowd(body, len(given)),
        asked=records.optional_text(body, "open_time"),
        closes=records.optional_text(body, "scheduled_close_time"),
        resolved=records.optional_text(body, "actual_resolve_time"),
    )


def _metaculus_crowd(body: Mapping[str, Json], options: int) -> Sequence[float]:
    """The community's last forecast; empty without one."""
    found: Json = body.get("community_prediction")
    if found is None:
        found = body.get("aggregations")
        for key in ("recency_weighted", "latest", "centers"):
            found = found.get(key) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list | tuple) else [found] if found is not None else []
    shares = [_probability(value, "the community's forecast") for value in values]
    if options == 2 and len(shares) == 1:
        return _pair(shares[0])
    return [share for share in shares if share is not None] if len(shares) == options else ()


def _polymarket(record: Mapping[str, Json]) -> _Market:
    question = records.text(record, "question")
    options = records.texts(_listed(record["outcomes"], "outcomes"), "outcomes")
    prices = _listed(record.get("outcomePrices") or [], "outcomePrices")
    shares = [_probability(price, "outcomePrices") or 0.0 for price in prices]
    is_closed = record.get("closed") in (True, "true")
    is_settled = is_closed and len(shares) == len(options) and abs(sum(shares) - 1) <= _SHARES
    right = None
    if is_settled and max(shares) >= 1 - _SHARES:
        right = max(range(len(shares)), key=lambda number: shares[number])
    outcome = one_hot(right, len(options))
    if is_settled and right is None and len(set(shares)) == 1:
        outcome = tuple(shares)  # a market that paid every side the same
    earlier = [_probability(v, "crowd") for v in _listed(record.get("crowd") or [], "crowd")]
    crowd = earlier if is_closed else shares
    return _Market(
        id=records.own_id(record, "conditionId", "id") or records.hashed_id(question),
        platform="polymarket",
        question=question,
        background=records.optional_text(record, "description") or "",
        criteria="",
        options=options,
        outcome=outcome,
        crowd=[share for share in crowd if share is not None] if crowd else (),
        asked=records.optional_text(record, "startDate"),
        closes=records.optional_text(record, "endDate"),
        resolved=records.optional_text(record, "closedTime"),
    )


def _listed(value: Json, name: str) -> Sequence[Json]:
    """A list, which may be written as a JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"`{name}` is a text that is not a JSON list") from None
    if not isinstance(value, list | tuple):
        raise ValueError(f"`{name}` should be a list")
    return value


def _pair(share: float | None) -> tuple[float, ...]:
    return () if share is None else (share, 1 - share)


def _probability(value: Json, name: str, *, lax: bool = False) -> float | None:
    """A number from 0 to 1, which may be a text; None for none.

    Args:
        value: What the record has.
        name: Its name, for messages.
        lax: Whether something else counts as none, such as the price of a share.
    """
    if value is None or value in ("", "N/A"):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if 0 <= number <= 1:
        return number
    if lax:
        return None
    raise ValueError(f"`{name}` is {value!r}, not a number from 0 to 1")


def _day(text: str | None) -> dt.date | None:
    """The day of a date or time in ISO 8601; None without one.

    Example:
        >>> _day("2025-10-26T00:00:00Z"), _day("soon")
        (datetime.date(2025, 10, 26), None)
    """
    try:
        return dt.date.fromisoformat((text or "")[:10])
    except ValueError:
        return None
