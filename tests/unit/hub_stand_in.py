"""A Hugging Face hub on loopback: the few endpoints that huggingface_hub calls to read files."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/(datasets|models)/([\w.-]+/[\w.-]+)/(revision|tree)/([\w.-]+)")
_RESOLVE = re.compile(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/([\w.-]+)/(.+)")


@dataclass
class Hub:
    """What the stand-in holds and what it was asked.

    Args:
        repos: `datasets/ORG/NAME` or `models/ORG/NAME` to file name to bytes.
        refuses: Repository to the error code that it answers with, such as `GatedRepo`.
        fails: Answers 503 to so many requests before it works.
        asked: Every request: method and path.
    """

    repos: dict[str, dict[str, bytes]]
    refuses: dict[str, str] = field(default_factory=dict)
    fails: int = 0
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def downloads(self) -> list[str]:
        """Paths of the files that were sent."""
        return [line[4:] for line in self.asked if line.startswith("GET") and "/resolve/" in line]


class _Server(ThreadingHTTPServer):
    hub: Hub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def log_message(self, *_):
        pass

    def _answer(self):
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        if hub.fails > 0:
            hub.fails -= 1
            self._send(503, b"busy")
        elif found := _API.fullmatch(path):
            kind, repo, what, revision = found.groups()
            self._api(f"{kind}/{repo}", what, revision)
        elif found := _RESOLVE.fullmatch(path):
            kind, repo, revision, name = found.groups()
            self._file(f"{'datasets' if kind else 'models'}/{repo}", revision, name)
        else:
            self._send(404, b"")

    def _api(self, repo, what, revision):
        if self._refused(repo, revision):
            return
        files = self.server.hub.repos[repo]
        tree = [
            {"type": "file", "path": name, "size": len(body), "oid": _oid(body)}
            for name, body in files.items()
        ]
        info = {"id": repo.partition("/")[2], "sha": COMMIT}
        answer = json.dumps(tree if what == "tree" else info).encode()
        self._send(200, answer, {"Content-Type": "application/json"})

    def _file(self, repo, revision, name):
        if self._refused(repo, revision):
            return
        body = self.server.hub.repos[repo].get(name)
        if body is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._send(200, body, {"ETag": f'"{_oid(body)}"', "X-Repo-Commit": COMMIT})

    def _refused(self, repo, revision):
        code = self.server.hub.refuses.get(repo)
        if code is None and repo not in self.server.hub.repos:
            code = "RepoNotFound"
        if code is None and revision not in ("main", COMMIT):
            code = "RevisionNotFound"
        if code is not None:
            self._send(403 if code == "GatedRepo" else 404, b"", {"X-Error-Code": code})
        return code is not None

    def _send(self, status, body, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """The stand-in, answering on a free port of loopback."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.hub = hub
        hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def _oid(body: bytes) -> str:
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()
