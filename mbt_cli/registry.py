"""What has been added: one import and one union member each."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mbt_cli.backends.canned import CannedBackend, RecordedBackend
from mbt_cli.backends.llamacpp import LlamaCppBackend
from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.transformers import TransformersBackend
from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.benchmarks.gsm8k import GSM8K
from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.math500 import MATH500
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.benchmarks.question_answer import QuestionAnswer
from mbt_cli.benchmarks.tinyhop.backend import ScriptedBackend
from mbt_cli.benchmarks.tinyhop.benchmark import TinyHop
from mbt_cli.benchmarks.two_wiki import TwoWikiMultihopQA
from mbt_cli.judges.answer_hit import AnswerHit
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.redundancy import Redundancy
from mbt_cli.report.figures import (
    AccuracyTokens,
    AnswerInclusiveErrorsFigure,
    MQIBars,
    PhaseProfile,
    RegulationPlane,
    ResponseLengths,
    TrainingCurves,
)
from mbt_cli.report.tables import (
    AnswerInclusiveErrorsTable,
    DataFunnel,
    DegenerationTable,
    Difficulty,
    Efficiency,
    JudgeHealth,
    MainResults,
    MQITable,
    PairedDifferences,
    RRPTable,
    TokensByStage,
    TrainingRuns,
)
from mbt_cli.scores.answers import (
    AnswerRate,
    Containment,
    ExactMatch,
    F1Score,
    MathMatch,
    OfficialExactMatch,
    OfficialF1,
    SubstringMatch,
)
from mbt_cli.scores.at_k import AvgAtK, MajAtK, PassAtK
from mbt_cli.scores.judged import AnswerHitRate, AnswerInclusiveErrors, JudgeAccuracy
from mbt_cli.scores.lengths import AES, Degeneration, Tokens, TokensPerCorrect
from mbt_cli.scores.mqi import MQI
from mbt_cli.scores.rrp import RRP
from mbt_cli.trainers.grpo import GRPO
from mbt_cli.trainers.sft import SFT


def _named(value: Any) -> Any:
    """A bare name stands for a table with that kind and nothing else said."""
    return {"kind": value} if isinstance(value, str) else value


_ByKind = Field(discriminator="kind")
_OrName = BeforeValidator(_named)

AnyBackend = Annotated[
    CannedBackend
    | LlamaCppBackend
    | OpenAIBackend
    | RecordedBackend
    | ScriptedBackend
    | TransformersBackend
    | VLLMBackend,
    _ByKind,
]
AnyBenchmark = Annotated[
    GSM8K | HotpotQA | MATH500 | MuSiQue | QuestionAnswer | TinyHop | TwoWikiMultihopQA,
    _ByKind,
]
AnyJudge = Annotated[
    AnswerHit | AnswerMatch | Phases | Redundancy,
    _ByKind,
]
AnyScore = Annotated[
    AES
    | AnswerHitRate
    | AnswerInclusiveErrors
    | AnswerRate
    | AvgAtK
    | Containment
    | Degeneration
    | ExactMatch
    | F1Score
    | JudgeAccuracy
    | MajAtK
    | MathMatch
    | MQI
    | OfficialExactMatch
    | OfficialF1
    | PassAtK
    | RRP
    | SubstringMatch
    | Tokens
    | TokensPerCorrect,
    _ByKind,
    _OrName,
]
AnyTrainer = Annotated[
    GRPO | SFT,
    _ByKind,
]
AnyTable = Annotated[
    AnswerInclusiveErrorsTable
    | DataFunnel
    | DegenerationTable
    | Difficulty
    | Efficiency
    | JudgeHealth
    | MainResults
    | MQITable
    | PairedDifferences
    | RRPTable
    | TokensByStage
    | TrainingRuns,
    _ByKind,
    _OrName,
]
AnyFigure = Annotated[
    AccuracyTokens
    | AnswerInclusiveErrorsFigure
    | MQIBars
    | PhaseProfile
    | RegulationPlane
    | ResponseLengths
    | TrainingCurves,
    _ByKind,
    _OrName,
]
