"""`mbt help`: the documentation, inside the product and offline."""

import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.cli.root import Group


def complete_manifest(incomplete: str) -> list[str]:
    """Manifests here, in manifests/ and in the folder that is typed; else those that mbt ships."""
    from mbt_cli.cli.completion import manifests

    return manifests(incomplete)


def complete_only(ctx: typer.Context, incomplete: str) -> list[str]:
    """Stages, cell addresses, and axes in any order; stages alone while the manifest is wrong."""
    from mbt_cli.cli.completion import hints_of, only_steps, stages_of, typed_line

    line = typed_line(ctx)
    return only_steps(hints_of(line).cells or stages_of(line), incomplete)


def complete_set(ctx: typer.Context, incomplete: str) -> list[str]:
    """Keys part by part, then the value that a key has and those that it may have."""
    from mbt_cli.cli.completion import hints_of, set_steps, typed_line

    return set_steps(hints_of(typed_line(ctx)).keys, incomplete)


def complete_table(ctx: typer.Context) -> list[str]:
    """Tables of the manifest's report stages."""
    from mbt_cli.cli.completion import hints_of, typed_line

    return list(hints_of(typed_line(ctx)).tables)


def complete_model(ctx: typer.Context) -> list[str]:
    """Models of the manifest."""
    from mbt_cli.cli.completion import hints_of, typed_line

    return list(hints_of(typed_line(ctx)).models)


def complete_benchmark(ctx: typer.Context) -> list[str]:
    """Benchmarks of the manifest."""
    from mbt_cli.cli.completion import hints_of, typed_line

    return list(hints_of(typed_line(ctx)).benchmarks)


def complete_cluster(ctx: typer.Context) -> list[str]:
    """Presets of clusters."""
    from mbt_cli.cli.completion import presets_of, typed_line

    return list(presets_of(typed_line(ctx)).names("slurm"))


def complete_model_preset(ctx: typer.Context) -> list[str]:
    """Presets of models."""
    from mbt_cli.cli.completion import presets_of, typed_line

    return list(presets_of(typed_line(ctx)).names("models"))


def complete_topic() -> list[str]:
    """Topics of `mbt help`."""
    from mbt_cli.cli.completion import topics

    return topics()


def complete_study() -> list[str]:
    """Studies in the runs folder."""
    from mbt_cli.cli.completion import studies

    return studies()


def complete_cell_folder(incomplete: str) -> list[str]:
    """Folders of artifacts, down to the cells."""
    from mbt_cli.cli.completion import cell_folders

    return cell_folders(incomplete)


def complete_study_path(incomplete: str) -> list[str]:
    """Manifests, and folders of artifacts."""
    from mbt_cli.cli.completion import cell_folders, manifests_here

    return [*manifests_here(incomplete), *cell_folders(incomplete)]


