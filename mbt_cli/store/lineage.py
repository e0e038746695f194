"""lineage.json: how an artifact was made; it exists only for finished artifacts."""

import errno
from pathlib import Path

import orjson
from pydantic import AwareDatetime, Field, ValidationError

from mbt_cli.core.chat import Json
from mbt_cli.core.origin import Origin
from mbt_cli.core.plugin import Settings
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.seals import BROKEN, SEAL, is_broken
from mbt_cli.core.seals import sealed as sealed_record
from mbt_cli.core.secrets import mask_json
from mbt_cli.errors import ArtifactError

SCHEMA_VERSION = 1
"""The only layout of lineage.json that this mbt writes and reads."""

LINEAGE = "lineage.json"
ROWS = "rows.parquet"

_OF_ONE_RUN = {
    *("started_at", "seconds", "requests", "server", "code", "packages", "host"),
    SEAL,
}
PACE = "pace"
"""Note of a cell that was made in several runs or shards: `completion_tokens` of the replies that
these received, and the `seconds` that their servers took, where one run has `tokens` and `seconds`.
"""
_NOTES_OF_ONE_RUN = {"asked_in", "unusable_values", PACE}
_WITH_TEXTS_OF_OTHERS = ("spec", "model", "notes", "server", "failures")


class InputRecord(Settings):
    """An input at the time when the cell was made."""

    fingerprint: str
    """The input's fingerprint."""
    sha256: str
    """The input's `content_sha256`."""
    lineage_sha256: str | None = None
    """The input's `meaning_sha256`; null in cells of mbt 0.2."""


class FileRecord(Settings):
    """One file of the artifact."""

    bytes: int
    """Its length."""
    sha256: str
    """Hex sha256 of its content."""
    parts: tuple[tuple[int, str], ...] = ()
    """Length and sha256 of its parts, the row groups of a large Parquet file and its footer."""


class Tokens(Settings):
    """Tokens over all rows of the artifact whose replies no other cell has asked for."""

    prompt: int = 0
    """Tokens sent."""
    completion: int = 0
    """Tokens received, reasoning included."""
    reasoning: int = 0
    """Tokens of reasoning, if the server reports them separately."""


class Requests(Settings):
    """Requests of the cell to a model server."""

    sent: int = 0
    """Requests sent, without retries."""
    retried: int = 0
    """Retries."""
    reused: int = 0
    """Replies reused by their request key."""
    failed: int = 0
    """Requests without a reply after all retries."""


class CodeRecord(Settings):
    """The mbt that made the artifact."""

    version: str = "unknown"
    """Version of the installed package."""
    commit: str | None = None
    """Commit, if mbt runs from a git checkout."""
    dirty: bool = False
    """Whether tracked files differed from that commit."""
    diff_sha256: str | None = None
    """Hash of that difference."""


class ServerRecord(Settings):
    """The model server that answered."""

    version: str | None = None
    """The version it reported."""
    flags: tuple[str, ...] = ()
    """Flags it was started with, with secrets masked."""
    origin: Origin | None = None
    """The endpoint, if mbt did not start it."""


class Host(Settings):
    """The machine."""

    name: str = "unknown"
    """Host name."""
    system: str = ""
    """Operating system, release and processor type."""
    python: str = ""
    """Version of Python."""
    cpus: int = 0
    """Processors that the process could use."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs."""


