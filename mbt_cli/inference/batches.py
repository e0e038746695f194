"""Send requests through a provider's batch API: files of requests, answered within a day.

Requests are gathered until no more come for a moment, and go as one or more batches: each round of
a program is one. What was sent is kept in `journal/batches-WRITER.log`, one JSON object a line: a
batch's own name and its requests before the upload, then the provider's file and batch. After a
kill, a batch without a provider's id is looked for by that name among the provider's batches and
files, so that nothing is uploaded twice.

Source: https://platform.openai.com/docs/guides/batch
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import orjson

from mbt_cli.core.chat import Endpoint, Json
from mbt_cli.errors import BackendError
from mbt_cli.inference.client import Client, Inflow
from mbt_cli.inference.queue import PendingRequest, RequestBatch
from mbt_cli.inference.replies import Sending, SendResult, failed, result_of_status, server_words
from mbt_cli.inference.sent_log import keep_record, kept_records

MOST_REQUESTS = 50_000
"""Requests of one batch, at most."""
MOST_BYTES = 200_000_000
"""Bytes of one batch, at most."""
_QUIET_SECONDS = 0.5
_FIRST_POLL_SECONDS = 1.0
_LONGEST_POLL_SECONDS = 60.0
_GROWTH = 1.5
_ENDED = frozenset({"completed", "expired", "cancelled", "failed"})
_MARK = "mbt_batch"
_Answer = tuple[int, Mapping[str, str], bytes]


@dataclass
class SentBatch:
    """A batch that was begun.

    Args:
        name: mbt's own name; the name of its file, and in its metadata.
        model: The model in its program; empty for the stage's own.
        url: The path that it asks.
        ids: The `custom_id` of its requests.
        file: The provider's id of the uploaded file; empty until it is known.
        id: The provider's id of the batch; empty until it is known.
        is_done: Whether its replies are in the journal.
    """

    name: str
    model: str
    url: str
    ids: list[str] = field(default_factory=list)
    file: str = ""
    id: str = ""
    is_done: bool = False


def sent_batches(journal: Path) -> list[SentBatch]:
    """The batches that a cell's journal names, each file's in their order."""
    found: dict[str, SentBatch] = {}
    for path in sorted(journal.glob("batches-*.log")):
        for record in kept_records(path):
            name = record["name"]
            if name not in found:
                found[name] = SentBatch(**record)
            else:
                for key, value in record.items():
                    setattr(found[name], key, value)
    return list(found.values())


class _NotAnsweredError(Exception):
    """A batch ended without a reply to a request."""

    def __init__(self, kind: str, words: str, *, can_retry: bool) -> None:
        super().__init__(words)
        self.kind, self.can_retry = kind, can_retry


class BatchClient(Client):
    """A client of one endpoint that gathers requests into batches."""

    def __init__(
        self,
        endpoint: Endpoint,
        batch: RequestBatch,
        session: Any,
        journal: Path,
        writer: str,
        model: str,
    ) -> None:
        super().__init__(endpoint, batch, self._post_body, Inflow(batch.run))
        self._session = session
        self._path = journal / f"batches-{writer}.log"
        self._model = model
        self._open = [
            one for one in sent_batches(journal) if one.model == model and not one.is_done
        ]
        self._sent = {own for one in self._open for own in one.ids}
        self._new: dict[str, tuple[str, bytes]] = {}  # path and line of requests to upload
        self._waiting: dict[str, asyncio.Future[_Answer]] = {}
        self._arrived = asyncio.Event()
        self._said = ""

    @property
    def waits_for(self) -> str:
        """What the client waits for, in words; empty if nothing."""
        return self._said

    async def send(self, pending: PendingRequest) -> SendResult:
        try:
            return await super().send(pending)
        except _NotAnsweredError as error:
            sending = Sending(pending.seed, pending.attempts + 1)
            return failed(error.kind, str(error), sending, can_retry=error.can_retry)

    async def post_of(self, pending: PendingRequest) -> _Answer:
        own = f"{pending.request.key}-{pending.content_attempt}"
        if own not in self._sent:
            body = self.body(pending)
            path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
            request = {"custom_id": own, "method": "POST", "url": path, "body": body}
            self._new[own] = path, orjson.dumps(request) + b"\n"
        self._waiting[own] = asyncio.get_running_loop().create_future()
        self._arrived.set()
        try:
            return await self._waiting[own]
        finally:
            self._waiting.pop(own, None)

    async def run(self) -> None:
        """Upload, wait and deliver, until it is cancelled."""
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001  raised by every request that waits
            for one in list(self._waiting.values()):
                if not one.done():
                    one.set_exception(error)

    async def _run(self) -> None:
        wait = _FIRST_POLL_SECONDS
        while True:
            if not self._waiting:
                self._said = ""
                await self._arrived.wait()
            while self._arrived.is_set():  # until no more come
                self._arrived.clear()
                await asyncio.sleep(_QUIET_SECONDS)
            for one in [batch for batch in self._open if not batch.id]:
                await self._find(one)
            if self._new:
                await self._submit()
                wait = _FIRST_POLL_SECONDS
            for one in list(self._open):
                if any(own in self._waiting for own in one.ids):
                    await self._poll(one)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._arrived.wait()
            wait = min(wait * _GROWTH, _LONGEST_POLL_SECONDS)

    async def _submit(self) -> None:
        """Upload what is new."""
        for path, lines in _split(self._new):
            ids = list(lines)
            one = SentBatch(f"mbt-{token_hex(8)}", self._model, path, ids)
            self._keep({"name": one.name, "model": one.model, "url": path, "ids": ids})
            content = b"".join(lines.values())
            while not one.id:
                await self._create(one, content)
            self._open.append(one)
            self._sent.update(ids)
            for own in ids:
                self._new.pop(own, None)

    async def _create(self, one: SentBatch, content: bytes) -> None:
        """Upload a batch's file and begin it, unless the provider has them already."""
        import aiohttp

        if not one.file:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", content, filename=f"{one.name}.jsonl")
            made = await self._call("POST", "/files", data=form)
            if made is None:
                await self._look_for(one)
                return
            one.file = made["id"]
            self._keep({"name": one.name, "file": one.file})
        await self._begin(one)

    async def _begin(self, one: SentBatch) -> None:
        body = {
            "input_file_id": one.file,
            "endpoint": one.url,
            "completion_window": "24h",
            "metadata": {_MARK: one.name},
        }
        made = await self._call("POST", "/batches", json=body)
        if made is None:
            await self._look_for(one)
            return
        one.id = made["id"]
        self._keep({"name": one.name, "id": one.id})

    async def _find(self, one: SentBatch) -> None:
        """Go on with a batch whose beginning a kill cut; forget it if the provider has nothing."""
        while True:
            await self._look_for(one)
            if one.id:
                return
            if not one.file:
                self._open.remove(one)
                self._sent.difference_update(one.ids)
                self._keep({"name": one.name, "is_done": True})
                for own in one.ids:
                    if (found := self._waiting.get(own)) and not found.done():
                        words = "it did not reach the provider"
                        found.set_exception(_NotAnsweredError("batch_lost", words, can_retry=True))
                await asyncio.sleep(0)
                return
            await self._begin(one)

    async def _look_for(self, one: SentBatch) -> None:
        """Find a batch or its file at the provider by its name."""
        async for made in self._listed("/batches"):
            if (made.get("metadata") or {}).get(_MARK) == one.name:
                one.id = made["id"]
                self._keep({"name": one.name, "id": one.id})
                return
        if not one.file:
            async for made in self._listed("/files"):
                if made.get("filename") == f"{one.name}.jsonl":
                    one.file = made["id"]
                    self._keep({"name": one.name, "file": one.file})
                    return

    async def _listed(self, path: str) -> AsyncIterator[Mapping[str, Json]]:
        after = ""
        while True:
            query = {"limit": "100", **({"after": after} if after else {})}
            found = await self._patient("GET", path, params=query)
            for one in found["data"]:
                yield one
            if not found.get("has_more") or not found["data"]:
                return
            after = found["data"][-1]["id"]

    async def _poll(self, one: SentBatch) -> None:
        """Ask how a batch stands; deliver its replies if it has ended."""
        now = await self._patient("GET", f"/batches/{one.id}")
        status, counts = now["status"], now.get("request_counts") or {}
        done = counts.get("completed", 0)
        self._said = f"batch {one.id}: {status}, {done:,} of {len(one.ids):,} replies"
        if status not in _ENDED:
            return
        answers: dict[str, _Answer | Exception] = {}
        for name in ("output_file_id", "error_file_id"):
            if file := now.get(name):
                content = await self._patient("GET", f"/files/{file}/content")
                answers.update(_answers_in(content))
        problems = (now.get("errors") or {}).get("data") or []
        words = "; ".join(server_words(p) for p in problems) or "it ended without a reply"
        full = any(p.get("code") == "token_limit_exceeded" for p in problems)
        can_retry = status != "failed" or full
        kind = f"batch_{status}" if status != "completed" else "batch_incomplete"
        self._sent.difference_update(one.ids)
        for own in one.ids:
            missing = _NotAnsweredError(kind, words, can_retry=can_retry)
            self._deliver(own, answers.get(own, missing))
        self._open.remove(one)
        self._said = ""
        await asyncio.sleep(0)  # each request is settled when it wakes
        await asyncio.sleep(0)
        self._keep({"name": one.name, "is_done": True})

    def _deliver(self, own: str, answer: "_Answer | Exception") -> None:
        waiting = self._waiting.get(own)
        if waiting is None or waiting.done():
            return  # its reply is in the journal
        if isinstance(answer, Exception):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    async def _patient(self, method: str, path: str, **options: Any) -> Any:
        """Call until there is an answer."""
        while (found := await self._call(method, path, **options)) is None:
            pass
        return found

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        """Call the API once; None, after a wait, if the connection or the server failed.

        Raises:
            BackendError: The API refuses the call.
        """
        import aiohttp

        url, problem = f"{self.address}{path}", ""
        try:
            async with self._session.request(
                method, url, allow_redirects=False, **options
            ) as response:
                content = await response.read()
                if response.status == 200:
                    return content if path.endswith("/content") else orjson.loads(content)
                result = result_of_status(
                    response.status,
                    response.headers,
                    content,
                    Sending(),
                    address=self.address,
                    key_name=self._endpoint.key_name,
                )
                problem = result.reply.failure or ""
                if not result.can_retry:
                    raise BackendError(f"`{url}` refuses a batch: {problem}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = str(error) or type(error).__name__
        except orjson.JSONDecodeError:
            problem = "the answer is not JSON"
        self._said = f"`{url}`: {problem}; trying again"
        await asyncio.sleep(2.0)
        return None

    def _keep(self, record: Mapping[str, Json]) -> None:
        keep_record(self._path, record)

    async def _post_body(self, body: dict[str, Json]) -> _Answer:
        """Refuse a body without a request, as of a likelihood; `OpenAIBackend` does so before."""
        raise BackendError("a batch API gives no likelihoods")


def _split(lines: Mapping[str, tuple[str, bytes]]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Requests of one path each, within the limits of a batch."""
    parts: list[tuple[str, dict[str, bytes]]] = []
    last: dict[str, tuple[dict[str, bytes], int]] = {}
    for own, (path, line) in lines.items():
        part, size = last.get(path, ({}, 0))
        if not part or len(part) >= MOST_REQUESTS or size + len(line) > MOST_BYTES:
            part, size = {}, 0
            parts.append((path, part))
        part[own] = line
        last[path] = part, size + len(line)
    yield from parts


def _answers_in(content: bytes) -> Iterator[tuple[str, "_Answer | Exception"]]:
    """The answers in a file of results."""
    for line in content.splitlines():
        with suppress(orjson.JSONDecodeError, KeyError, TypeError):
            one = orjson.loads(line)
            if response := one.get("response"):
                body = orjson.dumps(response["body"])
                yield one["custom_id"], (response["status_code"], {}, body)
            else:
                error = one.get("error") or {}
                kind = "batch_expired" if error.get("code") == "batch_expired" else "batch_error"
                words = server_words(error)
                yield one["custom_id"], _NotAnsweredError(kind, words, can_retry=True)


@asynccontextmanager
async def open_batches(
    endpoint: Endpoint, batch: RequestBatch, journal: Path, writer: str, model: str
) -> AsyncIterator[BatchClient]:
    """A client that sends through the batch API of an endpoint."""
    import aiohttp

    headers = dict(endpoint.headers)
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    limit = aiohttp.ClientTimeout(
        total=None,
        sock_connect=batch.run.connect_timeout_seconds,
        sock_read=batch.run.request_timeout_seconds,
    )
    async with aiohttp.ClientSession(headers=headers, timeout=limit, trust_env=True) as session:
        client = BatchClient(endpoint, batch, session, journal, writer, model)
        running = asyncio.create_task(client.run())
        try:
            yield client
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
