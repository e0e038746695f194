r"""The completion mask: only the completion and the token that ends its turn are trained.

A training row equals the input of a server: the prompt rendered with the start of the assistant's
turn, then the completion as written, then the template's end of turn. The completion itself is
never rendered, so a template that strips or rewrites think blocks does not change it; what the
template puts around an assistant's turn is found by rendering a stand-in.

    <|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n    4<|im_end|>     \n
    prompt, not trained                                            trained         omitted
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mbt_cli.core.chat import Message

IGNORED = -100
"""Label of a token that is not trained, as torch's cross entropy knows it."""
_STAND_IN = "MBTstandsinforthecompletion"
_OPEN = "<think>"
_SHOWN = 40


class Tokenizer(Protocol):
    """A chat template with its tokenizer."""

    special_tokens: frozenset[int]
    """Ids of tokens that are not text."""
    end_of_text: str | None
    """Text of the tokenizer's own end-of-sequence token."""

    def render(self, messages: Sequence[Message], *, opens_reply: bool) -> str:
        """The conversation as text; `opens_reply` adds what precedes a reply."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens are recognised, none are added."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The exact text of tokens, including special ones."""


class ChatTemplateError(ValueError):
    """The template renders prompts and replies differently; the message shows where."""


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
        return sum(label != IGNORED for label in self.labels)


@dataclass(frozen=True, slots=True)
class Turn:
    """How a template frames an assistant's turn.

    Args:
        prompt: Everything before the reply.
        lead: White space between the prompt and the reply.
        end: Text of the token that ends the turn.
        end_token: Its id.
    """

    prompt: str
    lead: str
    end: str
    end_token: int


def turn_of(tokenizer: Tokenizer, messages: Sequence[Message]) -> Turn:
    """Render the prompt, and the prompt with a stand-in reply, and compare.

    Raises:
        ChatTemplateError: The prompt is not a prefix of the conversation with the reply, the reply
            is missing in it, or no special token ends the turn.
    """
    prompt = tokenizer.render(messages, opens_reply=True)
    whole = tokenizer.render(
        [*messages, Message(role="assistant", content=_STAND_IN)], opens_reply=False
    )
    before, found, after = whole.partition(_STAND_IN)
    if not found:
        raise ChatTemplateError("the chat template omits an assistant's reply")
    # some templates open the think block before a reply, but not in history
    opens = _opens_thinking(prompt)
    opened = prompt.rstrip().removesuffix(_OPEN).rstrip(" \n") if opens else prompt
    if not before.startswith(opened):
        raise ChatTemplateError(_first_difference(opened, before))
    between = before[len(opened) :]
    lead = between if not between.strip() and not opens else ""
    end, token = _end_of_turn(tokenizer, after)
    return Turn(prompt, lead, end, token)


def example_of(
    tokenizer: Tokenizer, messages: Sequence[Message], completion: str, *, max_length: int
) -> Example:
    """The row that trains `completion` as the reply to `messages`.

    Args:
        tokenizer: The model's tokenizer.
        messages: The conversation before the reply.
        completion: The reply, used verbatim.
        max_length: Maximum number of tokens of a row.

    Raises:
        ChatTemplateError: The template cannot be trained with.
        UntrainableError: `empty_completion`, `over_long`, `end_of_turn_inside` or
            `tokenizer_changes_text`.
    """
    turn = turn_of(tokenizer, messages)
    text = completion
    if _opens_thinking(turn.prompt) and text.lstrip().startswith(_OPEN):
        text = text.lstrip().removeprefix(_OPEN).lstrip("\n")
    if not text.strip():
        raise UntrainableError("empty_completion")
    reply = tokenizer.encode(turn.lead + text)
    if turn.end_token in reply:
        raise UntrainableError("end_of_turn_inside")
    if tokenizer.decode(reply) != turn.lead + text:
        raise UntrainableError("tokenizer_changes_text")
    before = tokenizer.encode(turn.prompt)
    trained = [*reply, turn.end_token]
    if len(before) + len(trained) > max_length:
        raise UntrainableError(f"over_long: {len(before) + len(trained)} tokens")
    return Example(
        prompt=turn.prompt,
        completion=turn.lead + text + turn.end,
        input_ids=[*before, *trained],
        labels=[IGNORED] * len(before) + trained,
    )


def _opens_thinking(prompt: str) -> bool:
    return prompt.rstrip().endswith(_OPEN)


def _end_of_turn(tokenizer: Tokenizer, after: str) -> tuple[str, int]:
    tokens = tokenizer.encode(after.lstrip())
    if tokens and tokens[0] in tokenizer.special_tokens:
        return tokenizer.decode(tokens[:1]), tokens[0]
    own = tokenizer.end_of_text
    if own is not None and not after.strip():
        return own, tokenizer.encode(own)[0]
    shown = repr(after[:_SHOWN])
    raise ChatTemplateError(f"no special token ends an assistant's turn, but {shown}")


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
