"""The origins of the replies in a journal: endpoints that mbt did not start.

Such an endpoint may be another one in the next session. Each writer of a journal writes
`origin-WRITER.json` before its first reply. Journals of older versions have none; their replies
count as those of the present endpoint.
"""

import http.client
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson

from mbt_cli.core.chat import Endpoint, Json
from mbt_cli.core.origin import Origin, file_name
from mbt_cli.core.secrets import mask_json
from mbt_cli.core.sync import sync
from mbt_cli.errors import ArtifactError, OtherServerError
from mbt_cli.inference.client import proxy_for
from mbt_cli.inference.journal import unwritable
from mbt_cli.inference.replies import token_count

_SECONDS = 10.0
_MOST_BYTES = 8 << 20
_NOT_LISTED = "(not listed)"
_PACE = "pace-"
_TELLS_THE_MODEL = ("id", "root", "parent")
_TELLS_THE_CONTEXT = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_input_tokens",
)
_TELLS_THE_WEIGHTS = ("n_params", "size", "n_vocab", "n_embd")


def recorded_origins(journal: Path, model: str = "") -> list[Origin]:
    """The origins of the replies in a journal, of the cell's own model or of another one.

    Writers without a reply are left out, and damaged records too: `set_aside_origins` reports them.

    Raises:
        ArtifactError: A record cannot be read.
    """
    return [origin for _, origin in _records(journal, model) if origin is not None]


def set_aside_origins(journal: Path, model: str = "") -> list[Path]:
    """Rename damaged records of origins to `.damaged`; returns their new paths.

    The server of these replies is then unknown, as in journals of older versions.
    """
    kept = []
    for path, origin in _records(journal, model):
        if origin is None:
            kept.append(path.rename(path.with_suffix(".damaged")))
    return kept


def _of(model: str) -> str:
    """How the names of files begin that are about a model other than the cell's own."""
    return f"model-{model}-" if model else ""


def _records(journal: Path, model: str) -> Iterator[tuple[Path, Origin | None]]:
    """Each record of a writer that has added replies; None in place of a damaged one."""
    begin = f"{_of(model)}origin-"
    for path in sorted(journal.glob(f"{begin}*.json")):
        if not _has_replies(journal, path.stem.removeprefix(begin)):
            continue
        try:
            yield path, Origin.model_validate_json(path.read_bytes())
        except ValueError:
            yield path, None
        except OSError as error:
            raise ArtifactError(
                f"`{path}` cannot be read, so the server of these replies is unknown: {error}"
            ) from error


def _has_replies(journal: Path, writer: str) -> bool:
    kind = writer.partition("-")[0]
    is_copied = kind in ("imported", "borrowed")
    files = f"{kind}-*.jsonl" if is_copied else f"replies-{writer.removesuffix('-changed')}.jsonl"
    return any(path.stat().st_size for path in journal.glob(files))


def check_origin(recorded: Iterable[Origin], now: Origin, cell: str) -> None:
    """Refuse to add replies of one endpoint to those of another.

    Args:
        recorded: Origins of the replies that the cell has.
        now: The endpoint that would answer now; without a model, names alone are compared.
        cell: The cell, for the message.

    Raises:
        OtherServerError: The cell has replies of another endpoint or model.
    """
    afresh = "`--replace` asks every request of the cell again"
    for earlier in recorded:
        if not earlier.has_name(now.name):
            raise OtherServerError(
                f"`{cell}` has replies of `{earlier.name}`, and its model is now at `{now.name}`",
                hint=f"set `base_url` back; or, if the same model answers there, set `identity = "
                f'"{earlier.name}"` in its backend; {afresh}',
            )
        if changed := earlier.other_model(now):
            key, old, new = changed
            identity = f'set `identity = "{earlier.name}"` in its backend'
            is_moved = file_name(old) == file_name(new)
            same = (
                f"; or, if it is the same model in another folder, {identity}" if is_moved else ""
            )
            raise OtherServerError(
                f"`{cell}` has replies of a model with the {key} `{old}`, and `{now.addresses[0]}` "
                f"now serves a model with the {key} `{new}`",
                hint=f"start the server with the first model again{same}; {afresh}",
            )


def check_one_model(recorded: Sequence[Origin], cell: str) -> None:
    """Refuse a cell whose server changed its model during a run.

    Raises:
        OtherServerError: Nobody knows which replies are whose.
    """
    for one in recorded[1:]:
        if changed := recorded[0].other_model(one):
            key, old, new = changed
            raise OtherServerError(
                f"`{cell}` has replies of two models, with the {key} `{old}` and `{new}`: its "
                "server changed during a run",
                hint="`--replace` asks every request of the cell again",
            )


def record_origin(journal: Path, writer: str, origin: Origin, model: str = "") -> None:
    """Write the origin of the replies that a writer adds, before its first one.

    Raises:
        ArtifactError: The journal cannot be written.
    """
    _write(journal / f"{_of(model)}origin-{writer}.json", origin.model_dump_json(indent=2).encode())


