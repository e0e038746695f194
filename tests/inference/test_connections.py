"""What both transports make of the bytes a server sends: mbt's own pool, and aiohttp."""

import asyncio
import socketserver
import threading
import time
from contextlib import contextmanager

import pytest
import uvloop

from mbt_cli.core.model_settings import RunSettings
from mbt_cli.inference.client import aiohttp_transport, pooled_transport
from mbt_cli.inference.replies import BrokenReplyError

RUN = RunSettings(request_timeout_seconds=20, connect_timeout_seconds=10)
OK = b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"n":1}'


def aiohttp_without_proxy(url, headers, run):
    return aiohttp_transport(url, headers, run, None)


both = pytest.mark.parametrize("transport", [pooled_transport, aiohttp_without_proxy])


def head_of(stream):
    """Lines up to the empty one; nothing where the client has gone."""
    lines = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        lines.append(line)
    return b"".join(lines)


class Answering(socketserver.BaseRequestHandler):
    """Sends the server's bytes after each request, and notes what it received."""

    def handle(self):
        requests = []
        self.server.received.append(requests)
        stream = self.request.makefile("rb")
        while head := head_of(stream):
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            requests.append(head + b"\r\n" + stream.read(length))
            self.server.answer(self.request, len(self.server.received))
            if self.server.ends:
                return


@contextmanager
def server(answer, *, ends=False):
    """A server in threads of its own; gives its address, and what it received."""

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_):
            """A client that goes away is what these tests are about."""

        block_on_close = False

    with Server(("127.0.0.1", 0), Answering) as listening:
        listening.received, listening.answer, listening.ends = [], answer, ends
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}/v1/chat", listening.received
        finally:
            listening.shutdown()


def run(coroutine):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def asked(transport, answer, *, times=1, ends=False, settings=RUN):
    """Bodies posted one after the other: the answers, and what reached the server."""
    with server(lambda socket, _: socket.sendall(answer), ends=ends) as (url, received):

        async def ask():
            headers = {"Content-Type": "application/json", "Authorization": "Bearer key"}
            async with transport(url, headers, settings) as post:
                return [await post({"number": number}) for number in range(times)]

        return run(ask()), received


@both
@pytest.mark.parametrize(
    ("answer", "end", "status", "content"),
    [
        pytest.param(OK, False, 200, b'{"n":1}', id="length"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'3\r\n{"n\r\n4\r\n":1}\r\n0\r\n\r\n',
            *(False, 200, b'{"n":1}'),
            id="chunks",
        ),
        pytest.param(b'HTTP/1.1 200 OK\r\n\r\n{"n":1}', True, 200, b'{"n":1}', id="until the end"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, False, 200, b'{"n":1}', id="100 first"),
        pytest.param(
            b"HTTP/1.0 429 Slow\r\nretry-after: 3\r\nContent-Length: 0\r\n\r\n",
            *(True, 429, b""),
            id="HTTP/1.0",
        ),
        pytest.param(b"HTTP/1.1 204 None\r\n\r\n", False, 204, b"", id="nothing"),
    ],
)
def test_an_answer_is_read_in_every_form(transport, answer, end, status, content):
    (found,), _ = asked(transport, answer, ends=end)

    assert (found[0], found[2]) == (status, content)
    assert status != 429 or found[1].get("Retry-After") == "3"


@both
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(b"", ConnectionError, id="closed without a byte"),
        pytest.param(OK[:-3], BrokenReplyError, id="cut in the body"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
            BrokenReplyError,
            id="cut in a chunk",
        ),
    ],
)
def test_half_an_answer_is_no_answer(transport, answer, error):
    with pytest.raises(error):
        asked(transport, answer, ends=True)


def test_what_is_no_http_is_no_answer():
    with pytest.raises(BrokenReplyError, match="not HTTP"):
        asked(pooled_transport, b"220 mail.example ESMTP\r\n", ends=True)


@both
def test_a_connection_is_kept_and_the_request_is_whole(transport):
    answers, (received,) = asked(transport, OK, times=3)

    assert len(answers) == 3
    for number, request in enumerate(received):
        head, _, body = request.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/chat HTTP/1.1\r\n")
        assert b"Authorization: Bearer key" in head
        assert body == b'{"number":%d}' % number


@both
def test_a_connection_that_the_server_ends_is_not_used_again(transport):
    answer = OK.replace(b"\r\nContent", b"\r\nConnection: close\r\nContent")

    answers, received = asked(transport, answer, times=3, ends=True)

    assert [len(requests) for requests in received] == [1, 1, 1]
    assert {content for _, _, content in answers} == {b'{"n":1}'}


@both
def test_a_reply_that_nobody_waits_for_never_answers_the_next_request(transport):
    started, texts = threading.Event(), [b'{"n":1}', b'{"n":2}']

    def answer(socket, number):
        started.set()
        time.sleep(0.3 if number == 1 else 0)
        socket.sendall(OK.replace(b'{"n":1}', texts[number - 1]))

    async def scenario(url):
        async with transport(url, {}, RUN) as post:
            first = asyncio.create_task(post({}))
            await asyncio.to_thread(started.wait)
            first.cancel()
            await asyncio.sleep(0)
            return await post({})

    with server(answer) as (url, _):
        assert run(scenario(url))[2] == b'{"n":2}'


@both
def test_a_reply_that_takes_too_long_is_a_time_out(transport):
    with pytest.raises(TimeoutError):
        asked(transport, b"", settings=RunSettings(request_timeout_seconds=0.2))


@both
def test_nobody_at_the_address_is_a_connection_error(transport):
    async def scenario():
        async with transport("http://127.0.0.1:9/v1", {}, RUN) as post:
            await post({})

    with pytest.raises(ConnectionError):
        run(scenario())


@both
@pytest.mark.parametrize("turns", range(12))
def test_connections_that_are_being_made_are_closed_too(transport, turns):
    async def scenario(url):
        async with transport(url, {}, RUN) as post:
            asked = [asyncio.create_task(post({})) for _ in range(64)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    with server(lambda socket, _: socket.sendall(OK)) as (url, _):
        run(asyncio.wait_for(scenario(url), 60))


@both
def test_a_name_that_nobody_knows_is_a_connection_error(transport):
    async def scenario():
        async with transport("http://nohost.invalid/v1", {}, RUN) as post:
            return await asyncio.gather(*(post({}) for _ in range(8)), return_exceptions=True)

    assert {isinstance(error, ConnectionError | OSError) for error in run(scenario())} == {True}
