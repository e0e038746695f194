"""Files of a Hugging Face hub repository, by pinned revision, from the cache or the network.

HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE count as huggingface_hub has them. A
repository may also be a folder on this machine that holds the same files.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mbt_cli.errors import MbtError, MissingInputError, UsageError

RepoType = Literal["dataset", "model"]
_FIRST_PAUSE_SECONDS = 1.0


class HubBusyError(MbtError):
    """The hub did not answer, or answered that it cannot now: worth another try."""


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
        repo: `organisation/name`, or a local folder with the same files.
        patterns: Paths in the repository, `*` for any text.
        revision: Commit, tag or branch.
        skip: Patterns of files that are left where they are.
    """

    repo: str
    patterns: tuple[str, ...]
    revision: str = "main"
    type: RepoType = "dataset"
    skip: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files that are now on this disk, sorted by name, and the commit that they are of.

    `commit` is None for a local folder: its files count by their bytes.
    """

    folder: Path
    paths: tuple[Path, ...]
    commit: str | None


@dataclass(frozen=True, slots=True)
class HubSize:
    """What a request would fetch: files and bytes in all, and those not here yet."""

    commit: str | None
    files: int
    bytes: int
    missing_files: int
    missing_bytes: int


def local_folder(repo: str) -> Path | None:
    """The folder that a repository's name stands for, if it is one on this machine."""
    path = Path(repo).expanduser()
    return path if path.is_dir() else None


def fetch_files(request: HubRequest, access: HubAccess, *, attempts: int = 3) -> HubFiles:
    """The files that a request names, fetched where the cache does not hold them.

    An interrupted download goes on where it stopped; what the cache holds is never asked for.

    Raises:
        MissingInputError: The repository, revision or files are not there, or not in the cache
            while offline, or a login is missing.
        MbtError: The hub did not answer in so many attempts.
    """
    folder = local_folder(request.repo)
    if folder is not None:
        return _found(request, folder, None)
    for attempt in range(1, attempts + 1):
        try:
            snapshot = Path(_snapshot(request, access))
            return _found(request, snapshot, snapshot.name)
        except HubBusyError:
            if attempt == attempts:
                raise
            time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
    raise AssertionError("the loop returns or raises")


def size_of(request: HubRequest, access: HubAccess) -> HubSize:
    """What a request would fetch, asked of the hub without fetching.

    Raises:
        MissingInputError: As `fetch_files`; sizes are not known offline.
        MbtError: The hub did not answer.
    """
    folder = local_folder(request.repo)
    if folder is not None:
        paths = _found(request, folder, None).paths
        return HubSize(None, len(paths), sum(path.stat().st_size for path in paths), 0, 0)
    if access.offline:
        raise _not_reached(request, access, None)
    from huggingface_hub import snapshot_download

    with _errors_of(request, access):
        files = snapshot_download(
            request.repo,
            repo_type=request.type,
            revision=request.revision,
            allow_patterns=list(request.patterns),
            ignore_patterns=list(request.skip) or None,
            cache_dir=access.cache,
            token=access.token,
            endpoint=access.endpoint,
            dry_run=True,
        )
    missing = [file for file in files if file.will_download]
    return HubSize(
        commit=files[0].commit_hash if files else None,
        files=len(files),
        bytes=sum(file.file_size or 0 for file in files),
        missing_files=len(missing),
        missing_bytes=sum(file.file_size or 0 for file in missing),
    )


@dataclass(frozen=True, slots=True)
class CachedRepo:
    """A repository of the hub cache on this machine."""

    repo: str
    type: str
    commits: tuple[str, ...]
    bytes: int


