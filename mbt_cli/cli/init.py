"""`mbt init`: a first manifest from a few answers."""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError

from mbt_cli.core import rows
from mbt_cli.core.names import NAME_PATTERN, nearest
from mbt_cli.errors import MbtError, UsageError
from mbt_cli.interfaces import Benchmark
from mbt_cli.manifest.load import load_manifest
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.toml import read_toml
from mbt_cli.plugins import Family
from mbt_cli.registry import BACKENDS, BENCHMARKS
from mbt_cli.settings import read_machine
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.questions import SplitReader
from mbt_cli.store.records import Record, data_files, parquet_columns, read_records

Kind = Literal["embedded", "gpu", "cluster", "api"]
KINDS: tuple[Kind, ...] = ("embedded", "gpu", "cluster", "api")

_COMMENT_COLUMN = 35


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """Which model is asked.

    Args:
        name: What the manifest calls it.
        preset: File in presets/models/ that it is from, or empty.
        weights: Name on the hub, folder or GGUF file, where there is no preset.
        id: The endpoint's own name for it; hosted models only.
        base_url: Address of the endpoint; hosted models only.
        api_key_env: Variable that holds its key; empty where it wants none.
    """

    name: str
    preset: str = ""
    weights: str = ""
    id: str = ""
    base_url: str = ""
    api_key_env: str = ""


@dataclass(frozen=True, slots=True)
class QuestionsAnswer:
    """Which questions are asked.

    Args:
        name: What the manifest calls the benchmark.
        kind: Its layout.
        file: A file of one's own; empty takes them from the hub, or makes them by rule.
        count: Questions in that file.
        has_documents: Whether the questions come with documents to read.
    """

    name: str
    kind: str
    file: str = ""
    count: int = 0
    has_documents: bool = True

    @property
    def is_math(self) -> bool:
        """Whether answers are compared as math."""
        return BENCHMARKS.kinds()[self.kind].is_math


@dataclass(frozen=True, slots=True)
class Answers:
    """Everything that a first manifest is made of."""

    kind: Kind
    study: str
    model: ModelAnswer
    questions: QuestionsAnswer


