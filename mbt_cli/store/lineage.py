"""lineage.json: what made an artifact, and the sign that it is finished."""

from pathlib import Path

import orjson
from pydantic import AwareDatetime, Field, ValidationError

from mbt_cli.core.chat import Json
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.model import Settings
from mbt_cli.errors import ArtifactError

SCHEMA_VERSION = 1
"""The layout of lineage.json that this mbt writes, and the only one it reads."""

LINEAGE = "lineage.json"
ROWS = "rows.parquet"


class InputRecord(Settings):
    """An input as it was when the cell was made."""

    fingerprint: str
    """The input's fingerprint."""
    sha256: str
    """The input's `content_sha256`."""


class FileRecord(Settings):
    """One file of the artifact."""

    bytes: int
    """Its length."""
    sha256: str
    """Hex sha256 of its content."""


class Tokens(Settings):
    """Tokens over all rows of the artifact."""

    prompt: int = 0
    """Tokens sent."""
    completion: int = 0
    """Tokens received, reasoning included."""
    reasoning: int = 0
    """Tokens of reasoning, where the server tells them apart."""


class Requests(Settings):
    """What the cell asked of a model server."""

    sent: int = 0
    """Requests sent, retries left out."""
    retried: int = 0
    """Further attempts."""
    reused: int = 0
    """Replies found by their key, so not asked for again."""
    failed: int = 0
    """Requests without a reply in the end."""


class CodeRecord(Settings):
    """The mbt that made the artifact."""

    version: str = "unknown"
    """Version of the installed package."""
    commit: str | None = None
    """Commit, where mbt runs from its git checkout."""
    dirty: bool = False
    """Whether tracked files differed from that commit."""
    diff_sha256: str | None = None
    """Hash of that difference."""


class ServerRecord(Settings):
    """The model server that answered."""

    version: str | None = None
    """What it said it is."""
    flags: tuple[str, ...] = ()
    """Flags it was started with, secrets masked."""


class Host(Settings):
    """The machine."""

    name: str = "unknown"
    """Host name."""
    system: str = ""
    """Operating system, release and processor type."""
    python: str = ""
    """Version of Python."""
    cpus: int = 0
    """Processors this process may use."""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs."""


class Lineage(Settings):
    """What made one artifact; the writer fills in everything from `files` to `host`."""

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
    """Hash of everything that decides the rows."""
    base_fingerprint: str
    """The same without sizes that may grow, over the inputs' base fingerprints."""
    sizes: dict[str, int | None] = Field(default_factory=dict)
    """Key path of a size that may grow to its number; null is no limit."""
    spec: Json
    """Settings as run, without those that never change results."""
    inputs: dict[str, InputRecord] = Field(default_factory=dict)
    """Address of an input to what it was."""
    model: dict[str, Json] | None = None
    """Identity of the model: id, revision, weights hash."""
    notes: dict[str, Json] = Field(default_factory=dict)
    """What the stage itself tells, such as rows it refused."""
    server: ServerRecord | None = None
    """The server, where one answered."""
    started_at: AwareDatetime
    """When the cell began (UTC)."""
    seconds: float = 0.0
    """How long it took, all attempts at it left out but the last."""
    requests: Requests = Requests()
    """What was asked of a server."""
    files: dict[str, FileRecord] = Field(default_factory=dict)
    """Path below the cell's folder to length and hash."""
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
    """The mbt that ran."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Package to version."""
    host: Host = Host()
    """The machine."""

    def content_sha256(self) -> str:
        """One hash for all files of the artifact."""
        return sha256_of({name: record.sha256 for name, record in self.files.items()})


def read_lineage(folder: Path) -> Lineage | None:
    """The lineage of a finished cell, None for an unfinished one.

    Raises:
        ArtifactError: lineage.json is damaged, or of a layout that this mbt does not know.
    """
    path = folder / LINEAGE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ArtifactError(f"cannot read `{path}`: {error.strerror}") from error
    return parse_lineage(content, path)


def parse_lineage(content: bytes, path: Path) -> Lineage:
    """Check the bytes of a lineage.json; `path` is for the message.

    Raises:
        ArtifactError: They are damaged, or of a layout that this mbt does not know.
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
        raise _damaged(path, "it holds no JSON object")
    try:
        return Lineage.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _damaged(path, f"{where}: {first['msg']}") from error


def lineage_json(lineage: Lineage) -> bytes:
    """The bytes of lineage.json."""
    return orjson.dumps(lineage.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n"


def _damaged(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(
        f"`{path}` is damaged: {reason}",
        hint="restore the file; or move it away and run the same command again: the cell is made "
        "anew, with the replies that its rows.parquet holds",
    )
