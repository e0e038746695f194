# ruff: noqa: E501, TID253
"""Small made models: tokenizers trained on a few lines, chat templates in two styles."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

TEXT = [
    "Document [0] (Title: Oslo) Oslo is the capital of Norway. Who wrote it?",
    "We look at the documents first, then at the question. <answer>Norway</answer>",
    "system user assistant model think answer question The the of and is in 0 1 2 3 4 5 6 7 8 9",
]

CHATML = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""

# as Qwen3: think blocks are taken out of earlier turns, and one is put into the last
THINKING = """{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set said = m.content.split('</think>')[-1].lstrip('\n') %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip() if '</think>' in m.content else '' %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}
{{- said + '<|im_end|>\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""

# opens the think block itself where a reply begins
OPENED = CHATML.replace("'<|im_start|>assistant\n' }}", "'<|im_start|>assistant\n<think>\n' }}")

STYLES = {
    "smollm2": (CHATML, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "qwen3": (THINKING, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "qwen3-thinking": (OPENED, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
}
"""Style to its template, its special tokens, and the one that ends a turn."""


def tokenizer_of(style: str) -> PreTrainedTokenizerFast:
    template, special, end = STYLES[style]
    return made_tokenizer(template, special, end=end, begin=special[0])


def made_tokenizer(
    template: str,
    special: list[str],
    *,
    end: str,
    begin: str | None = None,
    tags: tuple[str, ...] = (),
    text: list[str] = TEXT,
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of a few merges; `tags` are tokens that are not special, as Qwen's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(text, trainer)
    made.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=end, pad_token=special[0], bos_token=begin
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(folder: Path, style: str = "smollm2") -> Path:
    """A llama of two layers with random weights, in hub layout."""
    tokenizer = tokenizer_of(style)
    set_seed(7)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
