"""`[harnesses.NAME]`: an evaluation program of somebody else, and where its numbers are.

The program is known by its command and by `version`; its code is never hashed. Where it is
installed, how long it may take and which keys it gets never change a fingerprint.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from mbt_cli.core.chat import Json
from mbt_cli.core.names import nearest
from mbt_cli.core.plugin import SECRET, VARIABLE, RunOnly, Settings, Variable

CHECKPOINT, OUTPUT, BASE_URL = "checkpoint", "output", "base_url"
MODEL, SEED = "model", "seed"
PLACEHOLDERS: Mapping[str, str] = {
    CHECKPOINT: "folder of the model or of the training step, in hub layout",
    OUTPUT: "empty folder for what the program writes",
    BASE_URL: "address of the served model, up to and including /v1",
    MODEL: "the name under which it is served",
    SEED: "`seed` of the study",
}
"""What `argv` may name in braces."""
RESULT_FILES = (".json", ".jsonl", ".csv")
_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")
"""`{name}`, or `{{name}}` for those very characters in single braces; JSON stays as it is."""
_METRIC_NAME = r"^[A-Za-z0-9*][A-Za-z0-9._+@*-]{0,63}$"
_UNIT = r"^[A-Za-z][A-Za-z0-9 _/.-]{0,31}$"
SHARES = {"share": 1.0, "percent": 100.0}
"""Units of numbers that are parts of a whole, to the number that is the whole."""

Text = Annotated[str, Field(min_length=1)]
Keys = Text | Annotated[list[Text], Field(min_length=1)]
"""A path in the results: keys joined by dots, or a list of them where keys have dots."""


def keys_of(path: Keys) -> tuple[str, ...]:
    """The keys of a path.

    Example:
        >>> keys_of("results.gsm8k.exact_match,none")
        ('results', 'gsm8k', 'exact_match,none')
    """
    return tuple(path.split(".")) if isinstance(path, str) else tuple(path)


def path_text(keys: Sequence[str]) -> str:
    """A path as messages show it and as a manifest may have it."""
    if any("." in key for key in keys):
        return "[" + ", ".join(f'"{key}"' for key in keys) + "]"
    return ".".join(keys)


class MetricTable(Settings):
    """One number of the results, or all that a path with `*` finds."""

    value: Keys
    """Path of the number. `*` stands for any text in a key; `FIELD=TEXT` chooses, from a list or
    from the rows of a JSONL or CSV file, those whose field has this text, which may have `*` too.
    """
    error: Keys | None = None
    """Path of its standard error, from which a 95 % interval follows. Each `*` stands for what that
    of `value` has found."""
    low: Keys | None = None
    """Path of the lower end of its 95 % interval."""
    high: Keys | None = None
    """Path of the upper end."""
    n: Keys | Annotated[int, Field(gt=0, strict=True)] | None = None
    """Path of the number of questions behind it, or the number itself."""
    unit: Annotated[str, Field(pattern=_UNIT)] | None = None
    """Its unit, in place of the harness' own."""
    name: Annotated[str, Field(pattern=_METRIC_NAME)] | None = None
    """Its name in tables, in a list of metrics; `*` stands for what those of `value` have found.
    Default: `*`."""

    @model_validator(mode="after")
    def _has_one_interval(self) -> "MetricTable":
        if self.error is not None and (self.low is not None or self.high is not None):
            raise _wrong("has `error` and `low` or `high`: name one kind of interval")
        if (self.low is None) != (self.high is None):
            there, lacks = ("low", "high") if self.high is None else ("high", "low")
            raise _wrong(f"has `{there}` without `{lacks}`")
        most = wildcards(keys_of(self.value))
        for field in ("error", "low", "high", "n"):
            path = getattr(self, field)
            if path is not None and not isinstance(path, int) and wildcards(keys_of(path)) > most:
                raise _wrong(f"`{field}` has more `*` than `value`, so they cannot be filled in")
        return self


def wildcards(keys: Sequence[str]) -> int:
    """How many `*` a path has."""
    return sum(key.count("*") for key in keys)


class HarnessPlace(Settings):
    """What the program needs of a machine."""

    gpus: int | None = Field(default=None, ge=0, le=1024, strict=True)
    """GPUs of the program itself, which a plan books. Default: those that serving the model takes
    if `argv` has `{checkpoint}`, and none beside a server."""


