"""ChangeMyView: a view that somebody posted, and an argument against it.

Records of `{title, selftext, argument, delta}`: `delta` says whether the poster's view changed, as
a Boolean or 0 / 1; it may be missing. For the free form, title and text are enough.

    Q: Did this argument change the poster's view?   A. Yes   B. No
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.benchmarks.beliefs import YES_NO, BeliefBenchmark, one_hot, open_question
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question

_ID = ("id", "_id", "name")
_TAKEN = (*_ID, "title", "selftext", "argument", "delta")
_DELTA: Mapping[Json, int | None] = {None: None, True: 0, False: 1}  # number of the option


class ChangeMyView(BeliefBenchmark):
    """Views and arguments of ChangeMyView."""

    kind: Literal["change_my_view"] = "change_my_view"
    """Names the benchmark in a manifest."""
    form: Literal["binary", "free_form"] = "binary"
    """`binary`: whether the argument changed the view, with the options Yes and No. `free_form`:
    what to make of the view, an open question."""

    layout: ClassVar[frozenset[str]] = frozenset({"title", "selftext", "delta"})
    reads: ClassVar[frozenset[str]] = frozenset(_TAKEN)

    def question(self, record: Mapping[str, Json]) -> Question:
        title = records.text(record, "title")
        text = records.optional_text(record, "selftext") or ""
        own, rest = records.own_id(record, *_ID), records.rest(record, *_TAKEN)
        if self.form == "free_form":
            asked = "What speaks for this view and what against it? Say how far you share it."
            parts = [part for part in (f"View: {title}", text, asked) if part]
            return open_question(own, "\n\n".join(parts), rest)
        argument, delta = records.text(record, "argument"), record.get("delta")
        if not isinstance(delta, bool | int | None) or delta not in _DELTA:
            raise ValueError(f"`delta` is {delta!r}; it is true, false or null")
        asked = "Did this argument change the view of the one who posted it?"
        parts = [f"View: {title}", text, f"Argument: {argument}", asked]
        name = own or records.hashed_id("\n".join([title, argument]))
        return self.with_options(name, parts, YES_NO, one_hot(_DELTA[delta], 2), rest)