def study_text(answers: Answers, file: str) -> str:
    """The manifest, commented.

    Args:
        answers: What it is made of.
        file: Where it will stand, for the commands in its head.
    """
    parts = [_head(answers, file), _study(answers), _sampling(answers), _model(answers)]
    parts += [_benchmark(answers.questions), _rollout(answers)]
    if not answers.questions.is_math:
        parts.append(_judge(answers))
    parts += [_score(answers.questions), _report()]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def quoted(text: str) -> str:
    r"""A text as TOML has it.

    Example:
        >>> quoted('a "b"')
        '"a \\"b\\""'
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def _noted(line: str, comment: str) -> str:
    return f"{line:<{_COMMENT_COLUMN}} # {comment}"


def _listed(names: Sequence[str]) -> str:
    return "[" + ", ".join(quoted(name) for name in names) + "]"


def _prompts(answers: Answers) -> tuple[str, ...]:
    if answers.questions.is_math:
        return ("math",)
    if not answers.questions.has_documents:
        return ("question",)
    return ("answer", "answer_example" if answers.kind == "embedded" else "metacognitive")


def _head(answers: Answers, file: str) -> list[str]:
    where = {
        "embedded": "on an embedded model: no key, no GPU, no hub",
        "gpu": "on this machine's GPU, served by vLLM",
        "cluster": "on a Slurm cluster, served by vLLM",
        "api": "at an endpoint that already runs",
    }[answers.kind]
    last = f"mbt run {file}"
    if answers.kind == "cluster":
        last = f"mbt plan {file} | mbt submit --slurm --preset one-gpu"
    return [
        f"# A first study {where}.",
        "#",
        f"#     mbt check {file}      is it right, and how many cells does it expand to?",
        f"#     mbt doctor {file}     is everything here that it needs?",
        f"#     {last}",
    ]


def _study(answers: Answers) -> list[str]:
    requests = {"embedded": 4, "gpu": 64, "cluster": 256, "api": 8}[answers.kind]
    # nobody knows yet what an endpoint refuses, or how well its model judges
    share, lower = (0.5, "; lower it to publish") if answers.kind == "api" else (0.1, "")
    return [
        "[study]",
        _noted(f"name = {quoted(answers.study)}", f"artifacts go to runs/{answers.study}/"),
        _noted("seed = 42", "every seed of the study is derived from it"),
        _noted(f"max_failed_share = {share}", f"a stage fails when more of its rows failed{lower}"),
        "",
        _noted("[run]", "never changes a result"),
        _noted(f"concurrency = {requests}", "requests in flight"),
    ]


def _sampling(answers: Answers) -> list[str]:
    if answers.kind == "api":
        return [
            _noted("[sampling.student]", "whatever changes a reply is said here"),
            _noted("temperature = 1.0", "the one value that every endpoint takes; 0 is greedy"),
            _noted("max_tokens = 2048", "of one reply, reasoning included"),
        ]
    limit = 128 if answers.kind == "embedded" else 8192
    return [
        _noted("[sampling.student]", "whatever changes a reply is said here"),
        "temperature = 0.6",
        "top_p = 0.95",
        _noted(f"max_tokens = {limit}", "of one reply, reasoning included"),
        "",
        "[sampling.judge]",
        "temperature = 0.0",
        f"max_tokens = {16 if answers.kind == 'embedded' else 2048}",
    ]


def _model(answers: Answers) -> list[str]:
    model, lines = answers.model, [f"[models.{_key(answers.model.name)}]"]
    if answers.kind == "api":
        return [*lines, *_hosted(model), 'sampling = "student"']
    if model.preset:
        where = f"presets/models/{model.preset}.toml; `mbt serve {model.preset}` tries it alone"
        lines.append(_noted(f"preset = {quoted(model.preset)}", where))
    else:
        backend = default_kind(BACKENDS, answers.kind)
        lines.append(f'backend = {{ kind = "{backend}", model = {quoted(model.weights)} }}')
    lines.append('sampling = "student"')
    if answers.kind in ("gpu", "cluster"):
        lines += [
            "",
            _noted(
                f"[models.{_key(model.name)}.place]", "where it is served: never changes a result"
            ),
            _noted("tensor_parallel_size = 1", "GPUs that share the model"),
        ]
    return lines


def _hosted(model: ModelAnswer) -> list[str]:
    key = f", api_key_env = {quoted(model.api_key_env)}" if model.api_key_env else ""
    lines = [
        "# supports_schema = true lets the judge's replies be constrained, where the endpoint can;",
        "# sends_seed = false is for endpoints that refuse a seed",
        f'backend = {{ kind = "{default_kind(BACKENDS, "api")}", '
        f"base_url = {quoted(model.base_url)}{key}, "
        "supports_schema = false }",
        _noted(f"id = {quoted(model.id)}", "the endpoint's own name for the model"),
    ]
    if model.api_key_env:
        lines.insert(
            0, f"# the key itself comes from the environment or .env: {model.api_key_env}=..."
        )
    return lines


def _benchmark(questions: QuestionsAnswer) -> list[str]:
    lines = [f"[benchmarks.{_key(questions.name)}]", f"kind = {quoted(questions.kind)}"]
    if questions.file:
        lines.append(
            _noted(
                f"files = {{ validation = {quoted(questions.file)} }}",
                "seen from the folder where mbt runs",
            )
        )
        if questions.count > _FIRST:
            note = f"the first ones of {questions.count}; a larger limit asks only what is new"
            lines.append(_noted(f"limit = {_FIRST}", note))
        return lines
    if settings := BENCHMARKS.kinds()[questions.kind].init_settings:
        lines[0] = _noted(lines[0], "generated questions: nothing to download")
        return [*lines, *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    lines.append(_noted('source = "hub"', "fetched once, by a pinned revision"))
    if questions.is_math:
        lines.append(_noted('splits = { validation = "test" }', "it has no validation split"))
    lines.append(_noted("limit = 100", "the first ones; a larger limit asks only what is new"))
    return lines


_FIRST = 100
"""Questions of a longer file that a first study asks."""


def _rollout(answers: Answers) -> list[str]:
    prompts = _listed(_prompts(answers))
    matrix = (
        f"benchmark = {_listed([answers.questions.name])}, "
        f'split = ["validation"], model = {_listed([answers.model.name])}, prompt = {prompts}'
    )
    return [
        _noted("[[stage]]", "every list in `matrix` is an axis, every point of the axes a cell"),
        'kind = "rollout"',
        'name = "base"',
        f"matrix = {{ {matrix} }}",
        _noted("samples = 1", "replies per question; more of them asks only what is new"),
    ]


def _judge(answers: Answers) -> list[str]:
    toy = {
        "embedded": "a toy judge: too small to trust",
        "api": "judging itself: name another model for numbers to publish",
    }.get(answers.kind, "judging itself: name a larger model for numbers to publish")
    lines = [
        "[[stage]]",
        'kind = "judge"',
        'name = "answers"',
        'rollouts = "base"',
        'matrix = { judge = ["answer_match"] }',
        _noted(f"judge_model = {quoted(answers.model.name)}", toy),
    ]
    return lines if answers.kind == "api" else [*lines, 'sampling = "judge"']


def _score(questions: QuestionsAnswer) -> list[str]:
    lines = ["[[stage]]", 'kind = "score"', 'name = "scores"', 'rollouts = "base"']
    if questions.is_math:
        names = ["math_match", "answer_rate", "tokens", "degeneration"]
        metrics = f"metrics = {_listed(names)}"
        return [
            *lines,
            '# math_match compares LaTeX by the extra: pip install "mbt-cli[math]"',
            metrics,
        ]
    names = ["exact_match", "f1_score", "answer_rate", "judge_accuracy", "tokens", "degeneration"]
    return [*lines, 'verdicts = "answers"', f"metrics = {_listed(names)}"]


def _report() -> list[str]:
    return [
        "[[stage]]",
        'kind = "report"',
        'name = "tables"',
        'scores = "scores"',
        'tables = ["main_results"]',
    ]


DEFAULT_MODELS = {"embedded": "smollm2-135m", "gpu": "qwen3-0.6b", "cluster": "qwen3-0.6b"}
OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"

_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
_KEY_LIKE = re.compile(r"^(?:sk|hf|gsk|xai|nvapi)[-_]")
_CHAT_PATH = "/chat/completions"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class InitOptions:
    """Flags and answers as typed; None where nothing was said.

    Args:
        model: A preset, a name on the hub, a GGUF file, or the endpoint's name for a model.
        benchmark: A kind of benchmark; with `questions` the layout of that file.
        questions: A file of one's own.
        api_key_env: Name of the variable that holds the key; empty for an endpoint without one.
    """

    kind: str
    study: str
    model: str | None = None
    benchmark: str | None = None
    questions: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None


def answers_of(options: InitOptions, presets: PresetFolders) -> Answers:
    """The options as answers, with what was not said filled in.

    Raises:
        UsageError: Something is no name, not there, or does not go together.
    """
    kind = checked_kind(options.kind)
    if not re.match(NAME_PATTERN, options.study):
        raise UsageError(
            f"`{options.study}` is no name for a study",
            hint="letters, digits and `._+-` only, a letter or digit first: --name my-study",
        )
    model = _hosted_model(options) if kind == "api" else _served(options, kind, presets)
    return Answers(kind, options.study, model, _questions(options, kind))


def default_kind(family: Family[Any], study: str) -> str:
    """The benchmark or backend of a first study unless the user names another."""
    return next(kind for kind, cls in family.kinds().items() if study in cls.init_kinds)


def checked_kind(kind: str) -> Kind:
    """A kind of first study.

    Raises:
        UsageError: There is no such kind.
    """
    found = next((known for known in KINDS if known == kind), None)
    if found is None:
        what = f"no kind of study `{kind}`" if kind else "no kind of study named"
        near = f"{nearest(kind, KINDS)} " if kind else ""
        hint = f"{near}say where the model runs: --kind {'|'.join(KINDS)}"
        raise UsageError(what, hint=hint)
    return found


def has_own_key(base_url: str) -> bool:
    """Whether an address looks like one that wants a key: all but those on this machine."""
    return urlsplit(base_url).hostname not in _LOOPBACK


def _hosted_model(options: InitOptions) -> ModelAnswer:
    if not options.model:
        raise UsageError(
            "no model named", hint="--model is the endpoint's own name for it, such as gpt-4.1-mini"
        )
    address = (options.base_url or OPENAI_URL).rstrip("/").removesuffix(_CHAT_PATH)
    try:
        backend = BACKENDS.make({"kind": default_kind(BACKENDS, "api"), "base_url": address})
        base_url = str(backend.model_dump()["base_url"])
    except ValidationError as error:
        # the address itself is not repeated: it may hold a password
        raise UsageError(
            f"--base-url: {str(error.errors()[0]['msg']).removeprefix('Value error, ')}"
            if "@" not in address
            else "--base-url: an address holds no user, password or query",
            hint=f"the address up to and including /v1, such as {OPENAI_URL}",
        ) from None
    variable = options.api_key_env
    if variable is None:
        variable = OPENAI_KEY if has_own_key(base_url) else ""
    _check_variable(variable)
    return ModelAnswer(
        _name_from(options.model), id=options.model, base_url=base_url, api_key_env=variable
    )


def _check_variable(variable: str) -> None:
    if variable and (not _VARIABLE.match(variable) or _KEY_LIKE.match(variable)):
        raise UsageError(
            "--api-key-env is the name of a variable, never the key itself",
            hint=f"--api-key-env {OPENAI_KEY}, and the key in the environment or in .env",
        )


def _served(options: InitOptions, kind: Kind, presets: PresetFolders) -> ModelAnswer:
    if options.base_url or options.api_key_env:
        raise UsageError(
            "--base-url and --api-key-env are for hosted models", hint="say --kind api"
        )
    model = options.model or DEFAULT_MODELS[kind]
    backend = default_kind(BACKENDS, kind)
    path = presets.find("models", model) if re.match(NAME_PATTERN, model) else None
    if path is not None:
        found = read_toml(path).get("backend", {}).get("kind")
        if found != backend:
            served = BACKENDS.find(str(found))
            raise UsageError(
                f"the preset `{model}` is served by `{found}`, not by `{backend}`",
                hint=f"--kind {served.init_kinds[0]}" if served and served.init_kinds else None,
            )
        return ModelAnswer(model, preset=model)
    is_named = model.endswith(".gguf") if kind == "embedded" else "/" in model
    if not is_named:
        other = "the path of a GGUF file" if kind == "embedded" else "a name on the hub (ORG/NAME)"
        raise UsageError(
            f"no model preset `{model}`",
            hint=f"{nearest(model, presets.names('models'))}; or give {other}",
        )
    return ModelAnswer(_name_from(Path(model).name.removesuffix(".gguf")), weights=model)


def _questions(options: InitOptions, kind: Kind) -> QuestionsAnswer:
    layout = options.benchmark
    kinds = BENCHMARKS.kinds()
    if layout is not None and layout not in kinds:
        raise UsageError(f"no benchmark `{layout}`", hint=nearest(layout, kinds))
    if options.questions:
        name = _name_from(Path(options.questions).stem)
        return read_question_file(options.questions, name, layout=layout)
    named = layout or default_kind(BENCHMARKS, kind)
    if kinds[named].hub is None and kinds[named].generate is Benchmark.generate:
        raise UsageError(
            f"`{named}` reads a file of your own", hint="name it: --questions my_questions.jsonl"
        )
    return QuestionsAnswer(named, named, has_documents=kinds[named].has_documents)


def _name_from(text: str) -> str:
    """A name for a table of the manifest, from whatever a thing is called elsewhere.

    Example:
        >>> _name_from("meta-llama/Llama 3.3:free"), _name_from("_")
        ('Llama-3.3-free', 'mine')
    """
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text.rstrip("/").rsplit("/", maxsplit=1)[-1])
    return name.strip("._+-")[:64] or "mine"


_TRIED_RECORDS = 20
_SPLIT = "validation"
_LEAST = 'each record needs at least {"question": "...", "answer": "..."}'


def read_question_file(file: str, name: str, *, layout: str | None = None) -> QuestionsAnswer:
    """The file's layout, found by trying or as named, and what its questions are like.

    Args:
        file: Path as the user typed it.
        name: What the manifest will call the benchmark.
        layout: Kind of benchmark; None tries every layout.

    Raises:
        UsageError: There is no such file, no layout fits, or a record is wrong.
    """
    kind = layout or _layout(file)
    benchmark = _benchmark_of(kind, file)
    reader = SplitReader(
        benchmark,
        _SPLIT,
        question=benchmark.question,
        generate=benchmark.generate,
        hub=HubAccess(offline=True),
    )
    count, with_documents = 0, False
    try:
        for frame in reader.frames():
            count += frame.height
            with_documents |= bool((frame["context"].list.len() > 0).any())
    except MbtError as error:
        raise UsageError(f"`{file}` read as `{kind}`: {error.message}", hint=_LEAST) from error
    return QuestionsAnswer(name, kind, file, count, with_documents)


def _benchmark_of(kind: str, file: str) -> Benchmark:
    return BENCHMARKS.make({"kind": kind, "files": {_SPLIT: file}})


def _layout(file: str) -> str:
    """The first layout in which the first records can be read, those with most fields first."""
    kinds = {kind: benchmark.layout for kind, benchmark in BENCHMARKS.kinds().items()}
    layouts = sorted((kind for kind in kinds if kinds[kind]), key=lambda kind: -len(kinds[kind]))
    path = data_files(Path(file).expanduser())[0]
    if parquet_columns(path) >= set(rows.QUESTIONS):
        return layouts[-1]
    records = list(islice(read_records(path), _TRIED_RECORDS))
    if not records:
        raise UsageError(f"`{file}` is empty", hint=_LEAST)
    problem = None
    for kind in layouts:
        if all(kinds[kind] <= set(record.value or {}) for record in records):
            problem = next(_problems(records, kind, file), None)
            if problem is None:
                return kind
    problem = problem or next(_problems(records, layouts[-1], file))
    raise UsageError(
        f"`{file}` has none of the known layouts: {problem}",
        hint=f"{_LEAST}; or name a layout: --benchmark {'|'.join(layouts)}",
    )


def _problems(records: list[Record], kind: str, file: str) -> Iterator[str]:
    benchmark = _benchmark_of(kind, file)
    for record in records:
        if record.value is None:
            yield f"{record.where} {record.problem}"
            continue
        try:
            benchmark.question(record.value)
        except ValueError as error:
            yield f"{record.where}: {error}"


_KINDS = """Where does the model run?
  embedded   in this process: a toy model, needs nothing
  gpu        on this machine's GPU, served by vLLM
  cluster    the same as Slurm jobs
  api        at an endpoint that already runs, hosted or yours"""


def asked(options: InitOptions) -> InitOptions:
    """The options with answers from the terminal filled in."""
    kind = options.kind
    if not kind:
        typer.echo(_KINDS, err=True)
        kind = _ask(f"Kind ({', '.join(KINDS)})", "embedded")
    checked_kind(kind)
    url, key, model = options.base_url, options.api_key_env, options.model
    if kind == "api":
        url = url or _ask("Address of the endpoint, up to and including /v1", OPENAI_URL)
        model = model or _ask("The endpoint's name for the model", None)
        if key is None:
            usual = OPENAI_KEY if has_own_key(url) else ""
            key = _ask(
                "NAME of the variable that holds the key (never the key; may be empty)", usual
            )
    elif model is None:
        model = _ask("Model: a preset, see presets/models/", DEFAULT_MODELS[kind])
    questions, benchmark = options.questions, options.benchmark
    if questions is None and benchmark is None:
        usual = default_kind(BENCHMARKS, kind)
        said = _ask("Questions: your own file (JSON lines or JSON), or a benchmark", usual)
        is_file = "." in said or Path(said).exists()
        questions, benchmark = (said, None) if is_file else (None, said)
    return InitOptions(kind, options.study, model, benchmark, questions, url, key)


def _ask(question: str, usual: str | None) -> str:
    answer: str = typer.prompt(question, default=usual, err=True)
    return answer.strip()


def refuse_existing(path: Path) -> None:
    """Say no before anything is asked.

    Raises:
        UsageError: There is a file or folder of that name, or the name is not that of a manifest.
    """
    if path.exists():
        raise UsageError(
            f"`{path}` is there already, and is left as it is",
            hint="name another file, such as my-study.toml",
        )
    if path.suffix != ".toml":
        raise UsageError(f"`{path}` does not end in .toml", hint=f"mbt init {path}.toml")


def write_study(path: Path, answers: Answers, presets: PresetFolders) -> None:
    """Write the manifest that the answers make.

    Raises:
        UsageError: There is a file of that name by now, or it cannot be written.
        ManifestError: The answers make no right manifest; nothing is written.
    """
    text = study_text(answers, str(path))
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        draft.write_text(text, encoding="utf-8")
        load_manifest(draft, presets=presets)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError as error:
        raise UsageError(f"`{path}` cannot be written: {error.strerror}") from error


def next_commands(path: Path, answers: Answers, environment: Mapping[str, str]) -> list[str]:
    """What to type next, each line a command with a comment."""
    variable = answers.model.api_key_env
    lines = []
    if variable and not environment.get(variable):
        lines.append((f"export {variable}=...", "the key, or a line of .env"))
    lines += [
        (f"mbt check {path}", "is it right, and how many cells does it expand to?"),
        (f"mbt doctor {path}", "is everything here that it needs?"),
    ]
    if answers.kind in ("gpu", "cluster"):
        lines.append((f"mbt data fetch {path}", "weights and questions, where there is a network"))
    if answers.kind == "cluster":
        submit = f"mbt plan {path} | mbt submit --slurm --preset one-gpu"
        lines += [
            (f"mbt plan {path}", "what is to be done, job by job"),
            (f"{submit} --dry-run", "each script; nothing is submitted"),
            (submit, "copy presets/slurm/one-gpu.toml to fill in your cluster"),
            (f"mbt status {answers.study} --watch", "what the jobs are doing"),
        ]
    else:
        lines.append((f"mbt run {path}", "every stage, down to the table"))
    lines.append((f"mbt view runs/{answers.study}", "the report page, when it is done"))
    width = max(len(command) for command, _ in lines if len(command) < _WIDE)
    return [f"{command:<{width}}  # {comment}" for command, comment in lines]


_WIDE = 50


def write_first_study(
    path: Path, options: InitOptions, presets: Path | None, *, is_asking: bool
) -> None:
    """Ask for what the options leave open, write the manifest, and print the next commands."""
    refuse_existing(path)
    if is_asking and typer.get_text_stream("stdin").isatty():
        options = asked(options)
    machine = read_machine()
    folders = PresetFolders.usual(extra=presets or machine.presets, config=machine.config)
    answers = answers_of(options, folders)
    write_study(path, answers, folders)
    typer.echo(f"written: {path}\n\nnext:")
    for line in next_commands(path, answers, machine.environment):
        typer.echo(f"  {line}")