class Lineage(Settings):
    """How an artifact was made; its writer adds everything from `files` to `host`."""

    schema_version: int = SCHEMA_VERSION
    """Layout of this file."""
    study: str
    """Name of the study."""
    stage: str
    """Name of the stage."""
    kind: str
    """Kind of the stage, such as `rollout`."""
    address: str
    """Address of the cell."""
    fingerprint: str
    """Hash of everything that determines the rows."""
    base_fingerprint: str
    """The same without the sizes that may grow, over the inputs' base fingerprints."""
    sizes: dict[str, int | None] = Field(default_factory=dict)
    """Key path of a size that may grow to its value; null means no limit."""
    spec: Json
    """Settings of the run, without those that never change results."""
    inputs: dict[str, InputRecord] = Field(default_factory=dict)
    """Address of each input to its record."""
    model: dict[str, Json] | None = None
    """Identity of the model: id, revision, weights hash."""
    notes: dict[str, Json] = Field(default_factory=dict)
    """Facts that the stage records, such as rows it refused."""
    server: ServerRecord | None = None
    """The model server, if there was one."""
    started_at: AwareDatetime
    """Start of the run (UTC)."""
    seconds: float = 0.0
    """Duration of the last run of the cell."""
    requests: Requests = Requests()
    """Requests to a model server."""
    files: dict[str, FileRecord] = Field(default_factory=dict)
    """Path in the cell's folder to length and hash."""
    rows: int = 0
    """Rows in rows.parquet."""
    failed_rows: int = 0
    """Rows with a failure."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Reason, up to its first colon, to the number of rows."""
    tokens: Tokens = Tokens()
    """Tokens over all rows."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Column to type."""
    code: CodeRecord = CodeRecord()
    """The mbt that made the artifact."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Package to version."""
    host: Host = Host()
    """The machine."""
    sha256: str | None = None
    """Hash of the canonical JSON of all other keys of this file; null in cells of mbt 0.2."""

    def content_sha256(self) -> str:
        """One hash for all files of the artifact."""
        return sha256_of({name: record.sha256 for name, record in self.files.items()})

    def meaning_sha256(self) -> str:
        """A hash of what the artifact is and was made from.

        Time, duration, machine, code, packages, server and requests are left out: a cell that is
        made again from its replies has the same hash.
        """
        record = self.model_dump(mode="json", exclude=_OF_ONE_RUN, exclude_defaults=True)
        notes = record.get("notes", {})
        kept = {name: note for name, note in notes.items() if name not in _NOTES_OF_ONE_RUN}
        return sha256_of({**record, "notes": kept})


def read_lineage(folder: Path) -> Lineage | None:
    """The lineage of a cell, None if the cell is not finished.

    Raises:
        ArtifactError: lineage.json is damaged or has an unknown layout.
    """
    path = folder / LINEAGE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        is_long = error.errno == errno.ENAMETOOLONG
        hint = "shorten the names, or choose another folder with MBT_RUNS" if is_long else None
        raise ArtifactError(f"cannot read `{path}`: {error.strerror}", hint=hint) from error
    return parse_lineage(content, path)


def parse_lineage(content: bytes, path: Path) -> Lineage:
    """The lineage in the content of a lineage.json; `path` is for the message.

    Raises:
        ArtifactError: The content is damaged or has an unknown layout.
    """
    try:
        record = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise _damaged(path, str(error)) from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise ArtifactError(
            f"`{path}` has schema version {version}; this mbt reads version {SCHEMA_VERSION}",
            hint=f"use the mbt that wrote it, or move `{path.parent}` away and run again",
        )
    if not isinstance(record, dict):
        raise _damaged(path, "it is not a JSON object")
    if is_broken(record):
        raise _damaged(path, BROKEN)
    try:
        return Lineage.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _damaged(path, f"{where}: {first['msg']}") from error


def sealed(lineage: Lineage) -> Lineage:
    """The lineage as it is stored: with its hash, and secrets masked where texts of others are."""
    return Lineage.model_validate(sealed_record(_masked(lineage)))


def lineage_json(lineage: Lineage) -> bytes:
    """The content of lineage.json."""
    record = _masked(lineage) if lineage.sha256 is None else lineage.model_dump(mode="json")
    return orjson.dumps(record, option=orjson.OPT_INDENT_2) + b"\n"


def _masked(lineage: Lineage) -> dict[str, Json]:
    record = lineage.model_dump(mode="json")
    return {**record, **{name: mask_json(record[name]) for name in _WITH_TEXTS_OF_OTHERS}}


def _damaged(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(
        f"`{path}` is damaged: {reason}",
        hint=f"restore the file; or move it away (`mv {path} {path.with_suffix('.damaged')}`) and "
        "run the same command again: the cell is rebuilt from the replies in its rows.parquet",
    )
