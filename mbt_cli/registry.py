"""WHAT HAS BEEN ADDED: one import and one entry in the list of its family each."""

from typing import Annotated

from mbt_cli.backends.canned import CannedBackend, RecordedBackend
from mbt_cli.backends.llamacpp import LlamaCppBackend
from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.transformers import TransformersBackend
from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.benchmarks.gsm8k import GSM8K
from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.math500 import MATH500
from mbt_cli.benchmarks.multiple_choice import MultipleChoice
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.benchmarks.question_answer import QuestionAnswer
from mbt_cli.benchmarks.tinyhop.benchmark import TinyHop
from mbt_cli.benchmarks.tinyhop.teacher import ScriptedBackend
from mbt_cli.benchmarks.two_wiki import TwoWikiMultihopQA
from mbt_cli.interfaces import (
    Backend,
    Benchmark,
    Figure,
    Judge,
    Launcher,
    Score,
    Table,
    Trainer,
    Verifier,
)
from mbt_cli.judges.answer_hit import AnswerHit
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.redundancy import Redundancy
from mbt_cli.launchers.local import LocalLauncher
from mbt_cli.launchers.skypilot import SkypilotLauncher
from mbt_cli.launchers.slurm import SlurmLauncher
from mbt_cli.launchers.ssh import SshLauncher
from mbt_cli.plugins import Family
from mbt_cli.report.agreement_table import JudgeAgreementTable
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
    EmptyReplies,
    ExactMatch,
    F1Score,
    MathMatch,
    OfficialExactMatch,
    OfficialF1,
    SubstringMatch,
)
from mbt_cli.scores.at_k import AvgAtK, MajAtK, PassAtK
from mbt_cli.scores.judge_agreement import JudgeAgreement
from mbt_cli.scores.judged import AnswerHitRate, AnswerInclusiveErrors, JudgeAccuracy
from mbt_cli.scores.lengths import AES, Degeneration, Tokens, TokensPerCorrect
from mbt_cli.scores.mqi import MQI
from mbt_cli.scores.rrp import RRP
from mbt_cli.trainers.grpo import GRPO
from mbt_cli.trainers.sft import SFT
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.number import NumberVerifier
from mbt_cli.verifiers.option import OptionVerifier
from mbt_cli.verifiers.text import TextVerifier

BACKENDS = Family[Backend](
    "backends",
    CannedBackend,
    LlamaCppBackend,
    OpenAIBackend,
    RecordedBackend,
    ScriptedBackend,
    TransformersBackend,
    VLLMBackend,
)
BENCHMARKS = Family[Benchmark](
    "benchmarks",
    GSM8K,
    HotpotQA,
    MATH500,
    MultipleChoice,
    MuSiQue,
    QuestionAnswer,
    TinyHop,
    TwoWikiMultihopQA,
)
JUDGES = Family[Judge](
    "judges",
    AnswerHit,
    AnswerMatch,
    Phases,
    Redundancy,
)
SCORES = Family[Score](
    "scores",
    AES,
    AnswerHitRate,
    AnswerInclusiveErrors,
    AnswerRate,
    AvgAtK,
    Containment,
    Degeneration,
    EmptyReplies,
    ExactMatch,
    F1Score,
    JudgeAccuracy,
    JudgeAgreement,
    MajAtK,
    MathMatch,
    MQI,
    OfficialExactMatch,
    OfficialF1,
    PassAtK,
    RRP,
    SubstringMatch,
    Tokens,
    TokensPerCorrect,
    by_name=True,
)
VERIFIERS = Family[Verifier](
    "verifiers",
    OptionVerifier,
    MathVerifier,
    NumberVerifier,
    TextVerifier,
    by_name=True,
)
TRAINERS = Family[Trainer](
    "trainers",
    GRPO,
    SFT,
)
LAUNCHERS = Family[Launcher](
    "launchers",
    LocalLauncher,
    SkypilotLauncher,
    SlurmLauncher,
    SshLauncher,
)
TABLES = Family[Table](
    "tables",
    AnswerInclusiveErrorsTable,
    DataFunnel,
    DegenerationTable,
    Difficulty,
    Efficiency,
    JudgeAgreementTable,
    JudgeHealth,
    MainResults,
    MQITable,
    PairedDifferences,
    RRPTable,
    TokensByStage,
    TrainingRuns,
    by_name=True,
)
FIGURES = Family[Figure](
    "figures",
    AccuracyTokens,
    AnswerInclusiveErrorsFigure,
    MQIBars,
    PhaseProfile,
    RegulationPlane,
    ResponseLengths,
    TrainingCurves,
    by_name=True,
)

# the same as types of fields
AnyBackend = Annotated[Backend, BACKENDS]
AnyBenchmark = Annotated[Benchmark, BENCHMARKS]
AnyJudge = Annotated[Judge, JUDGES]
AnyScore = Annotated[Score, SCORES]
AnyTrainer = Annotated[Trainer, TRAINERS]
AnyTable = Annotated[Table, TABLES]
AnyFigure = Annotated[Figure, FIGURES]
