"""`source` of a stage: where rows come from in place of running it, and how they are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mbt_cli.core.column_maps import ColumnMap, SourcePreset
from mbt_cli.manifest.drafts import Draft
from mbt_cli.manifest.optional import HUB, is_there, source_of, written_source
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.toml_text import merged, read_toml
from mbt_cli.stages.base import Stage

_FAMILY = "sources"
_KINDS = ("rollout", "synthesize", "rewrite")
"""Kinds of stages whose rows may come from elsewhere."""


class Sources:
    """Finds the column map of each cell with a source; what is wrong becomes a problem."""

    def __init__(self, presets: PresetFolders, problems: Problems) -> None:
        self._presets = presets
        self._problems = problems

    def column_map(self, draft: Draft, stage: Stage, where: str) -> ColumnMap | None:
        """How the cell's source is read; None where there is none, or for a checkpoint.

        A hub data set without `columns` is read as the shipped preset of its name says; local
        files without them must have mbt's own columns.
        """
        source = source_of(draft)
        if source is None or draft.kind == "train":
            return None
        where = f"{where}.source"
        if draft.kind not in _KINDS:
            kinds = ", ".join(_KINDS)
            self._problems.add(where, f"a {draft.kind} stage cannot have one; {kinds} can")
            return None
        table = {k: v for k, v in written_source(draft).items() if k != "from"}
        if source.startswith(HUB):
            return self._published(source.removeprefix(HUB), table, stage, where)
        if not is_there(source):
            self._problems.add(where, f"no file `{source}` (seen from {Path.cwd()})")
        return self._valid(ColumnMap, {"columns": {}, **table}, where)

    def _published(
        self, repo: str, table: Mapping[str, Any], stage: Stage, where: str
    ) -> ColumnMap | None:
        path = self._presets.find(_FAMILY, repo.rpartition("/")[2])
        makes = getattr(stage, "make", stage.kind)
        if path is None and "columns" not in table:
            names = ", ".join(f"`{name}`" for name in self._presets.names(_FAMILY))
            self._problems.add(where, f"no preset for `{repo}`, so say `columns`; presets: {names}")
            return None
        under = {"makes": makes} if path is None else read_toml(path)
        if under["makes"] != makes:
            self._problems.add(where, f"`{repo}` holds {under['makes']}, this stage is {makes}")
            return None
        return self._valid(SourcePreset, {**merged(under, table), "repo": repo}, where)

    def _valid(
        self, kind: type[ColumnMap], table: Mapping[str, Any], where: str
    ) -> ColumnMap | None:
        try:
            return kind.model_validate(table)
        except ValidationError as error:
            self._problems.add_validation(where, error, {**kind.model_fields, "from": None})
            return None
