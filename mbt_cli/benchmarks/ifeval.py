"""IFEval: prompts with instructions that a program can check (arXiv 2311.07911).

Official file: JSON lines of `{key, prompt, instruction_id_list, kwargs}`. There is no gold answer:
a reply is right if it follows every instruction.

    Q: Write a 300+ word summary of ... Do not use any commas.
    instruction_id_list: ["length_constraints:number_words", "punctuation:no_comma"]
    kwargs: [{"relation": "at least", "num_words": 300}, {}]
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.instructions.verifier import InstructionsVerifier

_RULES = InstructionsVerifier(checkers="ifeval")
_FIELDS = frozenset(("key", "prompt", "instruction_id_list", "kwargs"))


class IFEval(Benchmark):
    """IFEval; licence Apache-2.0."""

    kind: Literal["ifeval"] = "ifeval"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = _RULES
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="google/IFEval",
        pattern="ifeval_input_data.jsonl",
        licence="apache-2.0",
        revision="966cd89545d6b6acfd7638bc708b98261ca58e84",
        split_names={"test": "train"},
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"test": 541}
    layout: ClassVar[frozenset[str]] = _FIELDS
    has_answers: ClassVar[bool] = False
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "as_is"
    reads: ClassVar[frozenset[str]] = _FIELDS

    def question(self, record: Mapping[str, Json]) -> Question:
        return records.instructed(record, _RULES.metadata)
