"""What the tables of wrong inputs share: a row, typing it into the real `main`, and the rules.

Each row is one thing that a person does wrong, with the words that the message and the hint must
hold and the exit code. The rules hold for all of them: one `error:` on stderr, no traceback, and
nothing on stdout that is not data.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mbt_cli.app import main
from tests.conftest import SMALL_STUDY

CANNED = 'backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>", "no idea"] }'
JUDGE = 'backend = { kind = "canned", replies = [\'{"grade": "A"}\'] }'
TINY = 'kind = "tinyhop"\nlimit = 6'
CELL = "base/benchmark=tiny/split=validation/model=parrot/prompt=answer"


@dataclass(frozen=True)
class Wrong:
    """One wrong thing.

    Args:
        id: What is done, for people.
        argv: What is typed after `mbt`.
        words: What stderr must hold: the user's own words, and what to type.
        code: The exit code.
        edits: Text of the small study to what stands there instead.
        files: More files, by path.
        env: Environment variables.
        prints: Whether data may come before the error.
    """

    id: str
    argv: str | Sequence[str]
    words: Sequence[str]
    code: int = 2
    edits: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    prints: bool = False

    @property
    def words_typed(self) -> Sequence[str]:
        """The arguments one by one."""
        return self.argv.split() if isinstance(self.argv, str) else self.argv

    def prepare(self, folder: Path) -> None:
        """Write the small study with its edits, and the other files."""
        text = SMALL_STUDY
        for old, new in self.edits.items():
            assert old in text, f"the small study has no {old!r}"
            text = text.replace(old, new)
        for name, content in {"study.toml": text, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


@dataclass
class Done:
    code: int
    out: str
    err: str


def rows(*wrong: Wrong) -> pytest.MarkDecorator:
    """A table as parameters, each with its id."""
    return pytest.mark.parametrize("wrong", wrong, ids=lambda row: row.id)


def held(wrong: Wrong, done: Done) -> None:
    """The rules that hold for every row, and the row's own words."""
    assert done.code == wrong.code, done.err
    assert "Traceback" not in done.err
    assert [line[:6] for line in done.err.splitlines()].count("error:") == 1, done.err
    assert wrong.prints or done.out == ""
    for words in wrong.words:
        assert words in done.err, f"no {words!r} in:\n{done.err}"


def typed(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    capfd: pytest.CaptureFixture[str],
) -> Done:
    """What the command line does in a folder, without a process of its own."""
    before = dict(os.environ), Path.cwd(), sys.argv
    try:
        os.chdir(folder)
        os.environ.update(
            {"NO_COLOR": "1", "COLUMNS": "200", "XDG_CONFIG_HOME": "c", **environment}
        )
        sys.argv = ["mbt", *arguments]
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)
    finally:
        os.environ.clear()
        os.environ.update(before[0])
        os.chdir(before[1])
        sys.argv = before[2]
