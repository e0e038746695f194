"""Drafts to cells: every name in a stage is replaced by what it stands for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mbt_cli.core.column_maps import ColumnMap, SourcePreset
from mbt_cli.core.model_settings import RunSettings, Sampling
from mbt_cli.core.names import nearest
from mbt_cli.core.recipe import Recipe, accumulation
from mbt_cli.core.templates import Template, parse_template
from mbt_cli.interfaces import Backend, Judge, Trainer
from mbt_cli.manifest.blocks import QUESTIONS, Block, Draft
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.presets import PresetFolders, prompt_file, prompt_names
from mbt_cli.manifest.problems import Problems
from mbt_cli.manifest.schema import Document, ModelTable
from mbt_cli.manifest.sources import HUB, is_there, source_of, written_source
from mbt_cli.manifest.toml import merged, read_toml
from mbt_cli.registry import BACKENDS, JUDGES, TRAINERS
from mbt_cli.stages.base import Model, Resolution, SamplingChoice, Stage
from mbt_cli.stages.kinds import IMPLICIT
from mbt_cli.stages.train import TrainStage
from mbt_cli.trainers.known_keys import known_keys, wrong_setting


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
            return BACKENDS.make({**table.backend, **fields})
        except ValidationError as error:
            self._add_backend_problems(where, error, table.backend)
            return None

    def _add_backend_problems(
        self, where: str, error: ValidationError, written: Mapping[str, Any]
    ) -> None:
        kind = BACKENDS.find(str(written.get("kind")))
        fields = () if kind is None else sorted(kind.model_fields)
        self._problems.add_validation(f"{where}.backend", error, fields)

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


class Recipes:
    """Makes the recipes of train stages; mistakes become problems."""

    def __init__(self, presets: PresetFolders, problems: Problems) -> None:
        self._presets = presets
        self._problems = problems

    def get(self, stage: TrainStage, where: str) -> tuple[Recipe, Trainer] | None:
        """The stage's recipe and the method with its own settings; None if either is wrong."""
        found = len(self._problems)
        made = self._merged(stage, where)
        if made is None:
            return None
        recipe, trainer = made
        for field, what in trainer.learns_from.items():
            if getattr(stage, field) is None:
                self._problems.add(f"{where}.{field}", f"is required: {what}")
        for place, what in trainer.problems(recipe):
            self._problems.add(f"{where}.{place}", what)
        self._check_keys(recipe, trainer, where)
        recipe = self._with_launch_preset(recipe, where)
        self._check_batch(recipe, where)
        return (recipe, trainer) if len(self._problems) == found else None

    def _merged(self, stage: TrainStage, where: str) -> tuple[Recipe, Trainer] | None:
        """The preset with the stage's tables laid on it."""
        tree = self._preset(stage, where)
        if tree is None:
            return None
        tree = merged(tree, stage.recipe)
        for name in ("trainer", "lora", "launch", "tracking"):
            if table := getattr(stage, name):
                tree = merged(tree, {name: table})
        methods = TRAINERS.kinds()
        method = tree.get("method")
        if method is not None and method not in methods:
            what = f"no method `{method}`; {nearest(str(method), methods)}"
            self._problems.add(f"{where}.recipe.method", what)
            return None
        possible = list(methods.values()) if method is None else [methods[method]]
        own_fields = {name: field for kind in possible for name, field in kind.model_fields.items()}
        if stage.reward is not None and "rewards" not in own_fields:
            self._problems.add(f"{where}.reward", f"the method `{method}` has no rewards")
        elif stage.reward:  # replaces the preset's rewards
            reward = {stage.reward: 1.0} if isinstance(stage.reward, str) else stage.reward
            tree["rewards"] = {**stage.recipe.get("rewards", {}), **reward}
        own = {name: tree.pop(name) for name in own_fields if name in tree}
        try:
            recipe = Recipe.model_validate(tree)
            return recipe, possible[0].model_validate({"kind": method, **own})
        except ValidationError as error:
            fields = {**Recipe.model_fields, **own_fields}
            self._problems.add_validation(f"{where}.recipe", error, fields)
            return None

    def _preset(self, stage: TrainStage, where: str) -> Mapping[str, Any] | None:
        if stage.preset is None:
            return {}
        path = self._presets.find("train", stage.preset)
        if path is None:
            names = self._presets.names("train")
            what = f"no preset `{stage.preset}`; {nearest(stage.preset, names)}"
            self._problems.add(f"{where}.preset", what)
            return None
        return read_toml(path)

    def _check_keys(self, recipe: Recipe, trainer: Trainer, where: str) -> None:
        tables = {
            "trainer": (recipe.trainer, trainer.trainer_keys()),
            "lora": (recipe.lora, known_keys()["lora"]),
            "launch.flags": (recipe.launch.flags, known_keys()["launch"]),
        }
        for name, (table, known) in tables.items():
            for key, value in table.items():
                if what := wrong_setting(name, key, value, known):
                    self._problems.add(f"{where}.{name}.{key}", what)

    def _with_launch_preset(self, recipe: Recipe, where: str) -> Recipe:
        """The recipe with the accelerate preset's flags under its own."""
        launch = recipe.launch
        if launch.accelerate is None:
            return recipe
        path = self._presets.find("accelerate", launch.accelerate)
        if path is None:
            names = self._presets.names("accelerate")
            what = f"no preset `{launch.accelerate}`; {nearest(launch.accelerate, names)}"
            self._problems.add(f"{where}.launch.accelerate", what)
            return recipe
        flags = {**read_toml(path), **launch.flags}
        for key in flags:
            if key not in known_keys()["launch"]:
                what = f"accelerate has no flag `{key}`; {nearest(key, known_keys()['launch'])}"
                self._problems.add(f"{path}", what)
        return recipe.model_copy(update={"launch": launch.model_copy(update={"flags": flags})})

    def _check_batch(self, recipe: Recipe, where: str) -> None:
        """A batch must divide into the devices, as far as their number is known here."""
        launch, devices = recipe.launch, 1
        if launch.accelerate is not None:
            processes = launch.processes or launch.flags.get("num_processes")
            devices = processes if isinstance(processes, int) and processes > 0 else 1
        try:
            accumulation(recipe.batch_size, recipe.device_batch_size, devices)
        except ValueError as error:
            self._problems.add(f"{where}.recipe.device_batch_size", str(error))


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


