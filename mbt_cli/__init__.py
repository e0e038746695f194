"""mbt: one manifest from models to paper tables.

`from mbt_cli import load_manifest, run, scan` is the API for scripts and notebooks. They are
looked up when they are used (types stand in `__init__.pyi`): a command line that only prints its
help must not wait for Polars.
"""

from importlib import import_module

__all__ = ["Manifest", "StudyReport", "load_manifest", "run", "scan"]


def __getattr__(name: str) -> object:
    """Load a name of `api` on first use.

    Raises:
        AttributeError: `api` has no such name.
    """
    if name in __all__:
        return getattr(import_module("mbt_cli.api"), name)
    raise AttributeError(f"module `mbt_cli` has no attribute `{name}`")
