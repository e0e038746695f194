"""What may come next in a word that is being typed: pure, and light enough for every key press.

A shell sets a space after a lone candidate, so a word that may well go on has two.
"""

from collections.abc import Iterable, Mapping, Sequence

from mbt_cli.core.addresses import axes_of, matches


def next_steps(values: Iterable[str], typed: str, separator: str) -> list[str]:
    """The values that begin with `typed`, each cut after the part at which they first differ.

    Example:
        >>> next_steps(["run.a", "run.b", "study.seed"], "", ".")
        ['run.', 'study.']
        >>> next_steps(["run.a.x", "run.a.y", "study.seed"], "r", ".")
        ['run.a.x', 'run.a.y']
    """
    fitting = [value for value in values if value.startswith(typed)]
    length = len(typed)
    while True:
        ends = (value.find(separator, length) + 1 or len(value) for value in fitting)
        cut = list(dict.fromkeys(v[:end] for v, end in zip(fitting, ends, strict=True)))
        if len(cut) != 1 or cut[0] in fitting:
            return cut
        length = len(cut[0])


def only_steps(cells: Sequence[str], typed: str) -> list[str]:
    """What `--only` may go on with: stages, then addresses, or axes in any order.

    Args:
        cells: Addresses of all cells.
        typed: The word so far; a leading `!` leaves cells out.

    Example:
        >>> cells = ["base/benchmark=b/model=x", "base/benchmark=b/model=y", "scores/model=x"]
        >>> only_steps(cells, "")
        ['base', 'scores']
        >>> only_steps(cells, "ba")
        ['base', 'base/']
        >>> only_steps(cells, "base/")
        ['base/benchmark=b/model=x', 'base/benchmark=b/model=y']
        >>> only_steps(cells, "!base/model=")
        ['!base/model=x', '!base/model=y']
        >>> only_steps(cells, "base/model=x")
        ['base/model=x', 'base/model=x/']
    """
    leave_out, typed = ("!", typed[1:]) if typed.startswith("!") else ("", typed)
    if "/" in typed:
        steps = next_steps(cells, typed, "/") or _axis_steps(cells, typed)
    else:
        steps = _stage_steps(cells, typed)
    return [leave_out + step for step in steps]


def set_steps(keys: Mapping[str, Sequence[str]], typed: str) -> list[str]:
    """What `--set` may go on with: a key part by part, then the values it may have.

    Args:
        keys: Key to the values that are known for it.
        typed: The word so far.

    Example:
        >>> keys = {"study.seed": ["1"], "run.concurrency": [], "run.drain_seconds": ["20"]}
        >>> set_steps(keys, "run.")
        ['run.concurrency', 'run.drain_seconds']
        >>> set_steps(keys, "study")
        ['study.seed=', 'study.seed=1']
        >>> set_steps(keys, "run.c")
        ['run.concurrency', 'run.concurrency=']
    """
    key, equals, value = typed.partition("=")
    if equals:
        return [f"{key}={known}" for known in keys.get(key, ()) if known.startswith(value)]
    steps = next_steps(keys, typed, ".")
    if len(steps) != 1:
        return steps
    values = keys[steps[0]]
    return [f"{steps[0]}={v}" for v in ("", *values)] if values else [steps[0], f"{steps[0]}="]


def rejoined(pieces: Sequence[str], breaks: str = "=:") -> list[str]:
    """The words of a command line that bash has broken at `=` and `:`.

    Args:
        pieces: bash's COMP_WORDS up to the one that is being typed.
        breaks: Characters at which it breaks words and that stay as pieces of their own.

    Example:
        >>> rejoined(["mbt", "run", "--only", "base/model", "=", "qw"])
        ['mbt', 'run', '--only', 'base/model=qw']
        >>> rejoined(["mbt", "run", "--only", "base/model", "=", ""])
        ['mbt', 'run', '--only', 'base/model=', '']
    """
    words: list[str] = []
    goes_on = False
    for piece in pieces:
        is_break = bool(piece) and not piece.strip(breaks)
        if words and (is_break or (goes_on and piece)):
            words[-1] += piece
        else:
            words.append(piece)
        goes_on = is_break
    return words


def _stage_steps(cells: Sequence[str], typed: str) -> list[str]:
    stages = dict.fromkeys(address.partition("/")[0] for address in cells)
    fitting = [stage for stage in stages if stage.startswith(typed)]
    return [fitting[0], f"{fitting[0]}/"] if len(fitting) == 1 else fitting


def _axis_steps(cells: Sequence[str], typed: str) -> list[str]:
    """`axis=value` for axes that are not named yet, among the cells that fit what is."""
    head, _, part = typed.rpartition("/")
    named = {word.partition("=")[0] for word in head.split("/")[1:]}
    open_axes = [
        {a: v for a, v in axes_of(cell).items() if a not in named}
        for cell in cells
        if matches(head, cell)
    ]
    pairs = dict.fromkeys(f"{a}={v}" for axes in open_axes for a, v in axes.items())
    fitting = [f"{head}/{pair}" for pair in pairs if pair.startswith(part)]
    goes_on = len(fitting) == 1 and any(len(axes) > 1 for axes in open_axes)
    return [fitting[0], f"{fitting[0]}/"] if goes_on else fitting
