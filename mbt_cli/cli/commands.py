"""The command line: every verb with its options, and nothing heavy.

`mbt --help` and tab completion read this file alone. The work of a verb is in the file of its
name in this folder and is imported when the verb is called: the only imports inside functions.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mbt_cli.cli.completion import (
    complete_benchmark,
    complete_cell_folder,
    complete_cluster,
    complete_layout,
    complete_manifest,
    complete_model,
    complete_model_preset,
    complete_only,
    complete_part,
    complete_place,
    complete_set,
    complete_study,
    complete_study_path,
    complete_table,
    complete_topic,
)
from mbt_cli.cli.root import Group, root
from mbt_cli.errors import UsageError

ManifestPath = Annotated[
    Path,
    typer.Argument(
        help="The study's manifest.", show_default=False, autocompletion=complete_manifest
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Only these cells: STAGE/axis=GLOB..., repeatable; a leading `!` excludes cells.",
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
Presets = Annotated[
    Path | None, typer.Option(help="Folder whose presets take precedence over all others.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show cells, requests and prompts; run nothing.")
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Rerun stale cells; the old artifacts are kept aside.")
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Send the requests of failed rows again.")
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Take no replies to equal requests from other cells.")
]
KeepGoing = Annotated[
    bool,
    typer.Option("--keep-going", help="After a cell that fails, make the others that can be made."),
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        help="Send only this share of the requests; `mbt merge` then writes the rows.",
        metavar="N/OF",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors and results only.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print every detail.")]


def _exclude(option: str, others: Mapping[str, bool]) -> None:
    """Refuse options that would be ignored beside this one."""
    for other, is_given in others.items():
        if is_given:
            raise UsageError(f"`{option}` and `{other}` exclude each other", hint="leave one out")


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("study.toml"),
    kind: Annotated[
        str | None,
        typer.Option(
            help="Where the model runs: embedded, gpu, cluster or api.",
            metavar="KIND",
            autocompletion=complete_place,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the study; default: the file's name.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model preset, or the model's name at the endpoint.",
            autocompletion=complete_model_preset,
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="A benchmark, or the layout of your file.", autocompletion=complete_layout
        ),
    ] = None,
    questions: Annotated[
        str | None, typer.Option(help="Your file: CSV, JSON lines, JSON or Parquet.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="For api: address of the endpoint, with /v1.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="For api: NAME of the variable that holds the key.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    presets: Presets = None,
) -> None:
    """Write a commented manifest from a few answers or flags, and print the next commands."""
    from mbt_cli.cli import init

    options = init.InitOptions(
        kind or ("embedded" if yes else ""),
        *(name or path.stem, model, benchmark, questions, base_url, api_key_env),
    )
    init.write_first_study(path, options, presets, is_asking=not yes)


def doctor(
    manifest: Annotated[
        Path | None,
        typer.Argument(
            help="A study to check too.", show_default=False, autocompletion=complete_manifest
        ),
    ] = None,
    replies: Annotated[
        bool, typer.Option("--replies", help="Request a reply from slow-starting servers too.")
    ] = False,
    stop_orphans: Annotated[
        bool, typer.Option("--stop-orphans", help="Only stop servers that mbt left behind.")
    ] = False,
    launcher: Annotated[
        str | None,
        typer.Option(
            help="Only check a launcher, and print the rights that it needs.", metavar="KIND"
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Settings of the cluster that --launcher means.", metavar="NAME"),
    ] = None,
    as_json: AsJson = False,
    overrides: Set = None,
    presets: Presets = None,
) -> None:
    """Check that this machine can run a study: one line per finding."""
    from mbt_cli.cli import doctor

    if launcher is not None:
        doctor.examine_launcher(launcher, preset, presets)
        return
    if stop_orphans:
        doctor.stop_orphaned_servers()
        return
    doctor.examine(manifest, overrides, presets, starts_servers=replies, as_json=as_json)


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
        bool, typer.Option("--schema", help="Print the JSON Schema of manifests.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check manifests and count their cells, without running anything."""
    from mbt_cli.cli import check

    if schema:
        check.print_schema(manifests or ())
    else:
        check.check(manifests or (), overrides, presets, as_json=as_json)


