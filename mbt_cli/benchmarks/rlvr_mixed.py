"""Mixes of AllenAI for reinforcement learning with verified rewards (arXiv 2411.15124).

Official file: Parquet of `{messages, ground_truth, dataset}`; `dataset` says how a reply is
checked. The prompt is the message of the user and holds its own worked examples. `ground_truth` is
the answer of a problem from gsm8k or MATH; for ifeval it is a constraint as JSON, or in later mixes
the instructions and their arguments.

    dataset: "ifeval"
    messages: [{"role": "user", "content": "Name three rivers. Do not use any commas."}]
    ground_truth: '{"func_name": "validate_no_commas", "N": null}'
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.by_row import ByRowVerifier
from mbt_cli.verifiers.constraint import CONSTRAINT, ConstraintVerifier, constraint_of
from mbt_cli.verifiers.instructions.verifier import InstructionsVerifier
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.number import NumberVerifier

_CONSTRAINED = "ifeval"
_INSTRUCTED = InstructionsVerifier(checkers="ifevalg", value="share")
_RULES: Mapping[str, Verifier] = {
    "gsm8k": NumberVerifier(rule="flexible"),
    "math": MathVerifier(rule="qwen"),
    "constraint": ConstraintVerifier(),
    "instructions": _INSTRUCTED,
}
_DATA_SETS = ("gsm8k", "math", _CONSTRAINED)


class RLVRMixed(Benchmark):
    """RLVR-GSM-MATH-IF-Mixed-Constraints; licence ODC-BY.

    gsm8k is checked by the last number, MATH by the last box or "The answer is", ifeval by its
    constraint or instructions. The type of a question is its data set.
    """

    kind: Literal["rlvr_mixed"] = "rlvr_mixed"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = ByRowVerifier(verifiers=dict(_RULES))
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="allenai/RLVR-GSM-MATH-IF-Mixed-Constraints",
        pattern="data/{split}-*.parquet",
        licence="odc-by",
        revision="22aaec1d591cfd5fda0919a428d53944315fb63d",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 29_946}
    layout: ClassVar[frozenset[str]] = frozenset({"messages", "ground_truth", "dataset"})
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "as_is"
    reads: ClassVar[frozenset[str]] = frozenset(("id", "messages", "ground_truth", "dataset"))

    def question(self, record: Mapping[str, Json]) -> Question:
        prompt, name = records.prompt(record.get("messages")), _data_set(record.get("dataset"))
        truth = record.get("ground_truth")
        rest = records.rest(record, "id", "messages", "ground_truth", "dataset", CONSTRAINT)
        asked = _asked(truth) if name == _CONSTRAINED else {"verifier": name}
        return Question(
            question_id=records.own_id(record, "id") or records.hashed_id(f"{prompt}\n{truth}"),
            question=prompt,
            answer=str(truth) if name == _CONSTRAINED else records.answer_text(truth),
            question_type=name,
            metadata={**rest, **asked},
        )


def _data_set(dataset: Json) -> str:
    """The name of a data set, which may be in a list.

    Example:
        >>> _data_set("MATH"), _data_set(["gsm8k"])
        ('math', 'gsm8k')
    """
    names = dataset if isinstance(dataset, list | tuple) else [dataset]
    name = str(names[0]).lower() if len(names) == 1 else ""
    if name not in _DATA_SETS:
        known = ", ".join(f"`{name}`" for name in _DATA_SETS)
        raise ValueError(f"`dataset` is {dataset!r}, and is checked if it is one of {known}")
    return name


def _asked(truth: Json) -> Mapping[str, Json]:
    """The verifier of an ifeval record, and what it reads."""
    found = records.ground_truth(truth)
    if (names := found.get("instruction_id")) is not None:
        return {"verifier": "instructions", **_INSTRUCTED.metadata(names, found.get("kwargs"))}
    try:
        name, arguments = constraint_of(found)
    except ValueError as error:
        raise ValueError(f"`ground_truth` {error}") from error
    return {"verifier": "constraint", CONSTRAINT: {"func_name": name, **arguments}}
