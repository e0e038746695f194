"""`mbt init`: a first manifest from a few answers."""

from pathlib import Path
from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_model_preset
from mbt_cli.commands.options import Presets

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
    from mbt_cli.commands.init_questions import asked
    from mbt_cli.machine.init import next_commands, refuse_existing, write_study
    from mbt_cli.machine.wishes import Wishes, answers_of
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
