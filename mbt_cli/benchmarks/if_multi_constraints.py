"""IF multi-constraints: training prompts with up to five instructions each (arXiv 2507.02833).

Official file: Parquet of `{key, messages, ground_truth, constraint, ...}`. `ground_truth` is the
text of a list with one object; the prompt is the last message of the user.

    messages: [{"role": "user", "content": "Name a river. Use the word blue once."}]
    ground_truth: "[{'instruction_id': ['keywords:word_once'], 'kwargs': [{'keyword': 'blue'}]}]"
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.instructions.verifier import InstructionsVerifier

_RULES = InstructionsVerifier(checkers="ifevalg", value="share")


class IFMultiConstraints(Benchmark):
    """IF_multi_constraints_upto5; licence ODC-BY. How right a reply is: the share that it follows.

    The official records repeat keys, so the id of a question is a hash of its prompt and its
    instructions.
    """

    kind: Literal["if_multi_constraints"] = "if_multi_constraints"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = _RULES
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="allenai/IF_multi_constraints_upto5",
        pattern="data/{split}-*.parquet",
        licence="odc-by",
        revision="2e3a77407b7fce69f95b248d64a884e3ae1c2423",
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"train": 95_373}
    layout: ClassVar[frozenset[str]] = frozenset(("messages", "ground_truth", "constraint"))
    has_answers: ClassVar[bool] = False
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "as_is"
    reads: ClassVar[frozenset[str]] = frozenset(("key", "messages", "prompt", "ground_truth"))

    def question(self, record: Mapping[str, Json]) -> Question:
        messages, truth = record.get("messages"), record.get("ground_truth")
        prompt = records.text(record, "prompt") if messages is None else records.prompt(messages)
        found = records.ground_truth(truth)
        names = found.get("instruction_id")
        return Question(
            question_id=records.hashed_id(f"{prompt}\n{truth}"),
            question=prompt,
            answer="",
            question_type=records.instruction_type(names),
            metadata=records.rest(record, "messages", "prompt", "ground_truth", "constraint")
            | _RULES.metadata(names, found.get("kwargs")),
        )