def run(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    dry_run: DryRun = False,
    replace: Replace = False,
    retry_failed: RetryFailed = False,
    no_cache: NoCache = False,
    keep_going: KeepGoing = False,
    shard: ShardOf = None,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run every stage on this machine, inputs first; finished cells are skipped."""
    from mbt_cli.cli.run import CommandOptions, run_cells

    options = CommandOptions(
        *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose, as_json),
        no_cache=no_cache,
        shard=shard,
        keep_going=keep_going,
    )
    run_cells(manifest, None, options)


def watch(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", help="Use these GPUs alone, such as 6,7.", metavar="LIST"),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            "--until", help="End at this step of a source of checkpoints.", metavar="STEP", min=1
        ),
    ] = None,
    replace: Replace = False,
    retry_failed: RetryFailed = False,
    no_cache: NoCache = False,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate the checkpoints of a training as they appear, until it has ended."""
    from mbt_cli.cli.run import CommandOptions
    from mbt_cli.cli.watch import watch_study

    options = CommandOptions(
        *(only, overrides, False, replace, retry_failed, presets, quiet, verbose, as_json),
        no_cache=no_cache,
    )
    watch_study(manifest, options, gpus=gpus, until=until)


def _stage_verb(kind: str, help_line: str) -> Callable[..., None]:
    """The command that runs the stages of one kind."""

    def verb(
        manifest: ManifestPath,
        only: Only = None,
        overrides: Set = None,
        dry_run: DryRun = False,
        replace: Replace = False,
        retry_failed: RetryFailed = False,
        no_cache: NoCache = False,
        presets: Presets = None,
        quiet: Quiet = False,
        verbose: Verbose = False,
        as_json: AsJson = False,
    ) -> None:
        from mbt_cli.cli.run import CommandOptions, run_cells

        options = CommandOptions(
            *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose, as_json),
            no_cache=no_cache,
        )
        run_cells(manifest, kind, options)

    verb.__doc__ = help_line
    return verb


def train(
    manifest: ManifestPath,
    only: Only = None,
    overrides: Set = None,
    show_sample: Annotated[
        bool,
        typer.Option(
            "--show-sample",
            help="Train nothing; show a row of each training set, trained tokens highlighted.",
        ),
    ] = False,
    dry_run: DryRun = False,
    replace: Replace = False,
    retry_failed: RetryFailed = False,
    presets: Presets = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Train models on rollouts, traces or rewards."""
    from mbt_cli.cli.run import CommandOptions, run_cells
    from mbt_cli.cli.train import show_training_samples

    options = CommandOptions(
        *(only, overrides, dry_run, replace, retry_failed, presets, quiet, verbose, as_json)
    )
    if show_sample:
        show_training_samples(manifest, options)
    else:
        run_cells(manifest, "train", options)


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
    trace: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            metavar="TABLE ROW COLUMN",
            autocompletion=complete_table,
            help="Show the data behind a number of a finished report: its cell, lineage and raw "
            "rows. ROW is a number from 1, or the row's labels joined by /.",
        ),
    ] = None,
) -> None:
    """Make the paper's tables and figures, and a page with both and the traces."""
    from mbt_cli.cli.report import trace_number
    from mbt_cli.cli.run import CommandOptions, run_cells

    if trace is not None:
        _exclude("--trace", {"--json": as_json, "--dry-run": dry_run, "--replace": replace})
        trace_number(manifest, only, overrides, presets, trace)
        return
    options = CommandOptions(
        *(only, overrides, dry_run, replace, False, presets, quiet, verbose, as_json)
    )
    run_cells(manifest, "report", options)


def view(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A manifest, the folder of a study or of several, or a page; default: all runs.",
            autocompletion=complete_study_path,
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it on this machine until Ctrl-C.")
    ] = False,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Print traces here instead of opening the page.")
    ] = False,
    question: Annotated[
        str | None, typer.Option(help="With --terminal: only this question.", metavar="ID")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="With --terminal: traces per rollout cell.")
    ] = 3,
) -> None:
    """Open a study's report, or the list of several, in a browser; or print traces."""
    from mbt_cli.cli import view

    if terminal:
        _exclude("--terminal", {"--serve": serve})
    elif question is not None:
        hint = "add `--terminal`; on the page, search for the id"
        raise UsageError("`--question` prints traces here, and needs `--terminal`", hint=hint)
    if terminal:
        view.print_traces(path, question, limit)
    else:
        view.view_page(path, is_served=serve)


def studio(
    folder: Annotated[
        Path, typer.Argument(help="Folder of your manifests; default: this one.")
    ] = Path(),
    port: Annotated[
        int | None, typer.Option(help="Default: a free port.", min=1, max=65535)
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the link; open no browser.")
    ] = False,
) -> None:
    """Write, check, run, watch and compare studies in the browser, on this machine alone."""
    from mbt_cli.cli.studio.server import serve_studio

    serve_studio(folder, port, opens=not no_open)


