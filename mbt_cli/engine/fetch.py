"""What a study needs from elsewhere: weights, benchmarks and published data, got before it runs."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mbt_cli.backends.llamacpp import FILE, NAME, SIZE_BYTES, LlamaCppBackend
from mbt_cli.core.column_maps import SourcePreset
from mbt_cli.core.names import nearest
from mbt_cli.core.serving import ServerPlace
from mbt_cli.engine.runner import hub_access
from mbt_cli.errors import MbtError, UsageError
from mbt_cli.interfaces import Backend
from mbt_cli.manifest.cell import Cell
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine
from mbt_cli.store.hub import HubRequest, HubSize, fetch_files, local_folder, size_of
from mbt_cli.store.questions import hub_request

# other frameworks' copies of the same weights
_OTHER_WEIGHTS = (
    *("original/*", "metal/*", "onnx/*", "*.onnx", "*.gguf", "*.pth", "*.h5", "*.msgpack"),
    *("consolidated*.safetensors", "*.ot", "*.tflite", "*.mlmodel"),
)


@dataclass(frozen=True)
class Needed:
    """One thing that a study names and that is not part of it.

    Args:
        name: What the manifest calls it, such as `model qwen3-0.6b`.
        what: Where it is, for people.
        request: Its files on the hub; None for the embedded model.
        backend: The backend that brings its own weights.
    """

    name: str
    what: str
    request: HubRequest | None = None
    backend: Backend | None = None


@dataclass(frozen=True, slots=True)
class Stock:
    """How much of a needed thing is here; None where nobody can tell now, `why` says why."""

    size: HubSize | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of one needed thing: where it is now, or the error that kept it away."""

    needed: Needed
    path: Path | None = None
    error: MbtError | None = None


def needed_by(
    manifest: Manifest, machine: Machine, *, models: Collection[str], benchmarks: Collection[str]
) -> list[Needed]:
    """Everything that the cells of a study fetch, each once, models first.

    Args:
        manifest: The study.
        machine: Where the caches are.
        models: Only these models; with `benchmarks` empty too, everything.
        benchmarks: Only these benchmarks, and published data about them.

    Raises:
        UsageError: The study has no such model or benchmark.
    """
    cells = list(manifest.cells.values())
    _check("model", models, manifest.document.models)
    _check("benchmark", benchmarks, manifest.document.benchmarks)
    takes_all = not models and not benchmarks
    found: dict[str, Needed] = {}
    for cell in cells:
        for model in cell.resolution.models.values():
            if takes_all or model.name in models:
                _add(found, _model(model.name, model.backend, machine))
    for cell in cells:
        if takes_all or cell.resolution.axes.get("benchmark") in benchmarks:
            _add(found, _questions(cell))
            _add(found, _published(cell))
    return list(found.values())


def stock_of(needed: Needed, machine: Machine) -> Stock:
    """How large it is and how much of that is here, without fetching."""
    if needed.request is None:
        there = int((machine.cache / "weights" / FILE).is_file())
        return Stock(HubSize(None, 1, SIZE_BYTES, 1 - there, SIZE_BYTES * (1 - there)))
    if hub_access(machine).offline:
        return Stock(None, "its size is not asked for: the network is off")
    try:
        return Stock(size_of(needed.request, hub_access(machine)))
    except MbtError as error:
        return Stock(None, error.message)


def fetch_all(
    needed: Sequence[Needed], machine: Machine, tell: Callable[[Needed], None]
) -> Iterator[Fetched]:
    """Fetch one after the other; what cannot be had does not keep the rest away.

    Args:
        needed: What to fetch.
        machine: Where to, and whether the network may be used.
        tell: Told of each before it begins.
    """
    for one in needed:
        tell(one)
        try:
            yield Fetched(one, _fetch(one, machine))
        except MbtError as error:
            yield Fetched(one, error=error)


def missing_error(results: Sequence[Fetched]) -> MbtError | None:
    """What to say when something could not be had; None when all is here."""
    lost = [result for result in results if result.error is not None]
    if not lost:
        return None
    lines = [f"{len(lost)} of {len(results)} could not be fetched:"]
    for result in lost:
        assert result.error is not None
        lines.append(f"  {result.needed.name}: {result.error.message}")
        if result.error.hint:
            lines.append(f"    {result.error.hint}")
    return MbtError("\n".join(lines), hint="run it again: what is here stays, the rest goes on")


def _fetch(needed: Needed, machine: Machine) -> Path:
    if needed.request is not None:
        return fetch_files(needed.request, hub_access(machine)).folder
    assert needed.backend is not None
    place = ServerPlace(machine.cache / "fetch.log", machine.cache, machine.environment)
    needed.backend.weights(place)
    return machine.cache / "weights" / FILE


def _add(found: dict[str, Needed], needed: Needed | None) -> None:
    """Keep it unless the same thing is there already under another name."""
    if needed is not None:
        found.setdefault(needed.what, needed)


def _model(name: str, backend: Backend, machine: Machine) -> Needed | None:
    if isinstance(backend, LlamaCppBackend):
        if backend.model != NAME:
            return None
        return Needed(f"model {name}", f"embedded {FILE}", backend=backend)
    place = ServerPlace(machine.cache / "fetch.log", machine.cache, machine.environment)
    weights = backend.weights(place)
    if weights is None or local_folder(weights.model) is not None:
        return None
    revision = weights.revision or "main"
    request = HubRequest(weights.model, ("*",), revision, type="model", skip=_OTHER_WEIGHTS)
    return Needed(f"model {name}", f"{weights.model} at {revision}", request)


def _questions(cell: Cell) -> Needed | None:
    benchmark = cell.resolution.benchmark
    if cell.kind != "questions" or benchmark is None or benchmark.source != "hub":
        return None
    axes = cell.resolution.axes
    request = hub_request(benchmark, axes["split"])
    return _of_request(f"benchmark {axes['benchmark']} {axes['split']}", request)


def _published(cell: Cell) -> Needed | None:
    source = cell.resolution.source_map
    if not isinstance(source, SourcePreset):
        return None
    try:
        files = source.files(cell.resolution.axes)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return _of_request(f"data {cell.address}", HubRequest(source.repo, (files,), source.revision))


def _of_request(name: str, request: HubRequest) -> Needed | None:
    if local_folder(request.repo) is not None:
        return None
    what = f"{request.repo}/{request.patterns[0]} at {request.revision}"
    return Needed(name, what, request)


def _check(kind: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"the study has no {kind} `{name}`", hint=nearest(name, known))
