"""Folders to a repository on the hub."""

from pathlib import Path
from typing import Literal

from mbt_cli.errors import MbtError, UsageError
from mbt_cli.store.hub import HubAccess


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
