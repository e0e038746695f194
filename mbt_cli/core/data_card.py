"""The card of a published data set: what it is, who made it from what, and how to read it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mbt_cli.core.card_text import bullets


@dataclass(frozen=True, slots=True)
class CardCell:
    """One cell of the data set.

    Args:
        config: Name of its configuration.
        split: Name of its split.
        rows: Good rows, which are what is published.
        failures: Reason to the rows that are left out.
        models: Everybody who wrote for it: role or stage to model.
        templates: Prompt field to the hash of its template.
        lineage: Address and fingerprint of the cell and of everything behind it.
    """

    config: str
    split: str
    kind: str
    rows: int
    failures: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    lineage: Mapping[str, str] = field(default_factory=dict)


_WHAT = {
    "rollout": "Answers of a model to the questions of a benchmark, with its reasoning.",
    "synthesize": "Texts that a teacher wrote from a question and its answer.",
    "rewrite": "Reasoning traces of a model, rewritten by a teacher.",
}


def data_card(
    name: str,
    cells: Sequence[CardCell],
    *,
    licences: Mapping[str, str],
    columns: Sequence[str],
    made_by: str,
) -> str:
    """README.md of a data set in the hub's layout.

    Args:
        name: Title.
        cells: What is in it.
        licences: Benchmark to the licence of its data.
        columns: Names of the columns.
        made_by: Program, version and commit.
    """
    parts = [
        _front_matter(cells, licences),
        f"# {name}",
        _WHAT.get(cells[0].kind, "Rows made by mbt."),
        _table(cells),
        bullets("Models", _merged(cell.models for cell in cells)),
        bullets("Prompt templates (sha256)", _merged(cell.templates for cell in cells)),
        bullets("Licences of the sources", licences or {"sources": "none: made by rule"}),
        _left_out(cells),
        _reading(columns),
        bullets("Lineage (address: fingerprint)", _merged(cell.lineage for cell in cells)),
        f"Made by {made_by}. The lineage of each part is in `lineage/`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(cells: Sequence[CardCell], licences: Mapping[str, str]) -> str:
    known = sorted(set(licences.values()))
    # two licences have no common name: `other` sends the reader to the text
    licence = known[0] if len(known) == 1 else "other"
    lines = ["---", f"license: {licence}", "configs:"]
    for config in dict.fromkeys(cell.config for cell in cells):
        lines += [f"- config_name: {config}", "  data_files:"]
        for cell in cells:
            if cell.config == config:
                lines += [f"  - split: {cell.split}", f"    path: {config}/{cell.split}-*.parquet"]
    return "\n".join([*lines, "---"])


def _table(cells: Sequence[CardCell]) -> str:
    lines = ["| configuration | split | rows | left out |", "|---|---|---:|---:|"]
    lines += [f"| {c.config} | {c.split} | {c.rows} | {sum(c.failures.values())} |" for c in cells]
    return "\n".join(lines)


def _left_out(cells: Sequence[CardCell]) -> str:
    counts: dict[str, int] = {}
    for cell in cells:
        for reason, count in cell.failures.items():
            counts[reason] = counts.get(reason, 0) + count
    return bullets("Rows left out, by reason", {k: str(v) for k, v in sorted(counts.items())})


def _reading(columns: Sequence[str]) -> str:
    pairs = ", ".join(f'{name} = "{name}"' for name in columns)
    return (
        "## Reading it in a study\n\n```toml\n"
        f'source = {{ from = "hub:ORG/NAME", config = "...", columns = {{ {pairs} }} }}\n```'
    )


def _merged(many: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {key: value for one in many for key, value in one.items()}
