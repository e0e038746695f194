"""Hostile bytes for mbt's own HTTP client: read as httptools and aiohttp read them, or refused."""

import asyncio
import itertools
from contextlib import asynccontextmanager, suppress

import aiohttp
import httptools
import uvloop
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mbt_cli.core.model_settings import RunSettings
from mbt_cli.inference.client import Inflow, pooled_transport
from mbt_cli.inference.replies import BrokenReplyError

RUN = RunSettings(request_timeout_seconds=20, connect_timeout_seconds=10)
BODY = b'{"n":1}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n" + BODY

INTERIM = st.sampled_from(
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\nX-Step: 1\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 0\r\n\r\n",
    ]
)
STATUS = st.sampled_from([b"200 OK", b"200", b"204 None", b"304 Same", b"404 None", b"429 Slow"])
ODD_STATUS = st.sampled_from([b"000 Zero", b"099 Odd", b"101 Switch", b"600 Odd", b"20 Odd"])
VERSION = st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1"])
HEADER = st.sampled_from(
    [
        b"Server: stub",
        b"Retry-After: 3",
        b"retry-after: 999",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Connection: upgrade\r\nUpgrade: websocket",
        b"X-Folded: one\r\n two",
        b"Retry-After: 3\r\n 4",
        b"X-Empty:",
        b"X-Spaces :  5 ",
        b"X-Bytes: \xff\xfe",
        b"No colon",
        b": no name",
    ]
)
LENGTH = st.sampled_from([b"7", b"7", b"6", b"8", b"0", b"+7", b"7, 7", b"-1", b"0x7", b"9" * 30])
CODING = st.sampled_from(
    [b"chunked", b"chunked", b"Chunked", b"identity", b"gzip, chunked", b"chunked, identity"]
)
FRAMING = st.lists(
    st.one_of(
        LENGTH.map(b"Content-Length: %b".__mod__), CODING.map(b"Transfer-Encoding: %b".__mod__)
    ),
    max_size=3,
)
CHUNKS = st.sampled_from(
    [
        b"7\r\n%b\r\n0\r\n\r\n" % BODY,
        b'3;x=1\r\n{"n\r\n4\r\n":1}\r\n0\r\n\r\n',
        b"07\r\n%b\r\n0\r\nRetry-After: 77\r\nLocation: x\r\n\r\n" % BODY,
        b"7\r\n%b\r\n" % BODY,
        b"8\r\n%b\r\n0\r\n\r\n" % BODY,
        b"-7\r\n%b\r\n0\r\n\r\n" % BODY,
        b"7\n%b\n0\n\n" % BODY,
        b"fffffffffffffffff\r\n%b\r\n0\r\n\r\n" % BODY,
    ]
)
CONTENT = st.one_of(st.just(BODY), st.just(b""), CHUNKS, st.binary(max_size=20))
RUBBISH = st.sampled_from([b"", b"", b"\r\n", b"rubbish", WHOLE, WHOLE[:20], b"\0" * 9])


@st.composite
def responses(draw):
    """Bytes that are a response, or nearly one."""
    status = draw(st.one_of(STATUS, STATUS, ODD_STATUS))
    lines = [draw(VERSION) + b" " + status, *draw(st.lists(HEADER, max_size=3)), *draw(FRAMING)]
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    found = b"".join(draw(st.lists(INTERIM, max_size=2))) + head + draw(CONTENT) + draw(RUBBISH)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):  # changed, lost and doubled bytes
        place = draw(st.integers(0, len(found)))
        change = draw(st.sampled_from([b"\0", b"\r", b"\n", b" ", b"9", found[place : place + 9]]))
        found = found[:place] + change + found[place + draw(st.integers(0, 2)) :]
    return found


class Reading:
    """What httptools reads in the bytes at once: the first response that is not interim."""

    def __init__(self, content):
        self.status, self.body, self.is_complete, self.has_head = None, b"", False, False
        self.length = None
        self.parser = httptools.HttpResponseParser(self)
        try:
            self.parser.feed_data(content)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.is_complete:
                self.status = None

    def on_header(self, name, value):
        if not self.has_head and name.lower() in (b"content-length", b"transfer-encoding"):
            self.length = value

    def on_headers_complete(self):
        code = self.parser.get_status_code()
        if self.is_complete or 100 <= code < 200:
            self.length = None
            return
        self.status, self.has_head = code, True

    def on_body(self, body):
        if not self.is_complete:
            self.body += body

    def on_message_complete(self):
        self.is_complete = self.is_complete or self.has_head

    @property
    def answer(self):
        ends = self.is_complete or (self.has_head and self.length is None)
        return (self.status, self.body) if self.status is not None and ends else None


