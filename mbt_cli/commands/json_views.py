"""What `--json` prints: one JSON document, for scripts."""

from collections.abc import Sequence
from typing import Any

import orjson

from mbt_cli.core.addresses import axes_of
from mbt_cli.manifest.load import Manifest
from mbt_cli.planning.dry_run import Rehearsal
from mbt_cli.planning.execute import RunReport
from mbt_cli.planning.unread import unread
from mbt_cli.settings import Machine
from mbt_cli.store.cells import cell_folder


def checked_json(manifest: Manifest) -> str:
    """A manifest's stages with their cells and axes, and what nothing reads."""
    stages = []
    for stage, cells in manifest.counts().items():
        of_stage = [c for a, c in manifest.cells.items() if a.partition("/")[0] == stage]
        axes: dict[str, list[str]] = {}
        for cell in of_stage:
            for axis, value in axes_of(cell.address).items():
                values = axes.setdefault(axis, [])
                if value not in values:
                    values.append(value)
        stages.append({"stage": stage, "kind": of_stage[0].kind, "cells": cells, "axes": axes})
    return _text(
        {
            "manifest": str(manifest.path),
            "study": manifest.study,
            "stages": stages,
            "unread": [address for lonely in unread(manifest) for address in lonely.addresses],
            "left_out": list(manifest.left_out),
        }
    )


def rehearsals_json(rehearsals: Sequence[Rehearsal]) -> str:
    """What a dry run tells of each cell."""
    return _text(
        [
            {
                "address": told.address,
                "status": told.status,
                "why": list(told.why),
                "waits_for": told.waits_for,
                "requests": None if told.requests is None else _requests(*told.requests),
                "first_prompt": list(told.first_prompt),
            }
            for told in rehearsals
        ]
    )


def result_json(manifest: Manifest, machine: Machine, report: RunReport) -> str:
    """What a run did, and the tables that it made or had."""
    folders = [
        cell_folder(machine.runs, manifest.study, address) / "files"
        for address in (*report.made, *report.done)
        if manifest.cells[address].kind == "report"
    ]
    return _text(
        {
            "study": manifest.study,
            "folder": str(machine.runs / manifest.study),
            "made": list(report.made),
            "done": list(report.done),
            "requests": {"sent": report.sent, "reused": report.reused},
            "tables": [
                str(path) for folder in folders for path in sorted(folder.glob("*.parquet"))
            ],
        }
    )


def _requests(new: int, reused: int) -> dict[str, int]:
    return {"new": new, "reused": reused}


def _text(document: Any) -> str:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
