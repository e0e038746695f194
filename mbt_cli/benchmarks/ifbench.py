"""IFBench: prompts with instructions of 58 other kinds than IFEval's (arXiv 2507.02833).

Official file: JSON lines of `{key, prompt, instruction_id_list, kwargs}`, whose `kwargs` name the
arguments of all instructions, null where one has no such argument.

    Q: What is chivalry? The output should not contain any whitespace.
    instruction_id_list: ["format:no_whitespace"]   kwargs: [{"N": null, "keyword": null, ...}]
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mbt_cli.benchmarks import records
from mbt_cli.core.benchmark_files import HubSource
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.interfaces import Benchmark, Verifier
from mbt_cli.verifiers.instructions.verifier import InstructionsVerifier

_RULES = InstructionsVerifier(checkers="ifbench")


class IFBench(Benchmark):
    """IFBench; licence ODC-BY."""

    kind: Literal["ifbench"] = "ifbench"
    """Names the benchmark in a manifest."""

    verifier: ClassVar[Verifier] = _RULES
    official: ClassVar[None] = None
    hub: ClassVar[HubSource] = HubSource(
        repo="allenai/IFBench_test",
        pattern="data/{split}-*.parquet",
        licence="odc-by",
        revision="2e8a48de45ff3bf41242f927254ca81b59ca3ae2",
        split_names={"test": "train"},
    )
    official_sizes: ClassVar[Mapping[str, int]] = {"test": 300}
    has_answers: ClassVar[bool] = False
    has_documents: ClassVar[bool] = False
    prompt: ClassVar[str] = "as_is"
    reads: ClassVar[frozenset[str]] = frozenset(("key", "prompt", "instruction_id_list", "kwargs"))

    def question(self, record: Mapping[str, Json]) -> Question:
        return records.instructed(record, _RULES.metadata)
