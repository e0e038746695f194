"""The table of judges' agreement: one row per cell, judge and what it is compared with."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import orjson
import polars as pl

from mbt_cli.core.judge_scales import CORRECTNESS
from mbt_cli.core.measures import JUDGED_BY
from mbt_cli.core.tables import Column, ReportInputs, TableData
from mbt_cli.interfaces import Table
from mbt_cli.report.metrics import missing_notes, varying
from mbt_cli.report.notes import ADDRESS

_KEYS = {
    "judge_same": "same",
    "judge_vote_same": "same",
    "human_same": "same",
    "judge_kappa": "kappa",
    "judge_vote_kappa": "kappa",
    "human_kappa": "kappa",
    "human_band": "band",
    "human_error": "error",
    "human_bias": "bias",
    "human_rank": "rank",
    "human_unread": "unread",
    "judge_sensitivity": "sensitivity",
    "judge_specificity": "specificity",
    "judge_accuracy_corrected": "corrected",
}
"""Begin of a metric to its column."""
_COUNTS = {
    "both_right": "both right",
    "judge_only": "only judge right",
    "human_only": "only human right",
    "both_wrong": "both wrong",
}
_COLUMNS = (
    Column("pairs", "verdicts", decimals=0),
    Column("same", "the same", unit="percent"),
    Column("kappa", "kappa", unit="kappa", decimals=3),
    Column("band", "the same band", unit="percent"),
    Column("error", "mean error", unit="points", decimals=2),
    Column("bias", "bias", unit="points", decimals=2),
    Column("rank", "rank correlation", unit="correlation", decimals=3),
    Column("unread", "unread", unit="percent"),
    *(Column(key, title, decimals=0) for key, title in _COUNTS.items()),
    Column("sensitivity", "sensitivity", unit="percent"),
    Column("specificity", "specificity", unit="percent"),
    Column("judge_mean", "judge accuracy", unit="percent"),
    Column("corrected", "corrected accuracy", unit="percent"),
)
_NOTES = {
    "kappa": (
        "Kappa: agreement beyond chance, 1 at most; disagreements are weighted by their squared "
        "difference where the judge's scale is ordered."
    ),
    "error": (
        "Mean error: mean of the absolute difference from the human points; bias: of the signed "
        "one, above 0 where the judge is more generous. The same band: by the bands 0, 1 to 5, 6 "
        "and 7 unless `bands` says others. Rank correlation: Spearman's. Unread: labelled "
        "rollouts without readable points, which no other column counts."
    ),
    "sensitivity": (
        "Sensitivity: share of answers right by humans that the judge calls right; specificity: "
        "share wrong by humans that it calls wrong."
    ),
    "corrected": (
        "Corrected accuracy: by humans, estimated from the judge's verdicts on all rollouts and "
        "the labels on some (PPI++); it assumes that those were drawn at random."
    ),
}


class JudgeAgreementTable(Table):
    """How far judges agree with each other, with their own votes and with human labels."""

    kind: Literal["judge_agreement"] = "judge_agreement"
    shows_metrics = False

    def reads(self) -> Collection[str]:
        return ("judge_agreement",)

    def build(self, inputs: ReportInputs) -> TableData:
        rows = _rows(inputs)
        labels = varying(rows, inputs.axes, always=("model",))
        names = [*(["quantity"] if rows["quantity"].n_unique() > 1 else []), "judge", "against"]
        titles = {"quantity": "verdict on", "against": "beside"}
        measured = {key for _, facts in _facts(rows) for key in facts}
        columns = [c for c in _COLUMNS if c.key in measured or rows[c.key].count()]
        shown = {column.key for column in columns}
        empty = "No score stage has the metric `judge_agreement` with several judges or votes, "
        return TableData(
            name=self.kind,
            title="Agreement of judges",
            columns=[
                *(Column(axis, axis, kind="label") for axis in labels),
                *(Column(name, titles.get(name, name), kind="label") for name in names),
                *columns,
            ],
            rows=rows,
            notes=[
                *([] if rows.height else [f"{empty}or with `human` labels."]),
                *(note for key, note in _NOTES.items() if key in shown),
                *_why_missing(rows),
                *_label_notes(rows),
                *(inputs.related_judges if rows.height else ()),
                *missing_notes(inputs),
            ],
        )


def _rows(inputs: ReportInputs) -> pl.DataFrame:
    """One row per cell, quantity, judge and what it is compared with; `facts` is JSON."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in inputs.summary.filter(pl.col("by").is_null()).iter_rows(named=True):
        settings = orjson.loads(row["settings"])
        key = _KEYS.get(_base(row["metric"], settings))
        if key is None or "against" not in settings:
            continue
        place = (row[ADDRESS], settings["quantity"], settings["judge"], settings["against"])
        names = (ADDRESS, "quantity", "judge", "against")
        one = found.setdefault(
            place,
            {
                **dict(zip(names, place, strict=True)),
                **{axis: row[axis] for axis in inputs.axes},
                "facts": {},
            },
        )
        one |= {key: row["value"], f"{key}_low": row["low"], f"{key}_high": row["high"]}
        one["facts"][key] = settings
        if settings.get("seeds", 1) > 1:
            continue  # counts of one seed beside means over all
        if key == "kappa":
            one |= {name: settings.get(name) for name in ("pairs", *_COUNTS)}
        elif key == "corrected":
            one["judge_mean"] = settings.get("judge_mean")
    return pl.DataFrame(
        [{**one, "facts": orjson.dumps(one["facts"]).decode()} for one in found.values()],
        schema=_schema(inputs.axes),
    )


