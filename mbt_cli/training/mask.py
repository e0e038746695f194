r"""The completion mask: only the reply and the token that ends its turn are trained.

A training row equals what a server reads and writes: the prompt rendered with the start of the
assistant's turn, then the reply in the model's own form, then the template's end of turn.

    <|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n    4<|im_end|>     \n
    prompt, not trained                                            trained         omitted

What a template writes around the thinking and the text of a reply is found by rendering stand-ins
after the first prompt; a row itself is rendered once, as a prompt. So no template can strip or
rewrite a reply, and no family of models is named here, except for marks that templates do not
write.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from mbt_cli.core.chat import Json, Message
from mbt_cli.core.traces import THINKING_TAG, opened_thinking

IGNORED = -100
"""Label of a token that is not trained, as torch's cross entropy knows it."""

HINTS: Mapping[str, str] = {
    "over_long": "raise `recipe.max_length`",
    "thinking_is_off": "the prompts of this model close the think block: set `request = { "
    "chat_template_kwargs = { enable_thinking = true } }` of the model, or train on replies "
    "without thinking",
    "no_thinking": "the prompts of this model open a think block: train on replies with thinking, "
    "or set `request = { chat_template_kwargs = { enable_thinking = false } }` of the model",
    "control_token_in_prompt": "the prompt template or the questions hold control tokens of this "
    "model's tokenizer, which every server reads as control: remove them",
    "control_token_in_reply": "the replies hold control tokens of this model's tokenizer: clean "
    "the `data`",
}
"""What helps when every row is dropped for one reason."""

_TEXT = "MBTstandsinforthetext"
_THINKING = "MBTstandsinforthethinking"
_TAGS = ("<think>\n", "\n</think>\n\n")
"""The form of models that have none of their own."""
_MARKS = {"<|channel>": ("<|channel>thought\n", "\n<channel|>"), "[THINK]": ("[THINK]", "[/THINK]")}
"""Thinking of Gemma 4 and Mistral: not every version of their templates writes it."""
_CLOSED = re.compile(r"(?:</think(?:ing)?>|\[/THINK\]|<channel\|>)\s*$")
_PRINTED = re.compile(r"""["'](?:thinking|text)["']""")
"""Keys of a part of a message, printed by a template that expects text."""
_SHOWN = 40


