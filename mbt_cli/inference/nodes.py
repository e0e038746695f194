"""Servers over several nodes of a job: how the processes on the nodes find each other.

The script of a job with several nodes says in the environment how many there are (MBT_NODES), where
they meet (MBT_NODES_ADDRESS, a port of the first node) and a key (MBT_NODES_KEY), and starts
`mbt node`, which is `join` below, on every node but the first. A backend on the first node starts
`ranks` with the words of `over_nodes`; the two sides are described there.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import NoReturn

from mbt_cli.core.gpus import nodes_of
from mbt_cli.core.job_folders import temporary_folder
from mbt_cli.core.serving import ServerPlace
from mbt_cli.errors import UsageError
from mbt_cli.inference import ranks
from mbt_cli.inference.ranks import ADDRESS, KEY
from mbt_cli.inference.server import ServerProcess

_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_LINES_SENT = 500


def joined_nodes(environment: Mapping[str, str]) -> int:
    """Number of nodes on which the processes of a server can be started; 1 outside such a job."""
    return nodes_of(environment) if ADDRESS in environment and KEY in environment else 1


def over_nodes(
    each: Sequence[str],
    *,
    first: Sequence[str],
    others: Sequence[str],
    nodes: int,
    environment: Mapping[str, str],
    place: ServerPlace,
) -> tuple[str, ...]:
    """The command that runs a server over nodes of the job.

    Args:
        each: Words with which the command begins on each node.
        first: Words that follow on this node.
        others: Words that follow on the others.
        nodes: Number of nodes that take part, not more than the job has.
        environment: Variables for each node, beside those of the job; without secrets.
        place: Where the server writes its log.
    """
    plan = {
        "each": list(each),
        "first": list(first),
        "others": list(others),
        "nodes": nodes,
        "environment": dict(environment),
        "log": str(place.log.absolute()),
    }
    return (sys.executable, "-I", ranks.__file__, json.dumps(plan))


def join(environment: Mapping[str, str]) -> NoReturn:
    """Run this node's part of every server of the job, one after the other; never returns.

    Raises:
        UsageError: The environment is not that of a job with several nodes.
    """
    if ADDRESS not in environment or KEY not in environment:
        raise UsageError(
            f"{ADDRESS} is not set", hint="the script of a job with several nodes starts `mbt node`"
        )
    host, _, port = environment[ADDRESS].rpartition(":")
    key = environment[KEY].encode()
    own = {name: value for name, value in environment.items() if name != KEY}
    with temporary_folder(environment):
        while True:
            lifeline = _connected((host, int(port)), key)
            if lifeline is not None:
                with lifeline, contextlib.suppress(EOFError, ConnectionError):
                    _take_part(lifeline, own)
            time.sleep(_RETRY_SECONDS)


def _connected(address: tuple[str, int], key: bytes) -> Connection | None:
    """The connection to the first node; None while no server starts there."""
    try:
        lifeline = Client(address, authkey=key)
    except (OSError, EOFError, AuthenticationError):
        return None
    with socket.socket(fileno=os.dup(lifeline.fileno())) as connected:
        ranks.keep_alive(connected)
    return lifeline


def _take_part(lifeline: Connection, environment: Mapping[str, str]) -> None:
    """Run the process that the first node asks for until it ends, or the first node lets go."""
    lifeline.send_bytes(json.dumps({"host": socket.gethostname()}).encode())
    order = json.loads(lifeline.recv_bytes())
    process = ServerProcess(
        order["command"], {**environment, **order["environment"]}, Path(order["log"])
    )
    try:
        while (code := process.exit_code()) is None:
            if lifeline.poll(_LOOK_SECONDS):  # it says nothing more: it has ended
                return
        said = {"code": code, "tail": process.tail(_LINES_SENT)}
        lifeline.send_bytes(json.dumps(said).encode())
    finally:
        process.stop()
