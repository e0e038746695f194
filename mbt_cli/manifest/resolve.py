"""Drafts to cells: every name in a stage is replaced by what it stands for."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mbt_cli.core.recipe import Recipe
from mbt_cli.core.templates import Template, parse_template
from mbt_cli.interfaces import Judge
from mbt_cli.manifest.blocks import Block
from mbt_cli.manifest.document import Document
from mbt_cli.manifest.drafts import QUESTIONS, Draft
from mbt_cli.manifest.models import Models
from mbt_cli.manifest.optional import source_of
from mbt_cli.manifest.presets import prompt_file, prompt_names
from mbt_cli.manifest.problems import Problems, nearest
from mbt_cli.manifest.recipes import Recipes
from mbt_cli.manifest.sourcing import Sources
from mbt_cli.registry import AnyJudge
from mbt_cli.stages.base import Stage
from mbt_cli.stages.cell import Cell
from mbt_cli.stages.kinds import IMPLICIT
from mbt_cli.stages.train import TrainStage
from mbt_cli.stages.work import Model, Resolution

_JUDGES: TypeAdapter[Judge] = TypeAdapter(AnyJudge)


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
        self._found_recipes: dict[str, Recipe | None] = {}

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
        recipe = self._recipe_of(stage, where) if source is None else None
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
            recipe=recipe,
            manifest=self._text,
        )
        return Cell(stage, resolution)

    def _recipe_of(self, stage: Stage, where: str) -> Recipe | None:
        if not isinstance(stage, TrainStage):
            return None
        key = repr(stage)
        if key not in self._found_recipes:
            self._found_recipes[key] = self._recipes.recipe(stage, where)
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
            return _JUDGES.validate_python({"kind": name})
        except ValidationError:
            kinds = [j.model_fields["kind"].default for j in Judge.__subclasses__()]
            names = [*self._document.judges, *kinds]
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
