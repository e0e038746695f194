"""A backlog sent to an endpoint from one event loop, which a signal stops in order."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import uvloop

from mbt_cli.core.chat import Endpoint
from mbt_cli.core.run_settings import RunSettings
from mbt_cli.inference.backlog import Backlog
from mbt_cli.inference.bodies import BodyRules
from mbt_cli.inference.client import open_client
from mbt_cli.inference.dispatcher import Dispatcher
from mbt_cli.inference.ledger import Ledger
from mbt_cli.inference.stopping import StopRequest, stopping


@dataclass(frozen=True)
class Sender:
    """How one run sends.

    Args:
        rules: How a request becomes a body.
        run: Concurrency and time limits.
        environment: Where a proxy may be named.
        request: Says which signal asked to stop.
        workers: Requests in flight at most.
    """

    rules: BodyRules
    run: RunSettings
    environment: Mapping[str, str]
    request: StopRequest
    workers: int

    def send_all(self, endpoint: Endpoint, backlog: Backlog, ledger: Ledger) -> None:
        """Work off the backlog.

        Raises:
            ServerDiedError: The server died; the backlog holds what is still to be sent.
            BackendError: No request can succeed, or the endpoint cannot be reached any more.
            ArtifactError: The journal cannot be written.
            Interrupted: SIGINT came.
            Stopped: SIGTERM or SIGUSR1 came.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._send_all(endpoint, backlog, ledger))

    async def _send_all(self, endpoint: Endpoint, backlog: Backlog, ledger: Ledger) -> None:
        async with open_client(endpoint, self.rules, self.run, self.environment) as client:
            dispatcher = Dispatcher(backlog, ledger, client, self.run, endpoint.alive)

            def stop() -> None:
                dispatcher.stop(self.request.drain_seconds(self.run.drain_seconds))

            with stopping(self.request, stop):
                await dispatcher.work_off(self.workers)
        if self.request.signal:
            raise self.request.error()