@asynccontextmanager
async def serving(answer):
    """The address of a server that calls `answer(connection, number, writer)` at each request."""
    connections = []

    async def connected(reader, writer):
        connections.append((asyncio.current_task(), writer))
        with suppress(OSError, asyncio.IncompleteReadError):
            for number in itertools.count():
                await reader.readuntil(b"\r\n\r\n{}")
                await answer(len(connections), number, writer)

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        for _, writer in connections:
            writer.transport.abort()
        await asyncio.gather(*(task for task, _ in connections), return_exceptions=True)


async def served(pieces, ask):
    """What `ask` returns for the address of a server that sends the pieces and hangs up."""

    async def answer(connection, number, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with serving(answer) as url:
        return await ask(url)


async def by_mbt(url):
    async with pooled_transport(url, {}, RUN, Inflow(RUN)) as post:
        try:
            status, headers, body = await post({})
        except (BrokenReplyError, OSError):
            return None
        return status, body, headers.get("Retry-After")


async def by_aiohttp(url):
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        try:
            async with session.post(url, data=b"{}", allow_redirects=False) as response:
                return response.status, await response.read(), response.headers.get("Retry-After")
        except (aiohttp.ClientError, OSError, ValueError):
            return None


def read(content, cuts, ask):
    places = sorted({0, *(cut % (len(content) + 1) for cut in cuts), len(content)})
    pieces = [content[start:stop] for start, stop in itertools.pairwise(places)]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(served(pieces, ask))


CUTS = st.lists(st.integers(0, 400), max_size=6)


@given(responses(), CUTS)
@example(WHOLE[:25], [])  # cut in the head
@example(b"HTTP/1.1 404 None\r\nServer: x\r\nContent-Le", [])
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 6\r\n\r\n" + BODY, [])
@example(b"HTTP/1.1 099 Odd\r\nContent-Length: 7\r\n\r\n" + BODY + WHOLE, [])
def test_bytes_are_read_as_httptools_reads_them_at_once_or_refused(content, cuts):
    found = read(content, cuts, by_mbt)

    if found is not None:
        assert found[:2] == Reading(content).answer


@given(responses(), CUTS)
def test_bytes_are_read_as_aiohttp_reads_them_or_refused(content, cuts):
    found, other = read(content, cuts, by_mbt), read(content, (), by_aiohttp)

    if found is not None and other is not None:
        assert found == other


@st.composite
def whole_responses(draw):
    """A response in one of the forms that HTTP allows, with what it means."""
    status = draw(st.sampled_from([200, 404, 429, 500]))
    body = draw(st.binary(max_size=300))
    interim = b"".join(draw(st.lists(INTERIM, max_size=2)))
    head = interim + b"HTTP/1.1 %d Said\r\nServer: stub\r\nRetry-After: 3\r\n" % status
    form = draw(st.sampled_from(["length", "chunks", "close"]))
    if form == "length":
        return status, body, head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    if form == "close":
        return status, body, head + b"\r\n" + body
    size = draw(st.integers(1, 100))
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    trailer = draw(st.sampled_from([b"", b"Retry-After: 77\r\n", b"X-Sum: 1\r\nX-Z: 2\r\n"]))
    return (
        status,
        body,
        head + b"Transfer-Encoding: chunked\r\n\r\n%b0\r\n%b\r\n" % (chunks, trailer),
    )


@given(whole_responses(), CUTS)
def test_a_whole_response_is_read_however_it_arrives(response, cuts):
    status, body, content = response

    assert read(content, cuts, by_mbt) == (status, body, "3")


@given(RUBBISH.filter(bool) | responses(), st.integers(1, 40))
def test_what_follows_a_response_never_answers_the_next_request(rubbish, share):
    """The server sends more than it was asked for: a part at once, the rest at the next request."""
    cut = max(1, len(rubbish) * share // 40)
    assume(rubbish[:cut].strip(b"\r\n"))  # empty lines before a response mean nothing
    sent = [WHOLE + rubbish[:cut], rubbish[cut:] + WHOLE.replace(b":1", b":2")]
    fresh = WHOLE.replace(b":1", b":2")

    async def answer(connection, number, writer):
        writer.write(sent[number] if connection == 1 and number < 2 else fresh)

    async def scenario():
        async with (
            serving(answer) as url,
            pooled_transport(url, {}, RUN, Inflow(RUN)) as post,
        ):
            first = await post({})
            try:
                return first[2], (await post({}))[2]
            except (BrokenReplyError, OSError):
                return first[2], None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        first, second = runner.run(scenario())

    assert first == BODY
    assert second in (None, fresh[-7:])
