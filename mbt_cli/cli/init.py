"""`mbt init`: a first manifest from a few answers, and the schema that editors read beside it."""

import json
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError

from mbt_cli.core import rows
from mbt_cli.core.chat import Json
from mbt_cli.core.column_maps import mapped_record
from mbt_cli.core.names import NAME_PATTERN, closest, nearest
from mbt_cli.errors import ArtifactError, MbtError, UsageError
from mbt_cli.interfaces import Benchmark
from mbt_cli.manifest.docs import schema_text
from mbt_cli.manifest.load import load_manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.toml import read_toml
from mbt_cli.registry import BACKENDS, BENCHMARKS
from mbt_cli.settings import read_machine
from mbt_cli.store.disk import is_about_writing, refused, write_atomically
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.questions import SplitReader
from mbt_cli.store.records import Record, data_files, parquet_columns, read_records

KINDS = ("embedded", "gpu", "cluster", "api")
OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"

_SCHEMA = "manifest.schema.json"
"""Written beside a first manifest, so that editors complete its keys and mark wrong ones."""
_TEMPLATES = Path(__file__).parent / "templates"
Columns = Mapping[str, str | Sequence[str]]

_MAX_QUESTIONS = 100
"""Questions of a longer file that the first study uses."""


@dataclass(frozen=True, slots=True)
class InitOptions:
    """Flags and answers as typed; None where the user gave nothing.

    Args:
        kind: Where the model runs, one of `KINDS`.
        study: Name of the study.
        model: A preset, a name on the hub, a GGUF file, or the endpoint's name for the model.
        benchmark: A kind of benchmark; with `questions`, the layout of that file.
        questions: The user's own file of questions.
        base_url: Address of the endpoint.
        api_key_env: Name of the variable that holds the key; empty for an endpoint without one.
    """

    kind: str
    study: str
    model: str | None = None
    benchmark: str | None = None
    questions: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None


@dataclass(frozen=True, slots=True)
class _Model:
    """The model of a first study: its name, its lines in the manifest, its key's variable."""

    name: str
    lines: tuple[str, ...]
    api_key_env: str = ""


@dataclass(frozen=True, slots=True)
class _Questions:
    """The questions of a first study.

    Args:
        name: Name of the benchmark in the manifest.
        kind: Its kind.
        file: The user's own file; empty if the questions come from elsewhere.
        count: Number of questions in that file.
        has_documents: Whether the questions come with documents to read.
        columns: Field of the layout to column of the file, where the names differ.
    """

    name: str
    kind: str
    file: str = ""
    count: int = 0
    has_documents: bool = True
    columns: Columns = field(default_factory=dict)


def write_first_study(
    path: Path, options: InitOptions, presets: Path | None, *, is_asking: bool
) -> None:
    """Ask for missing options, write the manifest, and print the next commands.

    Raises:
        UsageError: The file exists or cannot be written, or an option is wrong.
    """
    _refuse_existing(path)
    machine = read_machine()
    folders = PresetFolders.usual(extra=presets or machine.presets, config=machine.config)
    if is_asking and typer.get_text_stream("stdin").isatty():
        options = _asked(options, folders)
    _check_kind(options.kind)
    if not re.match(NAME_PATTERN, options.study):
        raise UsageError(
            f"`{options.study}` is not a valid study name",
            hint="use letters, digits and `._+-`, starting with a letter or digit: --name my-study",
        )
    model = _hosted(options) if options.kind == "api" else _served(options, folders)
    text = _study_text(options, model, _questions(options), str(path))
    _write(path, text, folders)
    typer.echo(f"written: {path}")
    if _write_schema(path.with_name(_SCHEMA)):
        typer.echo(f"written: {path.with_name(_SCHEMA)}, by which editors complete its keys")
    typer.echo("\nnext:")
    for line in _next_commands(path, options, model, machine.environment):
        typer.echo(f"  {line}")


# --- the manifest


