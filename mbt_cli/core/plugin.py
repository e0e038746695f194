"""The base classes of settings and plug-ins, and the marks of their fields."""

from abc import ABC
from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from mbt_cli.core.findings import Finding

SECRET = "secret"
"""Type of a validation error whose message must not show the value, which may be a key."""


VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
"""Pattern of an environment variable's name."""


class RunOnly:
    """Mark of a field that never changes results and is not part of fingerprints.

    Example:
        >>> from typing import Annotated
        >>> concurrency: Annotated[int, RunOnly]
    """


class Grows:
    """Mark of a field whose larger value only adds rows: `limit`, `samples`.

    A finished cell whose spec differs in such fields alone is extended without `--replace`.
    """


class Settings(BaseModel):
    """Frozen, typed, and strict about unknown keys; a docstring under a field documents it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,  # most commands validate only a few
    )


class Plugin(Settings, ABC):
    """A frozen class whose fields are its settings; `kind` names it in a manifest."""

    family: ClassVar[str]
    """Name of its family, such as `benchmarks`; set by each interface."""
    version: ClassVar[int] = 1
    """Raised when the same settings give other results than before; enters the fingerprint."""
    file_sha256: ClassVar[str | None] = None
    """Hash of the study's file that defines it, if one does; enters the fingerprint."""
    kind: str
    """Its name in a manifest; each class allows one."""

    def findings(self, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
        """Checks of `mbt doctor MANIFEST`: whether this part of a study can run here.

        Args:
            name: Its name in the manifest.
            environment: The process environment, `.env` merged in.
        """
        return iter(())
