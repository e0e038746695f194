"""mbt's side of the client benchmark: ask, keep, and write rows.parquet, as a stage does.

    python durable_client.py http://127.0.0.1:18100/v1 4000 512 FOLDER [metered]

Prints one JSON line: requests a second from the first request to rows.parquet closed, processor
milliseconds a request, peak memory in MiB, and bytes on disk for each byte of replies. `metered`
counts what the requests cost within a budget.
"""

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.core import rows
from mbt_cli.core.chat import Message
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.prices import Price, picos_of
from mbt_cli.core.programs import Result, Task, one_request
from mbt_cli.core.progress import Silent
from mbt_cli.core.rows import frame_of_rows
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import MbtError
from mbt_cli.inference.ask import ask
from mbt_cli.inference.meter import Meter
from mbt_cli.inference.queue import RequestBatch
from mbt_cli.stages.ask import BATCH_ROWS, reply_columns
from mbt_cli.store.parquet import ParquetStream
from mbt_cli.store.spending import RecordedPrices, SpendingReader, SpendingRecord, StudyBudget

PROMPT = "Document text " * 500
PRICE = Price(input=2.5, output=10.0, cached=1.25)
SAMPLING = {"temperature": 0.6, "top_p": 0.95}


def tasks(total: int) -> Iterator[Task]:
    for number in range(total):
        messages = (Message(role="user", content=f"{number} {PROMPT}"),)
        yield Task(str(number), 0, one_request("answer", messages))


class Rows:
    """rows.parquet, written batch by batch."""

    def __init__(self, folder: Path) -> None:
        self._stream = ParquetStream(folder / "rows.parquet", rows.ROLLOUTS, {})
        self._batch: list[dict] = []

    def add(self, result: Result) -> None:
        own = {"question_id": result.task.question_id, "sample": 0, "answer": None}
        self._batch.append({**own, **reply_columns(result.request, result.reply)})
        if len(self._batch) == BATCH_ROWS:
            self._append()

    def finish(self) -> int:
        self._append()
        return self._stream.finish().bytes

    def _append(self) -> None:
        self._stream.append(frame_of_rows(self._batch, rows.ROLLOUTS))
        self._batch.clear()


def meter_in(folder: Path) -> Meter:
    """A meter with a budget that is never reached."""
    recorded = RecordedPrices(budget=1e6, prices={"stub": PRICE})
    budget = StudyBudget(folder, SpendingReader(folder), recorded, limit=picos_of(1e6))
    record = SpendingRecord(folder, "base/model=stub", "stub")
    return Meter(PRICE, lambda: record, lambda _: budget.allowance(record))


def main(base_url: str, total: int, in_flight: int, folder: Path, *more: str) -> None:
    backend = OpenAIBackend(base_url=base_url, id="stub")
    folder.mkdir(parents=True, exist_ok=True)
    batch = RequestBatch(
        tasks=lambda: tasks(total),
        total=total,
        purpose="bench",
        study_seed=42,
        identity=backend.identity(),
        sampling={**SAMPLING, "max_tokens": 2048},
        body=SAMPLING,
        open=backend.open,
        place=ServerPlace(folder / "server.log", folder / "cache", dict(os.environ)),
        max_tokens=2048,
        run=RunSettings(concurrency=in_flight),
        meter=meter_in(folder) if "metered" in more else None,
    )
    gc.freeze()  # as `mbt rollout` does
    started = time.monotonic()
    written = Rows(folder)
    asked = ask(batch, folder / "journal", Silent(), emit=written.add)
    answered = time.monotonic()
    parquet_bytes = written.finish()
    ended = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_SELF)
    journal_bytes = sum(p.stat().st_size for p in (folder / "journal").iterdir())
    reply_bytes = total * 5_824  # the stub's reply
    sys.stdout.write(
        json.dumps(
            {
                "requests_per_second": total / (ended - started),
                "cpu_ms": (used.ru_utime + used.ru_stime) / total * 1000,
                "memory_mib": used.ru_maxrss / 1024,
                "sent": asked.sent,
                "reused": asked.reused,
                "failed": asked.failed,
                "seconds": ended - started,
                "seconds_after_the_last": ended - answered,
                "bytes_per_reply_byte": (journal_bytes + parquet_bytes) / reply_bytes,
            }
        )
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
    except MbtError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