ManifestPath = Annotated[
    Path,
    typer.Argument(
        help="The study's manifest.", show_default=False, autocompletion=complete_manifest
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Cells to take: STAGE/axis=GLOB..., repeatable; a leading `!` leaves cells out.",
        metavar="CELLS",
        autocompletion=complete_only,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a key, as in `stage.base.samples=8`.",
        metavar="KEY=VALUE",
        autocompletion=complete_set,
    ),
]
Presets = Annotated[Path | None, typer.Option(help="Folder with presets that win over all others.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show cells, requests and prompts; do nothing.")
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Make stale cells again; the old ones move aside.")
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Ask again for rows that failed.")
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        help="Ask this share of the requests alone; `mbt merge` makes the rows.",
        metavar="N/OF",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only errors and results.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Every detail.")]


KindOption = Annotated[
    str | None,
    typer.Option(help="Where the model runs: embedded, gpu, cluster or api.", metavar="KIND"),
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="A preset, or the endpoint's name for the model.",
        autocompletion=complete_model_preset,
    ),
]


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("study.toml"),
    kind: KindOption = None,
    name: Annotated[str | None, typer.Option(help="The study's name; else the file's.")] = None,
    model: ModelOption = None,
    benchmark: Annotated[
        str | None, typer.Option(help="A benchmark, or your file's layout.")
    ] = None,
    questions: Annotated[str | None, typer.Option(help="Your file: JSON lines, JSON.")] = None,
    base_url: Annotated[str | None, typer.Option(help="api: its address, with /v1.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="api: NAME of the key's variable.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    presets: Presets = None,
) -> None:
    """Write a commented manifest from a few answers or flags, and say what to type next."""
    from mbt_cli.cli.init import (
        Wishes,
        answers_of,
        asked,
        next_commands,
        refuse_existing,
        write_study,
    )
    from mbt_cli.manifest.presets import PresetFolders
    from mbt_cli.settings import read_machine

    refuse_existing(path)
    kind = kind or ("embedded" if yes else "")
    told = Wishes(kind, name or path.stem, model, benchmark, questions, base_url, api_key_env)
    if not yes and typer.get_text_stream("stdin").isatty():
        told = asked(told)
    machine = read_machine()
    folders = PresetFolders.usual(extra=presets or machine.presets, config=machine.config)
    answers = answers_of(told, folders)
    write_study(path, answers, folders)
    typer.echo(f"written: {path}\n\nnext:")
    for line in next_commands(path, answers, machine.environment):
        typer.echo(f"  {line}")


def doctor(
    manifest: Annotated[
        Path | None,
        typer.Argument(
            help="A study to look at too.", show_default=False, autocompletion=complete_manifest
        ),
    ] = None,
    replies: Annotated[
        bool, typer.Option("--replies", help="Start servers that take long, too, and ask them.")
    ] = False,
    stop_orphans: Annotated[
        bool, typer.Option("--stop-orphans", help="End servers that mbt left behind, only that.")
    ] = False,
    as_json: AsJson = False,
    overrides: Set = None,
    presets: Presets = None,
) -> None:
    """Look at this machine, and at what a study needs beside what is here: a line each."""
    from mbt_cli.cli.doctor import (
        findings_json,
        looking,
        machine_findings,
        manifest_findings,
        opened,
        print_findings,
        stopped_words,
    )
    from mbt_cli.cli.manifests import open_manifest
    from mbt_cli.cli.orphans import stop_orphans as stop_all
    from mbt_cli.settings import read_machine

    if stop_orphans:
        typer.echo(stopped_words(stop_all()))
        return
    machine = read_machine()
    study, problems = opened(manifest, lambda path: open_manifest(path, overrides, presets)[0])
    with looking() as look:
        found = [*look(machine_findings(machine, study)), *problems]
        if study is not None:
            found += look(manifest_findings(study, machine, starts_servers=replies))
    if as_json:
        typer.echo(findings_json(found))
    else:
        print_findings(found)
    if any(finding.state == "broken" for finding in found):
        raise typer.Exit(1)


def check(
    manifests: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Manifests to check.", show_default=False, autocompletion=complete_manifest
        ),
    ] = None,
    overrides: Set = None,
    presets: Presets = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of manifests instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check manifests and count their cells, without running anything."""
    from mbt_cli.cli.doctor_study import notes
    from mbt_cli.cli.manifests import open_manifest
    from mbt_cli.cli.printing import printer
    from mbt_cli.cli.run import checked_json, stage_counts
    from mbt_cli.errors import UsageError
    from mbt_cli.manifest.json_schema import schema_text

    if schema:
        typer.echo(schema_text())
        return
    if not manifests:
        raise UsageError("no manifest named", hint="mbt check manifests/quickstart.toml")
    for path in manifests:
        manifest, machine = open_manifest(path, overrides, presets)
        if as_json:
            typer.echo(checked_json(manifest))
        else:
            printer().print(stage_counts(manifest, notes(manifest, machine.environment)))


VERBS: Mapping[str, str] = {
    "rollout": "Ask models every question.",
    "synthesize": "Have a teacher write solutions and traces.",
    "rewrite": "Have a teacher rewrite students' traces.",
    "judge": "Ask a judge model for a verdict on every rollout.",
    "score": "Compute metrics with intervals and paired differences.",
}


def run(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    dry_run: DryRun = False,
    replace: Replace = False,
    retry_failed: RetryFailed = False,
    shard: ShardOf = None,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run every stage in order, on this machine; what is done is not done again."""
    from mbt_cli.cli.run import Told, run_cells, shard_of

    part = shard_of(shard)
    told = Told(
        *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose, part),
        as_json=as_json,
    )
    run_cells(manifest, None, told)


