"""The identity of a model's weights: a name on the hub, or the hash of a folder or file."""

from fnmatch import fnmatch
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from mbt_cli.core.chat import Json
from mbt_cli.errors import UsageError

_COUNTS = (
    *("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf", "*.model", "*.jinja"),
    *("config.json", "generation_config.json", "tokenizer*.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "chat_template*", "adapter_config.json"),
)
"""Files of a model folder that determine its replies; README files and optimizers do not."""
_SAMPLE_BYTES = 1 << 20
ADAPTER_CONFIG = "adapter_config.json"
"""Settings of a LoRA in PEFT's layout."""


def is_folder(model: str) -> bool:
    """Whether a model is a path instead of a name on the hub.

    Example:
        >>> is_folder("./checkpoints/one"), is_folder("Qwen/Qwen3-0.6B")
        (True, False)
    """
    return model.startswith((".", "/", "~")) or Path(model).is_dir()


def _has_owner(model: str) -> str:
    if "/" not in model and not is_folder(model):
        raise ValueError("is neither a folder nor a name on the hub, such as `Qwen/Qwen3-4B`")
    return model


HubModel = Annotated[str, Field(min_length=1), AfterValidator(_has_owner)]
"""Name of a model on the hub, or a folder."""


def weights_identity(model: str, revision: str | None, known_sha256: str | None) -> Json:
    """What enters the request keys for a model.

    Args:
        model: Name on the hub, or a folder.
        revision: Revision on the hub.
        known_sha256: Hash of the folder, if the caller has it from a train cell.

    Raises:
        UsageError: The folder does not exist or contains no model.
    """
    if known_sha256 is not None:
        return {"weights": known_sha256}
    if not is_folder(model):
        return {"model": model, "revision": revision}
    return {"weights": folder_sha256(Path(model).expanduser().absolute())}


def adapter_sha256(folder: Path) -> str:
    """Hex sha256 over the files of a LoRA in PEFT's layout.

    Raises:
        UsageError: The folder has no adapter.
    """
    files = [folder / ADAPTER_CONFIG, *sorted(folder.glob("adapter_model.*"))]
    if not files[0].is_file() or len(files) == 1:
        raise UsageError(f"`{folder}` has no {ADAPTER_CONFIG} with adapter_model.safetensors")
    digests = "\n".join(f"{path.name} {file_sha256(path)}" for path in files)
    return sha256(digests.encode()).hexdigest()


def sampled_sha256(folder: Path) -> str:
    """Hex sha256 over names, sizes and both ends of the files that determine a model's replies.

    It distinguishes trainings (every tensor differs) without reading tens of gigabytes whenever a
    manifest is loaded.

    Raises:
        UsageError: The folder does not exist or contains no model.
    """
    digest = sha256()
    for path in _model_files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(_SAMPLE_BYTES, size - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def folder_sha256(folder: Path) -> str:
    """Hex sha256 over names and hashes of the files that determine a model's replies.

    Raises:
        UsageError: The folder does not exist or contains no model.
    """
    digests = {path.name: file_sha256(path) for path in _model_files(folder)}
    return sha256("\n".join(f"{n} {d}" for n, d in digests.items()).encode()).hexdigest()


def _model_files(folder: Path) -> list[Path]:
    files = sorted(p for p in folder.glob("*") if any(fnmatch(p.name, c) for c in _COUNTS))
    if not (folder / "config.json").is_file() and not any(p.suffix == ".gguf" for p in files):
        raise UsageError(
            f"`{folder}` is not a model folder: it has no config.json",
            hint="use the name of a model on the hub, or a folder written by `save_pretrained`",
        )
    return files


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, computed once per size and modification time."""
    stat = path.stat()
    return _file_sha256(path, stat.st_size, stat.st_mtime_ns)


@cache
def _file_sha256(path: Path, size: int, changed_ns: int) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
