"""Harness: an evaluation program of somebody else, run on a model or a checkpoint of a training.

    journal/harness/ATTEMPT/output/     the program's own folder, while it runs
    journal/harness/ATTEMPT/done.json   written once it has ended well: its output is whole
    files/output/, files/program.json   the same in the finished cell

Numbers are read from an output that is whole, so that other metrics of the same program, or a
correction of a wrong path, never run it again.
"""

import os
import shlex
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import orjson
import polars as pl

from mbt_cli.core import rows
from mbt_cli.core.chat import Endpoint, Json, Responder
from mbt_cli.core.harness import (
    BASE_URL,
    CHECKPOINT,
    MODEL,
    OUTPUT,
    SEED,
    Harness,
    filled,
)
from mbt_cli.core.names import own_utc_name
from mbt_cli.core.plugin import RunOnly
from mbt_cli.core.request_keys import sha256_of
from mbt_cli.core.secrets import HELD, is_secret, mask, mask_json
from mbt_cli.errors import ArtifactError, MbtError, StageError, UsageError
from mbt_cli.inference.server import ServerProcess
from mbt_cli.interfaces import Backend
from mbt_cli.scores.harness_numbers import Number, ResultError, numbers_of, parsed
from mbt_cli.stages.base import InputRule, Model, Resolution, Stage, StageInput, Work
from mbt_cli.stages.checkpoints import Beside, beside_problems, checkpoint_of
from mbt_cli.store.cells import FILES
from mbt_cli.store.disk import write_atomically, writing_to
from mbt_cli.store.hub import HubRequest, fetch_files
from mbt_cli.store.lineage import read_lineage
from mbt_cli.store.locks import held_by_children
from mbt_cli.store.reading import check_files

_FOLDER, _OUTPUT = "harness", "output"
_DONE, _PROGRAM = "done.json", "program.json"
_POLL_SECONDS = 0.2
_GRACE_SECONDS = 10.0
_TAIL_LINES = 20
_SHOWN_NUMBERS = 6
_MEMORY_KILL = -9
_LARGEST_RESULT = 1 << 30
_LARGEST_MASKED = 64 << 20
_UNREAD = ("*.gguf", "*.pth", "*.onnx", "onnx/*", "original/*", "metal/*")
"""Files of repositories on the hub that no harness loads."""
_GIVE_FOLDER = "name a model whose weights are such a folder, or a training of this one"
_NO_INTERVAL = "the harness gives no error"