def show(
    path: Annotated[
        Path,
        typer.Argument(
            help="Folder of a cell or stage; or a manifest, to show how its models are served.",
            autocompletion=complete_study_path,
        ),
    ],
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare every byte with its lineage, back to the questions.",
        ),
    ] = False,
    prompt: Annotated[
        str | None,
        typer.Option(help="Show the prompt and the reply of this question.", metavar="QUESTION_ID"),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With `--prompt`: show this step of a program, from 0, instead of its answer.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what made an artifact: model, prompt, data and code, back to the questions."""
    from mbt_cli.cli import show

    show.show(path, verify=verify, prompt=prompt, step=step, as_json=as_json)


def plan(
    manifest: Annotated[
        Path | None,
        typer.Argument(
            help="The study's manifest.", show_default=False, autocompletion=complete_manifest
        ),
    ] = None,
    only: Only = None,
    overrides: Set = None,
    as_json: AsJson = False,
    replace: Replace = False,
    max_cells: Annotated[int, typer.Option(min=1, help="Maximum cells per job.")] = 24,
    max_hours: Annotated[float, typer.Option(min=0.1, help="Maximum estimated hours per job.")] = (
        12.0
    ),
    max_rows: Annotated[
        int, typer.Option(min=1, help="Cells with more rows are split into a job array.")
    ] = 100_000,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings of the cluster, hosts or clouds on whose GPUs models are placed: a file "
            "in presets/slurm/, presets/ssh/, presets/skypilot/ or presets/sagemaker/. Default: "
            "this machine's GPUs.",
            autocompletion=complete_cluster,
            show_default=False,
        ),
    ] = None,
    presets: Presets = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of plans.")] = (
        False
    ),
) -> None:
    """Show the work that is left, job by job: a table, or JSON in a pipe for `mbt submit`.

    `--only` plans those cells and the missing cells that they need.
    """
    from mbt_cli.cli import plan

    if schema:
        plan.print_schema()
        return
    plan.plan(
        *(manifest, only, overrides, presets),
        as_json=as_json,
        replace=replace,
        max_cells=max_cells,
        max_hours=max_hours,
        max_rows=max_rows,
        on=preset,
    )


def submit(
    plan: Annotated[
        Path | None, typer.Argument(help="A plan; default: stdin.", show_default=False)
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Submit the jobs with sbatch.")] = False,
    ssh: Annotated[
        bool, typer.Option("--ssh", help="Run on hosts that share a folder, without a scheduler.")
    ] = False,
    skypilot: Annotated[
        bool, typer.Option("--sky", help="Run on clouds and Kubernetes, through SkyPilot.")
    ] = False,
    sagemaker: Annotated[
        str | None,
        typer.Option(
            "--sagemaker",
            help="Run as training jobs of SageMaker: a file in presets/sagemaker/.",
            metavar="PRESET",
            autocompletion=complete_cluster,
        ),
    ] = None,
    local: Annotated[
        int | None,
        typer.Option("--local", min=1, help="Run on this machine, N jobs at once.", metavar="N"),
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(help="Another launcher, by its name.", metavar="KIND")
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Settings of the cluster, hosts or clouds: a file in presets/slurm/, presets/ssh/ "
            "or presets/skypilot/.",
            autocompletion=complete_cluster,
        ),
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
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait while the queue takes no more jobs of yours.")
    ] = False,
    build: Annotated[
        bool, typer.Option("--build", help="With --sagemaker: build and push the image first.")
    ] = False,
    here: Annotated[
        bool,
        typer.Option("--here", help="With --sagemaker: run the same container on this machine."),
    ] = False,
    presets: Presets = None,
) -> None:
    """Submit the jobs of a plan: `mbt plan MANIFEST | mbt submit --slurm`."""
    from mbt_cli.cli import submit

    named = sum(one is not None for one in (local, launcher, sagemaker))
    if slurm + ssh + skypilot + named != 1:
        raise UsageError(
            "specify one place to run: `--slurm`, `--ssh`, `--sky`, `--sagemaker PRESET`, "
            "`--local N` or `--launcher KIND`",
            hint="mbt plan MANIFEST | mbt submit --slurm",
        )
    places = {"slurm": slurm, "ssh": ssh, "skypilot": skypilot, "sagemaker": sagemaker is not None}
    kind = launcher or next((name for name, chosen in places.items() if chosen), "local")
    option = "--sky" if skypilot else f"--{kind}"
    words = ["--launcher", kind] if launcher else [option]
    words += [str(local)] if local is not None else []
    words += [sagemaker] if sagemaker is not None else []
    submit.submit(
        *(plan, kind, words),
        at_once=local,
        preset=sagemaker or preset,
        build=build,
        here=here,
        dry_run=dry_run,
        script_dir=script_dir,
        wait=wait,
        presets=presets,
    )


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
    """Write the rows of cells whose shards have all run; sends no requests."""
    from mbt_cli.cli.run import CommandOptions, merge_shards

    options = CommandOptions(
        *(only, overrides, False, replace, False, presets, quiet, verbose, as_json)
    )
    merge_shards(manifest, options)


def status(
    study: Annotated[
        str | None,
        typer.Argument(
            help="A study's name or manifest; default: all studies.",
            autocompletion=complete_study,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every few seconds.")] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Print every submitted job as a Markdown table.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which cells are done, running, waiting or failed, and why."""
    from mbt_cli.cli import status

    if log:
        _exclude("--log", {"--watch": watch, "--json": as_json})
        status.print_job_log(study)
    else:
        status.status(study, watch=watch, as_json=as_json)


def logs(
    cell: Annotated[str, typer.Argument(help="STAGE/axis=GLOB..., or a job id.")],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep printing new lines.")
    ] = False,
    study: Annotated[
        str | None, typer.Option(help="Name of the study, if there are several.")
    ] = None,
) -> None:
    """Print the newest log of a cell: of its job, server or training."""
    from mbt_cli.cli.status import print_log

    print_log(cell, study, follow=follow)


