"""Finding presets, prompts and manifests: the user's folders precede the shipped ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mbt_cli.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of mbt_cli; `importlib.resources` would be a slow import for completion."""


def shipped(folder: str) -> Path:
    """A folder that mbt ships (`presets`, `manifests`, `slurm`), in a wheel or a checkout."""
    inside = _PACKAGE / "_shipped" / folder
    return inside if inside.is_dir() else _PACKAGE.parent / folder


def manifest_file(path: Path) -> Path:
    """The path of a manifest: an existing file, or else a shipped one with this name.

    `quickstart` and `quickstart.toml` both name the shipped study.
    """
    if path.exists() or len(path.parts) != 1:
        return path
    inside = shipped("manifests") / path.with_name(f"{path.name.removesuffix('.toml')}.toml")
    return inside if inside.is_file() else path


ADAPTERS = "adapters"
"""The family of presets that are weights of LoRAs."""


@dataclass(frozen=True, slots=True)
class PresetFolders:
    """Folders with presets; earlier ones take precedence.

    Args:
        folders: Each with sub-folders such as `models/`, `train/`, `slurm/`.
    """

    folders: tuple[Path, ...]

    @classmethod
    def usual(cls, *, extra: Path | None, config: Path) -> "PresetFolders":
        """`--presets`, ./presets, the user's config folder, and the shipped presets.

        Raises:
            UsageError: The folder of `--presets` or MBT_PRESETS does not exist.
        """
        if extra is not None and not extra.is_dir():
            raise UsageError(
                f"no folder `{extra}` for presets",
                hint="correct `--presets` or MBT_PRESETS; such a folder holds models/, train/, ...",
            )
        places = [extra, Path("presets"), config / "presets", shipped("presets")]
        return cls(tuple(p for p in places if p is not None))

    def find(self, family: str, name: str, ending: str = ".toml") -> Path | None:
        """The file of a preset, such as `find("models", "qwen3-0.6b")`."""
        paths = (folder / family / f"{name}{ending}" for folder in self.folders)
        return next((p for p in paths if p.is_file()), None)

    def names(self, family: str, ending: str = ".toml") -> Sequence[str]:
        """Names of all presets of a family."""
        found = {p.stem for f in self.folders for p in (f / family).glob(f"*{ending}")}
        return sorted(found)


def prompt_file(name: str, manifest_folder: Path) -> Path | None:
    """A template: a shipped one by name, or a path relative to the manifest or to here."""
    inside = _PACKAGE / "prompts" / f"{name}.md"
    if inside.is_file():
        return inside
    candidates = (manifest_folder / name, Path(name))
    return next((p for p in candidates if p.is_file()), None)


def prompt_names() -> Sequence[str]:
    """Names of the shipped templates."""
    folder = _PACKAGE / "prompts"
    return sorted(p.stem for p in folder.glob("*.md"))
