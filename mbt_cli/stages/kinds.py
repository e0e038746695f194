"""Every kind of stage: a file and a line here."""

from collections.abc import Mapping

from mbt_cli.stages.base import Stage
from mbt_cli.stages.harness import HarnessStage
from mbt_cli.stages.judge import JudgeStage
from mbt_cli.stages.questions import QuestionsStage
from mbt_cli.stages.report import ReportStage
from mbt_cli.stages.rewrite import RewriteStage
from mbt_cli.stages.rollout import RolloutStage
from mbt_cli.stages.score import ScoreStage
from mbt_cli.stages.synthesize import SynthesizeStage
from mbt_cli.stages.train import TrainStage

STAGES: Mapping[str, type[Stage]] = {
    "rollout": RolloutStage,
    "synthesize": SynthesizeStage,
    "rewrite": RewriteStage,
    "train": TrainStage,
    "judge": JudgeStage,
    "score": ScoreStage,
    "harness": HarnessStage,
    "report": ReportStage,
}
"""Kinds of stages in manifests, in the usual order of a study."""

IMPLICIT = QuestionsStage
"""Added by mbt for every stage that needs questions."""
