from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from pydantic import Field

from mbt_cli.core.fingerprint import (
    base_spec_of,
    differences,
    fingerprint,
    growth_of,
    is_grown,
    spec_of,
)
from mbt_cli.core.plugin import AbsentByDefault, Grows, RunOnly, Settings


class Inner(Settings):
    version: ClassVar[int] = 3
    temperature: float = 0.5
    port: Annotated[int, RunOnly] = Field(default=1, ge=0)


class Outer(Settings):
    parts: tuple[Inner, ...] = (Inner(),)
    named: dict[str, Inner] = Field(default_factory=dict)
    limit: Annotated[int | dict[str, int] | None, Grows] = None
    samples: Annotated[int, Grows] = 1


def test_run_only_fields_stay_out_of_the_spec_wherever_they_stand():
    one = Outer(parts=(Inner(port=7),), named={"a": Inner(port=8)})

    spec = spec_of({"stage": one, "templates": ["ab"]})

    inner = {"version": 3, "temperature": 0.5}
    assert spec == {
        "stage": {"parts": [inner], "named": {"a": inner}, "limit": None, "samples": 1},
        "templates": ["ab"],
    }


def test_growing_fields_stay_out_of_the_base_spec_and_are_told_by_path():
    one = Outer(limit={"train": 8, "validation": 4}, samples=2)

    assert set(base_spec_of(one)) == {"parts", "named"}
    assert growth_of({"s": one}) == {
        "s.limit.train": 8,
        "s.limit.validation": 4,
        "s.samples": 2,
    }


@pytest.mark.parametrize(
    ("old", "new", "grown"),
    [
        ({"limit": 8}, {"limit": 8}, True),
        ({"limit": 8}, {"limit": 9}, True),
        ({"limit": 9}, {"limit": 8}, False),
        ({"limit": 9}, {"limit": None}, True),
        ({"limit": None}, {"limit": 9}, False),
        ({"limit": 8, "samples": 2}, {"limit": 9, "samples": 1}, False),
        ({"limit": 8}, {"limit.train": 8, "limit.dev": 9}, True),
        ({"limit": 8}, {"limit.train": 7}, False),
        # no number for a split is no limit, so one number for all takes rows away
        ({"limit.train": 8}, {"limit": 16}, False),
    ],
)
def test_a_cell_is_grown_when_no_size_became_smaller(old, new, grown):
    assert is_grown(old, new) is grown


def test_a_fingerprint_changes_with_each_of_its_parts_and_with_nothing_else():
    first = fingerprint("rollout", 1, {"a": 1, "b": 2}, {"questions/x=1": "ab"})

    assert fingerprint("rollout", 1, {"b": 2, "a": 1}, {"questions/x=1": "ab"}) == first
    others = {
        fingerprint("judge", 1, {"a": 1, "b": 2}, {"questions/x=1": "ab"}),
        fingerprint("rollout", 2, {"a": 1, "b": 2}, {"questions/x=1": "ab"}),
        fingerprint("rollout", 1, {"a": 1, "b": 3}, {"questions/x=1": "ab"}),
        fingerprint("rollout", 1, {"a": 1, "b": 2}, {"questions/x=1": "cd"}),
        fingerprint("rollout", 1, {"a": 1, "b": 2}, {"questions/x=2": "ab"}),
    }
    assert first not in others
    assert len(others) == 5


@pytest.mark.parametrize(
    "value",
    [{1, 2}, Path("a"), float("nan"), float("inf"), 2**63, b"a", {1: "a"}, object()],
    ids=["set", "path", "nan", "infinite", "large", "bytes", "number key", "object"],
)
def test_a_value_that_is_not_stable_json_is_refused_by_its_path(value):
    with pytest.raises(TypeError, match=r"`stage\.extra\.0`"):
        spec_of({"stage": {"extra": [value]}})


def test_differences_name_each_field_with_both_values():
    old = {"sampling": {"temperature": 0.6, "top_k": 20}, "metrics": ["a", "b"], "votes": 1}
    new = {"sampling": {"temperature": 0, "top_k": 20}, "metrics": ["a", "c"], "seed": 4}

    assert [str(one) for one in differences(old, new)] == [
        "`metrics.1`: 'b' -> 'c'",
        "`sampling.temperature`: 0.6 -> 0",
        "`seed`: (not set) -> 4",
        "`votes`: 1 -> (not set)",
    ]


def test_long_values_are_shown_where_they_differ():
    old, new = ("x" * 200 + end for end in ("one", "another"))

    (found,) = differences({"text": old}, {"text": new})

    assert str(found) == f"`text`: …{'x' * 20}one' -> …{'x' * 20}another'"


def test_true_and_one_are_different_values():
    assert len(differences({"a": True}, {"a": 1})) == 1


class Older(Settings):
    rate: float = 0.1


class Newer(Settings):
    rate: float = 0.1
    patience: Annotated[int | None, AbsentByDefault] = None
    parts: Annotated[dict[str, int], AbsentByDefault] = Field(default_factory=dict)


def test_a_field_added_later_counts_only_where_it_is_set():
    assert spec_of(Newer()) == spec_of(Newer(patience=None, parts={})) == spec_of(Older())
    assert spec_of(Newer(patience=0)) == {"rate": 0.1, "patience": 0}
    assert base_spec_of(Newer(parts={"a": 1})) == {"rate": 0.1, "parts": {"a": 1}}