def _study_text(options: InitOptions, model: _Model, questions: _Questions, file: str) -> str:
    benchmark, place = BENCHMARKS.kinds()[questions.kind], _place(options.kind)
    is_judged = benchmark.official is not None  # otherwise a rule decides
    prompts = [benchmark.prompt]
    if is_judged and not benchmark.verifier.replaces_words:
        prompts = ["answer", place["prompt"]] if questions.has_documents else ["question"]
    sampling = place["judge_sampling"]
    values = {
        "schema": f"./{_SCHEMA}",
        "about": place["about"],
        "file": file,
        "run": place["run"].format(file=file),
        "study": quoted(options.study),
        "study_name": options.study,
        "model": quoted(model.name),
        "model_key": _key(model.name),
        "model_source": "\n".join(model.lines),
        "benchmark": "\n".join(_benchmark_lines(questions, benchmark)),
        "benchmark_name": quoted(questions.name),
        "prompts": f"[{', '.join(map(quoted, prompts))}]",
        "judge_note": place["judge_note"],
        "judge_sampling": f"sampling = {sampling}" if sampling else "# sampling: that of the model",
        "metrics": "\n".join(_metric_lines(benchmark, is_judged=is_judged)),
    }
    text = (_TEMPLATES / "study.toml").read_text(encoding="utf-8")
    if not is_judged:
        text = re.sub(r"\[\[stage\]\]  # judged\n.*?\n\n", "", text, flags=re.DOTALL)
    text = text.replace("[[stage]]  # judged\n", "[[stage]]\n")
    return re.sub(r"\{\{ (\w+) \}\}", lambda found: values[found[1]], text)


def _metric_lines(benchmark: type[Benchmark], *, is_judged: bool) -> Iterator[str]:
    """The metrics of the score stage; a comment where they are the default."""
    if not is_judged:
        if not benchmark.verifier.replaces_words:
            yield '# math_match needs the extra: pip install "mbt-cli[math]"'
        match = "exact_match" if benchmark.verifier.replaces_words else "math_match"
        yield f'# metrics = ["{match}", "answer_rate", "tokens"]  # more: mbt help metrics'
        return
    yield 'verdicts = "judge"'
    yield 'metrics = ["exact_match", "f1_score", "answer_rate", "judge_accuracy", "tokens"]'


def _benchmark_lines(questions: _Questions, benchmark: type[Benchmark]) -> Iterator[str]:
    yield f"[benchmarks.{_key(questions.name)}]"
    yield f"kind = {quoted(questions.kind)}"
    if questions.file:
        yield f"files = {{ validation = {quoted(questions.file)} }}"
        if questions.columns:
            named = ", ".join(
                f"{ours} = {json.dumps(theirs, ensure_ascii=False)}"
                for ours, theirs in questions.columns.items()
            )
            yield f"columns = {{ {named} }}  # guessed from the names: field to column of the file"
            if "answer_index" in questions.columns:
                yield "index_from = 0  # 1 if the data counts the options from 1"
        if questions.count > _MAX_QUESTIONS:
            note = f"the first of {questions.count}; raising it requests only the new ones"
            yield f"limit = {_MAX_QUESTIONS}  # {note}"
    elif benchmark.init_settings:  # generated, nothing to download
        yield from (f"{key} = {json.dumps(v)}" for key, v in benchmark.init_settings.items())
    else:
        yield 'source = "hub"  # downloaded once, at a pinned revision'
        if benchmark.official is None:
            yield 'splits = { validation = "test" }  # it has no validation split'
        yield f"limit = {_MAX_QUESTIONS}  # the first ones; raising it requests only the new ones"


def quoted(text: str) -> str:
    r"""A text as a TOML string.

    Example:
        >>> quoted('a "b"')
        '"a \\"b\\""'
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def _place(kind: str) -> Mapping[str, str]:
    """What is written for a place to run: default model and benchmark, backend, prompt."""
    places = tomllib.loads((_TEMPLATES / "kinds.toml").read_text(encoding="utf-8"))
    found: dict[str, str] = places[kind]
    return found


def _write(path: Path, text: str, presets: PresetFolders) -> None:
    """Write the manifest if it is right and the file does not exist."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        draft.write_text(text, encoding="utf-8")
        load_manifest(draft, presets=presets)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        _refuse_existing(path)
        raise
    except OSError as error:
        if is_about_writing(error):
            path.unlink(missing_ok=True)  # not half a manifest
            raise refused(error, path) from error
        raise UsageError(f"`{path}` cannot be written: {error.strerror}") from error