def pull(
    study: Annotated[
        str, typer.Argument(help="The study's name or manifest.", autocompletion=complete_study)
    ],
    only: Only = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep fetching until every cell is here.")
    ] = False,
    job: Annotated[
        str | None,
        typer.Option(
            help="Only cells of submitted jobs with such a name: `mbt status --log`.",
            metavar="PATTERN",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Its mirror, s3://BUCKET/FOLDER; default: the study's own."),
    ] = None,
) -> None:
    """Fetch finished cells, replies and logs of jobs from the mirror of a study."""
    from mbt_cli.cli import pull

    pull.pull(study, only, job, source, follow=follow)


def cancel(
    study: Annotated[
        str, typer.Argument(help="The study's name or manifest.", autocompletion=complete_study)
    ],
    only: Only = None,
) -> None:
    """Cancel a study's jobs, and stop what runs on this machine; received replies are kept."""
    from mbt_cli.cli import status

    status.cancel(study, only)


def compare(
    first: Annotated[
        str,
        typer.Argument(
            help="Cell folder or glob, such as `runs/x/scores/*`.",
            autocompletion=complete_cell_folder,
        ),
    ],
    second: Annotated[
        str, typer.Argument(help="Cells to compare with.", autocompletion=complete_cell_folder)
    ],
    equivalent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METRIC=]MARGIN",
            help="Test that they differ by less, in the unit shown (points for per cent).",
        ),
    ] = None,
    show: Annotated[
        int, typer.Option(help="Show this many of the most different questions.", min=0)
    ] = 0,
    resamples: Annotated[
        int | None,
        typer.Option(help="Bootstrap resamples; those of the score cells by default.", min=100),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the bootstrap; the study's by default.")
    ] = None,
    pool: Annotated[
        bool, typer.Option("--pool", help="One comparison over the questions of all pairs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare cells paired by question: differences, intervals, p values, one-sided successes.

    For two judge cells over the same rollouts: Cohen's kappa and the confusion table.
    """
    from mbt_cli.cli import compare

    margins = compare.read_margins(equivalent or [])
    settings = compare.Settings(resamples=resamples, seed=seed, margins=margins)
    compare.compare(first, second, settings, pool=pool, show=show, as_json=as_json)


data = typer.Typer(
    cls=Group, no_args_is_help=True, help="Fetch models and data sets, and list the local ones."
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print sizes; fetch nothing.")] = False,
    overrides: Set = None,
    presets: Presets = None,
) -> None:
    """Download every model and data set that a manifest names."""
    from mbt_cli.cli import data

    data.fetch(manifest, overrides, presets, model or (), benchmark or (), dry_run=dry_run)


@data.command("push")
def push(
    what: Annotated[
        Path,
        typer.Argument(
            help="A file, a folder, or a manifest: all models and data sets that it names.",
            show_default=False,
        ),
    ],
    to: Annotated[str, typer.Argument(help="s3://BUCKET/FOLDER.", show_default=False)],
    overrides: Set = None,
    presets: Presets = None,
) -> None:
    """Upload files to S3, or what a manifest needs, and print its table of places."""
    from mbt_cli.cli import data

    data.push(what, to, overrides, presets)


@data.command("ls")
def ls(as_json: AsJson = False) -> None:
    """List the models and data sets on this machine."""
    from mbt_cli.cli import data

    data.list_cached(as_json=as_json)


def export(
    stage: Annotated[
        Path,
        typer.Argument(
            help="Folder of a stage or cell: runs/STUDY/STAGE.", autocompletion=complete_cell_folder
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            help="hub:ORG/NAME, a new folder, or for a report wandb:PROJECT.", show_default=False
        ),
    ],
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", help="Scores with completions and verdicts as JSON lines: `mbt help data`."
        ),
    ] = False,
    order: Annotated[
        Literal["easy_first", "hard_first"] | None,
        typer.Option(help="Ids of a score stage's questions by pass rate, for a `mixture`."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric of `--order`. Default: how often a reply is right."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write it; without this, only show what is written.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
) -> None:
    """Write a stage as Parquet shards with a data card, into a folder or to the hub.

    A train cell becomes a model repository: its checkpoint, adapters merged, with a model card. A
    report becomes a data set of its tables and numbers with its page, or a run of W&B. With
    `--jsonl`, each score cell becomes a folder of completions, results and a summary; with
    `--order`, a file of question ids from easy to hard, or from hard to easy.
    """
    from mbt_cli.cli import export

    export.export(stage, to, jsonl=jsonl, order=order, metric=metric, write=write, public=public)


def serve(
    preset: Annotated[
        str,
        typer.Argument(
            help="Name of a file in presets/models/.", autocompletion=complete_model_preset
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Override a key of the model, as in `serve.max_model_len=4096`.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Default: a free port.", min=1, max=65535)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print the server's output.")
    ] = False,
    presets: Presets = None,
) -> None:
    """Start the server of a model preset, print its endpoint, and keep it until Ctrl-C."""
    from mbt_cli.cli import serve

    serve.serve(preset, overrides or (), port, presets, verbose=verbose)


def preset(
    model: Annotated[str, typer.Argument(help="Name of a model on the hub, or its folder.")],
    revision: Annotated[str | None, typer.Option(help="Revision on the hub.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="File to write, such as presets/models/mine.toml; default: print it."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a preset of a model from its config, generation config and chat template."""
    from mbt_cli.cli.preset import preset

    preset(model, revision, file, force=force)


def node() -> None:
    """Run this node's part of servers over several nodes; scripts of jobs start it."""
    from mbt_cli.cli import serve

    serve.join_nodes()


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
        str | None,
        typer.Argument(
            help="One of its sections, as in `mbt help manifest rollout`.",
            autocompletion=complete_part,
        ),
    ] = None,
) -> None:
    """Explain a topic: manifest, metrics, data, paper, troubleshooting, ...; default: list them."""
    from mbt_cli.cli import help

    help.print_help(context, topic, part)


