"""WHAT HAS BEEN ADDED: one import and one entry in the list of its family each."""

from typing import Annotated

from mbt_cli.backends.anthropic import AnthropicBackend
from mbt_cli.backends.canned import CannedBackend, RecordedBackend
from mbt_cli.backends.command import CommandBackend
from mbt_cli.backends.google import GoogleBackend
from mbt_cli.backends.human import HumanBackend
from mbt_cli.backends.llamacpp import LlamaCppBackend
from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.backends.python import PythonBackend
from mbt_cli.backends.transformers import TransformersBackend
from mbt_cli.backends.transformers_likelihood import TransformersLikelihoodBackend
from mbt_cli.backends.vllm import VLLMBackend
from mbt_cli.benchmarks.aime import AIME, BeyondAIME
from mbt_cli.benchmarks.apps import APPS
from mbt_cli.benchmarks.change_my_view import ChangeMyView
from mbt_cli.benchmarks.deepscaler import DeepScaleR
from mbt_cli.benchmarks.forecasting import Forecasting
from mbt_cli.benchmarks.gsm8k import GSM8K
from mbt_cli.benchmarks.hotpotqa import HotpotQA
from mbt_cli.benchmarks.humaneval import HumanEval
from mbt_cli.benchmarks.if_multi_constraints import IFMultiConstraints
from mbt_cli.benchmarks.ifbench import IFBench
from mbt_cli.benchmarks.ifeval import IFEval
from mbt_cli.benchmarks.imo import IMOAnswer, IMOGrading, IMOProof, ProofBench
from mbt_cli.benchmarks.math import MATH
from mbt_cli.benchmarks.math500 import MATH500
from mbt_cli.benchmarks.mbpp import MBPP
from mbt_cli.benchmarks.multiple_choice import MultipleChoice
from mbt_cli.benchmarks.musique import MuSiQue
from mbt_cli.benchmarks.open_questions import Conceptual, Intellectual, WildChat
from mbt_cli.benchmarks.openreview import OpenReview
from mbt_cli.benchmarks.question_answer import QuestionAnswer
from mbt_cli.benchmarks.research import Research
from mbt_cli.benchmarks.rlvr_mixed import RLVRMixed
from mbt_cli.benchmarks.tinyhop.benchmark import TinyHop
from mbt_cli.benchmarks.tinyhop.teacher import ScriptedBackend
from mbt_cli.benchmarks.two_wiki import TwoWikiMultihopQA
from mbt_cli.benchmarks.urn import Urn
from mbt_cli.interfaces import (
    Backend,
    Benchmark,
    Figure,
    Judge,
    Launcher,
    Program,
    Score,
    Table,
    Trainer,
    Verifier,
)
from mbt_cli.judges.answer_hit import AnswerHit
from mbt_cli.judges.answer_match import AnswerMatch
from mbt_cli.judges.belief import Belief
from mbt_cli.judges.investigation import Investigation
from mbt_cli.judges.phases import Phases
from mbt_cli.judges.points import ProofPoints
from mbt_cli.judges.predictability import Predictability
from mbt_cli.judges.qualitative import Qualitative
from mbt_cli.judges.redundancy import Redundancy
from mbt_cli.judges.uplift import Uplift
from mbt_cli.judges.verifier import VerifierJudge
from mbt_cli.judges.yes_no import AnswerEquivalence, SolutionCheck
from mbt_cli.launchers.local import LocalLauncher
from mbt_cli.launchers.sagemaker import SagemakerLauncher
from mbt_cli.launchers.skypilot import SkypilotLauncher
from mbt_cli.launchers.slurm import SlurmLauncher
from mbt_cli.launchers.ssh import SshLauncher
from mbt_cli.plugins import Family
from mbt_cli.programs.critique import Critique
from mbt_cli.programs.debate import Debate
from mbt_cli.programs.dialogue import Dialogue
from mbt_cli.programs.embedding import EmbeddingProgram
from mbt_cli.programs.interview import Interview
from mbt_cli.programs.length_control import LengthControl
from mbt_cli.programs.planner import Planner
from mbt_cli.programs.reasoning_cache import ReasoningCache
from mbt_cli.programs.refine import Refine
from mbt_cli.programs.rsa import RSA
from mbt_cli.programs.selfcheck import SelfCheck
from mbt_cli.programs.single import Single
from mbt_cli.programs.static import Static
from mbt_cli.programs.tools import Tools
from mbt_cli.programs.tournament import Tournament
from mbt_cli.report.agreement_table import JudgeAgreementTable
from mbt_cli.report.belief_figures import BeliefPaths, PoliciesFigure, Reliability
from mbt_cli.report.cost_table import Cost
from mbt_cli.report.figures import (
    AccuracyTokens,
    AnswerInclusiveErrorsFigure,
    MQIBars,
    PassAtKCurves,
    PhaseProfile,
    RegulationPlane,
    ResponseLengths,
    ScoreCurves,
    TrainingCurves,
)
from mbt_cli.report.relations import Policies, RegressionTable, Relations
from mbt_cli.report.setups import Setups
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
from mbt_cli.scores.beliefs import BeliefAccuracy, Brier, Calibration, LogLoss
from mbt_cli.scores.features import Features
from mbt_cli.scores.judge_agreement import JudgeAgreement
from mbt_cli.scores.judged import AnswerHitRate, AnswerInclusiveErrors, JudgeAccuracy
from mbt_cli.scores.lengths import (
    AES,
    AnswerTokens,
    Degeneration,
    ProgramSteps,
    Tokens,
    TokensPerCorrect,
)
from mbt_cli.scores.martingale import Martingale
from mbt_cli.scores.mqi import MQI
from mbt_cli.scores.points import PointsScore
from mbt_cli.scores.predictability import PredictabilityScore
from mbt_cli.scores.rrp import RRP
from mbt_cli.scores.sycophancy import Sycophancy
from mbt_cli.scores.uplift import UpliftScore
from mbt_cli.scores.verified import InstructionAccuracy, Verified
from mbt_cli.trainers.dpo import DPO
from mbt_cli.trainers.few_shot import FewShot
from mbt_cli.trainers.grpo import GRPO
from mbt_cli.trainers.provider import Provider, ProviderDPO, ProviderRL
from mbt_cli.trainers.sft import SFT
from mbt_cli.verifiers.by_row import ByRowVerifier
from mbt_cli.verifiers.code_tests import CodeTestsVerifier
from mbt_cli.verifiers.constraint import ConstraintVerifier
from mbt_cli.verifiers.instructions.verifier import InstructionsVerifier
from mbt_cli.verifiers.math import MathVerifier
from mbt_cli.verifiers.number import NumberVerifier
from mbt_cli.verifiers.option import OptionVerifier
from mbt_cli.verifiers.text import TextVerifier