def _write_schema(path: Path) -> bool:
    """Write the schema of manifests where there is none; False if there is, or it cannot be."""
    if path.exists():
        return False
    try:
        write_atomically(path, f"{schema_text()}\n".encode())
    except MbtError:
        return False  # the manifest is there, and works without it
    return True


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise UsageError(
            f"`{path}` already exists and is left unchanged",
            hint="name another file, such as my-study.toml",
        )
    if path.suffix != ".toml":
        raise UsageError(f"`{path}` does not end in .toml", hint=f"mbt init {path}.toml")


# --- the answers


def _asked(options: InitOptions, presets: PresetFolders) -> InitOptions:
    """The options, completed by answers from the terminal; a wrong answer is asked for again."""
    kind = options.kind
    if not kind:
        typer.echo(
            "Where does the model run?\n"
            "  embedded   in this process: a toy model that needs nothing\n"
            "  gpu        on this machine's GPU, served by vLLM\n"
            "  cluster    the same, as Slurm jobs\n"
            "  api        at an endpoint that is already running, hosted or your own",
            err=True,
        )
        kind = _ask(f"Kind ({', '.join(KINDS)})", "embedded", _check_kind)
    _check_kind(kind)
    found = replace(options, kind=kind)
    if kind == "api":
        if not found.base_url:
            text = "Address of the endpoint, up to and including /v1"
            found = replace(found, base_url=_ask(text, OPENAI_URL, _base_url))
        if not found.model:
            found = replace(found, model=_ask("The endpoint's name for the model", None))
        if found.api_key_env is None:
            text = "NAME of the variable that holds the key (never the key; may be empty)"
            usual = OPENAI_KEY if _needs_key(found.base_url or "") else ""
            found = replace(found, api_key_env=_ask(text, usual, _check_key_name))
    elif found.model is None:
        asked = found
        model = _ask(
            "Model: a preset, see presets/models/",
            _place(kind)["model"],
            lambda answer: _served(replace(asked, model=answer), presets),
        )
        found = replace(found, model=model)
    if found.questions is None and found.benchmark is None:
        asked = found
        text = "Questions: your own file (CSV, JSON lines, JSON or Parquet), or a benchmark"
        answer = _ask(
            text,
            _place(kind)["benchmark"],
            lambda answer: _questions(_about(asked, answer)),
        )
        found = _about(found, answer)
    return found


def _about(options: InitOptions, questions: str) -> InitOptions:
    """The options with a file of questions, or the benchmark of that name."""
    if "." in questions or Path(questions).exists():
        return replace(options, questions=questions)
    return replace(options, benchmark=questions)


def _ask(
    question: str, default: str | None, check: Callable[[str], object] = lambda answer: None
) -> str:
    """An answer that passes the check; what is wrong with another one is said."""
    while True:
        answer = str(typer.prompt(question, default=default, err=True)).strip()
        try:
            check(answer)
        except UsageError as error:
            hint = f" ({error.hint})" if error.hint else ""
            typer.echo(f"{error.message}{hint}", err=True)
        else:
            return answer


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        near = closest(kind, KINDS)
        raise UsageError(
            f"no kind of study `{kind}`" if kind else "no kind of study given",
            hint=f"did you mean `{near}`?"
            if near
            else f"say where the model runs: --kind {'|'.join(KINDS)}",
        )


def _needs_key(base_url: str) -> bool:
    """Whether the endpoint probably needs a key: all do except those on this machine."""
    return urlsplit(base_url).hostname not in ("localhost", "127.0.0.1", "::1")


