"""Runs a server over several nodes: one process on this node and one on each other; stand-alone.

    python ranks.py PLAN

The environment says where the other nodes connect, and the key that both sides prove to have (see
`nodes`, which is the other side). Once enough of them have connected, each gets its command and
this node's own process starts. The connections are lifelines: when this process ends, however it
ends, the other nodes stop theirs; when one of theirs ends, this process prints its last lines and
exits. It imports only the standard library, so that it starts fast.

PLAN is JSON: `nodes`, how many take part; `each`, the words that all commands begin with; `first`
and `others`, the words that follow on this node and on the others; `environment`, variables to set;
`log`, where the others write, each with its number appended. A word or value that is exactly one of
these is replaced:

    {rank}              0 on this node, 1, 2, ... on the others
    {address}           this node's address, as the others reach it
    {own_address}       that of the node on which the process runs
    {port}, {port 2}    free ports on this node
"""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from typing import Any

ADDRESS = "MBT_NODES_ADDRESS"
KEY = "MBT_NODES_KEY"
_HANDSHAKE_SECONDS = 10
_LAST_WORDS_SECONDS = 5.0
_LOST_AFTER_SECONDS = 60


@dataclass(frozen=True)
class Member:
    """Another node that has connected.

    Args:
        connection: Its lifeline.
        host: Its name.
        address: Where it connected from.
    """

    connection: Connection
    host: str
    address: str


def main(plan: Mapping[str, Any], environment: Mapping[str, str]) -> int:
    """Run the server until one of its processes ends; returns its exit code."""
    with socket.create_server(("", _port(environment[ADDRESS])), reuse_port=False) as listener:
        members = _gather(listener, environment[KEY].encode(), plan["nodes"] - 1)
    address = _own_address(members[0].connection)
    ports = _free_ports(address)
    for rank, member in enumerate(members, start=1):
        known = _known(rank, address, member.address, ports)
        order = {
            "command": _filled([*plan["each"], *plan["others"]], known),
            "environment": _set(plan["environment"], known),
            "log": f"{plan['log']}.{rank}",
        }
        member.connection.send_bytes(json.dumps(order).encode())
    known = _known(0, address, address, ports)
    words = _filled([*plan["each"], *plan["first"]], known)
    own = {name: value for name, value in environment.items() if name != KEY}
    try:
        server = subprocess.Popen(words, env={**own, **_set(plan["environment"], known)})
    except OSError as error:
        _say(f"cannot start {words[0]}: {error.strerror}")
        return 127
    return _first_to_end(server, members)


def _gather(listener: socket.socket, key: bytes, wanted: int) -> list[Member]:
    """Wait until so many other nodes have connected and proved that they have the key."""
    found: list[Member] = []
    _say(f"waiting for {wanted} other node{'' if wanted == 1 else 's'}")
    while len(found) < wanted:
        ready = wait([listener, *(member.connection for member in found)])
        # one that says something now has ended
        found = [member for member in found if member.connection not in ready]
        if listener in ready and (member := _accept(listener, key)) is not None:
            found.append(member)
            _say(f"{len(found)} of {wanted} other nodes: {member.host} joined")
    return sorted(found, key=lambda member: (member.host, member.address))


def _accept(listener: socket.socket, key: bytes) -> Member | None:
    """The node that connects; None if it does not have the key, or is too slow."""
    try:
        accepted, peer = listener.accept()
        accepted.setblocking(True)
        # a connection reads its descriptor itself, so that only the kernel can limit the time
        limit = struct.pack("ll", _HANDSHAKE_SECONDS, 0)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        keep_alive(accepted)
        connection = Connection(accepted.detach())
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        hello = json.loads(connection.recv_bytes(1 << 16))
        return Member(connection, str(hello["host"]), peer[0])
    except (OSError, EOFError, ValueError, KeyError, TypeError, AuthenticationError):
        return None


def keep_alive(connected: socket.socket) -> None:
    """Have the kernel notice within a minute that the other node is gone."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _LOST_AFTER_SECONDS // 2),
        (socket.TCP_KEEPINTVL, _LOST_AFTER_SECONDS // 6),
        (socket.TCP_KEEPCNT, 3),
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _first_to_end(server: "subprocess.Popen[bytes]", members: Sequence[Member]) -> int:
    """Wait until a process of the server ends, print its last words, and return its exit code."""
    ended = os.pidfd_open(server.pid)
    by_connection = {id(member.connection): member for member in members}
    ready = wait([ended, *(member.connection for member in members)])
    is_own = ended in ready
    code = server.wait() if is_own else 0
    if is_own and code:
        # it often ends because another one did, whose last lines have the reason
        ready = wait([member.connection for member in members], _LAST_WORDS_SECONDS)
    for connection in (each for each in ready if each != ended):
        said = _last_words(by_connection[id(connection)])
        code = code or said
    return code if code >= 0 else 128 - code


def _last_words(member: Member) -> int:
    """Print what a node says at its end; returns the exit code of its process, never 0."""
    try:
        said = json.loads(member.connection.recv_bytes())
    except (OSError, EOFError, ValueError):
        _say(f"error: the connection to node {member.host} is lost")
        return 1
    for line in said["tail"].splitlines():
        _say(f"[{member.host}] {line}")
    _say(f"error: the process on node {member.host} exited with code {said['code']}")
    return int(said["code"]) or 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _own_address(connection: Connection) -> str:
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        return str(own.getsockname()[0])


def _free_ports(address: str) -> list[int]:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind((address, 0))
        return [each.getsockname()[1] for each in (first, second)]


def _known(rank: int, address: str, own_address: str, ports: Sequence[int]) -> dict[str, str]:
    """What the words of PLAN stand for on one node."""
    return {
        "{rank}": str(rank),
        "{address}": address,
        "{own_address}": own_address,
        "{port}": str(ports[0]),
        "{port 2}": str(ports[1]),
    }


def _filled(words: Sequence[str], known: Mapping[str, str]) -> list[str]:
    return [known.get(word, word) for word in words]


def _set(variables: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    return {name: known.get(value, value) for name, value in variables.items()}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), os.environ))
