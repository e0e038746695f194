"""The cost per token of a loaded model, for `mbt_cli.core.flops`."""

from typing import Any

from torch import nn

from mbt_cli.core.flops import TokenCost


def token_cost(model: Any) -> TokenCost:
    """The cost per token of a causal language model that is not yet sharded."""
    config = model.config.get_text_config()
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    taken = getattr(config, "num_experts_per_tok", None)
    share = taken / experts if experts and taken else 1.0
    looked_up = model.get_input_embeddings()
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is looked_up.weight
    embeddings = set() if is_tied else {id(looked_up.weight)}
    active = trained = 0.0
    for name, parameter in model.named_parameters():
        if id(parameter) in embeddings:
            continue
        number = _size(parameter) * (share if ".experts." in name else 1.0)
        active += number
        trained += number if parameter.requires_grad else 0.0
    return TokenCost(active, trained, tuple(_attention_layers(config)))


def _size(parameter: nn.Parameter) -> int:
    """Numbers in a parameter; those in four bits are packed in pairs."""
    packed = getattr(parameter, "quant_state", None)
    return int(packed.shape.numel()) if packed is not None else parameter.numel()


def _attention_layers(config: Any) -> list[tuple[int, int | None]]:
    layers = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * layers
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    window = getattr(config, "sliding_window", None)
    return [
        (width, window if kind == "sliding_attention" else None)
        for kind in kinds
        if kind in ("full_attention", "sliding_attention")
    ]
