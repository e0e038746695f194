"""What the requests of a study cost: one small record for each cell, model and run.

A record in `runs/STUDY/.spending/` is a line of JSON that says who writes it, then `_SLOTS` whole
numbers of eight bytes. Its process changes them in shared memory, so that a kill loses nothing, and
each takes one instruction, so that none is half written. Records hold tokens, not money: new prices
apply to what was spent earlier.

Processes share a budget by caps: a record says how much its process may spend in all. A process
raises its own cap, after it has read all other records, to what the budget leaves.
"""

import contextlib
import fcntl
import math
import mmap
import os
import socket
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson
from pydantic import Field, ValidationError

from mbt_cli.core.jobs import JobId
from mbt_cli.core.names import own_utc_name
from mbt_cli.core.plugin import Settings
from mbt_cli.core.prices import NOTHING, PICOS, Price, Used, money_text
from mbt_cli.core.sync import sync
from mbt_cli.errors import ArtifactError, BudgetError
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.lineage import Lineage
from mbt_cli.store.locks import process_space, start_of
from mbt_cli.store.reading import finished_cells

SPENDING = ".spending"
"""Folder of the records, below the study's."""
_PRICES = "study.json"
_GUARD = "guard"
_SUFFIX = ".spent"
_SLOTS = (
    *("requests", "input", "cached", "output"),
    *("unsure_requests", "unsure_input", "unsure_output"),
    *("reserved_input", "reserved_output"),
    *("cap", "is_closed"),
)
_BYTES = 8 * len(_SLOTS)
_MICRO = PICOS // 1_000_000  # caps are whole millionths
_NO_CAP = -1
_SHARE = 8
"""A cap is raised by at least this part of what the budget leaves: few raises, and little that one
process keeps from others."""
_SILENT_SECONDS = 600.0
_BEAT_SECONDS = 5.0
_QUIET_SECONDS = 60.0
"""Silence after which a queue is asked whether the job of another machine has ended."""


class RecordedPrices(Settings):
    """The prices by which a study counts; the newest run writes them."""

    currency: str = "USD"
    """Currency of all prices and of the budget."""
    budget: float | None = None
    """What the study may cost; null without a limit."""
    prices: dict[str, Price] = Field(default_factory=dict)
    """Model to its price."""


def read_prices(study_folder: Path) -> RecordedPrices:
    """The prices that the newest run of a study has recorded; none if there are none."""
    try:
        return RecordedPrices.model_validate_json((study_folder / SPENDING / _PRICES).read_bytes())
    except (OSError, ValidationError):
        return RecordedPrices()