class Resolver:
    """Makes cells of drafts; what is wrong becomes a problem, and the cell None."""

    def __init__(
        self, document: Document, models: Models, folder: Path, problems: Problems, text: str = ""
    ) -> None:
        self._document = document
        self._models = models
        self._folder = folder
        self._problems = problems
        self._text = text
        self._stages: dict[str, Stage | None] = {}
        self._templates: dict[tuple[str, frozenset[str]], Template | None] = {}
        self._judges: dict[str, Judge | None] = {}
        self._sources = Sources(models.presets, problems)
        self._recipes = Recipes(models.presets, problems)
        self._found_recipes: dict[str, tuple[Recipe, Trainer] | None] = {}

    def cell(self, draft: Draft) -> Cell | None:
        """The draft with all its names resolved."""
        stage = self._stage(draft)
        if stage is None:
            return None
        where = f"stage.{draft.stage}"
        judge = self._judge(draft, where)
        source, source_map = source_of(draft), self._sources.column_map(draft, stage, where)
        is_made = source is None or draft.kind == "train"
        models = self._models_of(draft, stage, where) if is_made else {}
        templates = self._templates_of(stage, judge, where) if is_made else {}
        benchmark = draft.axes.get("benchmark")
        if benchmark is not None and benchmark not in self._document.benchmarks:
            return None
        if models is None or templates is None or ("judge" in stage.axes and judge is None):
            return None
        training = self._training_of(stage, where) if source is None else None
        read = [draft.axes, *(d.axes for drafts in draft.inputs.values() for d in drafts)]
        about = {axes["benchmark"] for axes in read if "benchmark" in axes}
        self._check_inputs(draft, stage, where)
        resolution = Resolution(
            study=self._document.study.name,
            seed=self._document.study.seed,
            address=draft.address,
            axes=draft.axes,
            models=models,
            benchmark=self._document.benchmarks.get(benchmark) if benchmark else None,
            judge=judge,
            templates=templates,
            inputs={
                name: tuple(d.address for d in drafts)
                for name, drafts in draft.inputs.items()
                if drafts and (source is None or name == QUESTIONS)
            },
            source=source,
            source_map=source_map,
            verifiers={
                name: self._document.benchmarks[name].verifier
                for name in sorted(about & set(self._document.benchmarks))
            },
            recipe=training[0] if training else None,
            trainer=training[1] if training else None,
            manifest=self._text,
        )
        return Cell(stage, resolution)

    def _training_of(self, stage: Stage, where: str) -> tuple[Recipe, Trainer] | None:
        if not isinstance(stage, TrainStage):
            return None
        key = repr(stage)
        if key not in self._found_recipes:
            self._found_recipes[key] = self._recipes.get(stage, where)
        return self._found_recipes[key]

    def _check_inputs(self, draft: Draft, stage: Stage, where: str) -> None:
        read = {name: {d.kind for d in drafts} for name, drafts in draft.inputs.items()}
        for field, what in stage.problems(read):
            self._problems.add(f"{where}.{field}", what)
        for field in stage.needed if source_of(draft) is None else ():
            if getattr(stage, field) is None:
                self._problems.add(f"{where}.{field}", "is required and not there")

    def check_alone(self, block: Block) -> None:
        """Say what is wrong with the fields of a stage that came to no cell."""
        for _, fields in block.variants():
            kind = block.kind.model_fields["kind"].default
            point = {
                axis: values[0] if isinstance(values, list) and values else values
                for axis, values in block.envelope.matrix.items()
                if axis in block.kind.model_fields
            }
            draft = Draft(block.name, kind, block, {}, {**fields, **point})
            stage = self._stage(draft)
            if stage is not None:
                where = f"stage.{block.name}"
                self._models_of(draft, stage, where)
                self._templates_of(stage, None, where)

    def _stage(self, draft: Draft) -> Stage | None:
        if draft.block is None:
            return IMPLICIT(kind="questions", name="questions")
        key = f"{draft.stage} {sorted(draft.fields.items(), key=lambda item: item[0])!r}"
        if key not in self._stages:
            self._stages[key] = self._validated(draft, draft.block.kind)
        return self._stages[key]

    def _validated(self, draft: Draft, kind: type[Stage]) -> Stage | None:
        fields = {k: v for k, v in draft.fields.items() if k != "source"}
        try:
            return kind.model_validate({**fields, "kind": draft.kind, "name": draft.stage})
        except ValidationError as error:
            where = f"stage.{draft.stage}"
            self._problems.add_validation(where, error, kind.model_fields)
            return None

    def _models_of(self, draft: Draft, stage: Stage, where: str) -> dict[str, Model] | None:
        """Role to model, or None when one of them is wrong."""
        found: dict[str, Model] = {}
        sampling = getattr(stage, "sampling", None)
        for role in stage.models:
            name = draft.axes.get(role) or getattr(stage, role, None)
            if name is None:
                continue
            if self._document.is_broken("models", name):
                return None
            if name not in self._document.models:
                known = self._document.models
                self._problems.add(f"{where}.{role}", f"no model `{name}`; {nearest(name, known)}")
                return None
            model = self._models.get(name, sampling, where)
            if model is None:
                return None
            found[role] = model
        return found

    def _judge(self, draft: Draft, where: str) -> Judge | None:
        name = draft.axes.get("judge")
        if name is None or draft.kind != "judge":
            return None
        if name not in self._judges:
            self._judges[name] = self._make_judge(name, where)
        return self._judges[name]

    def _make_judge(self, name: str, where: str) -> Judge | None:
        if name in self._document.judges:
            return self._document.judges[name]
        try:
            return JUDGES.make({"kind": name})
        except ValidationError:
            names = [*self._document.judges, *JUDGES.kinds()]
            self._problems.add(
                f"{where}.matrix.judge", f"no judge `{name}`; {nearest(name, names)}"
            )
            return None

    def _templates_of(
        self, stage: Stage, judge: Judge | None, where: str
    ) -> dict[str, Template] | None:
        """Prompt field to template, or None when one of them is wrong."""
        wanted: list[tuple[str, str, frozenset[str]]] = [
            (field, str(name), stage.placeholders)
            for field in stage.prompts
            if (name := getattr(stage, field)) is not None
        ]
        if judge is not None:
            wanted.append(("judge", judge.template, judge.placeholders))
        found: dict[str, Template] = {}
        for field, name, placeholders in wanted:
            key = (name, placeholders)
            if key not in self._templates:
                self._templates[key] = self._read_template(name, placeholders, f"{where}.{field}")
            template = self._templates[key]
            if template is None:
                return None
            found[field] = template
        return found

    def _read_template(
        self, name: str, placeholders: frozenset[str], where: str
    ) -> Template | None:
        path = prompt_file(name, self._folder)
        if path is None:
            what = f"no prompt `{name}`, neither a shipped one nor a file; "
            self._problems.add(where, what + nearest(name, prompt_names()))
            return None
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            what = f"the template `{path}` is not UTF-8 ({error.reason}); save it as UTF-8"
            self._problems.add(where, what)
            return None
        except OSError as error:
            self._problems.add(where, f"the template `{path}` cannot be read: {error.strerror}")
            return None
        try:
            return parse_template(name, text, known=placeholders)
        except ValueError as error:
            self._problems.add(where, f"the template `{path}` {error}")
            return None
