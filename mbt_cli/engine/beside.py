"""Trainings whose checkpoints are evaluated beside them: which, by what, and on which GPUs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mbt_cli.core.gpus import gpus_at_hand
from mbt_cli.core.harness import Harness
from mbt_cli.engine.states import States
from mbt_cli.errors import UsageError
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.load import Manifest
from mbt_cli.stages.harness import HarnessStage, check_program
from mbt_cli.stages.rollout import RolloutStage

VISIBLE = "CUDA_VISIBLE_DEVICES"
PROCESSES = "MBT_PROCESSES"
"""The variable with the number of training processes that a job has GPUs for."""
BESIDE = "MBT_BESIDE"
"""The variable with the id of the process that trains, for the watch beside it."""


def is_training(cell: Cell) -> bool:
    """Whether a cell trains a model here, and is not a checkpoint of a training."""
    return cell.kind == "train" and cell.resolution.source is None and cell.training is None


@dataclass(frozen=True, slots=True)
class WatchedBeside:
    """What a run evaluates while it trains.

    Args:
        stages: Stages of the rollouts and harnesses, and those that only read them.
        gpus: Numbers of the GPUs among those that the run sees.
    """

    stages: Sequence[str]
    gpus: Sequence[int]


def watched_beside(manifest: Manifest, addresses: Collection[str]) -> WatchedBeside | None:
    """What to evaluate beside the trainings among some cells; None if nothing asks for it."""
    trained = {a for a in addresses if a in manifest.cells and is_training(manifest.cells[a])}
    names = {a.partition("/")[0] for a in trained}
    stages, gpus = list[str](), set[int]()
    for block in manifest.document.blocks:
        beside, of = block.fields.get("beside"), block.fields.get("checkpoints")
        read = of.get("stage") if isinstance(of, Mapping) else of
        reads = {read} if isinstance(read, str) else set(read or ())
        if block.kind in (RolloutStage, HarnessStage) and beside is not None and reads & names:
            stages.append(block.name)
            gpus |= {int(number) for number in dict(beside).get("gpus", ())}
        elif stages and block.kind_name in ("judge", "score"):
            named = [block.fields.get(name) for name in block.kind.inputs]
            if any(one in stages or _among(one, stages) for one in named):
                stages.append(block.name)
    return WatchedBeside(stages, sorted(gpus)) if stages else None


def _among(written: object, stages: Sequence[str]) -> bool:
    return isinstance(written, list) and bool(written) and all(one in stages for one in written)


def check_waiting_harnesses(manifest: Manifest, environment: Mapping[str, str]) -> None:
    """Check the programs that will evaluate steps, before the training that publishes these.

    Their cells do not exist yet, so that nothing else would check them.

    Raises:
        UsageError: A program or a key is missing.
    """
    for name, harness in harnesses_of(manifest, stages=manifest.waiting).items():
        check_program(name, harness, environment)


def harnesses_of(
    manifest: Manifest, stages: Collection[str] | None = None
) -> Mapping[str, Harness]:
    """The harnesses of some stages or of all, by name, whether these have cells yet or not."""
    used, groups = set[str](), manifest.document.groups
    for block in manifest.document.blocks:
        if block.kind is HarnessStage and (stages is None or block.name in stages):
            written = block.envelope.matrix.get("harness", ())
            names = {str(name) for name in (written if isinstance(written, list) else [written])}
            used |= names.union(*(groups.get(n[1:], ()) for n in names if n.startswith("@")))
    return {name: one for name, one in manifest.document.harnesses.items() if name in used}


def trained_first(manifest: Manifest, states: States, addresses: Collection[str]) -> Sequence[str]:
    """The trainings among some cells that are not done, and what they read of these."""
    found = {a for a in addresses if is_training(manifest.cells[a]) and states[a].status != "done"}
    return with_needs_among(manifest, found, addresses)


def with_needs_among(
    manifest: Manifest, chosen: Collection[str], addresses: Collection[str]
) -> Sequence[str]:
    """Chosen cells, and what they read among `addresses`, in the order of these."""
    found = set(chosen)
    waiting = list(found)
    while waiting:
        needs = set(manifest.cells[waiting.pop()].needs) & set(addresses)
        waiting += needs - found
        found |= needs
    return [address for address in addresses if address in found]


def divided_gpus(beside: Sequence[int], environment: Mapping[str, str]) -> tuple[str, str]:
    """The GPUs of the training and those of the evaluations, as `CUDA_VISIBLE_DEVICES` has them.

    Raises:
        UsageError: A number is not among the GPUs that this process sees, or none is left.
    """
    seen = gpus_at_hand(environment)
    written = environment.get(VISIBLE)
    names = written.split(",") if written else [str(n) for n in range((seen and seen.count) or 0)]
    if beside and (max(beside) >= len(names) or len(set(beside)) >= len(names)):
        raise UsageError(
            f"`beside.gpus` is {list(beside)}, and this process sees {len(names)} GPUs",
            hint="name GPUs from 0 that leave one for the training",
        )
    own = [name for number, name in enumerate(names) if number not in beside]
    return ",".join(own), ",".join(names[number] for number in beside)
