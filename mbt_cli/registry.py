"""What has been added: one import and one union member each."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mbt_cli.backends.canned import CannedBackend
from mbt_cli.backends.llamacpp import LlamaCppBackend
from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.recorded import RecordedBackend
from mbt_cli.backends.scripted import ScriptedBackend
from mbt_cli.backends.transformers import TransformersBackend
from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.benchmarks.gsm8k import GSM8K
from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.math500 import MATH500
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.benchmarks.question_answer import QuestionAnswer
from mbt_cli.benchmarks.tinyhop import TinyHop
from mbt_cli.benchmarks.two_wiki import TwoWikiMultihopQA
from mbt_cli.figures.accuracy_tokens import AccuracyTokens
from mbt_cli.figures.answer_inclusive_errors import AnswerInclusiveErrorsFigure
from mbt_cli.figures.mqi_bars import MQIBars
from mbt_cli.figures.phase_profile import PhaseProfile
from mbt_cli.figures.regulation_plane import RegulationPlane
from mbt_cli.figures.response_lengths import ResponseLengths
from mbt_cli.figures.training_curves import TrainingCurves
from mbt_cli.judges.answer_hit import AnswerHit
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.redundancy import Redundancy
from mbt_cli.scores.aes import AES
from mbt_cli.scores.answer_hit import AnswerHitRate
from mbt_cli.scores.answer_inclusive_errors import AnswerInclusiveErrors
from mbt_cli.scores.answer_rate import AnswerRate
from mbt_cli.scores.avg_at_k import AvgAtK
from mbt_cli.scores.containment import Containment
from mbt_cli.scores.degeneration import Degeneration
from mbt_cli.scores.exact_match import ExactMatch
from mbt_cli.scores.f1_score import F1Score
from mbt_cli.scores.judge_accuracy import JudgeAccuracy
from mbt_cli.scores.maj_at_k import MajAtK
from mbt_cli.scores.math_match import MathMatch
from mbt_cli.scores.mqi import MQI
from mbt_cli.scores.official_exact_match import OfficialExactMatch
from mbt_cli.scores.official_f1 import OfficialF1
from mbt_cli.scores.pass_at_k import PassAtK
from mbt_cli.scores.rrp import RRP
from mbt_cli.scores.substring_match import SubstringMatch
from mbt_cli.scores.tokens import Tokens
from mbt_cli.scores.tokens_per_correct import TokensPerCorrect
from mbt_cli.tables.answer_inclusive_errors import AnswerInclusiveErrorsTable
from mbt_cli.tables.data_funnel import DataFunnel
from mbt_cli.tables.degeneration import DegenerationTable
from mbt_cli.tables.difficulty import Difficulty
from mbt_cli.tables.efficiency import Efficiency
from mbt_cli.tables.judge_health import JudgeHealth
from mbt_cli.tables.main_results import MainResults
from mbt_cli.tables.mqi import MQITable
from mbt_cli.tables.paired_differences import PairedDifferences
from mbt_cli.tables.rrp import RRPTable
from mbt_cli.tables.tokens_by_stage import TokensByStage
from mbt_cli.tables.training_runs import TrainingRuns


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