def _base(metric: str, settings: Mapping[str, Any]) -> str:
    """A metric's name without the judges and the quantity."""
    name = metric.partition(JUDGED_BY)[0]
    quantity = settings.get("quantity", CORRECTNESS)
    return name if quantity == CORRECTNESS else name.removesuffix(f"_{quantity}")


def _schema(axes: Sequence[str]) -> dict[str, pl.DataType]:
    labels = (ADDRESS, "quantity", "judge", "against", *axes, "facts")
    intervals = dict.fromkeys(_KEYS.values())
    return {
        **dict.fromkeys(labels, pl.String()),
        **{column.key: pl.Float64() for column in _COLUMNS},
        **{f"{key}_{end}": pl.Float64() for key in intervals for end in ("low", "high")},
    }


def _facts(rows: pl.DataFrame) -> list[tuple[str, Mapping[str, Any]]]:
    """Each row in words, with what is known of its numbers by column."""
    return [
        (f"{row['judge']} beside {row['against']}", orjson.loads(row["facts"]))
        for row in rows.iter_rows(named=True)
    ]


def _why_missing(rows: pl.DataFrame) -> list[str]:
    """Why a number, or its interval, is a dash."""
    titles = {column.key: column.title for column in _COLUMNS}
    reasons: dict[str, None] = {}
    for name, facts in _facts(rows):
        for key, settings in facts.items():
            if why := settings.get("undefined"):
                reasons[f"{titles[key].capitalize()} of {name} is a dash: {why}."] = None
            elif why := settings.get("no_interval"):
                reasons[f"{titles[key].capitalize()} of {name} has no interval: {why}."] = None
    return list(reasons)


def _label_notes(rows: pl.DataFrame) -> list[str]:
    """Warnings about labels that cannot stand for all rollouts."""
    notes: dict[str, None] = {}
    for (name, facts), address in zip(_facts(rows), rows[ADDRESS], strict=True):
        found = facts.get("corrected") or facts.get("error", {})
        if unlike := found.get("unlike"):
            own, others = (f"{100 * share:.1f} %" for share in unlike)
            notes[
                f"{name}: the labelled rollouts of {address} do not look drawn at random: the "
                f"judge calls {own} of them right, and {others} of the others."
            ] = None
        for key, what in (
            ("labels_elsewhere", "are of no rollout of this cell"),
            ("labels_without_verdict", "are of rollouts without a verdict"),
        ):
            if count := found.get(key):
                notes[f"{name}: {count} of {found['labels']} labels {what} ({address})."] = None
    return list(notes)
