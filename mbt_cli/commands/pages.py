"""Finding the page of a report, and serving it on this machine alone."""

import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

from rich.text import Text

from mbt_cli.commands.opening import open_manifest
from mbt_cli.commands.printing import printer
from mbt_cli.errors import MissingInputError, UsageError
from mbt_cli.manifest.presets import manifest_file
from mbt_cli.manifest.problems import nearest
from mbt_cli.settings import read_machine
from mbt_cli.store.page import PAGE

_INDEX = "index.html"
_LOOPBACK = "127.0.0.1"


def find_page(path: Path | None) -> Path:
    """The page's index.html: the newest one at or below a path, or of a manifest's study.

    Args:
        path: A page, a folder, a manifest, or None for the folder with all runs.

    Raises:
        UsageError: There is no such path.
        MissingInputError: No report was made there.
    """
    folder = study_path(path)
    if folder.is_file():
        return folder
    if (folder / _INDEX).is_file():
        return folder / _INDEX
    found = sorted(folder.rglob(f"{PAGE}/{_INDEX}"), key=lambda page: page.stat().st_mtime)
    if not found:
        raise MissingInputError(
            f"no report below `{folder}`", hint="run `mbt report MANIFEST` first"
        )
    return found[-1]


def study_path(path: Path | None) -> Path:
    """Where to look: the path itself, the folder of a manifest or study by name, or all runs.

    Raises:
        UsageError: There is no such path.
    """
    runs = read_machine().runs
    if path is None:
        return runs
    if path.suffix == ".toml":
        manifest, machine = open_manifest(path, None, None)
        return machine.runs / manifest.study
    if path.exists():
        return path
    if (runs / path).is_dir():
        return runs / path
    if manifest_file(path) != path:
        return study_path(manifest_file(path))
    known = [folder.name for folder in runs.glob("[!.]*")]
    hint = nearest(str(path), known) if known else "mbt run MANIFEST makes one"
    raise UsageError(f"no file, folder or study `{path}`", hint=hint)


class _Handler(SimpleHTTPRequestHandler):
    """Files of one folder, for pages that came from here only."""

    def do_GET(self) -> None:
        # a page of another site may have its own name point here
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in (_LOOPBACK, "localhost"):
            self.send_error(403, "only for this machine")
            return
        super().do_GET()

    def do_HEAD(self) -> None:
        self.send_error(405)

    def end_headers(self) -> None:
        # the data are scripts, which any site could include otherwise
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line."""


def serve_page(page: Path) -> NoReturn:
    """Serve the page's folder on a free port of the loopback address until Ctrl-C."""
    handler = partial(_Handler, directory=str(page.parent))
    with ThreadingHTTPServer((_LOOPBACK, 0), handler) as server:
        address = f"http://{_LOOPBACK}:{server.server_port}/{_INDEX}"
        _say(f"serving {page.parent}/ on {address} (Ctrl-C ends it)")
        server.serve_forever()
    raise AssertionError("the server only ends by a signal")


def open_page(page: Path) -> None:
    """Open the page as a file, or say what to open where there is no browser."""
    uri = page.resolve().as_uri()
    _say(f"opened {uri}" if webbrowser.open(uri) else f"open this in a browser: {uri}")


def _say(text: str) -> None:
    printer().print(Text(text))