class Tokenizer(Protocol):
    """A chat template with its tokenizer."""

    control_tokens: Mapping[int, str]
    """Tokens that are not text, by id."""
    end_of_text: str | None
    """Text of the tokenizer's own end-of-sequence token."""

    def render(self, messages: Sequence[Mapping[str, Json]], *, opens_reply: bool) -> str:
        """The conversation as text; `opens_reply` adds what precedes a reply.

        Raises:
            ChatTemplateError: The template refuses the messages.
        """

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; control tokens are recognized, none are added."""

    def encode_reply(self, text: str) -> list[int]:
        """Tokens of a text that follows other tokens."""

    def decode_reply(self, tokens: Sequence[int]) -> str:
        """The exact text of tokens that follow others, including control tokens."""


class ChatTemplateError(ValueError):
    """The chat template cannot be trained with; the message shows why."""


class UntrainableError(ValueError):
    """A row cannot be trained on; the message is a short typed reason."""


@dataclass(frozen=True, slots=True)
class Example:
    """One training row.

    Args:
        prompt: Text that is not trained.
        completion: Text that is trained, including the end of turn.
        input_ids: Tokens of both.
        labels: `input_ids` with `IGNORED` in place of the prompt.
    """

    prompt: str
    completion: str
    input_ids: list[int]
    labels: list[int]

    @property
    def trained(self) -> int:
        """Number of tokens that count for the loss."""
        return len(self.labels) - self.labels.count(IGNORED)


@dataclass(frozen=True, slots=True)
class Turn:
    """How a template writes an assistant's turn after the prompt.

    Args:
        text: What precedes the text of a reply without thinking; None if the prompt opens a think
            block that such a reply cannot close.
        thinking: What precedes the thinking, and what stands between thinking and text; None if
            the prompt closes the think block.
        end: Text of the tokens that end the turn.
        end_tokens: Their ids; the last one stops a server.
        controls: Number of control tokens in a prompt, apart from its messages.
    """

    text: str | None
    thinking: tuple[str, str] | None
    end: str
    end_tokens: tuple[int, ...]
    controls: int


class ChatFormat:
    """Prompts and replies as one model reads and writes them.

    The form of a reply is found once for each order of roles: after the first such prompt.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._turns: dict[tuple[str, ...], Turn] = {}
        self._last: tuple[Sequence[Message], str, list[int]] | None = None
        self._written_controls: dict[str, int] = {}

    def prompt(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """Text and tokens of a prompt, as a server makes them.

        Raises:
            ChatTemplateError: The template cannot be trained with.
            UntrainableError: `control_token_in_prompt`: a message holds a control token, which
                servers read as control.
        """
        if self._last is not None and self._last[0] == messages:  # traces of one question
            return self._last[1:]
        text = self._tokenizer.render(messages, opens_reply=True)
        tokens = self._tokenizer.encode(text)
        if self._count(tokens) != self.turn(messages).controls:
            for message in messages:
                self._refuse_control(self._tokenizer.encode(message["content"]), "prompt")
        self._last = messages, text, tokens
        return text, tokens

    def turn(self, messages: Sequence[Message]) -> Turn:
        """How replies to conversations with these roles are written.

        Raises:
            ChatTemplateError: The prompt is not a prefix of the conversation with a reply, the
                reply is missing in it, or no control token ends the turn.
        """
        roles = tuple(message["role"] for message in messages)
        if roles not in self._turns:
            self._turns[roles] = self._find_turn(messages)
        return self._turns[roles]

    def example(
        self, messages: Sequence[Message], thinking: str | None, text: str, *, max_length: int
    ) -> Example:
        """The row that trains a reply to `messages`.

        Args:
            messages: The conversation before the reply.
            thinking: What the model thinks before it replies; white space around it is omitted.
            text: The reply itself, used verbatim.
            max_length: Maximum number of tokens of a row.

        Raises:
            ChatTemplateError: The template cannot be trained with.
            UntrainableError: `empty_completion`, `thinking_is_off`, `no_thinking`,
                `thinking_tag_inside`, `control_token_in_prompt`, `control_token_in_reply`,
                `tokenizer_changes_text` or `over_long`.
        """
        thinking = (thinking or "").strip()
        if not text.strip():
            raise UntrainableError("empty_completion")
        if THINKING_TAG.search(thinking) or THINKING_TAG.search(text):
            raise UntrainableError("thinking_tag_inside")
        turn = self.turn(messages)
        parts = _parts(turn, thinking, text)
        prompt, before = self.prompt(messages)
        completion = "".join(parts)
        reply = self._tokenizer.encode_reply(completion)
        if self._count(reply) != self._controls_of("".join(parts[::2])):
            self._refuse_control(self._tokenizer.encode(thinking), "reply")
            self._refuse_control(self._tokenizer.encode(text), "reply")
        if self._tokenizer.decode_reply(reply) != completion:
            raise UntrainableError("tokenizer_changes_text")
        trained = [*reply, *turn.end_tokens]
        if len(before) + len(trained) > max_length:
            raise UntrainableError(f"over_long: {len(before) + len(trained)} tokens")
        return Example(
            prompt=prompt,
            completion=completion + turn.end,
            input_ids=[*before, *trained],
            labels=[IGNORED] * len(before) + trained,
        )

    def _controls_of(self, written: str) -> int:
        """Control tokens in what the template writes, which is the same in all rows."""
        if written not in self._written_controls:
            self._written_controls[written] = self._count(self._tokenizer.encode(written))
        return self._written_controls[written]

    def _count(self, tokens: Sequence[int]) -> int:
        return sum(map(self._tokenizer.control_tokens.__contains__, tokens))

    def _refuse_control(self, tokens: Sequence[int], place: str) -> None:
        known = self._tokenizer.control_tokens
        if found := next((known[token] for token in tokens if token in known), None):
            raise UntrainableError(f"control_token_in_{place}: {found}")

    def _find_turn(self, messages: Sequence[Message]) -> Turn:
        tokenizer = self._tokenizer
        prompt = tokenizer.render(messages, opens_reply=True)
        whole = tokenizer.render([*messages, _reply(_TEXT)], opens_reply=False)
        before, found, after = whole.partition(_TEXT)
        if not found:
            raise ChatTemplateError("the chat template omits an assistant's reply")
        opens, closes = opened_thinking(prompt), _CLOSED.search(prompt)
        text = before[len(prompt) :] if before.startswith(prompt) else None
        if text is None and not opens:
            raise ChatTemplateError(_first_difference(prompt, before))
        thinking = None if closes else self._find_thinking(messages, prompt, text)
        bare = [{**message, "content": "x"} for message in messages]
        controls = tokenizer.encode(tokenizer.render(bare, opens_reply=True))
        return Turn(text, thinking, *self._end_of_turn(after), self._count(controls))

    def _find_thinking(
        self, messages: Sequence[Message], prompt: str, text: str | None
    ) -> tuple[str, str]:
        chunks = [{"type": "thinking", "thinking": _THINKING}, {"type": "text", "text": _TEXT}]
        fields = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), _THINKING)
        tagged = f"{_TAGS[0]}{_THINKING}{_TAGS[1]}{_TEXT}"
        marks = set(self._tokenizer.control_tokens.values())
        if found := self._written(messages, prompt, _reply(_TEXT) | fields):
            return found
        if found := self._written(messages, prompt, _reply(chunks)):
            return found
        if opened := opened_thinking(prompt):
            return "", f"\n{opened[0]}/{opened[1:]}\n\n"
        for mark, own in _MARKS.items():
            if mark in marks:
                return own
        if found := self._written(messages, prompt, _reply(tagged)):
            return found
        if text is None or text.strip():
            raise ChatTemplateError(
                f"the chat template writes {text!r} before a reply, and omits its thinking"
            )
        return text + _TAGS[0], _TAGS[1]

    def _written(
        self, messages: Sequence[Message], prompt: str, reply: Mapping[str, Json]
    ) -> tuple[str, str] | None:
        """What the template writes around the thinking of a reply; None if it does not write it."""
        try:
            whole = self._tokenizer.render([*messages, reply], opens_reply=False)
        except ChatTemplateError:
            return None
        if not whole.startswith(prompt):
            return None
        before, thinking, after = whole[len(prompt) :].partition(_THINKING)
        between, text, rest = after.partition(_TEXT)
        is_once = _THINKING not in rest and _TEXT not in before + rest
        is_printed = _PRINTED.search(before) or _PRINTED.search(between)
        return (before, between) if thinking and text and is_once and not is_printed else None

    def _end_of_turn(self, after: str) -> tuple[str, tuple[int, ...]]:
        tokenizer = self._tokenizer
        known = tokenizer.control_tokens
        tokens = tokenizer.encode(after.lstrip())
        end = list(takewhile(known.__contains__, tokens))
        own = tokenizer.encode(tokenizer.end_of_text) if tokenizer.end_of_text else []
        if not end and not after.strip():
            end = own
        if not end:
            raise ChatTemplateError(
                f"no control token ends an assistant's turn, but {after[:_SHOWN]!r}"
            )
        if own and own[0] in end:
            end = end[: end.index(own[0]) + 1]
        return "".join(known[token] for token in end), tuple(end)


def _reply(content: Json) -> dict[str, Json]:
    return {"role": "assistant", "content": content}


def _parts(turn: Turn, thinking: str, text: str) -> tuple[str, ...]:
    """The trained text without its end: what the template writes, in turns with the row's own."""
    if not thinking:
        if turn.text is None:
            raise UntrainableError("no_thinking")
        return turn.text, text
    if turn.thinking is None:
        raise UntrainableError("thinking_is_off")
    before, between = turn.thinking
    return before, thinking, between, text


def _first_difference(prompt: str, whole: str) -> str:
    place = next(
        (n for n, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b),
        min(len(prompt), len(whole)),
    )
    start = max(0, place - _SHOWN // 2)
    return (
        f"the chat template renders a prompt differently when a reply follows, from character "
        f"{place}: {prompt[start : place + _SHOWN]!r} without, "
        f"{whole[start : place + _SHOWN]!r} with the reply"
    )
