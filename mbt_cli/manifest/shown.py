"""What the tables and figures of a report show of the metrics that its scores make."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mbt_cli.core.harness import Harness, pattern_of
from mbt_cli.core.measures import JUDGED_BY
from mbt_cli.core.names import nearest
from mbt_cli.interfaces import Figure, Score, Table
from mbt_cli.manifest.cell import Cell
from mbt_cli.registry import FIGURES, SCORES, TABLES
from mbt_cli.report.metrics import METRIC_NAMES
from mbt_cli.stages.report import ReportStage
from mbt_cli.stages.score import ScoreStage

_NAMED = 3
_WRITTEN = ("metrics", "metric", "accuracy", "on")
"""Fields of tables and figures that name metrics of scores."""


Made = Score | Harness
"""What makes numbers."""


def shown_problems(
    report: ReportStage,
    scores: Iterable[ScoreStage],
    harnesses: Iterable[Harness] = (),
    axes: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Tables and figures that could show nothing of what they read: field, and what is wrong.

    A metric that the manifest writes for a table must be made. Those that a table has by default
    need not be.
    """
    plugins = _plugins(report)
    for number, (field, one) in enumerate(plugins):
        if any(_same_files(one, other) for _, other in plugins[:number]):
            found = f"`{one.kind}` is there already, and its files would have the same names"
            yield field, f"{found}: leave one out"
    for number, figure in enumerate(report.figures):
        if axes and figure.across is not None and figure.across not in axes:
            found = f"`{figure.kind}` needs the axis `{figure.across}`, which no score here has"
            yield f"figures.{number}", f"{found}: {figure.across_hint}, or leave it out"
    scores = list(scores)
    metrics: list[Made] = [metric for score in scores for metric in score.metrics]
    metrics += harnesses
    if not metrics:
        return
    for field, one in _plugins(report):
        written = _written(one)
        for metric in written:
            if (what := unmade(metric, metrics)) is not None:
                yield field, f"`{metric}`: {what}"
        if not written and not _shows_any(one, metrics):
            shown = ", ".join(f"`{name}`" for name in list(one.reads())[:_NAMED])
            what = f"`{one.kind}` shows {shown}, which no score of this report makes"
            yield field, f"{what}: add it to `metrics`"
    if scores and not any(score.baseline for score in scores):
        for number, table in enumerate(report.tables):
            if table.needs_baseline:
                what = f"`{table.kind}` compares with a baseline, and no score has one"
                yield f"tables.{number}", f"{what}: add `baseline = {{ AXIS = VALUE }}` to it"


def unshown_metrics(cells: Mapping[str, Cell]) -> Iterator[str]:
    """Metrics that reports compute and no table or figure shows, one line for each score stage."""
    shown: dict[str, list[Table | Figure]] = {}
    stages: dict[str, ScoreStage] = {}
    for cell in cells.values():
        if isinstance(cell.stage, ReportStage):
            plugins = [one for _, one in _plugins(cell.stage)]
            for address in cell.resolution.inputs.get("scores", ()):
                stage = cells[address].stage
                if isinstance(stage, ScoreStage) and plugins != shown.get(stage.name):
                    stages[stage.name] = stage
                    shown[stage.name] = [*shown.get(stage.name, ()), *plugins]
    for name, stage in stages.items():
        unseen = [
            metric.kind
            for metric in stage.metrics
            if metric.kind in SCORES.shipped and not any(_shows(o, metric) for o in shown[name])
        ]
        if unseen:
            yield _unshown(unseen, name)
    yield from _unshown_numbers(cells)


def _unshown_numbers(cells: Mapping[str, Cell]) -> Iterator[str]:
    """The same for the numbers of harnesses, one line for each of them."""
    shown: dict[str, list[Table | Figure]] = {}
    harnesses: dict[str, Harness] = {}
    for cell in cells.values():
        if isinstance(cell.stage, ReportStage):
            for address in cell.resolution.inputs.get("scores", ()):
                read = cells[address].resolution
                if read.harness is not None:
                    harnesses[read.axes["harness"]] = read.harness
                    one = shown.setdefault(read.axes["harness"], [])
                    one += [p for _, p in _plugins(cell.stage) if p not in one]
    for name, harness in harnesses.items():
        named = [one for plugin in shown[name] for one in _shown_numbers(plugin)]
        unseen = [
            metric
            for metric in harness.names()
            if not any(one == "*" or pattern_of(metric).fullmatch(one) for one in named)
        ]
        if unseen:
            yield _unshown(unseen, name)


def _shown_numbers(one: Table | Figure) -> Sequence[str]:
    """Names of numbers that a table or figure shows; `*` for all."""
    is_own = one.kind not in {*TABLES.shipped, *FIGURES.shipped}
    if (is_own and not one.reads()) or (isinstance(one, Table) and one.shows_harnesses()):
        return ["*"]
    return list(one.reads())


def _unshown(unseen: Sequence[str], name: str) -> str:
    listed = ", ".join(f"`{kind}`" for kind in dict.fromkeys(unseen))
    return (
        f"no table or figure shows {listed} of `{name}`: name what to show, as in "
        f'`tables = [{{ kind = "main_results", metrics = ["{unseen[0]}"] }}]`'
    )


def _plugins(report: ReportStage) -> list[tuple[str, Table | Figure]]:
    return [
        *((f"tables.{number}", table) for number, table in enumerate(report.tables)),
        *((f"figures.{number}", figure) for number, figure in enumerate(report.figures)),
    ]


def _same_files(one: Table | Figure, other: Table | Figure) -> bool:
    """Whether one would replace the files of the other; metrics are not part of their names."""
    if type(one) is not type(other):
        return False
    apart = {"metrics"}
    return one.model_dump(exclude=apart) == other.model_dump(exclude=apart)


def _written(one: Table | Figure) -> Sequence[str]:
    """The metrics of scores that the manifest names for a table or figure."""
    if not one.reads():
        return ()
    found: list[str] = []
    for field in one.model_fields_set.intersection(_WRITTEN):
        value = getattr(one, field)
        found += [value] if isinstance(value, str) else value or ()
    return found


def _shows(one: Table | Figure, metric: Score) -> bool:
    """Whether it shows a metric; a plug-in that does not say what it reads may show any."""
    more = one.also_shows() if isinstance(one, Figure) else ()
    if not one.reads():
        return one.kind not in {*TABLES.shipped, *FIGURES.shipped}
    return any(metric.makes(name) for name in (*one.reads(), *more))


def _shows_any(one: Table | Figure, metrics: Collection[Made]) -> bool:
    """Whether it shows one of these metrics, or needs none."""
    read = one.reads()
    if isinstance(one, Table) and one.shows_harnesses():
        return True
    return not read or any(metric.makes(name) for metric in metrics for name in read)


def unmade(name: str, made: Collection[Made], reader: str = "report") -> str | None:
    """What is wrong with a metric that no score makes; None if one makes it."""
    own = name.partition(JUDGED_BY)[0]
    if any(isinstance(one, Harness) and one.makes(name) for one in made):
        return None
    metrics = [one for one in made if not isinstance(one, Harness)]
    if any(metric.makes(own) or metric.kind not in SCORES.shipped for metric in metrics):
        return None  # a plug-in may make any
    kinds = SCORES.kinds()
    numbers = [n for one in made if isinstance(one, Harness) for n in one.names() if "*" not in n]
    known = {*METRIC_NAMES, *kinds, *(metric.kind for metric in metrics), *numbers}
    if own in known or "@" in own:
        return f"no score of this {reader} makes it: add it to `metrics` of the score stage"
    return f"no metric has this name; {nearest(own, known)}"