class HarnessStage(Stage):
    """Run an evaluation program on a model, and take its numbers."""

    kind: Literal["harness"] = "harness"
    checkpoints: StageInput | None = None
    """Train stages whose checkpoints are evaluated; they bring the axes model and variant."""
    beside: Annotated[Beside | None, RunOnly] = None
    """Evaluate checkpoints while `mbt run` trains, on GPUs that the training leaves free."""

    summary: ClassVar[str] = "run an evaluation program of others, and take its numbers"
    axes: ClassVar[tuple[str, ...]] = ("harness", "model")
    inputs: ClassVar[Mapping[str, InputRule]] = {
        "checkpoints": InputRule(kinds=("train",), leading=True)
    }
    models: ClassVar[tuple[str, ...]] = ("model",)

    def columns(self, resolution: Resolution) -> pl.Schema:
        return rows.NUMBERS

    def problems(self, read: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
        yield from beside_problems(self.beside, self.checkpoints)

    def computes_here(self, resolution: Resolution) -> bool:
        return not _harness(resolution).uses_server

    def check_here(self, resolution: Resolution, environment: Mapping[str, str]) -> None:
        check_program(resolution.axes["harness"], _harness(resolution), environment)

    def part_read(self, spec: Json, resolution: Resolution) -> Json:
        """Without what mbt sends in requests: the program sends its own, or loads the weights."""
        harness = _harness(resolution)
        models = spec.get("models", {})
        found = {
            role: _model_read(model, resolution.models.get(role), is_served=harness.uses_server)
            for role, model in models.items()
        }
        kept = {key: value for key, value in spec.items() if key != "seed" or harness.uses_seed}
        return {**kept, "models": found}

    def run(self, work: Work) -> Iterator[pl.DataFrame]:
        run = _Run(work)
        work.progress.start(work.resolution.address, None)
        kept = None if work.retry_failed else run.kept()
        output = run.made() if kept is None else kept
        numbers = run.numbers(output)
        work.progress.advance(done=len(numbers))
        for number in numbers[:_SHOWN_NUMBERS]:
            work.progress.note(f"{work.resolution.address}: {number_line(_row(number))}")
        run.publish(output)
        settings = {"harness": run.name, "interval": None}
        summary = [_summary_row(number, settings) for number in numbers]
        pl.DataFrame(summary, schema=rows.SUMMARY).write_parquet(work.files / "summary.parquet")
        model = work.resolution.models["model"]
        work.result.model = {"name": model.name, "role": "model", **model.spec()}
        work.result.notes |= {
            "reads": {name: list(group) for name, group in work.resolution.inputs.items()},
            "models": {model.name: model.backend.kind},
            "judge_models": [],
            "harness": orjson.loads((output.folder / output.record).read_bytes()),
        }
        yield pl.DataFrame([_row(number) for number in numbers], schema=rows.NUMBERS)


def no_folder(backend: Backend, *, is_trained: bool) -> tuple[str, str, str] | None:
    """Why a model has no folder in hub layout; None if it has one, or may have.

    Args:
        backend: The model's backend.
        is_trained: Whether a checkpoint of a training takes the place of its weights.

    Returns:
        The field of the model, what is wrong with it, and what to do.
    """
    if not backend.has_model or (not is_trained and type(backend).weights is Backend.weights):
        return "backend", f"`{backend.kind}` has no weights", _GIVE_FOLDER
    if is_trained:
        return None
    name = backend.weights_name() or ""
    if backend.weights_are_file or Path(name).expanduser().is_file():
        return "backend", f"`{name}` is a file, not a folder of weights", _GIVE_FOLDER
    if getattr(backend, "adapter", None) is not None:
        return "adapter", "is apart from the weights", "merge it into the weights"
    return None


def check_program(name: str, harness: Harness, environment: Mapping[str, str]) -> str:
    """The path of the program of a harness.

    Raises:
        UsageError: It is not there, or a variable with a key is not set.
    """
    written = harness.argv[0]
    found = shutil.which(os.path.expanduser(written), path=environment.get("PATH"))  # noqa: PTH111
    if found is None:
        raise UsageError(
            f"the harness `{name}` starts `{written}`, and there is no such program",
            hint=f"name its path in `harnesses.{name}.argv`, such as that of its own environment: "
            f'"~/envs/{name}/bin/{Path(written).name}"',
        )
    for variable in harness.key_env:
        if not environment.get(variable, "").strip():
            raise UsageError(
                f"the harness `{name}` needs the variable `{variable}`, which is not set",
                hint=f"export {variable}=..., or write it to .env",
            )
    return found


def number_line(row: Mapping[str, Any]) -> str:
    """A row of `rows.NUMBERS` in words.

    Example:
        >>> number_line({"metric": "acc", "value": 0.5, "low": 0.4, "high": 0.6, "n": 90,
        ...              "unit": "percent"})
        'acc 50.0 % (40.0 to 60.0), n 90'
    """
    factor, decimals = (100, 1) if row["unit"] == "percent" else (1, 3)
    sign = " %" if row["unit"] == "percent" else f" {row['unit']}"
    ends = [row["low"], row["high"]]
    between = ""
    if None not in ends:
        between = f" ({ends[0] * factor:.{decimals}f} to {ends[1] * factor:.{decimals}f})"
    count = "" if row["n"] is None else f", n {row['n']:,}"
    return f"{row['metric']} {row['value'] * factor:.{decimals}f}{sign}{between}{count}"


def _harness(resolution: Resolution) -> Harness:
    assert resolution.harness is not None
    return resolution.harness


def _model_read(spec: Json, model: Model | None, *, is_served: bool) -> Json:
    """The part of a model's spec that a program can see."""
    left_out = {"sampling", "request", *(() if is_served else ("id",))}
    found = {key: value for key, value in spec.items() if key not in left_out}
    if is_served or model is None:
        return found
    only_serves = model.backend.only_serves
    backend = {k: v for k, v in found.get("backend", {}).items() if k not in only_serves}
    return {**found, "backend": backend}


def _row(number: Number) -> dict[str, Any]:
    return {name: getattr(number, name) for name in rows.NUMBERS}


def _summary_row(number: Number, settings: Mapping[str, Json]) -> dict[str, Any]:
    how = "standard error" if number.error is not None else "given"
    more: dict[str, Json] = {"interval": how, "path": number.path}
    if number.low is None:
        more = {"no_interval": _NO_INTERVAL, "path": number.path}
    if number.error is not None:
        more["error"] = number.error
    found = {key: value for key, value in {**settings, **more}.items() if value is not None}
    text = orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
    own = {name: getattr(number, name) for name in ("metric", "value", "low", "high", "n", "unit")}
    return {**dict.fromkeys(rows.SUMMARY), **own, "failed": 0, "settings": text}


@dataclass(frozen=True, slots=True)
class _Output:
    """What a program that has ended well has written.

    Args:
        folder: Where its record is.
        record: Name of the record.
        files: Its own folder.
    """

    folder: Path
    record: str
    files: Path


class _Run:
    """One cell: the program, its output, and the numbers in it."""

    def __init__(self, work: Work) -> None:
        found = work.resolution
        self._work, self._harness = work, _harness(found)
        self.name, self._model = found.axes["harness"], found.models["model"]
        self._attempts = work.journal / _FOLDER
        served = {"id": self._model.id} if self._harness.uses_server else {}
        seed = {"seed": found.seed} if self._harness.uses_seed else {}
        of_weights = {a: _content(work, a) for a in found.inputs.get("checkpoints", ())}
        is_trained = bool(of_weights) and not self._harness.uses_server
        identity = {} if is_trained else dict(self._model.backend.identity())
        program = self._harness.of_program()
        self._key = sha256_of([program, identity, served, seed, of_weights])

    # Output

    def kept(self) -> _Output | None:
        """The output of an equal program that has ended well, here or in the finished cell."""
        folders = [_Output(one, _DONE, one / _OUTPUT) for one in sorted(self._attempts.glob("*"))]
        cell = self._work.journal.parent
        if _is_intact(cell):
            folders.append(_Output(cell / FILES, _PROGRAM, cell / FILES / _OUTPUT))
        for one in folders:
            if _read(one.folder / one.record).get("key") == self._key and one.files.is_dir():
                if one.record == _DONE and not any(self._results_in(one.files)):
                    continue  # it may write them at another try
                self._work.progress.note(
                    f"{self._work.resolution.address}: the program has run before with these "
                    "settings; its output is read again"
                )
                return one
        return None

    def made(self) -> _Output:
        """Run the program in an empty folder.

        Raises:
            StageError: It failed, or took too long.
            UsageError: It is not there.
        """
        work = self._work
        program = check_program(self.name, self._harness, work.place(self._model.run).environment)
        waiting = "waiting for the program of an earlier run, which still ends"
        lock = work.journal / f"{_FOLDER}.lock"
        with held_by_children(lock, partial(work.progress.note, waiting)) as held:
            shutil.rmtree(self._attempts, ignore_errors=True)
            folder = self._attempts / own_utc_name()
            with writing_to(folder):
                (folder / _OUTPUT).mkdir(parents=True)
            began = time.monotonic()
            record = self._run(program, (folder / _OUTPUT).absolute(), held)
            with writing_to(folder):
                masked = _mask_files(folder / _OUTPUT)
            if masked:
                work.progress.note(f"secrets are masked in {', '.join(masked)} of the output")
            record |= {"key": self._key, "seconds": round(time.monotonic() - began, 3)}
            write_atomically(folder / _DONE, orjson.dumps(mask_json(record)))
        return _Output(folder, _DONE, folder / _OUTPUT)

    def publish(self, output: _Output) -> None:
        """Put the output into the artifact's files; it also stays where it is."""
        with writing_to(self._work.files):
            shutil.copytree(
                output.files,
                self._work.files / _OUTPUT,
                copy_function=_link_or_copy,
                ignore=_not_files,
            )
            record = (output.folder / output.record).read_bytes()
            (self._work.files / _PROGRAM).write_bytes(record)

    # The program

    def _run(self, program: str, output: Path, held: int) -> dict[str, Json]:
        """Run the program to its end; returns what is recorded of it."""
        work, harness = self._work, self._harness
        place = work.place(self._model.run)
        values = {OUTPUT: str(output), SEED: str(work.resolution.seed)}
        record: dict[str, Json] = {"name": self.name, "version": harness.version}
        environment = {**_without_secrets(place.environment, harness), **harness.environment}
        with ExitStack() as stack:
            endpoint: Endpoint | None = None
            if harness.uses_server:
                opened = stack.enter_context(work.open(self._model.backend, place))
                if isinstance(opened, Responder):
                    raise StageError(f"the model `{self._model.name}` has no address to ask")
                if opened.wire is not None:
                    raise StageError(
                        f"the model `{self._model.name}` has an API that no harness speaks",
                        hint="give it a backend whose API has OpenAI's form",
                    )
                endpoint = opened
                served = endpoint.model or self._model.id
                values |= {BASE_URL: endpoint.base_url, MODEL: served}
                environment |= _key_of(endpoint, harness)
                record["server"] = {"version": endpoint.version, "flags": list(endpoint.flags)}
            if harness.uses_checkpoint:
                values[CHECKPOINT] = self._checkpoint()
            argv = filled(harness.argv, values)
            record["argv"] = argv
            log = place.log.with_name(place.log.name.replace("server", _FOLDER))
            process = ServerProcess(
                [program, *argv[1:]],
                environment=environment,
                log=log,
                grace_seconds=_GRACE_SECONDS,
                keep=held,
            )
            self._wait(process, endpoint, argv, log)
        return record

    def _wait(
        self, process: ServerProcess, endpoint: Endpoint | None, argv: Sequence[str], log: Path
    ) -> None:
        """Wait for the end of the program, and of every process that it has started.

        Raises:
            StageError: It failed, or took too long.
            BackendError: The server has died.
        """
        limit = self._harness.timeout_seconds
        began, is_late = time.monotonic(), False
        try:
            while (code := process.exit_code()) is None and not is_late:
                if endpoint is not None and endpoint.alive is not None:
                    endpoint.alive()
                time.sleep(_POLL_SECONDS)
                is_late = limit is not None and time.monotonic() - began > limit
        finally:
            process.stop()
        if code == 0:
            return
        tail = process.tail(_TAIL_LINES)
        said = f":\n{tail}" if tail.strip() else ", and printed nothing"
        how = f"ended with code {code}"
        if code is None:
            how = f"was ended after {limit:g} s (`timeout_seconds`)"
        elif code == _MEMORY_KILL:
            how = "was killed, most likely because memory ran out"
        variables = [f"{k}={shlex.quote(v)}" for k, v in self._harness.environment.items()]
        typed = " ".join([*(["env", *variables] if variables else []), shlex.join(argv)])
        raise StageError(
            mask(f"`{self._work.resolution.address}`: the harness `{self.name}` {how}{said}"),
            hint=mask(f"its command: {typed}\n  the whole log: {log}; the next run tries it again"),
        )

    def _checkpoint(self) -> str:
        """The folder of the model in hub layout.

        Raises:
            StageError: The model has no such folder.
            MissingInputError: It is on the hub, and cannot be fetched.
        """
        work, model = self._work, self._model
        if cells := work.inputs.get("checkpoints", ()):
            return checkpoint_of(cells[0]).model
        weights = model.backend.weights(work.place(model.run))
        path = Path("" if weights is None else weights.model).expanduser()
        if weights is None or path.is_file():
            what = "has no weights" if weights is None else f"is the file `{path}`"
            raise StageError(
                f"`{{checkpoint}}` is a folder in hub layout, and the model `{model.name}` {what}",
                hint=f"{_GIVE_FOLDER}, or evaluate the served model through `{{base_url}}`",
            )
        if path.is_dir():
            return str(path.absolute())
        skip = (*_UNREAD, *model.backend.unread_files())
        revision = weights.revision or "main"
        request = HubRequest(weights.model, ("*",), revision, type="model", skip=skip)
        return str(fetch_files(request, work.hub).folder.absolute())

    # Results

    def _results_in(self, files: Path) -> Iterator[Path]:
        """The result files, none of which is outside of the output."""
        for path in sorted(files.glob(self._harness.results)):
            if path.is_file() and path.resolve().is_relative_to(files.resolve()):
                yield path

    def numbers(self, output: _Output) -> list[Number]:
        """The numbers in the result files.

        Raises:
            StageError: There is no result file, or one of them lacks a number.
        """
        found = list(self._results_in(output.files))
        where = f"`{self._work.resolution.address}`: "
        if not found:
            raise StageError(
                f"{where}the program ended well, and `{self._harness.results}` is not in its "
                f"output: {_content_of(output.files)}",
                hint=f"correct `harnesses.{self.name}.results`; the output is in {output.files}",
            )
        documents: dict[str, Json] = {}
        try:
            for path in found:
                name = path.relative_to(output.files).as_posix()
                if path.stat().st_size > _LARGEST_RESULT:
                    raise ResultError(f"`{name}` is larger than {_LARGEST_RESULT >> 30} GiB")
                (documents[name],) = parsed(name, path.read_bytes())
            return numbers_of(documents, self._harness.rules())
        except ResultError as error:
            more = f"{error.hint}; " if error.hint else ""
            raise StageError(
                where + error.message,
                hint=f"{more}correct `harnesses.{self.name}`: the next run reads {output.files} "
                "again without running the program; `--retry-failed` runs it",
            ) from None


def _content(work: Work, address: str) -> str | None:
    """The hash of a cell that is read."""
    cells = [cell for group in work.inputs.values() for cell in group if cell.address == address]
    return next((c.lineage.content_sha256() for c in cells if c.lineage is not None), None)


def _read(path: Path) -> dict[str, Json]:
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_intact(cell: Path) -> bool:
    """Whether a cell is finished, with all its files."""
    try:
        lineage = read_lineage(cell)
        if lineage is not None:
            check_files([(cell, lineage)])
    except (ArtifactError, MbtError):
        return False
    return lineage is not None


def _without_secrets(environment: Mapping[str, str], harness: Harness) -> dict[str, str]:
    """The environment without the secrets that the harness does not name; proxies stay."""
    return {
        name: value
        for name, value in environment.items()
        if name in harness.key_env
        or not (is_secret(name) or (HELD.name_in(value) is not None and "://" not in value))
    }


def _key_of(endpoint: Endpoint, harness: Harness) -> dict[str, str]:
    """The key of the served model, under the name that clients of such servers read."""
    key = endpoint.api_key or "none"
    names = {"MBT_API_KEY", "OPENAI_API_KEY"} - set(harness.key_env)
    return dict.fromkeys(sorted(names), key)


def _content_of(folder: Path) -> str:
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    if not names:
        return "it is empty"
    more = f" and {len(names) - 8:,} more files" if len(names) > 8 else ""
    return "it has " + ", ".join(f"`{name}`" for name in names[:8]) + more


def _mask_files(folder: Path) -> list[str]:
    """Mask secrets in the texts that a program has written; returns the files that had some."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST_MASKED:
            continue
        content = path.read_bytes()
        if b"\0" in content[:8192]:
            continue
        text = content.decode(errors="surrogateescape")
        if (shown := mask(text)) != text:
            write_atomically(path, shown.encode(errors="surrogateescape"))
            found.append(f"`{path.relative_to(folder).as_posix()}`")
    return found


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)
    return target


def _not_files(folder: str, names: list[str]) -> list[str]:
    """Links, sockets and the like, which mean nothing elsewhere."""
    paths = [Path(folder) / name for name in names]
    return [p.name for p in paths if p.is_symlink() or not (p.is_file() or p.is_dir())]