def cached_repos(access: HubAccess) -> Sequence[CachedRepo]:
    """What the hub cache holds, by name; nothing where there is no cache yet."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        info = scan_cache_dir(access.cache)
    except CacheNotFound:
        return ()
    repos = (
        CachedRepo(
            repo=repo.repo_id,
            type=repo.repo_type,
            commits=tuple(sorted(revision.commit_hash for revision in repo.revisions)),
            bytes=repo.size_on_disk,
        )
        for repo in info.repos
    )
    return sorted(repos, key=lambda repo: (repo.type, repo.repo))


def _snapshot(request: HubRequest, access: HubAccess) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    with _errors_of(request, access):
        return snapshot_download(
            request.repo,
            repo_type=request.type,
            revision=request.revision,
            allow_patterns=list(request.patterns),
            ignore_patterns=list(request.skip) or None,
            cache_dir=access.cache,
            local_files_only=access.offline,
            token=access.token,
            endpoint=access.endpoint,
        )


def _found(request: HubRequest, folder: Path, commit: str | None) -> HubFiles:
    """The files of a snapshot or folder; sorted, so that shards keep their order."""
    paths = {
        path
        for pattern in request.patterns
        for path in folder.glob(pattern)
        if path.is_file() and not any(path.relative_to(folder).match(skip) for skip in request.skip)
    }
    if not paths:
        raise MissingInputError(
            f"`{request.repo}` has no file {_named(request)}",
            hint="name another `config`, split or `revision`",
        )
    return HubFiles(folder, tuple(sorted(paths)), commit)


def _named(request: HubRequest) -> str:
    patterns = " or ".join(f"`{pattern}`" for pattern in request.patterns)
    return f"{patterns} at `{request.revision}`"


@contextmanager
def _errors_of(request: HubRequest, access: HubAccess) -> Iterator[None]:
    """What huggingface_hub raises, in the user's words."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise MissingInputError(
            f"`{request.repo}` is gated, and this machine may not read it",
            hint=f"accept its terms on its page, then {_login(access)}",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise MissingInputError(f"`{request.repo}` has no revision `{request.revision}`") from error
    except errors.RepositoryNotFoundError as error:
        raise MissingInputError(
            f"`{request.repo}` is not on the hub, or is private",
            hint=f"check the name; if it is private, {_login(access)}",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.DryRunError) as error:
        raise _not_reached(request, access, error) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise HubBusyError(f"the hub did not give `{request.repo}`: {_line(error)}") from error


def _not_reached(request: HubRequest, access: HubAccess, error: Exception | None) -> MbtError:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    message = f"`{request.repo}` {_named(request)} is not in the cache"
    if access.offline or HF_HUB_OFFLINE:
        return MissingInputError(
            f"{message}, and the network is off",
            hint="run `mbt data fetch` where there is a network, or unset MBT_OFFLINE and "
            "HF_HUB_OFFLINE",
        )
    # where nobody answers, huggingface_hub itself has tried again for half a minute
    kind = MbtError if _finds_nobody(error) else HubBusyError
    return kind(
        f"{message}, and the hub does not answer",
        hint=f"see that this machine reaches {access.endpoint or 'https://huggingface.co'} "
        "(HTTPS_PROXY, HF_ENDPOINT), or bring the cache (HF_HOME) from one that does",
    )


def _finds_nobody(error: BaseException | None) -> bool:
    """Whether an error comes from a connection that was never made."""
    while error is not None:
        if type(error).__name__ in ("ConnectError", "ConnectTimeout", "ProxyError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _login(access: HubAccess) -> str:
    return "use a token that may read it" if access.token else "set HF_TOKEN or run `hf auth login`"


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def check_push(repo: str, access: HubAccess) -> None:
    """Refuse what cannot be written from here.

    Raises:
        UsageError: The network is off, or no token is there.
    """
    if access.offline:
        raise UsageError(f"cannot write to `hub:{repo}`: the network is off")
    if access.token is None:
        raise UsageError(
            f"cannot write to `hub:{repo}` without a token",
            hint="set HF_TOKEN to one that may write there",
        )


def push_folder(
    folder: Path,
    repo: str,
    access: HubAccess,
    *,
    private: bool,
    kind: Literal["dataset", "model"] = "dataset",
) -> str:
    """Upload a folder as one commit; the repository is made when it is not there.

    Returns:
        Address of the commit.

    Raises:
        UsageError: The network is off, or no token is there.
        MbtError: The hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    check_push(repo, access)
    api = HfApi(endpoint=access.endpoint, token=access.token)
    try:
        api.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo,
            repo_type=kind,
            folder_path=folder,
            commit_message="Export from mbt",
        )
    except (HfHubHTTPError, OSError) as error:
        line = str(error).strip().splitlines()[0]
        raise MbtError(f"the hub did not take `{repo}`: {line}") from error
    return str(commit.commit_url)
