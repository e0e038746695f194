"""The machine's side of a run: folders, keys and switches, from the environment and `.env`.

Nothing here ever changes a result, and nothing here is written into an artifact.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from dotenv import load_dotenv
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

_NO_DOTENV = "MBT_NO_DOTENV"
_DOTENV = Path(".env")


class Machine(BaseSettings):
    """Where this machine keeps things; each field is the variable `MBT_` + its name."""

    model_config = SettingsConfigDict(env_prefix="MBT_", frozen=True, extra="ignore")

    runs: Path = Path("runs")
    """Folder that holds every study's artifacts."""
    cache: Path = Field(default_factory=lambda: _home("XDG_CACHE_HOME", ".cache"))
    """Folder for downloads that all studies share."""
    config: Path = Field(default_factory=lambda: _home("XDG_CONFIG_HOME", ".config"))
    """Folder with one's own presets."""
    presets: Path | None = None
    """Another folder with presets, looked at first."""
    offline: bool = False
    """Never look anything up outside this machine; HF_HUB_OFFLINE=1 says the same."""

    @property
    def is_offline(self) -> bool:
        """Whether the hub may be asked."""
        return self.offline or os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")

    @property
    def environment(self) -> Mapping[str, str]:
        """The process environment, `.env` merged in."""
        return dict(os.environ)


def read_machine() -> Machine:
    """The machine's settings, after `.env` has filled in variables that are not set.

    `MBT_NO_DOTENV=1` leaves `.env` unread.
    """
    if os.environ.get(_NO_DOTENV, "0") in ("", "0") and _DOTENV.is_file():
        load_dotenv(_DOTENV, override=False)
    return Machine()


def _home(variable: str, folder: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / folder) / "mbt"
