"""`mbt help`: the documentation, inside the product and offline."""

from typing import Annotated

import typer

from mbt_cli.commands.completing import complete_topic


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
    from mbt_cli.commands.help_view import found, overview, show, topics

    if topic is None:
        typer.echo(overview())
        return
    verbs = getattr(context.find_root().command, "commands", {})
    if part is None and topic in verbs and topic not in topics():
        told = typer.Context(verbs[topic], info_name=f"mbt {topic}")
        typer.echo(f"{verbs[topic].get_help(told)}\n")
    show(found(topic, part, commands=verbs))
