"""mbt: one manifest from models to paper tables.

`from mbt_cli import ask, embed, load_manifest, run, scan, table, compare` is the API for scripts
and notebooks. These names are loaded on first use (their types are in `__init__.pyi`), so `mbt
--help` does not import Polars.
"""

from importlib import import_module

__all__ = [
    "ComparedCells",
    "Manifest",
    "Questions",
    "StudyReport",
    "StudyTable",
    "ask",
    "ask_async",
    "compare",
    "embed",
    "from_benchmark",
    "load_manifest",
    "run",
    "scan",
    "table",
]


def __getattr__(name: str) -> object:
    """Load a name of `api` on first use.

    Raises:
        AttributeError: `api` has no such name.
    """
    if name in __all__:
        return getattr(import_module("mbt_cli.api"), name)
    raise AttributeError(f"module `mbt_cli` has no attribute `{name}`")


def __dir__() -> list[str]:
    """The API, and what every module has, for completion in a notebook."""
    return sorted({*globals(), *__all__})