app = typer.Typer(
    name="mbt",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,  # `root` has faster options for it
    context_settings={"max_content_width": 120},
    rich_markup_mode=None,  # plain help prints in half the time: Rich loads a Markdown parser
    pretty_exceptions_enable=False,
    help="One manifest from models to paper tables: check it, run it, and trace every number "
    "to its source.",
    epilog="Exit codes: 0 done, 1 something failed, 2 the manifest or usage is wrong, 75 stopped "
    "by a signal with everything kept, 130 interrupted.",
)
app.callback()(root)
_VERBS: dict[str, Callable[..., None]] = {
    "init": init,
    "doctor": doctor,
    "check": check,
    "run": run,
    "watch": watch,
    "rollout": _stage_verb("rollout", "Ask models every question."),
    "synthesize": _stage_verb("synthesize", "Have a teacher write solutions and traces."),
    "rewrite": _stage_verb("rewrite", "Have a teacher rewrite students' traces."),
    "judge": _stage_verb("judge", "Have every rollout judged by a model or checked by a rule."),
    "score": _stage_verb("score", "Compute metrics with intervals and paired differences."),
    "harness": _stage_verb("harness", "Run evaluation programs of others on models."),
    "train": train,
    "report": report,
    "view": view,
    "studio": studio,
    "show": show,
    "plan": plan,
    "submit": submit,
    "merge": merge,
    "status": status,
    "logs": logs,
    "pull": pull,
    "cancel": cancel,
    "compare": compare,
    "export": export,
    "serve": serve,
    "preset": preset,
    "help": help_topic,
}
for _name, _verb in _VERBS.items():
    app.command(_name)(_verb)
app.command("node", hidden=True)(node)
app.add_typer(data, name="data")


@cache
def command_line() -> Callable[..., Any]:
    """All verbs as one command, built once in a process."""
    return typer.main.get_command(app)
