"""`[models.NAME]` tables to models: presets laid under, samplings looked up."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mbt_cli.core.run_settings import RunSettings
from mbt_cli.core.sampling import Sampling
from mbt_cli.interfaces import Backend
from mbt_cli.manifest.document import Document, ModelTable
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import Problems, nearest
from mbt_cli.manifest.toml_text import merged, read_toml
from mbt_cli.registry import AnyBackend
from mbt_cli.stages.base import SamplingChoice
from mbt_cli.stages.work import Model

_BACKENDS: TypeAdapter[Backend] = TypeAdapter(AnyBackend)


class Models:
    """Makes models of a manifest, each once; what is wrong becomes a problem."""

    def __init__(self, document: Document, presets: PresetFolders, problems: Problems) -> None:
        self._document = document
        self._presets = presets
        self._problems = problems
        self._tables: dict[str, ModelTable | None] = {}
        self._backends: dict[str, Backend | None] = {}
        self._models: dict[tuple[str, str], Model | None] = {}

    @property
    def presets(self) -> PresetFolders:
        """Where presets are found."""
        return self._presets

    def get(self, name: str, sampling: SamplingChoice | None, where: str) -> Model | None:
        """The model with its own sampling, or the stage's where that says one.

        Args:
            name: Its name in the manifest.
            sampling: What the stage says.
            where: Key path of the stage, for problems.
        """
        key = (name, repr(sampling))
        if key not in self._models:
            self._models[key] = self._make(name, sampling, where)
        return self._models[key]

    def check_all(self) -> None:
        """Check every model, used or not."""
        for name in self._document.models:
            self.backend(name)

    def _make(self, name: str, choice: SamplingChoice | None, where: str) -> Model | None:
        backend, table = self.backend(name), self._table(name)
        if backend is None or table is None:
            return None
        chosen = choice if choice is not None else table.sampling
        if chosen is None:
            what = "says no sampling, and neither does the stage that uses it"
            self._problems.add(f"models.{name}.sampling", what)
            return None
        at = f"{where}.sampling" if choice is not None else f"models.{name}.sampling"
        sampling = self._sampling(chosen, at)
        run = self._run(name, table)
        if sampling is None or run is None:
            return None
        return Model(name, table.id or name, backend, sampling, table.request, run)

    def _table(self, name: str) -> ModelTable | None:
        """The table with its preset laid under it."""
        if name not in self._tables:
            self._tables[name] = self._with_preset(name, self._document.models[name])
        return self._tables[name]

    def _with_preset(self, name: str, table: ModelTable) -> ModelTable | None:
        if table.preset is None:
            return table
        path = self._presets.find("models", table.preset)
        if path is None:
            names = self._presets.names("models")
            what = f"no preset `{table.preset}`; {nearest(table.preset, names)}"
            self._problems.add(f"models.{name}.preset", what)
            return None
        over = table.model_dump(exclude_unset=True, exclude={"preset"})
        try:
            return ModelTable.model_validate(merged(read_toml(path), over))
        except ValidationError as error:
            self._problems.add_validation(f"{path}", error, ModelTable.model_fields)
            return None

    def backend(self, name: str) -> Backend | None:
        """The backend of a model; null when something is wrong, which is then a problem."""
        if name not in self._backends:
            table = self._table(name)
            self._backends[name] = None if table is None else self._make_backend(name, table)
        return self._backends[name]

    def _make_backend(self, name: str, table: ModelTable) -> Backend | None:
        where = f"models.{name}"
        if table.backend is None:
            what = "has neither a `preset` nor a `backend`"
            self._problems.add(
                where, f"{what}; presets: {nearest('', self._presets.names('models'))}"
            )
            return None
        fields = {k: v for k, v in (("serve", table.serve), ("place", table.place)) if v}
        try:
            return _BACKENDS.validate_python({**table.backend, **fields})
        except ValidationError as error:
            self._add_backend_problems(where, error, table.backend)
            return None

    def _add_backend_problems(
        self, where: str, error: ValidationError, written: Mapping[str, Any]
    ) -> None:
        kinds = {m.model_fields["kind"].default: m for m in Backend.__subclasses__()}
        kind = kinds.get(str(written.get("kind")))
        fields = sorted(kind.model_fields) if kind is not None else sorted(kinds)
        self._problems.add_validation(
            f"{where}.backend", error, fields, kind=str(written.get("kind"))
        )

    def _sampling(self, choice: SamplingChoice, where: str) -> Sampling | None:
        known = self._document.sampling
        like = choice if isinstance(choice, str) else choice.get("like")
        over = {} if isinstance(choice, str) else {k: v for k, v in choice.items() if k != "like"}
        if like is not None and self._document.is_broken("sampling", str(like)):
            return None
        if like is not None and like not in known:
            self._problems.add(where, f"no sampling `{like}`; {nearest(str(like), known)}")
            return None
        base = {} if like is None else known[str(like)].model_dump(exclude_unset=True)
        try:
            return Sampling.model_validate({**base, **over})
        except ValidationError as error:
            self._problems.add_validation(where, error, Sampling.model_fields)
            return None

    def _run(self, name: str, table: ModelTable) -> RunSettings | None:
        study = self._document.run.model_dump(exclude_unset=True)
        try:
            return RunSettings.model_validate({**study, **table.run})
        except ValidationError as error:
            self._problems.add_validation(f"models.{name}.run", error, RunSettings.model_fields)
            return None
