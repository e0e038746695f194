"""Which models are one family: what a judge model has in common with a model it judges."""

import re
from dataclasses import dataclass

_FIRST_WORD = re.compile(r"[^a-z]*([a-z]+)")


def family_of(name: str) -> str:
    """The family in a model's name: the first word of its last part, without version and size.

    Releases of one family share data and style, so `qwen2.5` and `qwen3` are one.

    Args:
        name: A name on the hub, of an endpoint, or of a file of weights.

    Example:
        >>> [family_of(name) for name in ("Qwen/Qwen3-0.6B", "qwen2.5-7b", "gpt-oss-20b", "4.5")]
        ['qwen', 'qwen', 'gpt', '']
    """
    found = _FIRST_WORD.match(name.rstrip("/").rpartition("/")[2].lower())
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class RelatedJudge:
    """A judge model that gives verdicts on replies of its own kind.

    Args:
        judge: Manifest name of the judge model.
        model: Manifest name of the model whose replies it judges.
        relation: What they have in common, in words.
    """

    judge: str
    model: str
    relation: str

    def __str__(self) -> str:
        return (
            f"self-preference: {self.judge} judges replies of {self.model} ({self.relation}); "
            "judges favour replies like their own: compare with another judge or with human labels "
            "(`mbt help metrics`)"
        )


def relation(judge: str, model: str, *, is_trained: bool) -> str | None:
    """What a judge and a judged model have in common, in words; None if nothing is known.

    Args:
        judge: Name of the judge's weights.
        model: Name of the judged model's weights, before any training of the study.
        is_trained: Whether the judged replies are those of a checkpoint that the study trained.
    """
    if judge.lower() == model.lower():
        return "a checkpoint trained from it" if is_trained else "the same model"
    family = family_of(judge)
    return f"the same family, {family}" if family and family == family_of(model) else None