def _hosted(options: InitOptions) -> _Model:
    if not options.model:
        raise UsageError(
            "no model given",
            hint="--model is the endpoint's name for the model, such as gpt-4.1-mini",
        )
    kind, base_url = _place("api")["backend"], _base_url(options.base_url or OPENAI_URL)
    variable = options.api_key_env
    if variable is None:
        variable = OPENAI_KEY if _needs_key(base_url) else ""
    _check_key_name(variable)
    key = f", api_key_env = {quoted(variable)}" if variable else ""
    lines = [
        "# supports_schema = true constrains the judge's replies, if the endpoint can do that;",
        "# sends_seed = false is for endpoints that reject a seed",
        f'backend = {{ kind = "{kind}", base_url = {quoted(base_url)}{key}, '
        "supports_schema = false }",
        f"id = {quoted(options.model)}  # the endpoint's name for the model",
    ]
    lines.append(f"sampling = {_place('api')['sampling']}")
    if variable:
        lines.insert(0, f"# the key comes from the environment or .env: {variable}=...")
    return _Model(_name_from(options.model), tuple(lines), variable)


def _base_url(address: str) -> str:
    """The address of an endpoint as manifests have it."""
    address = address.rstrip("/").removesuffix("/chat/completions")
    try:
        backend = BACKENDS.make({"kind": _place("api")["backend"], "base_url": address})
    except ValidationError as error:
        # do not repeat the address: it may hold a password
        raise UsageError(
            f"--base-url: {str(error.errors()[0]['msg']).removeprefix('Value error, ')}"
            if "@" not in address
            else "--base-url: an address must not contain a user, password or query",
            hint=f"the address up to and including /v1, such as {OPENAI_URL}",
        ) from None
    found: str = backend.model_dump()["base_url"]
    return found


def _check_key_name(variable: str) -> None:
    if variable and (
        not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", variable)
        or re.match(r"(?:sk|hf|gsk|xai|nvapi)[-_]", variable)
    ):
        raise UsageError(
            "--api-key-env is the name of a variable, never the key itself",
            hint=f"--api-key-env {OPENAI_KEY}, and the key in the environment or in .env",
        )


def _served(options: InitOptions, presets: PresetFolders) -> _Model:
    if options.base_url or options.api_key_env:
        raise UsageError(
            "--base-url and --api-key-env are for hosted models", hint="use --kind api"
        )
    defaults = _place(options.kind)
    sampling = f"sampling = {defaults['sampling']}"
    backend, model = defaults["backend"], options.model or defaults["model"]
    path = presets.find("models", model) if re.match(NAME_PATTERN, model) else None
    is_embedded = options.kind == "embedded"
    if path is not None:
        found = read_toml(path).get("backend", {}).get("kind")
        if found != backend:
            raise UsageError(
                f"the preset `{model}` is served by `{found}`, not by `{backend}`",
                hint=f"--kind {'gpu' if is_embedded else 'embedded'}",
            )
        where = f"presets/models/{model}.toml; try it with `mbt serve {model}`"
        preset = f"preset = {quoted(model)}  # {where}"
        has_sampling = not is_embedded and "sampling" in read_toml(path)
        return _Model(model, (preset,) if has_sampling else (preset, sampling))
    if not (model.endswith(".gguf") if is_embedded else "/" in model):
        other = "the path of a GGUF file" if is_embedded else "a name on the hub (ORG/NAME)"
        raise UsageError(
            f"no model preset `{model}`",
            hint=f"give {other}, or a preset: {nearest(model, presets.names('models'))}",
        )
    name = _name_from(Path(model).name.removesuffix(".gguf"))
    source = f'backend = {{ kind = "{backend}", model = {quoted(model)} }}'
    return _Model(name, (source, sampling))


def _questions(options: InitOptions) -> _Questions:
    layout, kinds = options.benchmark, BENCHMARKS.kinds()
    if layout is not None and layout not in kinds:
        raise UsageError(f"no benchmark `{layout}`", hint=nearest(layout, kinds))
    if options.questions:
        return _read_questions(options.questions, layout)
    kind = layout or _place(options.kind)["benchmark"]
    if kinds[kind].hub is None and kinds[kind].generate is Benchmark.generate:
        raise UsageError(
            f"`{kind}` reads a file of your own", hint="add --questions my_questions.jsonl"
        )
    return _Questions(kind, kind, has_documents=kinds[kind].has_documents)


