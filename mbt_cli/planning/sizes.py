"""How large a cell will be: rows, tokens and GPU hours, guessed before anything is read.

Rows follow from limits and from the official counts of the benchmarks; tokens a row from finished
cells of the same stage, else from what replies of that kind of stage usually have.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mbt_cli.planning.states import CellState, States
from mbt_cli.stages.work import Model

OFFICIAL_ROWS: Mapping[tuple[str, str], int] = {
    ("hotpotqa", "train"): 90_447,
    ("hotpotqa", "validation"): 7_405,
    ("musique", "train"): 19_938,
    ("musique", "validation"): 2_417,
    ("2wikimultihopqa", "train"): 167_454,
    ("2wikimultihopqa", "validation"): 12_576,
    ("math500", "test"): 500,
    ("gsm8k", "train"): 7_473,
    ("gsm8k", "test"): 1_319,
}
"""Questions of each official split."""

USUAL_TOKENS: Mapping[str, int] = {
    "rollout": 2_000,
    "synthesize": 2_500,
    "rewrite": 2_500,
    "judge": 600,
}
"""Tokens of one reply, reasoning included, where no finished cell tells better."""

_PER_ROW = ("samples", "traces_per_question", "traces_per_rollout", "votes")
_ASKED_OF = ("rollouts", "questions")


@dataclass(frozen=True, slots=True)
class Size:
    """Null is not known before the data is there.

    Args:
        rows: Rows that the cell will have.
        tokens: Tokens that will be generated.
        hours: Time of its server, where the model says `expected_tokens_per_second`.
    """

    rows: int | None
    tokens: int | None
    hours: float | None


class Sizes:
    """Sizes of every cell of a study."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._tokens = _tokens_per_row(states)
        self._rows: dict[str, int | None] = {}

    def size(self, state: CellState) -> Size:
        """What one cell comes to; of a finished one, what it has."""
        rows = self._rows_of(state)
        each = self._tokens.get(state.cell.stage.name, USUAL_TOKENS.get(state.cell.kind))
        if rows is None or each is None or state.cell.resolution.source is not None:
            return Size(rows, None, None)
        tokens = round(rows * each)
        model = asked_model(state)
        speed = None if model is None else model.run.expected_tokens_per_second
        return Size(rows, tokens, None if speed is None else tokens / speed / 3600)

    def _rows_of(self, state: CellState) -> int | None:
        address = state.cell.address
        if address not in self._rows:
            self._rows[address] = self._count(state)
        return self._rows[address]

    def _count(self, state: CellState) -> int | None:
        if state.status == "done" and state.lineage is not None:
            return state.lineage.rows
        if state.cell.kind == "questions":
            return _questions(state)
        inputs = state.cell.resolution.inputs
        name = next((n for n in _ASKED_OF if n in inputs), None)
        if name is None or state.cell.kind not in USUAL_TOKENS:
            return None
        rows = self._rows_of(self._states[inputs[name][0]])
        for field in _PER_ROW:
            times = getattr(state.cell.stage, field, None)
            rows = None if rows is None else rows * (times or 1)
        return rows


def asked_model(state: CellState) -> Model | None:
    """The model that the cell asks, if it asks one."""
    if state.cell.kind not in USUAL_TOKENS:
        return None
    return next(iter(state.cell.resolution.models.values()), None)


def _questions(state: CellState) -> int | None:
    benchmark = state.cell.resolution.benchmark
    if benchmark is None:
        return None
    split = state.cell.resolution.axes["split"]
    of_source = benchmark.splits.get(split, split)
    known = OFFICIAL_ROWS.get((benchmark.kind, of_source)) if benchmark.source == "hub" else None
    sizes = [known, *(_of_split(getattr(benchmark, f, None), split, of_source) for f in _SIZES)]
    return min((size for size in sizes if size is not None), default=None)


_SIZES = ("limit", "sample", "size")


def _of_split(size: object, *names: str) -> int | None:
    if isinstance(size, Mapping):
        found = (size[name] for name in names if name in size)
        return next((number for number in found if isinstance(number, int)), None)
    return size if isinstance(size, int) else None


def _tokens_per_row(states: States) -> Mapping[str, float]:
    """Stage to the tokens of a row, over its finished cells."""
    rows: dict[str, int] = {}
    tokens: dict[str, int] = {}
    for state in states.all():
        if state.lineage is not None and state.lineage.tokens.completion:
            stage = state.lineage.stage
            rows[stage] = rows.get(stage, 0) + state.lineage.rows
            tokens[stage] = tokens.get(stage, 0) + state.lineage.tokens.completion
    return {stage: tokens[stage] / rows[stage] for stage in tokens if rows[stage]}