def record_server(
    journal: Path, writer: str, version: str | None, flags: Sequence[str], model: str = ""
) -> None:
    """Write which server gives the replies that a writer adds: a later run may need no server.

    Raises:
        ArtifactError: The journal cannot be written.
    """
    if version or flags:
        record = orjson.dumps({"version": version, "flags": flags})
        _write(journal / f"{_of(model)}server-{writer}.json", record)


def recorded_server(journal: Path, model: str = "") -> tuple[str | None, tuple[str, ...]]:
    """Version and flags of the server that gave the newest replies of a journal."""
    begin = f"{_of(model)}server-"

    def place(path: Path) -> tuple[bool, int]:
        return path.stem != f"{begin}imported", path.stat().st_mtime_ns

    for path in sorted(journal.glob(f"{begin}*.json"), key=place, reverse=True):
        with suppress(OSError, ValueError, LookupError, TypeError):
            record = orjson.loads(path.read_bytes())
            return record["version"], tuple(record["flags"])
    return None, ()


@dataclass(frozen=True, slots=True)
class Pace:
    """What servers have answered in which time; times of several servers are added up.

    Args:
        completion_tokens: Tokens of replies.
        seconds: Seconds from opening the journal to the last reply.
    """

    completion_tokens: int = 0
    seconds: float = 0.0


def record_pace(journal: Path, writer: str, pace: Pace) -> None:
    """Write how fast a writer received replies, for the speed of the whole cell.

    Raises:
        ArtifactError: The journal cannot be written.
    """
    _write(journal / f"{_PACE}{writer}.json", orjson.dumps(pace))


def recorded_pace(journal: Path) -> Pace:
    """The pace of all writers that have recorded theirs."""
    tokens, seconds = 0, 0.0
    for path in sorted(journal.glob(f"{_PACE}*.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):
            record = orjson.loads(path.read_bytes())
            own = int(record["completion_tokens"]), float(record["seconds"])
            tokens, seconds = tokens + own[0], seconds + own[1]
    return Pace(tokens, seconds)


def _write(path: Path, content: bytes) -> None:
    partial = path.with_suffix(f".{token_hex(4)}.partial")  # shards may write at once
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def forget_origin(journal: Path, writer: str, model: str = "") -> None:
    """Remove the record of a writer that has added no reply."""
    (journal / f"{_of(model)}origin-{writer}.json").unlink(missing_ok=True)


def listed_model(endpoint: Endpoint, name: str) -> Mapping[str, Json]:
    """The entry of the model that an endpoint serves under a name; empty if it lists none.

    A server that lists one model serves it under any name.
    """
    listed = endpoint.models()
    named = [one for one in listed if one.get("id") == name]
    (one,) = named[:1] or (listed if len(listed) == 1 else ({"id": _NOT_LISTED} if listed else {},))
    return one


def context_of(one: Mapping[str, Json]) -> int | None:
    """The context length in the entry of a listed model; None if it says none.

    vLLM says `max_model_len`, llama.cpp `meta.n_ctx`, hosted endpoints one of the others.

    Example:
        >>> context_of({"id": "m", "max_model_len": 4096}), context_of({"id": "m"})
        (4096, None)
    """
    meta = one.get("meta")
    said = [*(one.get(key) for key in _TELLS_THE_CONTEXT)]
    said.append(meta.get("n_ctx") if isinstance(meta, Mapping) else None)
    return next((count for count in map(token_count, said) if count), None)


def served_model(one: Mapping[str, Json]) -> dict[str, Json]:
    """What the entry of a listed model says of the model itself.

    Facts that change with each start of a server, such as the time, are left out.
    """
    said = {key: one[key] for key in _TELLS_THE_MODEL if one.get(key) is not None}
    meta = one.get("meta")
    if isinstance(meta, Mapping):
        said |= {key: meta[key] for key in _TELLS_THE_WEIGHTS if meta.get(key) is not None}
    masked: dict[str, Json] = mask_json(said)
    return masked


def listed_models(
    base_url: str,
    api_key: str | None,
    headers: Mapping[str, str],
    environment: Mapping[str, str],
    path: str = "/models",
) -> Sequence[Mapping[str, Json]]:
    """The models that an endpoint lists; empty if it lists none or does not answer."""
    proxy = proxy_for(base_url, environment)
    proxies = {"http": proxy, "https": proxy} if proxy else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirect)
    bearer = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(f"{base_url}{path}", headers={**bearer, **headers})
    document: list[Any] = []

    def load() -> None:
        with (
            suppress(OSError, ValueError, http.client.HTTPException),
            opener.open(request, timeout=_SECONDS) as response,
        ):
            document.append(orjson.loads(response.read(_MOST_BYTES)))

    # the time limit of a socket holds for each read, and a server may send a byte at a time
    loading = threading.Thread(target=load, name="models", daemon=True)
    loading.start()
    loading.join(_SECONDS)
    listed = document[0] if document and isinstance(document[0], dict) else {}
    data = listed.get("data", listed.get("models"))  # the second is Google's
    return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else ()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None