def _name_from(text: str) -> str:
    """A valid name for a table of the manifest, from the name of a model or file.

    Example:
        >>> _name_from("meta-llama/Llama 3.3:free"), _name_from("_")
        ('Llama-3.3-free', 'mine')
    """
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text.rstrip("/").rsplit("/", maxsplit=1)[-1])
    return name.strip("._+-")[:64] or "mine"


# --- the user's own file

_TRIED_RECORDS = 20
_SPLIT = "validation"
_LEAST = 'each record needs at least {"question": "...", "answer": "..."}'


def _read_questions(file: str, layout: str | None) -> _Questions:
    """The layout of a file, given or detected, and a summary of its questions.

    Args:
        file: Path as the user typed it.
        layout: Kind of benchmark; None tries every layout.

    Raises:
        UsageError: The file does not exist, no layout fits, or a record is wrong.
    """
    try:
        if layout is None:
            kind, columns = _layout_of(file)
        else:
            kind, columns = layout, _guessed_for(layout, file)
    except ArtifactError as error:  # nothing was run: the file is an argument
        raise UsageError(error.message, hint=error.hint) from error
    benchmark = _benchmark(kind, file, columns)
    reader = SplitReader(
        benchmark,
        _SPLIT,
        question=benchmark.question,
        generate=benchmark.generate,
        hub=HubAccess(offline=True),
    )
    count, has_documents = 0, False
    try:
        for frame in reader.frames():
            count += frame.height
            has_documents |= bool((frame["context"].list.len() > 0).any())
    except MbtError as error:
        fields = ", ".join(f"`{name}`" for name in sorted(benchmark.layout))
        hint = f"a record of `{kind}` needs {fields}" if layout and fields else _LEAST
        raise UsageError(f"`{file}` read as `{kind}`: {error.message}", hint=hint) from error
    return _Questions(_name_from(Path(file).stem), kind, file, count, has_documents, columns)


def _benchmark(kind: str, file: str, columns: Columns) -> Benchmark:
    return BENCHMARKS.make({"kind": kind, "files": {_SPLIT: file}, "columns": columns})


_QUESTION = ("question", "prompt", "problem", "query", "input", "instruction")
_OPTIONS = ("options", "choices")
_ANSWER = ("answer", "label", "target", "gold", "output", "correct_answer", "answerkey", "solution")
_OPTION_COLUMNS = ("{}", "option_{}", "option{}", "choice_{}", "choice{}")
_MOST_OPTIONS = 10


def _guessed(record: Mapping[str, Json]) -> Columns:
    """Columns that are a question, its options and its answer by their names.

    Example:
        >>> _guessed({"Prompt": "Who?", "label": "Ann"})
        {'question': 'Prompt', 'answer': 'label'}
        >>> _guessed({"question": "Who?", "A": "Ann", "B": "Bob", "answer": "A"})
        {'options': ['A', 'B']}
    """
    names = {name.lower(): name for name in record}
    found: dict[str, str | Sequence[str]] = {}
    for ours, usual in (("question", _QUESTION), ("options", _OPTIONS), ("answer", _ANSWER)):
        theirs = next((names[name] for name in usual if name in names), None)
        if theirs is not None and theirs != ours:
            found[ours] = theirs
    if "options" not in (*found, *record):
        for form in _OPTION_COLUMNS:
            for marks in ("abcdefghij", range(1, _MOST_OPTIONS + 1)):
                wanted = takewhile(names.__contains__, (form.format(mark) for mark in marks))
                columns = [names[name] for name in wanted]
                if len(columns) > 1:
                    found["options"] = columns
    answer = record.get(str(found.get("answer", "answer")))
    is_number = isinstance(answer, int) and not isinstance(answer, bool)
    if is_number and "options" in (*found, *record) and "answer_index" not in record:
        found["answer_index"] = found.pop("answer", "answer")
    return found


def _guessed_for(kind: str, file: str) -> Columns:
    """The guessed columns of a file's first record that a layout reads."""
    paths = data_files(Path(file).expanduser())
    first = next((one.value for one in read_records(paths[0]) if one.value is not None), {})
    reads = BENCHMARKS.kinds()[kind].reads
    return {ours: theirs for ours, theirs in _guessed(first).items() if ours in reads}


