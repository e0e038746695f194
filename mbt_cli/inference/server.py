"""From a command to an endpoint that answers: port, key, readiness, and why it did not come."""

import http.client
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson

from mbt_cli.core.chat import Json
from mbt_cli.core.places import ServerPlace
from mbt_cli.core.replies import server_words
from mbt_cli.errors import BackendError
from mbt_cli.inference.process import ServerProcess

LOOPBACK = "127.0.0.1"
_LINES_SHOWN = 15
_HEALTH_SECONDS = 5.0
_SLOWEST_POLL_SECONDS = 0.5
_PORT_ATTEMPTS = 3
_PORT_TAKEN = re.compile(r"address already in use|couldn't bind", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cause:
    """A known reason for a server not to start.

    Args:
        pattern: Regular expression that its log then holds, whatever the case.
        hint: What to change.
    """

    pattern: str
    hint: str


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How one server is started.

    Args:
        command: Program and arguments.
        model: Name under which it serves the model.
        environment: Added to the place's environment.
        health: Path that answers 200 once the server is up.
        probe: Body fields of the one tiny completion that proves that it answers.
        causes: Known reasons for it not to start, the likeliest first.
    """

    command: Sequence[str]
    model: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    health: str = "/health"
    probe: Mapping[str, Json] = field(default_factory=lambda: {"max_tokens": 1})
    causes: Sequence[Cause] = ()


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that has answered a request.

    Args:
        base_url: Up to and including `/v1`.
        api_key: Made for this server alone.
        alive: Raises BackendError, with the log's last lines, once the server is gone.
    """

    base_url: str
    api_key: str = field(repr=False)
    alive: Callable[[], None]


@contextmanager
def running_server(
    command_for: Callable[[int, str], ServerCommand], place: ServerPlace
) -> Iterator[RunningServer]:
    """Start a server on this machine and wait until it has answered one request.

    Args:
        command_for: Port and key to the command; the key belongs into its environment.
        place: Log file, environment and time allowed.

    Raises:
        BackendError: It ended or did not answer in time; the message ends with its last lines.
    """
    for attempt in range(_PORT_ATTEMPTS):
        with reserved_port() as port:
            key = secrets.token_urlsafe(32)
            command = command_for(port, key)
            environment = {**place.environment, **command.environment, "MBT_SERVER_KEY": key}
            process = ServerProcess(command.command, environment, place.log)
            try:
                try:
                    _wait_until_ready(process, command, (port, key), place.ready_timeout_seconds)
                except BackendError as error:
                    if attempt + 1 < _PORT_ATTEMPTS and _PORT_TAKEN.search(process.tail(50)):
                        continue
                    raise _explained(error.message, process, command, place) from error

                def alive(
                    process: ServerProcess = process, command: ServerCommand = command
                ) -> None:
                    try:
                        process.raise_if_ended()
                    except BackendError as error:
                        raise _explained(error.message, process, command, place) from error

                yield RunningServer(f"http://{LOOPBACK}:{port}/v1", key, alive)
                return
            finally:
                process.stop()


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free loopback port that no other process is given while the context lasts.

    A bound socket that does not listen keeps the port out of everybody's reach, except for a
    server that names it and sets SO_REUSEADDR or SO_REUSEPORT, which all servers here do.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.bind((LOOPBACK, 0))  # without the options: nobody else holds this port either
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield holder.getsockname()[1]


def _wait_until_ready(
    process: ServerProcess, command: ServerCommand, address: tuple[int, str], seconds: float
) -> None:
    port, key = address
    deadline = time.monotonic() + seconds
    pause = 0.05
    while not _is_healthy(port, command.health):
        process.raise_if_ended()
        if time.monotonic() > deadline:
            raise BackendError(f"the server was not ready after {seconds:g} seconds")
        time.sleep(pause)
        pause = min(_SLOWEST_POLL_SECONDS, pause * 1.5)
    try:
        _first_completion(port, key, command, max(1.0, deadline - time.monotonic()))
    except (OSError, http.client.HTTPException) as error:
        process.raise_if_ended()
        raise BackendError(f"the server did not answer its first request: {error}") from error


def _is_healthy(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_HEALTH_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _first_completion(port: int, key: str, command: ServerCommand, seconds: float) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": command.model, "messages": messages, **command.probe}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=seconds)
    try:
        connection.request("POST", "/v1/chat/completions", orjson.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status != 200:
        words = content.decode(errors="replace")
        if content.startswith(b"{"):
            words = server_words(orjson.loads(content))
        raise BackendError(f"the server answered {response.status} to its first request: {words}")


def _explained(
    message: str, process: ServerProcess, command: ServerCommand, place: ServerPlace
) -> BackendError:
    log = process.tail(10_000)
    found = (c.hint for c in command.causes if re.search(c.pattern, log, re.IGNORECASE))
    last = process.tail(_LINES_SHOWN)
    shown = "\n".join(f"  {line}" for line in last.splitlines())
    text = f"{message}; its last lines:\n{shown}" if shown else f"{message}; it printed nothing"
    return BackendError(text, hint=next(found, f"the whole log is `{place.log}`"))
