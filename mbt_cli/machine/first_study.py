"""A first manifest from a few answers: one model, one benchmark, a judge, scores, a table."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["embedded", "gpu", "cluster", "api"]
KINDS: tuple[Kind, ...] = ("embedded", "gpu", "cluster", "api")

_COMMENT_COLUMN = 35
_MATH = ("gsm8k", "math500")


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
        return self.kind in _MATH


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
        backend = "llamacpp" if answers.kind == "embedded" else "vllm"
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
        f'backend = {{ kind = "openai", base_url = {quoted(model.base_url)}{key}, '
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
    if questions.kind == "tinyhop":
        lines[0] = _noted(lines[0], "fictional people, places and works: nothing to download")
        return [*lines, "seed = 7", "hops = [2]", "documents = 5", "limit = 12"]
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