def record_prices(study_folder: Path, now: RecordedPrices) -> None:
    """Record the prices of a manifest; models that it does not name keep theirs.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    earlier = read_prices(study_folder)
    kept = now.model_copy(update={"prices": {**earlier.prices, **now.prices}})
    if kept != earlier:
        write_atomically(study_folder / SPENDING / _PRICES, kept.model_dump_json(indent=2).encode())


@dataclass(frozen=True, slots=True)
class Spent:
    """One record.

    Args:
        address: The cell.
        model: The model's name in the manifest.
        used: What replies say that they used.
        unsure: The most that requests used of which nothing says what they used.
        in_flight: The most that requests in flight use; once their process has ended, they are
            among the unsure ones.
        cap: What its process may spend in all, in picos; None once it has ended, or without a
            budget.
    """

    address: str
    model: str
    used: Used
    unsure: Used
    in_flight: Used = NOTHING
    cap: int | None = None

    def joined(self, other: "Spent") -> "Spent":
        """The sums of two records."""
        return Spent(
            self.address,
            self.model,
            self.used + other.used,
            self.unsure + other.unsure,
            self.in_flight + other.in_flight,
        )

    def known(self, prices: Mapping[str, Price]) -> int:
        """What its replies have cost, in picos; a model without a price costs nothing."""
        price = prices.get(self.model)
        return 0 if price is None else price.of(self.used)

    def unknown(self, prices: Mapping[str, Price]) -> int:
        """The most that its other requests cost, in picos."""
        price = prices.get(self.model)
        return 0 if price is None else price.of(self.unsure + self.in_flight)

    def cost(self, prices: Mapping[str, Price]) -> int:
        """The most that all its requests have cost, in picos."""
        return self.known(prices) + self.unknown(prices)


class SpendingReader:
    """Reads the records of a study again and again; those of ended processes once.

    Args:
        study_folder: `runs/STUDY`.
        is_gone: Whether a job has left its queue for certain.
    """

    def __init__(self, study_folder: Path, is_gone: Callable[[JobId], bool] | None = None) -> None:
        self._folder = study_folder / SPENDING
        self._is_gone = is_gone
        self._ended: dict[str, Spent] = {}

    def read(self, without: str = "") -> list[Spent]:
        """Every record, but the one of this name.

        Raises:
            ArtifactError: A record cannot be read or is damaged.
        """
        try:
            names = sorted(path.name for path in self._folder.iterdir() if path.suffix == _SUFFIX)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for name in names:
            if name == without:
                continue
            if name not in self._ended:
                spent, has_ended = self._read_one(self._folder / name)
                if not has_ended:
                    found.append(spent)
                    continue
                self._ended[name] = spent
            found.append(self._ended[name])
        return found

    def _read_one(self, path: Path) -> tuple[Spent, bool]:
        try:
            content = path.read_bytes()
            head = orjson.loads(content[:-_BYTES])
            slots = dict(zip(_SLOTS, array("q", content[-_BYTES:]), strict=True))
            address, model = str(head["address"]), str(head["model"])
        except OSError as error:
            raise ArtifactError(f"cannot read `{path}`: {error.strerror}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ArtifactError(
                f"`{path}` is damaged: it counts what a cell has cost",
                hint=f"move it away (`mv {path} {path}.damaged`): its tokens count no longer",
            ) from error
        used = Used(slots["requests"], slots["input"], slots["cached"], slots["output"])
        unsure = Used(slots["unsure_requests"], slots["unsure_input"], 0, slots["unsure_output"])
        reserved = slots["reserved_input"], slots["reserved_output"]
        in_flight = Used(int(any(reserved)), reserved[0], 0, reserved[1])
        is_alive = not slots["is_closed"] and self._is_alive(head, path)
        if not is_alive:
            return Spent(address, model, used, unsure + in_flight), is_alive is False
        cap = None if slots["cap"] == _NO_CAP else slots["cap"] * _MICRO
        return Spent(address, model, used, unsure, in_flight, cap), False

    def _is_alive(self, head: Mapping[str, Any], path: Path) -> bool | None:
        """Whether its process may send requests; None if it only seems to have ended."""
        if head.get("space") == process_space():
            return start_of(int(head["pid"])) == head.get("process_start")
        beside = path.with_name(_GUARD)  # a time by the clock of the file system
        now = beside.stat().st_mtime if beside.exists() else time.time()
        silent_seconds = now - path.stat().st_mtime
        if silent_seconds < _QUIET_SECONDS:
            return True
        job, launcher = head.get("job"), head.get("launcher")
        if job and launcher and self._is_gone and self._is_gone(JobId(launcher, job)):
            return False
        return True if silent_seconds < _SILENT_SECONDS else None


def earlier_spending(study_folder: Path, recorded: Iterable[str]) -> list[Spent]:
    """What finished cells used that an older mbt has made, without records: by their lineages."""
    known = set(recorded)
    if not study_folder.is_dir():
        return []
    try:
        cells = finished_cells(study_folder)
    except ArtifactError:  # the run that reads the damaged cell reports it
        return []
    return [
        spent
        for _, lineage in cells
        if lineage.address not in known and (spent := _of_lineage(lineage)) is not None
    ]


def _of_lineage(lineage: Lineage) -> Spent | None:
    name = (lineage.model or {}).get("name")
    if not name or lineage.kind == "train" or not lineage.tokens.completion:
        return None
    used = Used(
        lineage.rows - lineage.failed_rows, lineage.tokens.prompt, 0, lineage.tokens.completion
    )
    return Spent(lineage.address, name, used, Used())


class SpendingRecord:
    """The record that this process writes; a `Ledger`.

    Args:
        study_folder: `runs/STUDY`.
        address: The cell.
        model: The model's name in the manifest.
        job: The job that this process belongs to.

    Raises:
        ArtifactError: The folder cannot be written.
    """

    def __init__(
        self, study_folder: Path, address: str, model: str, job: JobId | None = None
    ) -> None:
        folder = study_folder / SPENDING
        self.name = f"{own_utc_name()}-{token_hex(4)}{_SUFFIX}"
        self.path = folder / self.name
        head = {
            "address": address,
            "model": model,
            "host": socket.gethostname(),
            "space": process_space(),
            "pid": os.getpid(),
            "process_start": start_of(os.getpid()),
            "launcher": None if job is None else job.launcher,
            "job": None if job is None else job.id,
        }
        line = orjson.dumps(head)
        line += b" " * (-(len(line) + 1) % 8) + b"\n"
        values = array("q", [0] * len(_SLOTS))
        values[_SLOTS.index("cap")] = _NO_CAP
        with writing_to(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            partial = self.path.with_suffix(".partial")  # nobody reads half a record
            self._file = os.open(partial, flags, 0o644)
            os.write(self._file, line + values.tobytes())
            sync(self._file)
            partial.replace(self.path)
        self._start = len(line)
        self._map: mmap.mmap | None = None
        self._values: Any = values
        with contextlib.suppress(OSError, ValueError):  # a file system without shared memory
            self._map = mmap.mmap(self._file, self._start + _BYTES)
            self._values = memoryview(self._map).cast("q")[self._start // 8 :]
        self._used = [0, 0, 0, 0]
        self._unsure = [0, 0, 0]
        self._reserved = [0, 0]
        self._beat = time.monotonic()

    def hold(self, prompt: int, output: int) -> None:
        reserved = self._reserved
        reserved[0] += prompt
        reserved[1] += output
        self._values[7], self._values[8] = reserved
        if self._map is None:
            self._write()

    def replied(self, used: tuple[int, int, int], prompt: int, output: int) -> None:
        own, values = self._used, self._values
        own[0] += 1
        own[1] += used[0]
        own[2] += used[1]
        own[3] += used[2]
        values[0], values[1], values[2], values[3] = own
        self.hold(-prompt, -output)  # last: a kill before it counts the request twice, not never

    def lost(self, prompt: int, output: int) -> None:
        unsure, values = self._unsure, self._values
        unsure[0] += 1
        unsure[1] += prompt
        unsure[2] += output
        values[4], values[5], values[6] = unsure
        self.hold(-prompt, -output)

    def free(self, prompt: int, output: int) -> None:
        self.hold(-prompt, -output)

    def set_cap(self, picos: int) -> None:
        """Say what this process may spend in all; it is on the disk when this returns."""
        self._values[9] = picos // _MICRO
        self._flush()

    def sync(self) -> None:
        self._flush()
        if time.monotonic() - self._beat > _BEAT_SECONDS:
            self._beat = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def close(self) -> None:
        if any(self._reserved):  # requests that were cancelled
            self.lost(*self._reserved)
        self._values[10] = 1
        self._flush()
        self._values = array("q", self._values)
        if self._map is not None:
            with contextlib.suppress(BufferError):  # freed with the last view of it
                self._map.close()
        os.close(self._file)

    def _write(self) -> None:
        with writing_to(self.path):
            os.pwrite(self._file, self._values.tobytes(), self._start)

    def _flush(self) -> None:
        with writing_to(self.path):
            if self._map is None:
                self._write()
                sync(self._file)
            else:
                self._map.flush()


class StudyBudget:
    """The budget that all processes of a study share.

    Args:
        study_folder: `runs/STUDY`.
        reader: Reads its records.
        recorded: Prices and budget.
        earlier: What cells without a record have cost, in picos.
        go_on: The command that goes on, up to the number of a larger budget.
    """

    def __init__(
        self,
        study_folder: Path,
        reader: SpendingReader,
        recorded: RecordedPrices,
        *,
        limit: int,
        earlier: int = 0,
        go_on: str = "",
    ) -> None:
        self._guard = study_folder / SPENDING / _GUARD
        self._reader = reader
        self._recorded = recorded
        self._limit = limit
        self._earlier = earlier
        self._go_on = go_on

    def allowance(self, record: SpendingRecord) -> "SharedAllowance":
        """The part that one record may spend; nothing yet."""
        record.set_cap(0)
        return SharedAllowance(self, record)

    def claim(self, record: SpendingRecord, held: int, need: int) -> int:
        """Raise the cap of a record; returns it in picos, and `held` if the budget is reached."""
        with _guarded(self._guard):
            spent, promised = self._others(record)
            free = self._limit - spent - promised - held
            if free >= need:
                wanted = -(-(held + max(need, free // _SHARE)) // _MICRO) * _MICRO
                cap = min(wanted, (self._limit - spent - promised) // _MICRO * _MICRO)
                record.set_cap(cap)
                # without a lock that holds on all machines, two may have raised theirs at once
                if cap >= held + need and sum(self._others(record)) + cap <= self._limit:
                    return cap
            record.set_cap(-(-held // _MICRO) * _MICRO)
            return held

    def is_promised(self, record: SpendingRecord) -> bool:
        """Whether others may give back what they have reserved."""
        prices = self._recorded.prices
        return any(
            one.cap is not None and (one.cap > one.cost(prices) or one.in_flight != NOTHING)
            for one in self._reader.read(without=record.name)
        )

    def error(self, need: int) -> BudgetError:
        """The error for a request that may cost `need` picos more than is left."""
        prices, currency = self._recorded.prices, self._recorded.currency
        records = self._reader.read()
        known = self._earlier + sum(one.known(prices) for one in records)
        unsure = sum(one.unknown(prices) for one in records)
        words = [f"{money_text(known, currency)} are spent"]
        if unsure:
            words.append(
                f"{money_text(unsure, currency)} at most are reserved for requests that "
                "were sent and whose end is not known"
            )
        words.append(f"the next request may cost up to {money_text(need, currency)}")
        larger = max(self._limit * 3 // 2, known + unsure + need) / PICOS
        return BudgetError(
            f"the budget of {money_text(self._limit, currency)} is reached: "
            f"{', '.join(words[:-1])}, and {words[-1]}",
            hint="every reply is kept, and nothing is paid twice: "
            f"`{self._go_on}{_rounded_up(larger)}` goes on",
        )

    def _others(self, record: SpendingRecord) -> tuple[int, int]:
        """What other records have cost and may have, and what their processes may still spend."""
        spent, promised = self._earlier, 0
        for one in self._reader.read(without=record.name):
            cost = one.cost(self._recorded.prices)
            spent += cost
            promised += 0 if one.cap is None else max(0, one.cap - cost)
        return spent, promised


def _rounded_up(amount: float) -> str:
    """An amount with two significant digits.

    Example:
        >>> _rounded_up(75.0), _rounded_up(0.0891), _rounded_up(123.4)
        ('75', '0.09', '130')
    """
    step = 10.0 ** (math.floor(math.log10(amount)) - 1)
    return f"{math.ceil(round(amount / step, 6)) * step:.6g}"


class SharedAllowance:
    """An `Allowance` of a study's budget."""

    def __init__(self, budget: StudyBudget, record: SpendingRecord) -> None:
        self._budget = budget
        self._record = record
        self.limit = 0

    def raised(self, held: int, need: int) -> bool:
        self.limit = self._budget.claim(self._record, held, need)
        return self.limit >= held + need

    def can_change(self) -> bool:
        return self._budget.is_promised(self._record)

    def error(self, need: int) -> Exception:
        return self._budget.error(need)


@contextlib.contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """Exclusive access for a moment, where flock works; `claim` checks again for where it fails."""
    with writing_to(path):
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.utime(descriptor)
            yield
        finally:
            os.close(descriptor)
