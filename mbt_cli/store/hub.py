"""Files of a Hugging Face hub repository, by pinned revision, from the cache or the network.

HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE are honoured as huggingface_hub does; a token
comes from the environment and never goes into a message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from mbt_cli.errors import MbtError, MissingInputError, UsageError

RepoType = Literal["dataset", "model"]


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How the hub may be reached.

    Args:
        cache: Folder of the hub cache; None is huggingface_hub's own.
        offline: Never use the network, only the cache.
        endpoint: Another hub than huggingface.co, as HF_ENDPOINT says.
        token: Access token for private and gated repositories.
    """

    cache: Path | None = None
    offline: bool = False
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class HubRequest:
    """Files of one repository.

    Args:
        pattern: Path in the repository, `*` for any text.
        revision: Commit, tag or branch.
    """

    repo: str
    pattern: str
    revision: str = "main"
    type: RepoType = "dataset"


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files that are now on this disk, and the commit that they are of."""

    paths: tuple[Path, ...]
    commit: str


def fetch_files(request: HubRequest, access: HubAccess) -> HubFiles:
    """The files a request names, fetched where the cache does not hold them.

    Raises:
        MissingInputError: The repository, revision or file is not there, or not in the cache while
            offline.
        MbtError: The hub does not answer, or wants a login.
    """
    names = _names(request, access)
    if not names:
        raise MissingInputError(
            f"`{request.repo}` has no file `{request.pattern}` at `{request.revision}`",
            hint="name another `config`, split or `revision`",
        )
    raise UsageError("hub sources are not there yet", hint=", ".join(names))


def _names(request: HubRequest, access: HubAccess) -> Sequence[str]:
    raise MbtError(f"`{request.repo}`: hub sources are not built yet {access.offline}")


def matching(names: Sequence[str], pattern: str) -> tuple[str, ...]:
    """Names that a pattern names, sorted, so shards keep their order.

    Example:
        >>> matching(["d/b-1.parquet", "d/b-0.parquet", "README.md"], "d/b-*.parquet")
        ('d/b-0.parquet', 'd/b-1.parquet')
    """
    return tuple(sorted(name for name in names if fnmatchcase(name, pattern)))
