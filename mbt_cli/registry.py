"""What has been added: one import and one union member each."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mbt_cli.backends.canned import Canned
from mbt_cli.backends.llamacpp import LlamaCpp
from mbt_cli.backends.openai import OpenAI
from mbt_cli.benchmarks.gsm8k import GSM8K
from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.math500 import MATH500
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.benchmarks.tinyhop import TinyHop
from mbt_cli.benchmarks.two_wiki import TwoWikiMultihopQA
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.scores.answer_rate import AnswerRate
from mbt_cli.scores.containment import Containment
from mbt_cli.scores.degeneration import Degeneration
from mbt_cli.scores.exact_match import ExactMatch
from mbt_cli.scores.f1_score import F1Score
from mbt_cli.scores.judge_accuracy import JudgeAccuracy
from mbt_cli.scores.official_exact_match import OfficialExactMatch
from mbt_cli.scores.official_f1 import OfficialF1
from mbt_cli.scores.substring_match import SubstringMatch
from mbt_cli.scores.tokens import Tokens
from mbt_cli.tables.main_results import MainResults


def _named(value: Any) -> Any:
    """A bare name stands for a table with that kind and nothing else said."""
    return {"kind": value} if isinstance(value, str) else value


_ByKind = Field(discriminator="kind")

AnyBenchmark = Annotated[
    HotpotQA | MuSiQue | TwoWikiMultihopQA | TinyHop | GSM8K | MATH500,
    _ByKind,
]
AnyBackend = Annotated[
    LlamaCpp | OpenAI | Canned,
    _ByKind,
]
AnyJudge = Annotated[
    AnswerMatch,
    Field(),
]
AnyScore = Annotated[
    ExactMatch
    | SubstringMatch
    | F1Score
    | OfficialExactMatch
    | OfficialF1
    | Containment
    | JudgeAccuracy
    | AnswerRate
    | Tokens
    | Degeneration,
    _ByKind,
    BeforeValidator(_named),
]
AnyTable = Annotated[
    MainResults,
    BeforeValidator(_named),
]
