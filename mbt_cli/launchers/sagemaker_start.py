"""The start of a SageMaker container: `python -m mbt_cli.launchers.sagemaker_start JOB`.

JOB is a file in the channel of the job, with the command, its variables, and where its secrets are.
The command runs in the folder of the channel. Of several instances, the first one runs it, and the
others run `mbt node` until the first one has ended. It prints everything that the command prints,
passes signals on, and leaves the last lines of a failure where SageMaker reads them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from mbt_cli.core.secrets import hold, mask

_PORT = 28_561
"""Where the processes of a server meet, on the first instance; the next port says that it runs."""
_CONNECT_SECONDS = 1_800
_RETRY_SECONDS = 1.0
_LAST_LINES = 20
_REASON_BYTES = 1_000
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Secrets(Protocol):
    """Reads secrets of an account."""

    def __call__(self, service: str) -> Any:
        """A client of `ssm` or `secretsmanager`."""


def hosts_of(ml: Path, environment: Mapping[str, str]) -> tuple[list[str], str]:
    """The names of all instances in a fixed order, and that of this one.

    Args:
        ml: SageMaker's folder in the container, `/opt/ml`.
        environment: With SM_HOSTS and SM_CURRENT_HOST, where the image's toolkit sets them.
    """
    if "SM_HOSTS" in environment and "SM_CURRENT_HOST" in environment:
        return sorted(json.loads(environment["SM_HOSTS"])), environment["SM_CURRENT_HOST"]
    with suppress(OSError):
        found = json.loads((ml / "input/config/resourceconfig.json").read_bytes())
        return sorted(found["hosts"]), str(found["current_host"])
    return ["localhost"], "localhost"


def secret_values(
    wanted: Mapping[str, str], environment: Mapping[str, str], client: Secrets
) -> dict[str, str]:
    """The values of secrets; a variable that is set already keeps its value.

    Args:
        wanted: Variable to `secretsmanager:NAME` or `ssm:NAME`.
        environment: The variables that are set.
        client: Reads them.
    """
    found = {}
    for variable, place in wanted.items():
        if variable in environment:
            continue
        service, _, name = place.partition(":")
        if service == "ssm":
            given = client(service).get_parameter(Name=name, WithDecryption=True)
            found[variable] = given["Parameter"]["Value"]
        else:
            text = client(service).get_secret_value(SecretId=name)["SecretString"]
            with suppress(ValueError):  # a secret of several keys is JSON
                parsed = json.loads(text)
                text = parsed.get(variable, text) if isinstance(parsed, dict) else text
            found[variable] = text
    return found


def run(words: Sequence[str], environment: Mapping[str, str], folder: Path, reason: Path) -> int:
    """Run the command, print what it prints and pass signals on; returns its exit code.

    Args:
        words: The command.
        environment: Its variables.
        folder: Its working folder.
        reason: File that gets the last lines if it fails.
    """
    child = subprocess.Popen(
        words,
        env=dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    for number in _SIGNALS:
        signal.signal(number, lambda received, _: child.send_signal(received))
    last: deque[bytes] = deque(maxlen=_LAST_LINES)
    assert child.stdout is not None
    for line in child.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        last.append(line)
    code = child.wait()
    code = code if code >= 0 else 128 - code
    if code:
        text = mask(b"".join(last).decode(errors="replace"))
        with suppress(OSError):
            reason.parent.mkdir(parents=True, exist_ok=True)
            told = f"exit code {code}: {text}".encode()
            reason.write_bytes(told if len(told) <= _REASON_BYTES else told[-_REASON_BYTES:])
    return code


def _tell_that_it_runs(port: int) -> None:
    """Keep connections of the other instances open until this process ends."""
    server = socket.create_server(("", port))

    def take() -> None:
        kept = []
        while True:
            kept.append(server.accept())

    Thread(target=take, daemon=True).start()


def _join(words: Sequence[str], environment: Mapping[str, str], host: str, port: int) -> int:
    """Run this instance's part of servers until the first one has ended.

    Raises:
        TimeoutError: The first instance does not answer.
    """
    first = _connected(host, port)
    child = subprocess.Popen(words, env=dict(environment), stdin=subprocess.DEVNULL)
    for number in _SIGNALS:
        signal.signal(number, lambda received, _: child.send_signal(received))
    with suppress(OSError):
        first.recv(1)  # ends when the first instance does
    child.terminate()
    child.wait()
    return 0


def _connected(host: str, port: int) -> socket.socket:
    until = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            found = socket.create_connection((host, port), timeout=10)
        except OSError:
            if time.monotonic() > until:
                raise TimeoutError(f"{host}:{port} has not answered") from None
            time.sleep(_RETRY_SECONDS)
        else:
            found.settimeout(None)
            return found


def start(job_file: Path, port: int = _PORT) -> int:
    """Run the job of a file in `ML/input/data/CHANNEL/jobs/`; returns its exit code."""
    job = json.loads(job_file.read_bytes())
    folder = job_file.parents[1]
    ml = folder.parents[2]
    environment = {**os.environ, **job["environment"]}
    if job["secrets"]:
        secrets = secret_values(job["secrets"], environment, _aws(environment))
        hold(secrets, named=secrets)
        environment |= secrets
    hosts, own = hosts_of(ml, environment)
    if len(hosts) > 1:
        address = {"MBT_NODES_ADDRESS": f"{hosts[0]}:{port}", "MBT_NODES_KEY": job["key"]}
        environment |= {"MBT_NODES": str(len(hosts)), **address}
        if own != hosts[0]:
            node = [sys.executable, "-m", "mbt_cli", "node"]
            return _join(node, environment, hosts[0], port + 1)
        _tell_that_it_runs(port + 1)
    return run(job["argv"], environment, folder, ml / "output" / "failure")


def _aws(environment: Mapping[str, str]) -> Secrets:
    import boto3

    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")

    def client(service: str) -> Any:
        return boto3.session.Session(region_name=region).client(service)

    return client


if __name__ == "__main__":
    sys.exit(start(Path(sys.argv[1])))
