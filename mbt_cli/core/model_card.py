"""The card of a published checkpoint: what it came from, the recipe, the run, what it scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mbt_cli.core.card_text import bullets
from mbt_cli.core.chat import Json
from mbt_cli.core.metric_titles import shown
from mbt_cli.core.number_text import number_text, significant_decimals

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class CardScore:
    """One number of the card.

    Args:
        cell: Address of the score cell.
        metric: Name of the metric; with its unit as stored.
        n: Questions behind the value.
    """

    cell: str
    metric: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class CardModel:
    """What a card says of a checkpoint.

    Args:
        name: Title.
        base: Name of the model that training started from.
        base_id: The same on the hub or on the disk; enters the front matter where it is a hub name.
        recipe: The settings as trained.
        facts: What the run measured: steps, tokens, last loss, device.
        scores: Numbers of every score cell that the checkpoint's rollouts led to.
        lineage: Address and fingerprint of the cell and of everything behind it.
        licences: Benchmark to the licence of its data.
        made_by: Program, version and commit.
    """

    name: str
    base: str
    base_id: str
    recipe: Mapping[str, Json]
    facts: Mapping[str, Json]
    scores: Sequence[CardScore] = ()
    lineage: Mapping[str, str] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)
    made_by: str = ""


def model_card(model: CardModel) -> str:
    """README.md of a model repository."""
    parts = [
        _front_matter(model),
        f"# {model.name}",
        f"`{model.base}` ({model.base_id}), trained by mbt. The licence of the model that it came "
        "from holds for it too; name it before you publish.",
        _scores(model.scores),
        bullets("Recipe", {key: str(value) for key, value in model.recipe.items()}),
        bullets("The run", {key: _measured(value) for key, value in model.facts.items()}),
        bullets("Licences of the data's sources", model.licences),
        bullets("Lineage (address: fingerprint)", model.lineage),
        f"Made by {model.made_by}. The whole lineage is in `lineage.json`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _measured(value: Json) -> str:
    """A number to four digits at least, without zeros at the end of a fraction."""
    if not isinstance(value, float):
        return str(value)
    text = number_text(value, decimals=significant_decimals(value, _DIGITS))
    return text.rstrip("0").removesuffix(".") if "." in text else text


def _front_matter(model: CardModel) -> str:
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    if model.base_id.count("/") == 1 and not model.base_id.startswith(("/", ".", "~")):
        lines.append(f"base_model: {model.base_id}")
    return "\n".join([*lines, "---"])


def _scores(scores: Sequence[CardScore]) -> str:
    if not scores:
        return "No score of this checkpoint is there yet."
    lines = ["| scored in | metric | value | 95 % | n |", "|---|---|---:|---:|---:|"]
    for score in scores:
        head = shown(score.metric, score.unit)
        low, value, high = (
            number_text(v, unit=score.unit, decimals=head.decimals)
            for v in (score.low, score.value, score.high)
        )
        sign = " (%)" if score.unit == "percent" else ""
        lines.append(
            f"| {score.cell} | {head.title}{sign} | {value} | {low} to {high} | {score.n} |"
        )
    return "\n".join(lines)