def _wrong(what: str) -> PydanticCustomError:
    """A problem that says what is wrong without the whole value, which may be long or a key."""
    return PydanticCustomError(SECRET, "{what}", {"what": what})


def _is_variable(name: str) -> str:
    if not re.fullmatch(VARIABLE, name):
        what = "must be the name of the variable that holds the key, not the key"
        raise PydanticCustomError(SECRET, what)
    return name


class Harness(Settings):
    """A program that evaluates a model and writes its numbers to a file."""

    argv: list[str] = Field(min_length=1)
    """The program and its arguments; no shell reads them. `{checkpoint}`, `{output}`, `{base_url}`,
    `{model}` and `{seed}` are filled in. A relative path is relative to where mbt runs. Its folder
    is not part of the fingerprint."""
    results: str
    """The file with the numbers, or a pattern with `*`, in the folder `{output}`: JSON, JSONL or
    CSV."""
    metrics: dict[str, Keys | MetricTable] | list[Keys | MetricTable] = Field(min_length=1)
    """Names in tables, each with the path of its number or a table; or a list of paths with `*`,
    whose numbers are named by what `*` has found. A name may have `*` too."""
    unit: str = Field(default="share", pattern=_UNIT)
    """Unit of the numbers in the file: `share` (0 to 1) and `percent` (0 to 100), both shown in per
    cent, or any other word, such as `points`."""
    version: str = ""
    """Version of the program and its tasks, such as a commit: a new one makes finished cells stale.
    """
    key_env: Annotated[list[Annotated[str, AfterValidator(_is_variable)]], RunOnly] = Field(
        default_factory=list
    )
    """Secret variables that the program gets; it gets no others."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """More variables, none of which is a secret."""
    place: Annotated[HarnessPlace, RunOnly] = HarnessPlace()
    """What it needs of a machine."""
    timeout_seconds: Annotated[float | None, RunOnly] = Field(default=None, gt=0)
    """Time after which the program is ended and the cell fails. Default: no limit."""

    @field_validator("argv")
    @classmethod
    def _names_what_it_evaluates(cls, argv: list[str]) -> list[str]:
        if not argv[0].strip() or "\0" in "".join(argv):
            raise _wrong("needs a program as its first text, and no zero bytes")
        named = placeholders(argv)
        for name in named:
            if name not in PLACEHOLDERS:
                what = f"unknown placeholder `{{{name}}}`; {nearest(name, PLACEHOLDERS)}"
                raise _wrong(f"{what} (`{{{{{name}}}}}` is `{{{name}}}` as it is)")
        if any(placeholders(argv[:1])):
            raise _wrong("the first text is the program, and has no placeholder")
        if OUTPUT not in named:
            raise _wrong("lacks `{output}`, the folder in which `results` is looked for")
        if not {CHECKPOINT, BASE_URL} & set(named):
            what = "has neither `{checkpoint}` nor `{base_url}`: every model would have the same"
            raise _wrong(f"{what} numbers")
        return argv

    @field_validator("results")
    @classmethod
    def _is_in_the_output(cls, results: str) -> str:
        path = PurePosixPath(results.removeprefix("{output}/"))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            what = "must be a path in the folder `{output}`, such as `metrics.json`"
            raise _wrong(f"`{results}`: {what}")
        if path.suffix not in RESULT_FILES:
            raise _wrong(
                f"`{results}` must end in {', '.join(RESULT_FILES[:-1])} or {RESULT_FILES[-1]}"
            )
        return str(path)

    @field_validator("metrics")
    @classmethod
    def _have_names(
        cls, metrics: dict[str, Keys | MetricTable] | list[Keys | MetricTable]
    ) -> dict[str, Keys | MetricTable] | list[Keys | MetricTable]:
        for name, table in metrics.items() if isinstance(metrics, dict) else ():
            if isinstance(table, MetricTable) and table.name is not None:
                raise _wrong(f"`{name}` has a `name`, which is for lists of metrics")
            if not re.match(_METRIC_NAME, name):
                what = "use letters, digits and `._+@-`, at most 64, and `*` for what a path finds"
                raise _wrong(f"`{name}` is not the name of a metric: {what}")
        rules = list(_rules(metrics, "share"))
        for one in rules:
            if "*" in one.name and not wildcards(one.value):
                where = path_text(one.value)
                raise _wrong(f"`{where}` has no `*` that could name its number: give it a name")
        twice = [one.name for one in rules if sum(one.name == other.name for other in rules) > 1]
        if fixed := [name for name in twice if "*" not in name]:
            raise _wrong(f"two metrics are called `{fixed[0]}`")
        return metrics

    @property
    def uses_server(self) -> bool:
        """Whether the model is served for the program."""
        return bool({BASE_URL, MODEL} & set(placeholders(self.argv)))

    @property
    def uses_checkpoint(self) -> bool:
        """Whether the program loads the weights itself."""
        return CHECKPOINT in placeholders(self.argv)

    @property
    def uses_seed(self) -> bool:
        """Whether the seed of the study is an argument."""
        return SEED in placeholders(self.argv)

    def rules(self) -> Sequence["NumberRule"]:
        """Every metric, in the order of the manifest."""
        return list(_rules(self.metrics, self.unit))

    def names(self) -> Sequence[str]:
        """The names of its numbers, with `*` where the results decide them."""
        return [rule.name for rule in self.rules()]

    def makes(self, metric: str) -> bool:
        """Whether one of its numbers can have this name."""
        return any(pattern_of(name).fullmatch(metric) for name in self.names())

    def of_program(self) -> Json:
        """What decides what the program writes, whatever is read of it then."""
        argv = [PurePosixPath(self.argv[0]).name, *self.argv[1:]]
        return {"argv": argv, "environment": self.environment, "version": self.version}


class NumberRule(Settings):
    """A metric with everything said.

    Its paths are keys; `n` may be the number itself.
    """

    name: str
    value: tuple[str, ...]
    error: tuple[str, ...] | None = None
    low: tuple[str, ...] | None = None
    high: tuple[str, ...] | None = None
    n: tuple[str, ...] | int | None = None
    unit: str


def _rules(
    metrics: dict[str, Keys | MetricTable] | list[Keys | MetricTable], unit: str
) -> Iterator[NumberRule]:
    named: list[tuple[str | None, Keys | MetricTable]]
    if isinstance(metrics, dict):
        named = list(metrics.items())
    else:
        named = [(None, metric) for metric in metrics]
    for name, metric in named:
        table = metric if isinstance(metric, MetricTable) else MetricTable(value=metric)
        paths = {
            field: keys_of(path)
            for field in ("error", "low", "high")
            if (path := getattr(table, field)) is not None
        }
        n = table.n if table.n is None or isinstance(table.n, int) else keys_of(table.n)
        yield NumberRule(
            name=name or table.name or "*",
            value=keys_of(table.value),
            n=n,
            unit=table.unit or unit,
            **paths,
        )


def placeholders(argv: Sequence[str]) -> list[str]:
    """The names in braces, each once.

    Example:
        >>> placeholders(["run", '{"a": {"b": 1}}', "--to={output}", "{{kept}}"])
        ['output']
    """
    found = (match[2] for word in argv for match in _PLACEHOLDER.finditer(word))
    return list(dict.fromkeys(name for name in found if name))


def filled(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The arguments with the placeholders filled in.

    Example:
        >>> filled(["run", "--to={output}", "{{kept}}"], {"output": "/o"})
        ['run', '--to=/o', '{kept}']
    """

    def text(match: re.Match[str]) -> str:
        return values[match[2]] if match[2] else f"{{{match[1]}}}"

    return [_PLACEHOLDER.sub(text, word) for word in argv]


def pattern_of(text: str) -> re.Pattern[str]:
    """A text with `*` as a pattern with a group for each."""
    return re.compile("(.*?)".join(map(re.escape, text.split("*"))), re.DOTALL)


def with_captures(keys: Sequence[str], captures: Collection[str]) -> tuple[str, ...]:
    """A path with each `*` replaced by the next of what other ones have found.

    Example:
        >>> with_captures(("n", "*", "all"), ["gsm8k"])
        ('n', 'gsm8k', 'all')
    """
    left = iter(captures)
    return tuple(re.sub(r"\*", lambda _: next(left), key) for key in keys)
