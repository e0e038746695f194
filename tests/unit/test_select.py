"""`--only`: which cells a pattern takes."""

import pytest

from mbt_cli.core.addresses import matches
from mbt_cli.engine.select import select
from mbt_cli.errors import UsageError

BASE = "base/benchmark=tiny/split=validation/model=parrot/prompt=answer"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("base", True),
        ("base/prompt=answer/benchmark=tiny", True),
        ("base/model=par*", True),
        ("bas*", True),
        ("base/model=par", False),
        ("base/model=*/prompt=a?swer", True),
        ("base/variant=x", False),
        ("scores", False),
    ],
)
def test_a_pattern_names_axes_in_any_order(pattern, expected):
    assert matches(pattern, BASE) is expected


def test_questions_come_with_what_needs_them(load):
    assert select(load(), kind="rollout", only=["base/prompt=answer"]) == [
        "questions/benchmark=tiny/split=validation",
        BASE,
    ]


def test_an_exclamation_mark_leaves_cells_out(load):
    chosen = select(load(), kind="rollout", only=["!base/prompt=metacognitive"])

    assert chosen[1:] == [BASE]


def test_no_match_names_the_nearest_addresses(load):
    with pytest.raises(UsageError, match="matches no cell") as caught:
        select(load(), kind=None, only=["base/prompt=anwser"])

    assert BASE in caught.value.hint


def test_a_verb_without_a_stage_of_its_kind_is_a_usage_error(load):
    with pytest.raises(UsageError, match="has no train stage"):
        select(load(), kind="train", only=[])
