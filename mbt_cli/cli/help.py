"""`mbt help`: the shipped texts, with parts that are generated from the code."""

import re
from collections.abc import Callable, Collection, Mapping
from importlib import resources
from pathlib import Path

import typer
from rich.markdown import Markdown

from mbt_cli.cli.printing import printer
from mbt_cli.core.names import closest, nearest
from mbt_cli.errors import UsageError

_FIRST = ("quickstart", "manifest", "data", "metrics", "presets", "paper")
_WIDEST = 100
_LIVE = re.compile(r"^<!-- live: (\w+) -->$", re.MULTILINE)
_FILE = re.compile(r"^(```\w+) (\S+\.\S+)$", re.MULTILINE)
"""A fenced block with a file name, which Rich would not show."""
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_ALIASES = {"cluster": "slurm", "clusters": "slurm"}
"""Other names of sections."""


def topics() -> Mapping[str, str]:
    """Topic to its one-line summary, most useful first."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in _folder().glob("*.md")}
    order = sorted(texts, key=lambda name: (name not in _FIRST, _place(name), name))
    return {name: texts[name].split("\n\n")[1].replace("\n", " ") for name in order}


def overview() -> str:
    """The topics, one per line."""
    known = topics()
    width = max(map(len, known))
    lines = [f"  {name:{width}}  {line}" for name, line in known.items()]
    more = (
        "mbt help TOPIC          the whole topic (Markdown in a pipe)",
        "mbt help TOPIC SECTION  one section of it, as in `mbt help metrics aes`",
        "mbt help NAME           a table of the manifest, a metric or a command, as in "
        "`mbt help rollout`",
    )
    return "\n".join(["Topics:", *lines, "", *more])


def topic_text(topic: str) -> str:
    """A topic as Markdown, including its generated parts."""
    text = (_folder() / f"{topic}.md").read_text(encoding="utf-8")
    return _LIVE.sub(lambda part: _MAKERS[part[1]](), text)


def sections(text: str) -> Mapping[str, str]:
    r"""The `## ` sections of a text by name: the heading's backticks, else its words.

    Example:
        >>> list(sections("# T\n\n## `a.b`: what\n\nx\n\n## Exit codes\n\ny"))
        ['a.b', 'exit-codes']
    """
    _, *parts = _HEADING.split(text)
    found = {}
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        named = re.match(r"`([^`(]+)", heading)
        name = named[1] if named else re.sub(r"\W+", "-", heading.lower()).strip("-")
        found[name] = f"## {heading}{body.rstrip()}"
    return found


def found(topic: str, part: str | None, *, commands: Collection[str]) -> str:
    """The requested text: a topic, one of its sections, or sections of that name anywhere.

    Args:
        topic: As typed; `manifest.rollout` is `manifest rollout`.
        part: The section, if given.
        commands: Names of commands, whose own help is printed separately.

    Raises:
        UsageError: Nothing has that name; the hint has the nearest one.
    """
    known = topics()
    topic = _ALIASES.get(topic, topic)
    head, dot, tail = topic.partition(".")
    if part is None and dot and head in known:
        topic, part = head, tail
    if topic in known:
        return topic_text(topic) if part is None else _part(topic, part)
    if part is not None:
        raise UsageError(
            f"no topic `{topic}`", hint=f"{nearest(topic, known)}; or: mbt help {part}"
        )
    every = {name: sections(topic_text(name)) for name in known}
    hits = [text for name in known for text in _named(every[name], topic)]
    if hits or topic in commands:
        return "\n\n".join(hits)

    names = {*known, *commands, *(name for found in every.values() for name in found)}
    near = nearest(topic, names if closest(topic, names) else known)
    raise UsageError(f"no help on `{topic}`", hint=f"{near} (topics: `mbt help`)")


def _print_markdown(text: str) -> None:
    """Print Markdown, rendered on a terminal."""
    console = printer()
    if not console.is_terminal:
        typer.echo(text, nl=bool(text) and not text.endswith("\n"))
        return

    console.width = min(console.width, _WIDEST)
    console.print(Markdown(_FILE.sub(r"`\2`:\n\n\1", text)))


def _part(topic: str, part: str) -> str:
    there = sections(topic_text(topic))
    if hits := _named(there, part) or _named(there, part.lower()):
        return "\n\n".join(hits)

    raise UsageError(f"`{topic}` has no section `{part}`", hint=nearest(part, there))


def _named(there: Mapping[str, str], name: str) -> list[str]:
    """The section of that name, else those that end in it: `vllm` finds `backends.vllm`."""
    if name in there:
        return [there[name]]
    return [text for own, text in there.items() if own.rpartition(".")[2] == name]


def _place(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else 0


def _folder() -> Path:
    return Path(str(resources.files("mbt_cli"))) / "help"


def _manifest() -> str:
    from mbt_cli.manifest.docs import manifest_reference

    return manifest_reference()


def _metrics() -> str:
    from mbt_cli.manifest.docs import metric_reference

    return metric_reference()


def _presets() -> str:
    from mbt_cli.manifest.docs import preset_reference
    from mbt_cli.manifest.presets import PresetFolders
    from mbt_cli.settings import read_machine

    machine = read_machine()
    return preset_reference(PresetFolders.usual(extra=machine.presets, config=machine.config))


def _variables() -> str:
    from mbt_cli.core.plugin import field_docs
    from mbt_cli.settings import Machine

    docs = field_docs(Machine)
    return "\n".join(f"- `MBT_{name.upper()}`: {docs[name]}" for name in Machine.model_fields)


_MAKERS: Mapping[str, Callable[[], str]] = {
    "manifest": _manifest,
    "metrics": _metrics,
    "presets": _presets,
    "variables": _variables,
}


def print_help(context: typer.Context, topic: str | None, part: str | None) -> None:
    """Print a topic, one of its sections, or the help of a command; without a topic, the list."""
    if topic is None:
        typer.echo(overview())
        return
    verbs = getattr(context.find_root().command, "commands", {})
    if part is None and topic in verbs and topic not in topics():
        verb = typer.Context(verbs[topic], info_name=f"mbt {topic}")
        typer.echo(f"{verbs[topic].get_help(verb)}\n")
    _print_markdown(found(topic, part, commands=verbs))
