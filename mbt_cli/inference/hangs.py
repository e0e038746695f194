"""Servers that hang: their health is fine, and no reply comes.

A slow server looks the same from outside, since a reply comes all at once. What tells them apart is
a completion of one token: a server that works answers it, or counts other tokens meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from mbt_cli.core.chat import Json, Vitals
from mbt_cli.core.model_settings import RunSettings
from mbt_cli.core.progress import Progress
from mbt_cli.inference.replies import ServerDiedError

_PROBE_SECONDS = 300.0
_LOOK_SECONDS = 5.0


class Watched(Protocol):
    """What tells whether an endpoint lives; see `Client`."""

    @property
    def address(self) -> str: ...

    @property
    def vitals(self) -> Vitals | None: ...

    @property
    def heard(self) -> float: ...

    async def probe(self, fields: Mapping[str, Json]) -> bool: ...


class HangWatch:
    """Watches whether anything comes back from an endpoint.

    Args:
        client: Sends the requests.
        run: Has the time limits.
        progress: Is told when nothing comes from a server that mbt did not start.
    """

    def __init__(self, client: Watched, run: RunSettings, progress: Progress) -> None:
        self._client = client
        self._run = run
        self._progress = progress
        self._since = time.monotonic()  # from when on silence counts
        self._proof: asyncio.Task[None] | None = None
        self._is_silent = False

    async def watch(self, in_flight: Callable[[], int]) -> None:
        """Look for a sign of life whenever nothing came for long; returns only by an exception.

        Raises:
            ServerDiedError: The server hangs.
        """
        limit = self._run.server_stall_seconds
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, limit / 4))
            if not in_flight():
                self._since = time.monotonic()
            self._is_silent = self._silent_seconds() >= limit
            if not self._is_silent:
                continue
            if self._client.vitals is None:
                self._progress.note(f"{self.why(in_flight())}; {self._advice()}")
                await self._until_heard(in_flight)
            else:
                await self.prove_alive()
            self._since = time.monotonic()

    def why(self, in_flight: int) -> str:
        """What is waited for, if nothing has come for long."""
        if self._proof is not None:
            return "no reply for long: the server is asked for one token, to see whether it hangs"
        if not self._is_silent:
            return ""
        waiting = f"{in_flight:,} request{'' if in_flight == 1 else 's'} in flight"
        seconds = self._silent_seconds()
        return f"nothing has come from `{self._client.address}` for {seconds:,.0f} s, {waiting}"

    async def prove_alive(self) -> None:
        """Wait for a sign of life; all who wait at the same time wait for one.

        Raises:
            ServerDiedError: There was none within the time limit.
        """
        vitals = self._client.vitals
        if vitals is None:
            return
        if self._proof is None:
            self._proof = asyncio.create_task(self._prove(vitals))
        await asyncio.shield(self._proof)

    async def close(self) -> None:
        """Stop looking."""
        if self._proof is not None:
            self._proof.cancel()
            await asyncio.gather(self._proof, return_exceptions=True)

    async def _prove(self, vitals: Vitals) -> None:
        heard, began = self._client.heard, time.monotonic()
        work = await asyncio.to_thread(vitals.work_done)
        probe = asyncio.create_task(self._client.probe(vitals.probe))
        try:
            while (left := began + (limit := self._limit(work)) - time.monotonic()) > 0:
                await asyncio.wait({probe}, timeout=min(left, _LOOK_SECONDS, limit / 4))
                # any byte is a sign: that of another reply, or a refusal
                if (probe.done() and probe.result()) or self._client.heard > heard:
                    break
                now = await asyncio.to_thread(vitals.work_done)
                if work and now and now != work:
                    break
                if now is not None and not work:
                    work = now
                if probe.done():
                    await asyncio.sleep(min(1.0, limit / 4))
                    probe = asyncio.create_task(self._client.probe(vitals.probe))
            else:
                raise _hung(vitals, self._silent_seconds(), limit)
        finally:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
        self._proof = None

    def _limit(self, work: str | None) -> float:
        """Seconds that the answer may take, by what the server says of its work."""
        if self._run.server_probe_seconds is not None:
            return self._run.server_probe_seconds
        # one that counts nothing may work at long replies, while the question waits behind them
        return self._run.request_timeout_seconds if work == "" else _PROBE_SECONDS

    async def _until_heard(self, in_flight: Callable[[], int]) -> None:
        heard = self._client.heard
        while in_flight() and self._client.heard == heard:
            await asyncio.sleep(min(_LOOK_SECONDS, self._run.server_stall_seconds / 4))
        self._is_silent = False

    def _silent_seconds(self) -> float:
        return time.monotonic() - max(self._since, self._client.heard)

    def _advice(self) -> str:
        seconds = self._run.request_timeout_seconds
        return (
            "if replies should be faster, look whether that server hangs: mbt restarts only "
            "servers that it started; after "
            f"{seconds:,.0f} s (`request_timeout_seconds`) a request fails, and the same command "
            "sends it again"
        )


def _hung(vitals: Vitals, silent_seconds: float, limit: float) -> ServerDiedError:
    error = vitals.error(
        f"the server hangs: no byte of any reply for {silent_seconds:,.0f} s, and no answer to a "
        f"request for one token within {limit:,.0f} s"
    )
    return ServerDiedError(error.message, hint=error.hint)
