"""Keeps one model server running from cell to cell, so that a study does not boot it each time."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from mbt_cli.core.chat import Endpoint, Responder
from mbt_cli.core.fingerprint import spec_of
from mbt_cli.core.keys import sha256_of
from mbt_cli.core.places import ServerPlace
from mbt_cli.errors import BackendError
from mbt_cli.interfaces import Backend


class Servers:
    """A context in which backends stay open until another one is asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: tuple[str, Endpoint | Responder] | None = None

    def __enter__(self) -> "Servers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def open(self, backend: Backend, place: ServerPlace) -> Iterator[Endpoint | Responder]:
        """The backend's endpoint: the one that runs already, if it is the same."""
        yield self._endpoint(backend, place)

    def _endpoint(self, backend: Backend, place: ServerPlace) -> Endpoint | Responder:
        key = sha256_of([type(backend).__name__, spec_of(backend), place.parallel])
        if self._running is not None and self._running[0] == key and _is_alive(self._running[1]):
            return self._running[1]
        self.close()
        endpoint = self._stack.enter_context(backend.open(place))
        self._running = (key, endpoint)
        return endpoint

    def close(self) -> None:
        """Stop the server that runs, if any."""
        self._running = None
        self._stack.close()


def _is_alive(endpoint: Endpoint | Responder) -> bool:
    if isinstance(endpoint, Responder) or endpoint.alive is None:
        return True
    try:
        endpoint.alive()
    except BackendError:
        return False
    return True
