"""What the finished cells of a study share between training and evaluation."""

from mbt_cli.engine.states import States
from mbt_cli.manifest.load import Manifest
from mbt_cli.manifest.trained_questions import trained_and_evaluated
from mbt_cli.stages.contamination import (
    RepeatedCompletions,
    SharedQuestions,
    repeated_completions,
    shared_questions,
)


def contamination(
    manifest: Manifest, states: States
) -> list[SharedQuestions | RepeatedCompletions]:
    """Questions on both sides, and completions of training data under several questions."""
    done = {a: states[a].folder for a in manifest.cells if states[a].lineage is not None}
    trained, evaluated = (
        {a: done[a] for a in group if a in done} for group in trained_and_evaluated(manifest.cells)
    )
    trainings = [cell for cell in manifest.cells.values() if cell.kind == "train"]
    data = dict.fromkeys(a for cell in trainings for a in cell.resolution.inputs.get("data", ()))
    repeated = (repeated_completions(a, done[a]) for a in data if a in done)
    return [*shared_questions(trained, evaluated), *filter(None, repeated)]
