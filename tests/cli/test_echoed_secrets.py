"""No secret of a run is on the disk or on the screen afterwards, however hostile the server.

Each trick is a server that echoes what it was sent, or what it may have read elsewhere. A whole
study runs against it through the command line; then everything that it left and printed is
searched, decoded in every way in which a reader could decode it.
"""

import html
import json
import re
import socketserver
import threading
from base64 import b64decode, b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

import polars as pl
import pytest

from tests.cli.wrong import CANNED, TINY, typed
from tests.conftest import SMALL_STUDY

Answer = Callable[[str], bytes]
"""The bytes of a response, for a secret."""


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    return head.encode() + body


def says(text: str = "so <answer>Oslo</answer>", **more: object) -> bytes:
    """A chat completion; `choice` and `message` are merged into it, other fields beside it."""
    choice, message = more.pop("choice", {}), more.pop("message", {})
    own = {"role": "assistant", "content": text, **message}
    completion = {
        "choices": [{"message": own, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        **more,
    }
    return http(json.dumps(completion).encode())


def refuses(message: object, status: str = "400 Bad Request") -> bytes:
    return http(json.dumps({"error": {"message": message}}).encode(), status)


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in text)


def entities(text: str) -> str:
    return text.replace("/", "&sol;").replace("+", "&plus;").replace("=", "&equals;")


def chunked(body: bytes, *, size: int) -> bytes:
    pieces = [body[n : n + size] for n in range(0, len(body), size)]
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def body_of(response: bytes) -> bytes:
    return response.partition(b"\r\n\r\n")[2]


@dataclass(frozen=True)
class Trick:
    """One way to echo a secret.

    Args:
        name: What the server does.
        answer: Its response to every request.
        variable: The variable of the secret, which the server knows.
        value: The variable's value, with `KEY` for the secret and `URL` for the server's address.
        backend: More fields of the model's backend.
        url: The model's base_url, with `URL` for the server's address.
    """

    name: str
    answer: Answer
    variable: str = "FOO"
    value: str = "KEY"
    backend: str = 'api_key_env = "FOO"'
    url: str = "URL/v1"
    files: Mapping[str, str] = field(default_factory=dict)


def basic(key: str) -> str:
    return b64encode(f"some-user:{key}".encode()).decode()


TRICKS = (
    # replies
    Trick("plain", lambda key: says(f"your key is {key}")),
    Trick("with Bearer", lambda key: says(f"Authorization: Bearer {key}")),
    Trick("base64", lambda key: says(b64encode(f"Bearer {key}".encode()).decode())),
    Trick("base64 of a user", lambda key: says(f"Basic {basic(key)}")),
    Trick("URL-safe base64", lambda key: says(urlsafe_b64encode(f"a:{key}?".encode()).decode())),
    Trick("hex", lambda key: says(key.encode().hex())),
    Trick("URL-quoted", lambda key: says(f"https://x.org/?key={quote(key, safe='')}")),
    Trick("percent codes", lambda key: says("".join(f"%{ord(c):02x}" for c in key))),
    Trick(
        "JSON escapes", lambda key: http(body_of(says("@@")).replace(b"@@", escaped(key).encode()))
    ),
    Trick("JSON escapes as text", lambda key: says(escaped(key))),
    Trick("HTML codes", lambda key: says("".join(f"&#{ord(c)};" for c in key))),
    Trick("HTML hex codes", lambda key: says("".join(f"&#x{ord(c):X};" for c in key))),
    Trick("HTML entities", lambda key: says(entities(key))),
    Trick("quoted twice", lambda key: says(quote(quote(key, safe=""), safe=""))),
    Trick("a line end inside", lambda key: says(f"{key[:12]}\n{key[12:]}")),
    Trick("a blank without width inside", lambda key: says(f"{key[:12]}\u200b{key[12:]}")),
    Trick("base64 in lines", lambda key: says(encodebytes(f"{'?' * 40}{key}".encode()).decode())),
    Trick("hex with colons", lambda key: says(key.encode().hex(":"))),
    Trick("upper case", lambda key: says(key.upper())),
    Trick("lower case", lambda key: says(key.lower())),
    Trick("split over chunks", lambda key: chunked(body_of(says(f"it is {key}")), size=3)),
    Trick("a header", lambda key: http(body_of(says()), headers=f"X-Key: {key}\r\n")),
    Trick("a cookie", lambda key: http(body_of(says()), headers=f"Set-Cookie: k={key}\r\n")),
    Trick("reasoning", lambda key: says(message={"reasoning_content": f"the key {key}"})),
    Trick("inline reasoning", lambda key: says(f"<think>{key}</think> <answer>{key}</answer>")),
    Trick("an answer", lambda key: says(f"<answer>{key}</answer>")),
    Trick("parts", lambda key: says(message={"content": [{"type": "text", "text": key}]})),
    Trick("a refusal", lambda key: says("", message={"refusal": f"not with {key}"})),
    Trick("the model", lambda key: says(model=key, id=key, system_fingerprint=key)),
    Trick("finish_reason", lambda key: says(choice={"finish_reason": key})),
    Trick("finish_reason as a table", lambda key: says(choice={"finish_reason": {key: [key]}})),
    Trick("usage", lambda key: says(usage={"prompt_tokens": key, key: 1})),
    Trick("the list of models", lambda key: http(json.dumps({"data": [{"id": key}]}).encode())),
    # errors
    Trick("400", lambda key: refuses(f"Incorrect API key provided: Bearer {key}")),
    Trick("401", lambda key: refuses(f"Incorrect API key: {key}", "401 Unauthorized")),
    Trick("403", lambda key: refuses([{"msg": key}], "403 Forbidden")),
    Trick("404", lambda key: http(key.encode(), "404 Not Found")),
    Trick("429", lambda key: http(b"{}", "429 Slow", f"Retry-After: {key}\r\n")),
    Trick("500", lambda key: http(f"<html>{key}</html>".encode(), f"500 {key}")),
    Trick("a reason phrase", lambda key: http(b"", f"400 {key}")),
    Trick(
        "no quota",
        lambda key: http(
            json.dumps({"error": {"code": "insufficient_quota", "message": key}}).encode(), "429 No"
        ),
    ),
    Trick(
        "an error in a reply", lambda key: http(json.dumps({"error": {"message": key}}).encode())
    ),
    Trick("an error that is cut inside", lambda key: refuses("x" * 485 + key)),
    Trick("an error in lines", lambda key: refuses(f"wrong key {key[:12]}\n{key[12:]}")),
    Trick("an error page", lambda key: http(f"<p>{entities(key)}</p>".encode(), "400 Bad")),
    Trick("an error in base64", lambda key: refuses(f"Basic {basic(key)}")),
    Trick(
        "a redirect", lambda key: http(b"", "302 Found", f"Location: https://x.org/?k={key}\r\n")
    ),
    Trick(
        "a redirect, quoted",
        lambda key: http(b"", "307 To", f"Location: /{quote(key, safe='')}\r\n"),
    ),
    Trick(
        "a login page",
        lambda key: http(
            b"", "302 To", f"Location: /login?next={quote(quote(key, safe=''), safe='')}\r\n"
        ),
    ),
    Trick("no HTTP", lambda key: f"SSH-2.0-{key}\r\n".encode()),
    Trick(
        "a wrong chunk",
        lambda key: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + key.encode(),
    ),
    Trick(
        "a body that breaks off",
        lambda key: http(b"", "200 OK").replace(b": 0", b": 99") + key.encode(),
    ),
    Trick("no JSON", lambda key: http(key.encode())),
    Trick("a text where JSON is an object", lambda key: http(json.dumps(key).encode())),
    Trick("TLS", lambda key: f"HTTP/1.0 400 {key}\r\n\r\n".encode(), url="HTTPS/v1"),
    # other ways to the server
    Trick(
        "the SDK",
        lambda key: refuses(f"wrong key {key}"),
        backend='client = "sdk", api_key_env = "FOO"',
    ),
    Trick(
        "the SDK, 401",
        lambda key: refuses(key, "401 No"),
        backend='client = "sdk", api_key_env = "FOO"',
    ),
    Trick("another header", lambda key: says(key), backend='headers_env = { "X-Api-Key" = "FOO" }'),
    Trick(
        "a scheme in the variable",
        lambda key: says(key),
        backend='headers_env = { Authorization = "FOO" }',
        value="Token KEY",
    ),
    Trick(
        "a proxy",
        lambda key: http(basic(key).encode(), "407 Who"),
        variable="http_proxy",
        value="http://some-user:KEY@HOST",
        backend="",
        url="http://model.invalid/v1",
    ),
    Trick(
        "a proxy that is away",
        lambda key: b"",
        variable="http_proxy",
        value="http://some-user:KEY@127.0.0.1:9",
        backend="",
        url="http://model.invalid/v1",
    ),
    # secrets that the endpoint was never sent
    Trick("W&B", lambda key: says(key), variable="WANDB_API_KEY", backend=""),
    Trick("a variable's name", lambda key: says(key), variable="db_passwd", backend=""),
    Trick(
        "a database",
        lambda key: says(key),
        variable="STORE",
        value="pg://some-user:KEY@host/db",
        backend="",
    ),
    Trick(
        "a file of tokens",
        lambda key: says(key),
        variable="HF_TOKEN_PATH",
        value="token",
        backend="",
        files={"token": "KEY\n"},
    ),
    Trick(
        "netrc",
        lambda key: says(key),
        variable="NETRC",
        value="netrc",
        backend="",
        files={"netrc": "machine api.wandb.ai login user password KEY\n"},
    ),
    Trick(".env", lambda key: says(key), variable="UNUSED", files={".env": "FOO=KEY\n"}),
)


class _Server(socketserver.ThreadingTCPServer):
    """Answers every request with the same bytes, and counts them."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, response: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.response = response
        self.asked = 0


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        length = 0
        self.server.asked += 1
        while (line := self.rfile.readline(65_536)) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            if not line.isascii():  # the start of TLS
                break
        self.rfile.read(length)
        self.wfile.write(self.server.response)


@contextmanager
def serving(response: bytes) -> Iterator[_Server]:
    with _Server(response) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def readings(text: str) -> Iterator[str]:
    """A text, and what someone who decodes parts of it reads."""
    yield text
    plain = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    plain = html.unescape(unquote(unquote(plain.replace("\\/", "/").replace('\\"', '"'))))
    yield plain
    text = re.sub(r"[\s:\u200b]|\\+[nr]", "", plain)
    yield text
    for run in set(re.findall(r"[A-Za-z0-9+/_-]{8,}", text)):
        for start in range(4):
            part = run[start:].replace("-", "+").replace("_", "/")
            yield b64decode(part[: len(part) // 4 * 4]).decode("latin-1")
    for run in set(re.findall(r"[0-9a-fA-F]{8,}", text)):
        for start in range(2):
            part = run[start:]
            yield bytes.fromhex(part[: len(part) // 2 * 2]).decode("latin-1")


def leaks(folder: Path, printed: str, key: str, given: set[str]) -> list[str]:
    """Where a key, or eight characters of its start, middle or end, can be read."""
    parts = [part.casefold() for part in (key[:8], key[8:16], key[-8:])]
    texts = {"the screen": printed}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_file() and name not in given:
            rows = path.suffix == ".parquet"
            content = (
                pl.read_parquet(path).write_json() if rows else path.read_bytes().decode("latin-1")
            )
            texts[name] = f"{name} {content}"
    return [
        f"{name}: {part}"
        for name, text in texts.items()
        for reading in map(str.casefold, readings(text))
        for part in parts
        if part in reading
    ]


def key_of(name: str) -> str:
    """A key of its own for every trick, so that no trick profits from another."""
    digest = sha256(name.encode()).digest()
    return f"{b64encode(digest[:9]).decode()}/+{b64encode(digest[9:18]).decode()}Q7="


def study(trick: Trick, url: str) -> str:
    """The small study with a model behind the trick's server."""
    base_url = trick.url.replace("URL", url).replace("HTTPS", url.replace("http", "https"))
    model = f'id = "m"\nbackend = {{ kind = "openai", base_url = "{base_url}", {trick.backend} }}'
    text = SMALL_STUDY.replace(CANNED, model.replace(",  }", " }"))
    text = text.replace("max_failed_share = 0", "max_failed_share = 1")
    text = text.replace(
        "[sampling.plain]",
        "[run]\nmax_attempts = 1\nmax_retry_after_seconds = 0.01\n[sampling.plain]",
    )
    return text.replace(TINY, TINY.replace("6", "2")).replace("samples = 2", "samples = 1")


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_no_secret_is_left_by_a_run_or_printed(trick, tmp_path, capfd):
    key = key_of(trick.name)
    with serving(trick.answer(key)) as server:
        host = f"127.0.0.1:{server.server_address[1]}"
        shown = quote(key, safe="") if "://" in trick.value else key
        value = trick.value.replace("KEY", shown).replace("HOST", host)
        files = {name: text.replace("KEY", key) for name, text in trick.files.items()}
        files["study.toml"] = study(trick, f"http://{host}")
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        cell = "runs/small/base/benchmark=tiny/split=validation/model=parrot/prompt=answer"
        printed = ""
        for words in (
            ("run", "study.toml", "-v"),
            ("rollout", "study.toml", "--retry-failed"),
            ("show", "runs/small"),
            ("show", cell, "--json"),
            ("view", "runs/small/base", "--terminal"),
            ("check", "study.toml"),
        ):
            done = typed(words, tmp_path, {trick.variable: value}, capfd)
            printed += done.out + done.err
            assert "Traceback" not in done.err
            assert "problem" not in done.err

    assert server.asked or "away" in trick.name
    assert leaks(tmp_path, printed, key, set(files)) == []


def test_the_search_finds_every_trick():
    """That it finds nothing above means something only if it finds what is there."""
    for trick in TRICKS:
        key = key_of(trick.name)
        echoed = trick.answer(key).replace(b"\r\n3\r\n", b"").decode()
        if echoed and trick.name != "split over chunks":
            assert any(key[:8].casefold() in each.casefold() for each in readings(echoed)), (
                trick.name
            )


def test_what_a_server_of_mbt_prints_is_masked_in_its_log_and_in_the_failure(tmp_path, capfd):
    key = key_of("a server's log")
    (tmp_path / "vllm").write_text(
        '#!/bin/sh\necho "key $FOO, Basic $(printf %s "$FOO" | base64)"; exit 3\n'
    )
    (tmp_path / "vllm").chmod(0o755)
    model = 'preset = "qwen3-0.6b"\nplace = { executable = "./vllm", tensor_parallel_size = 1 }'
    hosted = 'kind = "openai", base_url = "http://x.invalid/v1", api_key_env = "FOO"'
    hosted = f'[models.b]\nid = "m"\nbackend = {{ {hosted} }}\nsampling = "plain"\n'
    text = SMALL_STUDY.replace(CANNED, model).replace("[models.judge]", f"{hosted}\n[models.judge]")
    (tmp_path / "study.toml").write_text(text)

    done = typed(["run", "study.toml"], tmp_path, {"FOO": key}, capfd)

    assert "key [secret], Basic [secret]" in done.err
    assert leaks(tmp_path, done.err, key, {"study.toml", "vllm"}) == []


def test_an_address_with_a_password_is_in_no_script_and_in_no_message(tmp_path, capfd):
    key = key_of("a script")
    address = {"HF_ENDPOINT": f"http://some-user:{quote(key, safe='')}@127.0.0.1:9"}
    text = SMALL_STUDY.replace(TINY, 'kind = "hotpotqa"\nsource = "hub"\nlimit = 2')
    (tmp_path / "study.toml").write_text(text)
    plan = typed(["plan", "study.toml", "--json"], tmp_path, address, capfd)
    (tmp_path / "plan.json").write_text(plan.out)

    scripts = typed(
        ["submit", "plan.json", "--slurm", "--script-dir", "s"], tmp_path, address, capfd
    )
    fetched = typed(["data", "fetch", "study.toml"], tmp_path, address, capfd)

    assert scripts.code == 0, scripts.err
    assert "HF_ENDPOINT" not in next((tmp_path / "s/scripts").glob("*.sh")).read_text()
    assert fetched.code == 1
    assert leaks(tmp_path, scripts.out + scripts.err + fetched.out + fetched.err, key, set()) == []


def test_a_preset_that_holds_a_secret_makes_no_script(tmp_path, capfd):
    key = key_of("a preset")
    (tmp_path / "study.toml").write_text(SMALL_STUDY)
    plan = typed(["plan", "study.toml", "--json"], tmp_path, {}, capfd)
    (tmp_path / "plan.json").write_text(plan.out)
    (tmp_path / "p/slurm").mkdir(parents=True)
    preset = "[gpu_job]\n[small_job]\n[job]\n"
    (tmp_path / "p/slurm/own.toml").write_text(
        f'setup = [["export", "WANDB_API_KEY={key}"]]\n{preset}'
    )

    words = [
        "submit",
        "plan.json",
        "--slurm",
        "--preset",
        "own",
        "--presets",
        "p",
        "--script-dir",
        "s",
    ]
    done = typed(words, tmp_path, {"WANDB_API_KEY": key}, capfd)

    assert done.code == 2
    assert "would hold the value of `WANDB_API_KEY`" in done.err
    assert leaks(tmp_path, done.out + done.err, key, {"p/slurm/own.toml"}) == []