def stage_verb(kind: str) -> Callable[..., None]:
    """The command that runs the stages of one kind."""

    def verb(
        manifest: ManifestPath,
        only: Only = None,
        overrides: Set = None,
        dry_run: DryRun = False,
        replace: Replace = False,
        retry_failed: RetryFailed = False,
        presets: Presets = None,
        quiet: Quiet = False,
        verbose: Verbose = False,
        as_json: AsJson = False,
    ) -> None:
        from mbt_cli.cli.run import Told, run_cells

        told = Told(
            *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose),
            as_json=as_json,
        )
        run_cells(manifest, kind, told)

    return verb


ShowSample = Annotated[
    bool,
    typer.Option(
        "--show-sample",
        help="Train nothing: show a row of each training set, trained tokens highlighted.",
    ),
]


def train(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    show_sample: ShowSample = False,
    dry_run: DryRun = False,
    replace: Replace = False,
    retry_failed: RetryFailed = False,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Train models on rollouts, traces or rewards."""
    from mbt_cli.cli.run import Told, run_cells
    from mbt_cli.cli.train import show_samples

    told = Told(
        *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose),
        as_json=as_json,
    )
    if show_sample:
        show_samples(manifest, told)
    else:
        run_cells(manifest, "train", told)


Trace = Annotated[
    tuple[str, str, str] | None,
    typer.Option(
        metavar="TABLE ROW COLUMN",
        autocompletion=complete_table,
        help="Tell what is behind a number of a finished report: its cell, lineage and raw "
        "rows. ROW is a number from 1, or labels of the row with / between them.",
    ),
]


def report(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    dry_run: DryRun = False,
    replace: Replace = False,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    trace: Trace = None,
) -> None:
    """Make the paper's tables and figures, and a page to read them and the traces on."""
    if trace is None:
        from mbt_cli.cli.run import Told, run_cells

        told = Told(
            *(only, overrides, dry_run, replace, False, presets, quiet, verbose), as_json=as_json
        )
        run_cells(manifest, "report", told)
        return
    from mbt_cli.cli.manifests import open_manifest
    from mbt_cli.cli.printing import printer
    from mbt_cli.cli.report import number_views
    from mbt_cli.engine.select import select
    from mbt_cli.store.cells import cell_folder

    found, machine = open_manifest(manifest, overrides, presets)
    folders = [
        cell_folder(machine.runs, found.study, address)
        for address in select(found, kind="report", only=only or ())
    ]
    out = printer()
    for view in number_views(folders, machine.runs / found.study, *trace):
        out.print(view)


def view(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A manifest, a folder of a study, or a page; else the newest report.",
            autocompletion=complete_study_path,
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it on this machine until Ctrl-C, open nothing.")
    ] = False,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show traces here instead of the page.")
    ] = False,
    question: Annotated[
        str | None, typer.Option(help="With --terminal: this question only.", metavar="ID")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="With --terminal: traces of each rollout cell.")
    ] = 3,
) -> None:
    """Open the report of a study in a browser, or read its traces on the terminal."""
    if terminal:
        from mbt_cli.cli.view import show_traces

        show_traces(path, question, limit)
        return
    from mbt_cli.cli.view import find_page, open_page, serve_page

    page = find_page(path)
    if serve:
        serve_page(page)
    open_page(page)


_SHOWN_WHOLE = 2
"""Cells that are shown with all that made them; of more, a line each."""

