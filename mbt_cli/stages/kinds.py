"""Every kind of stage: one file each, one line here."""

from collections.abc import Mapping

from mbt_cli.stages.base import Stage
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
    "report": ReportStage,
}
"""Kinds that a manifest may name, in the order in which a study usually has them."""

IMPLICIT = QuestionsStage
"""Made by whatever needs it."""
