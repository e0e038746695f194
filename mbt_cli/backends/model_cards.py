"""A preset from what a model's own files say: config.json, generation_config.json, chat template.

The weights are not read: their size comes from the headers of the safetensors files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from mbt_cli.backends.model_sizes import model_size
from mbt_cli.backends.weights import is_folder
from mbt_cli.core.chat import Json
from mbt_cli.core.model_settings import inferred_limit
from mbt_cli.errors import UsageError

_CONFIG, _GENERATION = "config.json", "generation_config.json"
_TEMPLATE, _TOKENIZER = "chat_template.jinja", "tokenizer_config.json"
_THINKS = ("<think>", "[THINK]", "<|channel", "enable_thinking")
_PARSERS: Mapping[str, str] = {
    "gpt_oss": "openai_gptoss",
    "gemma4": "gemma4",
    "glm4": "glm45",
    "mistral": "mistral",
    "ministral": "mistral",
    "minimax": "minimax_m2",
    "seed_oss": "seed_oss",
    "olmo3": "olmo3",
    "kimi": "kimi_k2",
    "qwen3": "qwen3",
}
"""How `model_type` begins, to vLLM's parser of its reasoning."""
_OTHER_PARSER = "deepseek_r1"
"""The parser of `<think>` blocks of any model."""
_SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a preset of a model says.

    Args:
        model: Name on the hub, or a folder.
        context: Context in tokens; null if config.json has none.
        sampling: Recommended by generation_config.json, and the token limit.
        parser: vLLM's parser of its reasoning; empty if its chat template has no thinking.
        can_switch: Whether its chat template takes `enable_thinking`.
        size: Fields of `[size]`; empty if the sizes are not known.
        files: The files that it is from.
    """

    model: str
    context: int | None
    sampling: Mapping[str, Json]
    parser: str = ""
    can_switch: bool = False
    size: Mapping[str, Json] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def read_card(model: str, revision: str | None, environment: Mapping[str, str]) -> ModelCard:
    """What the files of a model say; a model on the hub is read without its weights.

    Args:
        model: Name on the hub, or a folder.
        revision: Revision on the hub.
        environment: The process environment, for the hub.

    Raises:
        UsageError: It has no config.json, or the hub cannot be reached.
    """
    found = {
        name: content
        for name in (_CONFIG, _GENERATION, _TEMPLATE, _TOKENIZER)
        if (content := _content(model, name, revision, environment)) is not None
    }
    if _CONFIG not in found:
        raise UsageError(
            f"`{model}` has no {_CONFIG}",
            hint="use the name of a model on the hub, or a folder written by `save_pretrained`",
        )
    config, generation = _table(found[_CONFIG]), _table(found.get(_GENERATION, b"{}"))
    text = config.get("text_config")
    own = {**config, **(text if isinstance(text, dict) else {})}
    context = own.get("max_position_embeddings")
    context = context if isinstance(context, int) and context > 0 else None
    template = _template(found)
    kind = str(own.get("model_type") or config.get("model_type") or "")
    is_thinking = any(mark in template for mark in _THINKS)
    parser = next((p for name, p in _PARSERS.items() if kind.startswith(name)), _OTHER_PARSER)
    size = model_size(model, revision, environment, ask_hub=True)
    fields = {} if size is None else size.model_dump(exclude_defaults=True)
    return ModelCard(
        model=model,
        context=context,
        sampling=_sampling(generation, context),
        parser=parser if is_thinking else "",
        can_switch="enable_thinking" in template,
        size={name: value for name, value in fields.items() if value},
        files=tuple(found),
    )


def preset_text(card: ModelCard, kind: str, revision: str | None, *, today: str) -> str:
    """The preset as TOML, with a comment on what it is from and what to look at.

    Args:
        card: What the model's files say.
        kind: The backend.
        revision: Revision on the hub.
        today: Date of the comment.
    """
    lines = [
        f"# {card.model}, from its {', '.join(card.files)} ({today}).",
        "# Compare the sampling with its card: not every generation_config.json follows it.",
    ]
    if card.can_switch:
        lines.append(
            "# Without thinking: `request = { chat_template_kwargs = { enable_thinking = false } }`"
        )
    lines += ["", "[backend]", f'kind = "{kind}"', f"model = {_toml(card.model)}"]
    if revision is not None:
        lines.append(f"revision = {_toml(revision)}")
    serve: dict[str, Json] = {}
    if card.context is not None:
        serve["max_model_len"] = card.context
    if card.parser:
        serve["reasoning_parser"] = card.parser
    for name, table in (("serve", serve), ("sampling", card.sampling), ("size", card.size)):
        if table:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(v)}" for key, v in table.items())]
    return "\n".join(lines) + "\n"


def _sampling(generation: Mapping[str, Any], context: int | None) -> dict[str, Json]:
    greedy = generation.get("do_sample") is False
    found = {
        name: generation[name]
        for name in _SAMPLED
        if isinstance(generation.get(name), int | float) and not greedy
    }
    usual = {"temperature": 0.0 if greedy else 1.0}
    limit = "rest" if context is None else inferred_limit(context)
    return {**usual, **found, "max_tokens": limit}


def _template(found: Mapping[str, bytes]) -> str:
    if _TEMPLATE in found:
        return found[_TEMPLATE].decode(errors="replace")
    written = _table(found.get(_TOKENIZER, b"{}")).get("chat_template")
    if isinstance(written, list):  # several, by name
        written = "\n".join(str(one.get("template")) for one in written if isinstance(one, dict))
    return str(written or "")


def _table(content: bytes) -> Mapping[str, Any]:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"a file of the model is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _content(
    model: str, name: str, revision: str | None, environment: Mapping[str, str]
) -> bytes | None:
    """A file of a model; None if it has no such file."""
    if is_folder(model):
        path = Path(model).expanduser() / name
        return path.read_bytes() if path.is_file() else None
    from huggingface_hub import HfApi  # only for models on the hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    api = HfApi(
        endpoint=environment.get("HF_ENDPOINT") or None, token=environment.get("HF_TOKEN") or None
    )
    try:
        return Path(api.hf_hub_download(model, name, revision=revision)).read_bytes()
    except LocalEntryNotFoundError as error:  # neither the hub nor the cache has it
        if name == _CONFIG:
            raise UsageError(
                f"`{model}` is not in the cache, and the hub does not answer",
                hint="check that this machine can reach https://huggingface.co (HTTPS_PROXY, "
                "HF_ENDPOINT), or name a folder",
            ) from error
    except EntryNotFoundError:
        return None
    except Exception as error:  # networks and hubs fail in many ways
        raise UsageError(
            f"`{model}` cannot be read from the hub: {type(error).__name__}: {error}",
            hint="correct the name, accept the licence and set HF_TOKEN, or name a folder",
        ) from error
    return None


def _toml(value: Json) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return orjson.dumps(value).decode() if isinstance(value, str) else repr(value)
