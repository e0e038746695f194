"""What a user said about a first study, checked: names, presets, addresses, files."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from mbt_cli.backends.openai import OpenAIBackend
from mbt_cli.errors import UsageError
from mbt_cli.interfaces import Benchmark
from mbt_cli.machine.first_study import KINDS, Answers, Kind, ModelAnswer, QuestionsAnswer
from mbt_cli.machine.question_files import read_question_file
from mbt_cli.manifest.document import NAME_PATTERN
from mbt_cli.manifest.presets import PresetFolders
from mbt_cli.manifest.problems import nearest
from mbt_cli.manifest.toml_text import read_toml

DEFAULT_MODELS = {"embedded": "smollm2-135m", "gpu": "qwen3-0.6b", "cluster": "qwen3-0.6b"}
DEFAULT_BENCHMARKS = {
    "embedded": "tinyhop",
    "gpu": "hotpotqa",
    "cluster": "hotpotqa",
    "api": "tinyhop",
}
OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"

_OWN = "question_answer"
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
_KEY_LIKE = re.compile(r"^(?:sk|hf|gsk|xai|nvapi)[-_]")
_CHAT_PATH = "/chat/completions"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Wishes:
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


def answers_of(wishes: Wishes, presets: PresetFolders) -> Answers:
    """The wishes as answers, with what was not said filled in.

    Raises:
        UsageError: Something is no name, not there, or does not go together.
    """
    kind = checked_kind(wishes.kind)
    if not re.match(NAME_PATTERN, wishes.study):
        raise UsageError(
            f"`{wishes.study}` is no name for a study",
            hint="letters, digits and `._+-` only, a letter or digit first: --name my-study",
        )
    model = _hosted(wishes) if kind == "api" else _served(wishes, kind, presets)
    return Answers(kind, wishes.study, model, _questions(wishes, kind))


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


def _hosted(wishes: Wishes) -> ModelAnswer:
    if not wishes.model:
        raise UsageError(
            "no model named", hint="--model is the endpoint's own name for it, such as gpt-4.1-mini"
        )
    address = (wishes.base_url or OPENAI_URL).rstrip("/").removesuffix(_CHAT_PATH)
    try:
        base_url = OpenAIBackend(base_url=address).base_url
    except ValidationError as error:
        # the address itself is not repeated: it may hold a password
        raise UsageError(
            f"--base-url: {str(error.errors()[0]['msg']).removeprefix('Value error, ')}"
            if "@" not in address
            else "--base-url: an address holds no user, password or query",
            hint=f"the address up to and including /v1, such as {OPENAI_URL}",
        ) from None
    variable = wishes.api_key_env
    if variable is None:
        variable = OPENAI_KEY if has_own_key(base_url) else ""
    _check_variable(variable)
    return ModelAnswer(
        _name_from(wishes.model), id=wishes.model, base_url=base_url, api_key_env=variable
    )


def _check_variable(variable: str) -> None:
    if variable and (not _VARIABLE.match(variable) or _KEY_LIKE.match(variable)):
        raise UsageError(
            "--api-key-env is the name of a variable, never the key itself",
            hint=f"--api-key-env {OPENAI_KEY}, and the key in the environment or in .env",
        )


def _served(wishes: Wishes, kind: Kind, presets: PresetFolders) -> ModelAnswer:
    if wishes.base_url or wishes.api_key_env:
        raise UsageError(
            "--base-url and --api-key-env are for hosted models", hint="say --kind api"
        )
    model = wishes.model or DEFAULT_MODELS[kind]
    backend = "llamacpp" if kind == "embedded" else "vllm"
    path = presets.find("models", model) if re.match(NAME_PATTERN, model) else None
    if path is not None:
        found = read_toml(path).get("backend", {}).get("kind")
        if found != backend:
            raise UsageError(
                f"the preset `{model}` is served by `{found}`, not by `{backend}`",
                hint=f"--kind {'gpu' if backend == 'llamacpp' else 'embedded'}",
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


def _questions(wishes: Wishes, kind: Kind) -> QuestionsAnswer:
    layout = wishes.benchmark
    kinds = {b.model_fields["kind"].default for b in Benchmark.__subclasses__()}
    if layout is not None and layout not in kinds:
        raise UsageError(f"no benchmark `{layout}`", hint=nearest(layout, kinds))
    if wishes.questions:
        name = _name_from(Path(wishes.questions).stem)
        return read_question_file(wishes.questions, name, layout=layout)
    named = layout or DEFAULT_BENCHMARKS[kind]
    if named == _OWN:
        raise UsageError(
            f"`{named}` reads a file of your own", hint="name it: --questions my_questions.jsonl"
        )
    return QuestionsAnswer(named, named, has_documents=named not in _WITHOUT_DOCUMENTS)


_WITHOUT_DOCUMENTS: Collection[str] = ("gsm8k", "math500")


def _name_from(text: str) -> str:
    """A name for a table of the manifest, from whatever a thing is called elsewhere.

    Example:
        >>> _name_from("meta-llama/Llama 3.3:free"), _name_from("_")
        ('Llama-3.3-free', 'mine')
    """
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", text.rstrip("/").rsplit("/", maxsplit=1)[-1])
    return name.strip("._+-")[:64] or "mine"
