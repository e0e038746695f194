"""The model's tokenizer and chat template; needs no torch."""

import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from jinja2 import TemplateError

from mbt_cli.core.chat import Json
from mbt_cli.core.training_job import TRAINED_GGUF, Weights
from mbt_cli.training.mask import ChatTemplateError
from mbt_cli.training.problems import TrainingError

_CONTROL = re.compile(r"^<[|\uff5c]|[|\uff5c]>$")  # DeepSeek writes a full-width bar
"""Added tokens such as `<|fim_prefix|>`, which not every tokenizer marks as special."""


class ModelTokenizer:
    """A model's tokenizer as a `mask.Tokenizer`.

    Args:
        tokenizer: As transformers loads it.
        template: Arguments of the chat template.
        now: The time that a chat template is told; by default the present.
    """

    def __init__(
        self, tokenizer: Any, template: Mapping[str, Json], now: datetime | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._template: dict[str, Any] = dict(template)
        if now is not None:  # takes the place of transformers' own function
            self._template["strftime_now"] = now.strftime
        tokenizer("", add_special_tokens=False)  # its file may ask for truncation: reset
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        added = tokenizer.added_tokens_decoder.items()
        controls = {i: str(t) for i, t in added if t.special or _CONTROL.search(str(t))}
        known = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
        self.control_tokens: Mapping[int, str] = {**controls, **dict(known)}
        self.end_of_text: str | None = tokenizer.eos_token
        self._before = self._place_before()
        self._head = self.encode(self._before)

    def render(self, messages: Sequence[Mapping[str, Json]], *, opens_reply: bool) -> str:
        """The conversation as text; ChatTemplateError if the template refuses it."""
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=opens_reply,
                **self._template,
            )
        except (TemplateError, TypeError, AttributeError, KeyError, ValueError) as error:
            raise ChatTemplateError(f"the chat template refuses the messages: {error}") from error
        return str(text)

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; none are added."""
        if self._fast is None:
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        # without their places in the text: takes a fifth less time
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def encode_reply(self, text: str) -> list[int]:
        """Tokens of a text that follows others."""
        return self.encode(self._before + text)[len(self._head) :]

    def decode_reply(self, tokens: Sequence[int]) -> str:
        """The exact text of tokens that follow others."""
        whole = [*self._head, *tokens]
        if self._fast is not None:  # without the check of every token that transformers makes
            text = self._fast.decode(whole, skip_special_tokens=False)
        else:
            text = self._tokenizer.decode(
                whole, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        return str(text).removeprefix(self._before)

    def _place_before(self) -> str:
        """Text to put before a reply, for tokenizers that put a space before the first word."""
        before, alone = "\n", self.encode("a")
        head, whole = self.encode(before), self.encode(f"{before}a")
        return before if whole[: len(head)] == head and whole[len(head) :] != alone else ""


def load_tokenizer(weights: Weights) -> Any:
    """The tokenizer; TrainingError if it has no chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(hub_place(weights), **hub_arguments(weights))
    if not tokenizer.chat_template:
        raise TrainingError(
            f"`{weights.model}` has no chat template, so no prompt can be rendered",
            "use its instruct variant, or add a chat_template.jinja to its folder",
        )
    return tokenizer


def without_torch(weights: Weights) -> None:
    """Let transformers load tokenizers alone from now on: 70 MB a process instead of 330 MB.

    Does nothing if this tokenizer may need torch: code of its own, or a GGUF file.
    """
    if not weights.trust_remote_code and not is_gguf(weights) and "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # that torch is missing


def tokenizer_digest(tokenizer: Any) -> str:
    """Sha256 of everything that decides its tokens: vocabulary, rules and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else tokenizer.get_vocab()
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    parts = [type(tokenizer).__name__, rules, special, tokenizer.chat_template]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


def is_gguf(weights: Weights) -> bool:
    """Whether the weights are a file for llama.cpp."""
    return weights.model.endswith(".gguf")


def gguf_of(weights: Weights) -> Path | None:
    """The GGUF file of weights that came as one, or that an earlier training wrote beside them."""
    if is_gguf(weights):
        return Path(weights.model)
    written = Path(weights.model) / TRAINED_GGUF
    return written if written.is_file() else None


def hub_place(weights: Weights) -> str:
    """Name on the hub or folder, as `from_pretrained` takes it."""
    return str(Path(weights.model).parent) if is_gguf(weights) else weights.model


def hub_arguments(weights: Weights) -> dict[str, Any]:
    """The rest of what `from_pretrained` takes."""
    if is_gguf(weights):
        return {"gguf_file": Path(weights.model).name}
    return {"revision": weights.revision, "trust_remote_code": weights.trust_remote_code}
