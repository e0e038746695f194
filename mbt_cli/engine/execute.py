"""Run the cells of a study that are not done, inputs first."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mbt_cli.core.jobs import Shard
from mbt_cli.core.progress import Progress
from mbt_cli.engine.plan import asked_model
from mbt_cli.engine.runner import CellRun, Runner, Servers
from mbt_cli.engine.states import CellState, States
from mbt_cli.errors import MissingInputError, StaleError
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine
from mbt_cli.store.artifacts import JOURNAL

_SHOWN_CELLS = 10


@dataclass(frozen=True)
class RunOptions:
    """What a verb was told.

    Args:
        replace: Make stale cells again.
        retry_failed: Ask again for rows that failed, in finished cells too.
        shard: Ask this share of the requests and make no rows.
    """

    replace: bool = False
    retry_failed: bool = False
    shard: Shard | None = None


@dataclass(frozen=True)
class RunReport:
    """What a verb did.

    Args:
        made: Addresses of the cells that were made.
        done: Addresses of those that were done already.
        sent: Requests that were sent.
        reused: Replies that were not asked for again.
    """

    made: Sequence[str]
    done: Sequence[str]
    sent: int
    reused: int


class Execution:
    """Runs chosen cells of a study in order."""

    def __init__(self, manifest: Manifest, machine: Machine, options: RunOptions) -> None:
        self._manifest = manifest
        self._machine = machine
        self._options = options
        self.states = States(manifest, machine.runs)

    def run(self, addresses: Collection[str], progress: Progress) -> RunReport:
        """Make these cells; those that are done stay as they are.

        Args:
            addresses: Cells to make, inputs before what reads them.
            progress: Where counts go.

        Raises:
            StaleError: A cell is finished under other settings and `replace` was not said.
            MissingInputError: An input that is not among them is not there.
            MbtError: A cell failed; what came before is kept.
        """
        chosen = [self.states[address] for address in addresses]
        self._refuse_stale(chosen)
        self._refuse_missing_inputs(chosen)
        self._refuse_missing_keys(chosen)
        made, done, sent, reused = [], [], 0, 0
        with Servers() as servers:
            runner = Runner(self._machine, servers, progress)
            for address in addresses:
                self.states.refresh([address])
                state = self.states[address]
                if state.status == "done" and not self._is_retried(state):
                    done.append(address)
                    continue
                if self._options.shard is not None:
                    asked = runner.run_shard(self._job(state), self._options.shard)
                    sent, reused = sent + asked.sent, reused + asked.reused
                    continue
                lineage = runner.run(self._job(state))
                made.append(address)
                sent += lineage.requests.sent
                reused += lineage.requests.reused
                self.states.refresh([address])
        return RunReport(made, done, sent, reused)

    def _job(self, state: CellState) -> CellRun:
        return CellRun(
            state.cell,
            state.fingerprint,
            state.base_fingerprint,
            state.sizes,
            self._manifest.document.study.max_failed_share,
            replace=state.status == "stale",
            again=state.status == "grown",
            retry_failed=self._options.retry_failed,
        )

    def _is_retried(self, state: CellState) -> bool:
        lineage = state.lineage
        return self._options.retry_failed and lineage is not None and lineage.failed_rows > 0

    def _refuse_stale(self, chosen: Sequence[CellState]) -> None:
        stale = [state for state in chosen if state.status == "stale"]
        if not stale or self._options.replace:
            return
        cells = "1 finished cell was" if len(stale) == 1 else f"{len(stale)} finished cells were"
        lines = [f"{cells} made with other settings:"]
        for state in stale[:_SHOWN_CELLS]:
            lines.append(f"  `{state.cell.address}`")
            lines.extend(f"    {reason}" for reason in state.why)
        if len(stale) > _SHOWN_CELLS:
            lines.append(f"  and {len(stale) - _SHOWN_CELLS} more")
        raise StaleError(
            "\n".join(lines),
            hint="`--replace` makes them again (replies whose request is the same are reused, "
            "what is replaced moves to the runs folder's `.replaced`)",
        )

    def _refuse_missing_inputs(self, chosen: Sequence[CellState]) -> None:
        among = {state.cell.address for state in chosen}
        for state in chosen:
            missing = [
                address
                for name, group in state.cell.resolution.inputs.items()
                for address in self._missing(state, name, group, among)
            ]
            if missing:
                raise self._missing_input(state, missing[0])

    def _refuse_missing_keys(self, chosen: Sequence[CellState]) -> None:
        """What a cell lacks for asking its model is said before the first cell, not hours later.

        One that was begun may have every reply already, as when shards are merged.
        """
        for state in chosen:
            model = asked_model(state)
            is_made = state.status == "done" and not self._is_retried(state)
            is_begun = (state.folder / JOURNAL).is_dir()
            sends = state.cell.resolution.source is None and not is_made and not is_begun
            if model is not None and sends:
                model.backend.check(self._machine.environment)

    def _missing(
        self, state: CellState, name: str, group: Sequence[str], among: Collection[str]
    ) -> Sequence[str]:
        """Cells of one input that are neither there nor made in this run."""
        missing = [a for a in group if a not in among and self.states[a].lineage is None]
        rule = state.cell.stage.inputs.get(name)
        is_partial = rule is not None and rule.partial and len(missing) < len(group)
        return () if is_partial else missing

    def _missing_input(self, state: CellState, address: str) -> MissingInputError:
        kind = self.states[address].cell.kind
        verb = "run" if kind == "questions" else kind
        stage = address.partition("/")[0]
        return MissingInputError(
            f"`{state.cell.address}` reads `{address}`, which is not made yet",
            hint=f"run `mbt {verb} {self._manifest.path} --only {stage}` first, or "
            f"`mbt run {self._manifest.path}` for everything",
        )