BACKENDS = Family[Backend](
    "backends",
    AnthropicBackend,
    CannedBackend,
    CommandBackend,
    GoogleBackend,
    HumanBackend,
    LlamaCppBackend,
    OpenAIBackend,
    PythonBackend,
    RecordedBackend,
    ScriptedBackend,
    TransformersBackend,
    TransformersLikelihoodBackend,
    VLLMBackend,
)
BENCHMARKS = Family[Benchmark](
    "benchmarks",
    APPS,
    GSM8K,
    HotpotQA,
    IFBench,
    IFEval,
    IFMultiConstraints,
    HumanEval,
    IMOAnswer,
    IMOGrading,
    IMOProof,
    AIME,
    BeyondAIME,
    DeepScaleR,
    MATH,
    MATH500,
    MBPP,
    MultipleChoice,
    MuSiQue,
    ProofBench,
    QuestionAnswer,
    RLVRMixed,
    TinyHop,
    TwoWikiMultihopQA,
    Urn,
    ChangeMyView,
    Conceptual,
    Forecasting,
    Intellectual,
    OpenReview,
    Research,
    WildChat,
)
JUDGES = Family[Judge](
    "judges",
    AnswerEquivalence,
    AnswerHit,
    AnswerMatch,
    Belief,
    Investigation,
    Phases,
    Predictability,
    ProofPoints,
    Qualitative,
    Redundancy,
    SolutionCheck,
    Uplift,
    VerifierJudge,
)
PROGRAMS = Family[Program](
    "programs",
    Critique,
    Debate,
    Dialogue,
    EmbeddingProgram,
    Interview,
    LengthControl,
    Planner,
    ReasoningCache,
    Refine,
    RSA,
    SelfCheck,
    Single,
    Static,
    Tools,
    Tournament,
)
SCORES = Family[Score](
    "scores",
    AES,
    AnswerHitRate,
    AnswerInclusiveErrors,
    AnswerRate,
    AnswerTokens,
    AvgAtK,
    BeliefAccuracy,
    Brier,
    Calibration,
    Containment,
    Degeneration,
    EmptyReplies,
    ExactMatch,
    F1Score,
    InstructionAccuracy,
    JudgeAccuracy,
    JudgeAgreement,
    LogLoss,
    MajAtK,
    Features,
    Martingale,
    MathMatch,
    MQI,
    OfficialExactMatch,
    OfficialF1,
    PassAtK,
    PointsScore,
    PredictabilityScore,
    ProgramSteps,
    RRP,
    SubstringMatch,
    Sycophancy,
    Tokens,
    TokensPerCorrect,
    UpliftScore,
    Verified,
    by_name=True,
)
VERIFIERS = Family[Verifier](
    "verifiers",
    InstructionsVerifier,
    CodeTestsVerifier,
    ByRowVerifier,
    ConstraintVerifier,
    OptionVerifier,
    MathVerifier,
    NumberVerifier,
    TextVerifier,
    by_name=True,
)
TRAINERS = Family[Trainer](
    "trainers",
    DPO,
    FewShot,
    GRPO,
    SFT,
    Provider,
    ProviderDPO,
    ProviderRL,
)
LAUNCHERS = Family[Launcher](
    "launchers",
    LocalLauncher,
    SagemakerLauncher,
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
    Cost,
    JudgeAgreementTable,
    JudgeHealth,
    MainResults,
    MQITable,
    PairedDifferences,
    Policies,
    RegressionTable,
    Relations,
    Setups,
    RRPTable,
    TokensByStage,
    TrainingRuns,
    by_name=True,
)
FIGURES = Family[Figure](
    "figures",
    AccuracyTokens,
    AnswerInclusiveErrorsFigure,
    BeliefPaths,
    MQIBars,
    PassAtKCurves,
    PhaseProfile,
    PoliciesFigure,
    RegulationPlane,
    Reliability,
    ResponseLengths,
    ScoreCurves,
    TrainingCurves,
    by_name=True,
)

# the same as types of fields
AnyBackend = Annotated[Backend, BACKENDS]
AnyBenchmark = Annotated[Benchmark, BENCHMARKS]
AnyJudge = Annotated[Judge, JUDGES]
AnyProgram = Annotated[Program, PROGRAMS]
AnyScore = Annotated[Score, SCORES]
AnyTrainer = Annotated[Trainer, TRAINERS]
AnyTable = Annotated[Table, TABLES]
AnyFigure = Annotated[Figure, FIGURES]
