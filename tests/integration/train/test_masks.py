# ruff: noqa: E402, E501, RUF001, TID253
"""Every trained token of every family of models, by the templates that the models come with.

The templates are those that TRL ships; SmolLM2's is in its weights. The tokenizers have the real
control tokens and a few merges.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from mbt_cli.backends.llamacpp import FILE
from mbt_cli.core.training_job import Weights
from mbt_cli.settings import Machine
from mbt_cli.training.mask import IGNORED, ChatFormat, ChatTemplateError, UntrainableError
from mbt_cli.training.tokenizer import ModelTokenizer, load_tokenizer
from tests.integration.train.tiny_models import CHATML, made_tokenizer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
QUESTION = [{"role": "user", "content": "Where is Oslo?"}]
WITH_SYSTEM = [{"role": "system", "content": "Be short."}, *QUESTION]
THINKING = "We look."
LINES = [
    "We look.",
    "Norway",
    "Where is Oslo?",
    "assistant",
    "think",
    "analysis",
    "final",
    "thought",
]
TEXT = "Norway"
OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}

# as the template of Ministral and Magistral writes parts of a reply
MISTRAL = """{{ bos_token }}{%- for m in messages %}
{%- if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
{%- elif m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.content is string %}{{ m.content + eos_token }}
{%- else %}{%- for part in m.content %}
{{- part.text if part.type == 'text' else '[THINK]' + part.thinking + '[/THINK]' }}
{%- endfor %}{{ eos_token }}{%- endif %}{%- endfor %}"""


@dataclass(frozen=True)
class Family:
    """A chat template with the control tokens of its tokenizer; the first one ends a turn."""

    template: str
    special: tuple[str, ...]
    tags: tuple[str, ...] = ()
    begin: str | None = None
    end: str | None = None

    def text(self):
        path = TEMPLATES / f"{self.template}.jinja"
        return path.read_text() if path.is_file() else self.template

    def tokenizer(self):
        end = self.end or self.special[0]
        special = list(self.special)
        return made_tokenizer(
            self.text(), special, end=end, begin=self.begin, tags=self.tags, text=LINES
        )


THINK = ("<think>", "</think>")
QWEN = (("<|im_end|>", "<|im_start|>", "<|endoftext|>"), (*THINK, "<tool_call>", "<|fim_prefix|>"))
GEMMA_4 = ("<turn|>", "<|turn>", "<|channel>", "<channel|>", "<|think|>", "<bos>")
DEEPSEEK = ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>")
HARMONY = ("<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>")
GEMMA = ("<end_of_turn>", "<start_of_turn>", "<bos>", "<eos>")
LLAMA = ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
FAMILIES = {
    "smollm2": Family(CHATML, QWEN[0]),
    "qwen2.5": Family("qwen2_5", *QWEN),
    "qwen3": Family("qwen3", *QWEN),
    "qwen3-2507": Family("qwen3_instruct_2507", *QWEN),
    "qwen3.5-2b": Family("qwen3_5_nothink", *QWEN),
    "qwen3.5-4b": Family("qwen3_5_think", *QWEN),
    "qwen3.6": Family("qwen3_6", *QWEN),
    "gpt-oss": Family("gptoss", HARMONY),
    "gemma-3": Family("gemma3", GEMMA, begin="<bos>", end="<eos>"),
    "gemma-4": Family("gemma4_v5", GEMMA_4, begin="<bos>"),
    "gemma-4-release": Family("gemma4_v2", GEMMA_4, begin="<bos>"),
    "llama-3.2": Family("llama3_2", LLAMA, begin="<|begin_of_text|>"),
    "mistral": Family(
        MISTRAL, ("</s>", "<s>", "[INST]", "[/INST]", "[THINK]", "[/THINK]"), begin="<s>"
    ),
    "glm-4": Family("glm4moe", ("<|endoftext|>", "<|user|>", "<|assistant|>", "<sop>"), THINK),
    "nemotron-3": Family("nemotron_3_nano", QWEN[0], THINK),
    "deepseek-r1": Family(
        "deepseek_r1_distill",
        DEEPSEEK,
        ("<｜User｜>", "<｜Assistant｜>", *THINK),
        begin=DEEPSEEK[1],
    ),
    "lfm2": Family("lfm2", QWEN[0]),
}
LITERAL = "<think>\nWe look.\n</think>\n\nNorway"
CHANNEL = "<|channel>thought\nWe look.\n<channel|>Norway<turn|>"
ANALYSIS = "<|channel|>analysis<|message|>We look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>Norway<|return|>"
WRITTEN = [
    # family, arguments of the template, the end of the prompt, the trained text with thinking,
    # and without; a reason where such a reply cannot follow the prompt
    ("smollm2", {}, "assistant\n", f"{LITERAL}<|im_end|>", "Norway<|im_end|>"),
    ("qwen2.5", {}, "assistant\n", f"{LITERAL}<|im_end|>", "Norway<|im_end|>"),
    ("qwen3-2507", {}, "assistant\n", f"{LITERAL}<|im_end|>", "Norway<|im_end|>"),
    ("qwen3", {}, "assistant\n", f"{LITERAL}<|im_end|>", "<think>\n\n</think>\n\nNorway<|im_end|>"),
    ("qwen3", ON, "assistant\n", f"{LITERAL}<|im_end|>", "<think>\n\n</think>\n\nNorway<|im_end|>"),
    ("qwen3", OFF, "assistant\n<think>\n\n</think>\n\n", "thinking_is_off", "Norway<|im_end|>"),
    *(
        ("qwen3.5-2b", arguments, "assistant\n<think>\n\n</think>\n\n", "thinking_is_off", "Norway<|im_end|>")
        for arguments in ({}, OFF)
    ),
    *(
        (family, arguments, "assistant\n<think>\n", "We look.\n</think>\n\nNorway<|im_end|>", "\n</think>\n\nNorway<|im_end|>")
        for family, arguments in (("qwen3.5-2b", ON), ("qwen3.5-4b", {}), ("qwen3.5-4b", ON), ("qwen3.6", {}))
    ),
    ("qwen3.5-4b", OFF, "assistant\n<think>\n\n</think>\n\n", "thinking_is_off", "Norway<|im_end|>"),
    ("gpt-oss", {}, "<|start|>assistant", f"{ANALYSIS}{FINAL}", FINAL),
    ("gpt-oss", {"reasoning_effort": "high"}, "<|start|>assistant", f"{ANALYSIS}{FINAL}", FINAL),
    ("gemma-3", {}, "<start_of_turn>model\n", f"{LITERAL}<end_of_turn>", "Norway<end_of_turn>"),
    *(
        (family, arguments, "<|turn>model\n", CHANNEL, "Norway<turn|>")
        for family in ("gemma-4", "gemma-4-release")
        for arguments in ({}, ON)
    ),
    ("llama-3.2", {}, "<|end_header_id|>\n\n", f"{LITERAL}<|eot_id|>", "Norway<|eot_id|>"),
    ("mistral", {}, "[/INST]", "[THINK]We look.[/THINK]Norway</s>", "Norway</s>"),
    ("glm-4", {}, "<|assistant|>", "\n<think>We look.</think>\nNorway<|endoftext|>", "\n<think></think>\nNorway<|endoftext|>"),
    ("glm-4", OFF, "<|assistant|>\n<think></think>", "thinking_is_off", "\nNorway<|endoftext|>"),
    ("nemotron-3", {}, "assistant\n<think>\n", "We look.\n</think>\nNorway<|im_end|>", "no_thinking"),
    ("nemotron-3", OFF, "assistant\n<think></think>", "thinking_is_off", "Norway<|im_end|>"),
    ("deepseek-r1", {}, "<think>\n", "We look.\n</think>\n\nNorway<｜end▁of▁sentence｜>", "no_thinking"),
    ("lfm2", {}, "assistant\n", f"{LITERAL}<|im_end|>", "Norway<|im_end|>"),
]  # fmt: skip
REASONS = ("thinking_is_off", "no_thinking")
ROWS = [
    pytest.param(family, arguments, opening, thinking, expected, id=f"{family} {arguments} {name}")
    for family, arguments, opening, thought, plain in WRITTEN
    for name, thinking, expected in (("thinking", THINKING, thought), ("plain", "", plain))
]
TRAINED = [row for row in ROWS if row.values[-1] not in REASONS]
REFUSED = [row for row in ROWS if row.values[-1] in REASONS]


def adapted(family, arguments=None):
    tokenizer = FAMILIES[family].tokenizer()
    return tokenizer, ModelTokenizer(tokenizer, arguments or {})


def trained_text(tokenizer, example):
    trained = [label for label in example.labels if label != IGNORED]
    return tokenizer.decode(trained, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(("family", "arguments", "opening", "thinking", "expected"), TRAINED)
@pytest.mark.parametrize("asked", [QUESTION, WITH_SYSTEM], ids=["user", "system"])
def test_the_reply_is_trained_in_the_models_own_form(
    family, arguments, opening, thinking, expected, asked
):
    tokenizer, own = adapted(family, arguments)

    example = ChatFormat(own).example(asked, thinking, TEXT, max_length=2000)

    assert trained_text(tokenizer, example) == expected
    assert example.completion == expected
    assert example.prompt.endswith(opening)
    # as servers tokenize the prompt
    served = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, tokenize=True, return_dict=False, **arguments
    )
    assert example.input_ids[: len(served)] == served
    assert example.labels[: len(served)] == [IGNORED] * len(served)
    assert example.labels[len(served) :] == example.input_ids[len(served) :]
    # as one text: no token would have joined prompt and reply
    whole = tokenizer(example.prompt + expected, add_special_tokens=False)["input_ids"]
    assert example.input_ids == whole


@pytest.mark.parametrize(("family", "arguments", "opening", "thinking", "expected"), REFUSED)
def test_a_reply_that_cannot_follow_the_prompt_is_dropped(
    family, arguments, opening, thinking, expected
):
    tokenizer, own = adapted(family, arguments)
    served = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, tokenize=False, **arguments
    )

    assert served.endswith(opening)
    with pytest.raises(UntrainableError, match=f"^{expected}$"):
        ChatFormat(own).example(QUESTION, thinking, TEXT, max_length=2000)


THOUGHT = ["We", " look", "."]
EVERY_TOKEN = {
    "smollm2": ["<", "think", ">", "\n", *THOUGHT, "\n", "<", "/", "think", ">", "\n", "\n", "Norway", "<|im_end|>"],
    "qwen3": ["<think>", "\n", *THOUGHT, "\n", "</think>", "\n", "\n", "Norway", "<|im_end|>"],
    "qwen3.5-4b": [*THOUGHT, "\n", "</think>", "\n", "\n", "Norway", "<|im_end|>"],
    "gpt-oss": [
        *("<|channel|>", "analysis", "<|message|>", *THOUGHT, "<|end|>"),
        *("<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Norway", "<|return|>"),
    ],
    "gemma-4": ["<|channel>", "thought", "\n", *THOUGHT, "\n", "<channel|>", "Norway", "<turn|>"],
    "mistral": ["[THINK]", *THOUGHT, "[/THINK]", "Norway", "</s>"],
}  # fmt: skip


@pytest.mark.parametrize("family", EVERY_TOKEN)
def test_every_trained_token(family):
    tokenizer, own = adapted(family)

    example = ChatFormat(own).example(QUESTION, THINKING, TEXT, max_length=2000)

    trained = [label for label in example.labels if label != IGNORED]
    assert [tokenizer.decode([token]) for token in trained] == EVERY_TOKEN[family]


@pytest.mark.parametrize(
    "family", ["qwen3", "qwen3.5-4b", "qwen3.6", "gpt-oss", "gemma-4", "glm-4", "nemotron-3"]
)
def test_a_row_is_what_the_template_writes_of_the_whole_conversation(family):
    tokenizer, own = adapted(family)
    example = ChatFormat(own).example(WITH_SYSTEM, THINKING, TEXT, max_length=2000)

    name = "thinking" if family == "gpt-oss" else "reasoning_content"
    reply = {"role": "assistant", "content": TEXT, name: THINKING}
    whole = tokenizer.apply_chat_template([*WITH_SYSTEM, reply], tokenize=False)

    # what follows is white space, or nothing where the end of text takes its place
    assert (
        whole.strip() == (example.prompt + example.completion).removesuffix("<|endoftext|>").strip()
    )


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5-4b", "gpt-oss", "deepseek-r1"])
def test_thinking_that_the_template_strips_from_history_stays_in_the_target(family):
    tokenizer, own = adapted(family)
    turn = {"role": "assistant", "content": "<answer>Rome</answer>"}

    example = ChatFormat(own).example([*QUESTION, turn, *QUESTION], THINKING, TEXT, max_length=2000)

    assert example.prompt.count("We look.") == 0
    assert trained_text(tokenizer, example).count("We look.") == 1
    assert example.prompt.count("Where is Oslo?") == 2


def test_a_system_message_is_merged_where_the_template_merges_it():
    _, own = adapted("gemma-3")

    example = ChatFormat(own).example(WITH_SYSTEM, "", TEXT, max_length=2000)

    assert example.prompt == (
        "<bos><start_of_turn>user\nBe short.\n\nWhere is Oslo?<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize(
    ("family", "messages", "words"),
    [
        ("gemma-3", [*QUESTION, *QUESTION], "roles must alternate"),
        ("qwen3.5-4b", [*QUESTION, WITH_SYSTEM[0]], "System message must be at the beginning"),
        ("qwen3.5-4b", [{"role": "judge", "content": "x"}, *QUESTION], "Unexpected message role"),
    ],
)
def test_messages_that_the_template_refuses_are_refused_in_its_words(family, messages, words):
    _, own = adapted(family)

    with pytest.raises(ChatTemplateError, match=f"refuses the messages: .*{words}"):
        ChatFormat(own).example(messages, "", TEXT, max_length=2000)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_control_token_is_trained_or_read_inside_text(family):
    _, own = adapted(family)
    chat = ChatFormat(own)
    thinking = "" if family == "qwen3.5-2b" else THINKING
    tags = [tag for tag in FAMILIES[family].tags if "|" in tag or "｜" in tag]

    for token in (*FAMILIES[family].special, *tags):
        asked = [{"role": "user", "content": f"What is {token}?"}]
        with pytest.raises(
            UntrainableError, match=f"^control_token_in_prompt: {re.escape(token)}$"
        ):
            chat.example(asked, thinking, TEXT, max_length=2000)
        said = [(thinking, f"It is {token}."), *([(f"It is {token}.", TEXT)] if thinking else [])]
        for thought, text in said:
            reason = "thinking_tag_inside|control_token_in_reply: " + re.escape(token)
            with pytest.raises(UntrainableError, match=f"^({reason})$"):
                chat.example(QUESTION, thought, text, max_length=2000)
    # without the brackets it is text
    bare = [{"role": "user", "content": "What is im_end or <|im end|>?"}]
    assert chat.example(bare, thinking, "channel|>", max_length=2000).trained > 1


def test_tags_of_thinking_may_stand_in_a_question():
    tokenizer, own = adapted("qwen3")
    asked = [{"role": "user", "content": "Think in <think> tags. </think>"}]

    example = ChatFormat(own).example(asked, THINKING, TEXT, max_length=2000)

    assert trained_text(tokenizer, example) == f"{LITERAL}<|im_end|>"


@pytest.mark.parametrize("family", ["smollm2", "qwen3", "gpt-oss", "gemma-3", "llama-3.2"])
def test_white_space_and_other_scripts_survive(family):
    tokenizer, own = adapted(family)
    text = "  Ærø liegt in Dänemark.\n\n\t「東京」\n"

    example = ChatFormat(own).example(QUESTION, "東 京\n\n  x", text, max_length=2000)

    assert text in trained_text(tokenizer, example)
    assert "東 京\n\n  x" in trained_text(tokenizer, example)


def test_a_tokenizer_of_words_puts_no_space_before_a_reply():
    tokenizer = spaced_tokenizer(CHATML)
    own = ModelTokenizer(tokenizer, {})

    example = ChatFormat(own).example(QUESTION, "", "We look. ", max_length=2000)

    trained = [tokenizer.convert_ids_to_tokens(n) for n in example.labels if n != IGNORED]
    assert trained == ["W", "e", "▁", "l", "o", "o", "k", ".", "▁", "<|im_end|>"]
    assert example.completion == "We look. <|im_end|>"


def spaced_tokenizer(template):
    """Puts a space before the first word of every text, as Llama 2's and Phi-3's."""
    letters = sorted(
        {*"▁", *(letter for line in (CHATML, *LINES) for letter in line if letter.strip())}
    )
    made = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_tokens(["\n"])
    made.add_special_tokens(list(QWEN[0]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


def test_smollm2_itself():
    source = Machine().cache / "weights" / FILE
    if not source.is_file():
        pytest.skip("the embedded model is not in the cache")
    tokenizer = load_tokenizer(Weights(model=str(source)))
    own = ModelTokenizer(tokenizer, {})

    example = ChatFormat(own).example(QUESTION, THINKING, TEXT, max_length=2000)

    assert example.prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhere is Oslo?<|im_end|>\n<|im_start|>assistant\n"
    )
    trained = [label for label in example.labels if label != IGNORED]
    block = ["<", "think", ">", "\n", "We", " look", ".", "\n", "</", "think", ">", "\n", "\n"]
    assert [tokenizer.decode([n]) for n in trained] == [*block, "Nor", "way", "<|im_end|>"]
    with pytest.raises(UntrainableError, match=r"^control_token_in_reply: <file_sep>$"):
        ChatFormat(own).example(QUESTION, "", "a <file_sep> b", max_length=2000)