StudyPath = Annotated[
    Path,
    typer.Argument(
        help="Folder of a cell or of a stage; or a manifest: how its models are served.",
        autocompletion=complete_study_path,
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read every byte and compare it with the lineage.")
]
Prompt = Annotated[
    str | None,
    typer.Option(help="Show what was sent for a question, and the reply.", metavar="QUESTION_ID"),
]


def show(
    path: StudyPath,
    verify: Verify = False,
    prompt: Prompt = None,
    as_json: AsJson = False,
) -> None:
    """Show what made an artifact: model, prompt, data and code, back to the questions."""
    from mbt_cli.cli.printing import printer
    from mbt_cli.cli.show import (
        cells_below,
        cells_view,
        lineage_json_of,
        lineage_view,
        prompt_view,
        served_json,
        served_view,
        verified,
    )
    from mbt_cli.manifest.presets import manifest_file

    out = printer()
    if path.suffix == ".toml" or manifest_file(path) != path:
        if as_json:
            typer.echo(served_json(path))
        else:
            out.print(served_view(path))
        return
    folders = cells_below(path)
    if len(folders) > _SHOWN_WHOLE and not (as_json or verify or prompt):
        out.print(cells_view(folders))
        return
    if as_json and prompt is None:
        told = [lineage_json_of(folder) for folder in folders]
        typer.echo(told[0] if folders == [path] else f"[{','.join(told)}]")
        return
    for folder in folders:
        if prompt is not None:
            out.print(prompt_view(folder, prompt))
            continue
        out.print(lineage_view(folder))
        if verify:
            out.print(verified(folder))


AnyManifest = Annotated[
    Path | None,
    typer.Argument(
        help="The study's manifest.", show_default=False, autocompletion=complete_manifest
    ),
]
MaxCells = Annotated[int, typer.Option(min=1, help="Cells a job may hold.")]
MaxHours = Annotated[float, typer.Option(min=0.1, help="Hours a job may take, by the estimate.")]
MaxRows = Annotated[
    int, typer.Option(min=1, help="Rows of a cell above which it is split into an array.")
]
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of plans instead.")]


def plan(
    manifest: AnyManifest = None,
    only: Only = None,
    overrides: Set = None,
    as_json: AsJson = False,
    replace: Replace = False,
    max_cells: MaxCells = 24,
    max_hours: MaxHours = 12.0,
    max_rows: MaxRows = 100_000,
    presets: Presets = None,
    schema: Schema = False,
) -> None:
    """Show what is left to do, job by job: a table, or JSON in a pipe for `mbt submit`.

    `--only` plans those cells and what they need that is not made yet.
    """
    from mbt_cli.cli.manifests import open_manifest
    from mbt_cli.cli.plan import print_plan
    from mbt_cli.engine.plan import Limits, PlanOptions, make_plan, plan_json, plan_schema
    from mbt_cli.engine.states import States
    from mbt_cli.errors import UsageError

    if schema:
        typer.echo(plan_schema(), nl=False)
        return
    if manifest is None:
        raise UsageError("no manifest named", hint="mbt plan manifests/paper.toml")
    opened, machine = open_manifest(manifest, overrides, presets)
    options = PlanOptions(
        Limits(max_cells, max_hours, max_rows), only or (), overrides or (), presets, replace
    )
    made = make_plan(opened, States(opened, machine.runs), options)
    if as_json or not typer.get_text_stream("stdout").isatty():
        typer.echo(plan_json(made), nl=False)
    else:
        print_plan(made)


def submit(
    plan: Annotated[
        Path | None, typer.Argument(help="A plan; left out, stdin.", show_default=False)
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Hand the jobs to sbatch.")] = False,
    local: Annotated[
        int | None,
        typer.Option("--local", min=1, help="Run them on this machine, N at once.", metavar="N"),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(help="Cluster: a file in presets/slurm/.", autocompletion=complete_cluster),
    ] = "paper",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print each script; submit nothing.")
    ] = False,
    script_dir: Annotated[
        Path | None,
        typer.Option(
            help="Write the scripts and their copy of the manifest there; submit nothing."
        ),
    ] = None,
    presets: Presets = None,
) -> None:
    """Submit the jobs of a plan: `mbt plan MANIFEST | mbt submit --slurm`."""
    from mbt_cli.cli.submit import Told, submit_plan
    from mbt_cli.errors import UsageError

    if slurm == (local is not None):
        raise UsageError(
            "say one place to run: `--slurm` or `--local N`",
            hint="mbt plan MANIFEST | mbt submit --slurm",
        )
    stream = typer.get_text_stream("stdin")
    if plan is None and stream.isatty():
        raise UsageError("no plan on stdin", hint="mbt plan MANIFEST | mbt submit --slurm")
    where = "stdin" if plan is None else f"`{plan}`"
    if plan is not None and not plan.is_file():
        raise UsageError(f"no file `{plan}`", hint="mbt plan MANIFEST --json > plan.json")
    text = stream.read() if plan is None else plan.read_text(encoding="utf-8")
    submit_plan(text, where, Told(local, preset, dry_run, script_dir, presets))


def merge(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    replace: Replace = False,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Make the rows of cells whose shards have all run; asks nothing."""
    from mbt_cli.cli.manifests import open_manifest
    from mbt_cli.cli.run import Told, run_cells
    from mbt_cli.engine.merging import refuse_unasked
    from mbt_cli.engine.select import select

    opened, machine = open_manifest(manifest, overrides, presets)
    refuse_unasked(opened, machine, select(opened, kind=None, only=only or ()))
    told = Told(only, overrides, False, replace, False, presets, quiet, verbose, as_json=as_json)
    run_cells(manifest, None, told)


def status(
    study: Annotated[
        str | None,
        typer.Argument(
            help="A study's name or manifest; left out, all that were submitted.",
            autocompletion=complete_study,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every few seconds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which cells are done, running, waiting or failed, and why."""
    from mbt_cli.cli.manifests import study_named
    from mbt_cli.cli.status import print_status, watch_status
    from mbt_cli.engine.status import status_json, study_status
    from mbt_cli.engine.submit import studies_with_submissions
    from mbt_cli.errors import UsageError
    from mbt_cli.settings import read_machine

    machine = read_machine()
    studies = [study_named(study)] if study else studies_with_submissions(machine.runs)
    if not studies:
        raise UsageError(
            f"nothing was submitted from `{machine.runs}`",
            hint="mbt plan MANIFEST | mbt submit --slurm",
        )
    if watch:
        watch_status(machine.runs, studies)
        return
    for name in studies:
        found = study_status(machine.runs, name)
        if as_json:
            typer.echo(status_json(found), nl=False)
        else:
            print_status(found)


_LOOK_SECONDS = 0.5
_PIECE_BYTES = 65_536


def logs(
    cell: Annotated[str, typer.Argument(help="STAGE/axis=GLOB..., or the id of a job.")],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on printing what is written.")
    ] = False,
    study: Annotated[str | None, typer.Option(help="Name of the study, if there are more.")] = None,
) -> None:
    """Print the newest log of a submitted cell."""
    from mbt_cli.engine.status import log_file
    from mbt_cli.settings import read_machine

    path = log_file(read_machine().runs, study, cell)
    typer.echo(f"==> {path}", err=True)
    place = _print_from(path, 0)
    while follow:
        time.sleep(_LOOK_SECONDS)
        place = _print_from(path, place)


def _print_from(path: Path, place: int) -> int:
    with path.open("rb") as file:
        file.seek(place)
        while piece := file.read(_PIECE_BYTES):
            typer.echo(piece.decode(errors="replace"), nl=False)
        return file.tell()


def cancel(
    study: Annotated[
        str, typer.Argument(help="The study's name or manifest.", autocompletion=complete_study)
    ],
    only: Only = None,
) -> None:
    """Cancel a study's queued and running jobs; every reply that has arrived is kept."""
    from mbt_cli.cli.manifests import study_named
    from mbt_cli.engine.status import jobs_to_cancel
    from mbt_cli.launchers.slurm import cancel as cancel_jobs
    from mbt_cli.settings import read_machine

    jobs = jobs_to_cancel(read_machine().runs, study_named(study), only or ())
    if not jobs:
        typer.echo("nothing to cancel: no job of that is queued or running")
        return
    cancel_jobs(jobs)
    typer.echo(f"cancelled {len(jobs)} jobs: {', '.join(jobs)}")


def compare(
    first: Annotated[
        str,
        typer.Argument(
            help="Cell folder or glob, such as `runs/x/scores/*`.",
            autocompletion=complete_cell_folder,
        ),
    ],
    second: Annotated[
        str, typer.Argument(help="What it is compared with.", autocompletion=complete_cell_folder)
    ],
    show: Annotated[int, typer.Option(help="Questions that differ most to show.")] = 0,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.", min=100)] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare cells paired by question: differences, intervals, p values, who alone was right.

    Two judge cells over the same rollouts: Cohen's kappa and the confusion table.
    """
    from mbt_cli.cli.compare import (
        agreement_json,
        agreement_view,
        cells_of,
        comparison_json,
        comparison_view,
    )
    from mbt_cli.cli.printing import printer
    from mbt_cli.engine.compare import agreement, are_verdicts, compared, pairs

    out = printer()
    for left, right in pairs(cells_of(first), cells_of(second)):
        if are_verdicts(left, right):
            agreed = agreement(left, right)
            if as_json:
                typer.echo(agreement_json(left, right, agreed))
            else:
                out.print(agreement_view(left, right, agreed))
            continue
        comparison = compared(left, right, resamples=resamples, seed=seed)
        if as_json:
            typer.echo(comparison_json(left, right, comparison))
        else:
            out.print(comparison_view(Path(left), Path(right), comparison, show))


data = typer.Typer(
    cls=Group, no_args_is_help=True, help="Get models and data sets, and see what is here."
)


@data.command("fetch")
def fetch(
    manifest: ManifestPath,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this model, repeatable.", metavar="NAME", autocompletion=complete_model
        ),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this benchmark, repeatable.",
            metavar="NAME",
            autocompletion=complete_benchmark,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell sizes; fetch nothing.")] = False,
    overrides: Set = None,
    presets: Presets = None,
) -> None:
    """Get every model and data set that a manifest names into the local caches."""
    from mbt_cli.cli.data import needs_view
    from mbt_cli.cli.manifests import open_manifest
    from mbt_cli.cli.printing import printer
    from mbt_cli.engine.fetch import fetch_all, missing_error, needed_by, stock_of

    found, machine = open_manifest(manifest, overrides, presets)
    needed = needed_by(found, machine, models=model or (), benchmarks=benchmark or ())
    out = printer()
    out.print(needs_view([(one, stock_of(one, machine)) for one in needed]))
    if dry_run:
        return
    results = []
    for result in fetch_all(needed, machine, lambda one: out.print(f"{one.name}: {one.what}")):
        results.append(result)
        out.print(f"  here: {result.path}" if result.error is None else "  could not be fetched")
    if error := missing_error(results):
        raise error


@data.command("ls")
def ls(as_json: AsJson = False) -> None:
    """Show the models and data sets that are on this machine."""
    from mbt_cli.cli.data import stock_json, stock_view
    from mbt_cli.cli.printing import printer
    from mbt_cli.settings import read_machine

    machine = read_machine()
    if as_json:
        typer.echo(stock_json(machine))
    else:
        printer().print(stock_view(machine))


def export(
    stage: Annotated[
        Path,
        typer.Argument(
            help="Folder of a stage or cell: runs/STUDY/STAGE.", autocompletion=complete_cell_folder
        ),
    ],
    to: Annotated[str, typer.Option(help="hub:ORG/NAME, or a new folder.", show_default=False)],
    write: Annotated[
        bool, typer.Option("--write", help="Do it; left out, only tell what would be written.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository for all to see.")
    ] = False,
) -> None:
    """Write a stage as Parquet shards with a data card, into a folder or to the hub.

    A train cell becomes a model repository: its checkpoint, adapters merged, with a model card.
    """
    from mbt_cli.cli.show import cells_below
    from mbt_cli.engine.export import card_of, card_of_model, export_model, parts_of, refused
    from mbt_cli.engine.export import export as write_out
    from mbt_cli.engine.runner import hub_access
    from mbt_cli.settings import read_machine
    from mbt_cli.store.reading import require_lineage

    cells = cells_below(stage)
    is_model = len(cells) == 1 and require_lineage(cells[0]).kind == "train"
    parts = [] if is_model else parts_of(cells)
    access = hub_access(read_machine())
    if not write:
        seen = "for all to see" if public else "private"
        typer.echo(card_of_model(cells[0]) if is_model else card_of(parts))
        typer.echo(f"nothing is written: `--write` writes this to {to} ({seen} if it is new)")
        if refusal := refused(to, access):
            typer.echo(f"`--write` would be refused: {refusal}", err=True)
        return
    if is_model:
        where = export_model(cells[0], to, access, private=not public)
    else:
        where = write_out(parts, to, access, private=not public)
    typer.echo(f"written: {where}")


_NOTHING_LEFT = "no process of the server is left"

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a key of the model, as in `serve.max_model_len=4096`.",
        metavar="KEY=VALUE",
    ),
]


def serve(
    preset: Annotated[
        str,
        typer.Argument(
            help="Name of a file in presets/models/.", autocompletion=complete_model_preset
        ),
    ],
    overrides: Overrides = None,
    port: Annotated[
        int | None, typer.Option(help="Left out, a free one is found.", min=1, max=65535)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show what the server prints.")
    ] = False,
    presets: Presets = None,
) -> None:
    """Start a model preset's server, print its endpoint, and keep it until Ctrl-C."""
    from mbt_cli.cli import serve
    from mbt_cli.cli.serve import how_to_ask
    from mbt_cli.cli.signals import raising_stopped
    from mbt_cli.manifest.presets import PresetFolders
    from mbt_cli.settings import read_machine

    machine = read_machine()
    folders = PresetFolders.usual(extra=presets or machine.presets, config=machine.config)
    model = serve.preset_model(preset, overrides or (), folders)
    key = serve.chosen_key(machine.environment, is_shown=serve.can_show_key())
    place = serve.serving_place(machine, model, port, key)
    follow = serve.following(place.log, sys.stderr) if verbose else nullcontext()
    with raising_stopped(signal.SIGTERM, left=_NOTHING_LEFT):
        typer.echo(f"starting {preset} ({model.backend.kind}); its log: {place.log}", err=True)
        with follow, serve.served(model, place) as endpoint:
            typer.echo(f"base_url: {endpoint.base_url}\nmodel: {endpoint.model}")
            typer.echo(how_to_ask(endpoint, shows_key=key is None), err=True)
            serve.wait_for_end(endpoint)
    typer.echo(f"stopped; {_NOTHING_LEFT}", err=True)


def help_topic(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="A topic, a table of the manifest, a metric or a command.",
            autocompletion=complete_topic,
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Argument(help="One section of it, as in `mbt help manifest rollout`.")
    ] = None,
) -> None:
    """Explain a topic: manifest, metrics, data, paper, troubleshooting, ...; alone, list them."""
    from mbt_cli.cli.help import found, overview, show, topics

    if topic is None:
        typer.echo(overview())
        return
    verbs = getattr(context.find_root().command, "commands", {})
    if part is None and topic in verbs and topic not in topics():
        told = typer.Context(verbs[topic], info_name=f"mbt {topic}")
        typer.echo(f"{verbs[topic].get_help(told)}\n")
    show(found(topic, part, commands=verbs))