def _layout_of(file: str) -> tuple[str, Columns]:
    """The first layout that reads the first records, layouts with the most fields first.

    Columns with other names are tried once no layout reads them as they are, except options in
    columns of their own, without which the questions make no sense. A layout of questions without
    answers never reads a file with a column of answers that it does not know.
    """
    fields = {kind: benchmark.layout for kind, benchmark in BENCHMARKS.kinds().items()}
    layouts = sorted((kind for kind in fields if fields[kind]), key=lambda k: -len(fields[k]))
    path = data_files(Path(file).expanduser())[0]
    if parquet_columns(path) >= set(rows.QUESTIONS):
        return layouts[-1], {}
    records = list(islice(read_records(path), _TRIED_RECORDS))
    if not records:
        raise UsageError(f"`{file}` is empty", hint=_LEAST)
    guessed = _guessed(next((one.value for one in records if one.value is not None), {}))
    tried: list[Columns] = [{}, guessed] if guessed else [{}]
    if "options" in guessed:
        tried.reverse()
    answer = guessed.get("answer", "answer")
    has_answers = answer in (records[0].value or {})
    problem = None
    for columns in tried:
        for kind in layouts:
            reads = BENCHMARKS.kinds()[kind].reads
            if columns and not columns.keys() <= reads:
                continue
            if has_answers and not BENCHMARKS.kinds()[kind].has_answers and answer not in reads:
                continue
            has = [set(record.value or {}) | columns.keys() for record in records]
            if all(fields[kind] <= names for names in has):
                wrong = next(_problems(records, kind, file, columns), None)
                if wrong is None:
                    return kind, columns
                problem = wrong
        if problem is not None and "options" in columns:
            break  # read as a question without its options, it would mean something else
    problem = problem or next(_problems(records, layouts[-1], file, {}))
    names = ", ".join(f"`{name}`" for name in records[0].value or {})
    own = f"the columns here are {names}: rename those of questions and answers; " if names else ""
    raise UsageError(
        f"`{file}` has none of the known layouts: {problem}",
        hint=f"{own}{_LEAST}; or name a layout: --benchmark {'|'.join(layouts)}",
    )


def _problems(records: list[Record], kind: str, file: str, columns: Columns) -> Iterator[str]:
    benchmark = _benchmark(kind, file, columns)
    for record in records:
        if record.value is None:
            yield f"{record.where} {record.problem}"
            continue
        try:
            benchmark.question(mapped_record(record.value, columns))
        except ValueError as error:
            yield f"{record.where}: {error}"
        except KeyError as error:
            yield f"{record.where}: `{error.args[0]}` is missing"


# --- the next commands

_MAX_ALIGNED = 50


def _next_commands(
    path: Path, options: InitOptions, model: _Model, environment: Mapping[str, str]
) -> list[str]:
    """What to type next, each line a command with a comment."""
    lines = []
    if model.api_key_env and not environment.get(model.api_key_env):
        lines.append((f"export {model.api_key_env}=...", "the key, or a line of .env"))
    lines += [
        (f"mbt check {path}", "validate the manifest and count its cells"),
        (f"mbt doctor {path}", "check that this machine can run it"),
    ]
    if options.kind in ("gpu", "cluster"):
        lines.append((f"mbt data fetch {path}", "download weights and questions"))
    if options.kind == "cluster":
        submit = f"mbt plan {path} | mbt submit --slurm --preset one-gpu"
        lines += [
            (f"mbt plan {path}", "the work, job by job"),
            (f"{submit} --dry-run", "print each script, submit nothing"),
            (submit, "copy presets/slurm/one-gpu.toml and adapt it to your cluster"),
            (f"mbt status {options.study} --watch", "state of the jobs"),
        ]
    else:
        lines.append((f"mbt run {path}", "every stage, down to the table"))
    lines.append((f"mbt view runs/{options.study}", "the report page, once it is finished"))
    width = max(len(command) for command, _ in lines if len(command) < _MAX_ALIGNED)
    return [f"{command:<{width}}  # {comment}" for command, comment in lines]
