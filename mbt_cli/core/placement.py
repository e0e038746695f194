"""On how many GPUs a model is served: the arithmetic, in one place.

A replica of a model is divided by tensor parallelism over T GPUs of a node, T a power of two that
divides its attention heads. On each of these GPUs, in GiB,

    vLLM's share   M u                M: memory of the GPU, u: `gpu_memory_utilization`
    overhead       max(2, M / 20)     CUDA and NCCL, activations of a batch, CUDA graphs
    weights        W / T
    cache          what is left

The cache holds the tokens of the requests in flight. A request of n tokens takes, over all GPUs,

    k n + w min(n, window + 2 b) + 2 s

bytes: k for each token in layers that attend to all of them, w in layers with a sliding window, of
which vLLM keeps two batches of b tokens more (8,192; 2,048 below 70 GiB), and s for the state of
layers with linear attention, of which prefix caching keeps a second. Keys and values have fewer
heads than queries: more GPUs than such heads hold copies.

The smallest T is chosen whose cache holds one request of the whole context (vLLM does not start
otherwise) and 16 requests of usual length, 4,096 tokens; if there is none, the T with
the largest cache that holds one request. The other GPUs of the node get further replicas. A model
that T GPUs cannot hold is divided by pipeline parallelism, into stages of T GPUs each, over the
others of the node and then over as few nodes as hold it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from pydantic import Field

from mbt_cli.core.gpus import GPUs
from mbt_cli.core.plugin import Settings
from mbt_cli.errors import UsageError

MEMORY_SHARE = 0.9
"""vLLM's share of a GPU without `gpu_memory_utilization`: its default is 0.92, once 0.9."""
ASSUMED_GIB = 80.0
"""Memory of GPUs that is unknown."""
USUAL_REQUESTS = 16
"""Requests in flight for which a replica has room at least."""
USUAL_TOKENS = 4_096
"""Tokens of a usual request, prompt and reply."""
ASSUMED_CONTEXT = 32_768
"""Context of a model that does not say one."""
_OVERHEAD_GIB = 2.0
_OVERHEAD_SHARE = 0.05
_LARGE_GIB, _LARGE_BATCH, _SMALL_BATCH = 70, 8_192, 2_048
_MOST_PER_NODE = 8
_MOST_NODES = 16
_GIB = float(1 << 30)


class ModelSize(Settings):
    """`[size]` of a model: what decides on how many GPUs it is served; never changes results."""

    weights_gb: float = Field(gt=0)
    """Size of the weights in GB (10^9 bytes), as in the index of the safetensors files."""
    attention_heads: int = Field(ge=1)
    """Attention heads; the tensor parallel size divides them."""
    kv_heads: int = Field(default=1, ge=1)
    """Heads of keys and values; 1 for latent attention (MLA), whose cache every GPU holds."""
    kv_bytes_per_token: int = Field(default=0, ge=0)
    """Bytes in the cache for each token, in layers that attend to all tokens."""
    window_bytes_per_token: int = Field(default=0, ge=0)
    """Bytes in the cache for each token, in layers with a sliding window."""
    window_tokens: int = Field(default=0, ge=0)
    """Tokens of the sliding window."""
    state_bytes_per_request: int = Field(default=0, ge=0)
    """Bytes of the state of a request, in layers with linear attention or Mamba."""
    experts: int = Field(default=0, ge=0)
    """Routed experts; 0 for a dense model."""
    weight_blocks: int = Field(default=0, ge=0)
    """Blocks of an expert's width in a quantization by blocks; the tensor parallel size divides
    them. 0 if there are none."""
    context: int | None = Field(default=None, ge=1)
    """Longest context of the model, for a server without `max_model_len`."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served, as far as it takes memory.

    Args:
        model: Its name, for messages.
        context: Tokens of the longest request.
        memory_share: Fraction of each GPU that vLLM uses.
        cache_factor: Size of the cache by its type: 1 for 16 bits, 0.5 for 8.
        batch_tokens: Tokens of a batch; None for vLLM's default.
    """

    model: str
    context: int
    memory_share: float = MEMORY_SHARE
    cache_factor: float = 1.0
    batch_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """A model on GPUs.

    Args:
        gpus: The GPUs to choose from.
        tensor_parallel: GPUs of a node that share a replica.
        pipeline_parallel: Stages of a replica, each on as many GPUs.
        replicas: Copies of the model on a node.
        memory_gib: Memory of a GPU that was reckoned with.
        weights_gib: Weights on each GPU.
        overhead_gib: Memory on each GPU that vLLM takes for neither weights nor cache.
        cache_gib: Memory on each GPU that is left for the cache.
        requests: Requests of the whole context that the cache of a replica holds.
        experts: Whether the model is a mixture of experts.
    """

    gpus: GPUs
    tensor_parallel: int
    pipeline_parallel: int
    replicas: int
    memory_gib: float
    weights_gib: float
    overhead_gib: float
    cache_gib: float
    requests: float
    experts: bool = False

    @property
    def nodes(self) -> int:
        """Nodes that share a replica."""
        shares = self.tensor_parallel * self.pipeline_parallel
        return -(-shares // (self.gpus.count or _MOST_PER_NODE))

    def __str__(self) -> str:
        """The choice and its numbers, such as `mbt show` prints them."""
        stages = "" if self.pipeline_parallel == 1 else f" x {self.pipeline_parallel} stages"
        nodes = f"{stages} on {self.nodes} nodes" if self.nodes > 1 else stages
        replicas = f"{self.replicas} replica{'' if self.replicas == 1 else 's'}"
        size = f"{self.memory_gib:.4g} GiB"
        taken = "" if self.gpus.memory_gib else " (unknown, taken as this)"
        return (
            f"tensor parallel {self.tensor_parallel}{nodes}, {replicas}; each GPU of {size}{taken}"
            f": weights {self.weights_gib:.1f}, vLLM {self.overhead_gib:.1f}, cache "
            f"{self.cache_gib:.1f} GiB, which holds {self.requests:.1f} requests of the whole "
            "context"
        )


def choose_placement(size: ModelSize, serving: Serving, gpus: GPUs) -> Placement:
    """The placement of a model on these GPUs.

    Raises:
        UsageError: It does not fit; the message has the arithmetic.
    """
    found = list(_placements(size, serving, gpus))
    roomy = next((p for p in found if p.requests >= 1 and _has_room(p, size, serving)), None)
    if roomy is not None:
        return roomy
    one_node = [p for p in found if p.requests >= 1 and p.nodes == 1]
    if one_node:
        return max(one_node, key=lambda p: p.requests)
    chosen = next((p for p in found if p.requests >= 1), None)
    if chosen is not None:
        return chosen
    if found and gpus.memory_gib is None:
        return found[-1]  # nothing is known that speaks against it
    raise _does_not_fit(size, serving, gpus, found)


def _placements(size: ModelSize, serving: Serving, gpus: GPUs) -> Iterator[Placement]:
    """Every possible division of a replica, from the fewest GPUs on."""
    memory = gpus.memory_gib or ASSUMED_GIB
    overhead = max(_OVERHEAD_GIB, _OVERHEAD_SHARE * memory)
    usable = memory * serving.memory_share - overhead
    most = gpus.count or _MOST_PER_NODE
    widths = [w for w in _powers_of_two(most) if _divides(w, size)]
    nodes = gpus.nodes if gpus.count else _MOST_NODES
    divisions = [(w, 1) for w in widths]
    if widths:
        own = most // widths[-1]  # stages of a whole node
        counts = [*range(2, own + 1), *(own * n for n in range(2, nodes + 1))]
        divisions += [(widths[-1], count) for count in counts]
    for width, stages in divisions:
        weights = size.weights_gb * 1e9 / (width * stages) / _GIB
        cache = usable - weights
        placement = Placement(
            gpus=gpus,
            tensor_parallel=width,
            pipeline_parallel=stages,
            replicas=max(1, (gpus.count or 1) // (width * stages)),
            memory_gib=memory,
            weights_gib=weights,
            overhead_gib=overhead,
            cache_gib=cache,
            requests=0.0,
            experts=size.experts > 0,
        )
        one = _request_gib(serving.context, size, serving, placement)
        requests = 0.0 if cache <= 0 else cache / one if one else inf
        yield replace(placement, requests=requests)


def _has_room(placement: Placement, size: ModelSize, serving: Serving) -> bool:
    """Whether the cache holds enough requests of usual length at once."""
    usual = min(USUAL_TOKENS, serving.context)
    one = _request_gib(usual, size, serving, placement, batches=0)
    return USUAL_REQUESTS * one <= placement.cache_gib


def _request_gib(
    tokens: int, size: ModelSize, serving: Serving, placement: Placement, *, batches: int = 2
) -> float:
    """Memory of a request in the cache of each GPU."""
    is_large = placement.memory_gib >= _LARGE_GIB
    batch = serving.batch_tokens or (_LARGE_BATCH if is_large else _SMALL_BATCH)
    window = min(tokens, size.window_tokens + batches * batch)
    kept = size.kv_bytes_per_token * tokens + size.window_bytes_per_token * window
    width, stages = placement.tensor_parallel, placement.pipeline_parallel
    keys = kept * serving.cache_factor / min(width, size.kv_heads)
    return (keys + 2 * size.state_bytes_per_request / width) / stages / _GIB


def _divides(width: int, size: ModelSize) -> bool:
    heads = size.attention_heads % width == 0
    keys = size.kv_heads % width == 0 or width % size.kv_heads == 0
    return heads and keys and (not size.weight_blocks or size.weight_blocks % width == 0)


def _powers_of_two(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length()) if 1 << n <= most]


def _does_not_fit(
    size: ModelSize, serving: Serving, gpus: GPUs, tried: list[Placement]
) -> UsageError:
    if not tried:
        return UsageError(f"`{serving.model}` cannot be divided over {gpus}")
    best = max(tried, key=lambda p: p.tensor_parallel * p.pipeline_parallel)
    shares = best.tensor_parallel * best.pipeline_parallel
    weights = size.weights_gb * 1e9 / _GIB
    cache = _request_gib(serving.context, size, serving, best)
    usable = best.memory_gib * serving.memory_share - best.overhead_gib
    return UsageError(
        f"`{serving.model}` does not fit on {gpus}: divided over {shares}, each GPU needs "
        f"{best.weights_gib:.1f} GiB of {weights:.1f} GiB weights and {cache:.1f} GiB for "
        f"the cache of one request of {serving.context:,} tokens, together "
        f"{best.weights_gib + cache:.1f}; it has "
        f"{best.memory_gib:.4g} x {serving.memory_share:g} - {best.overhead_gib:.1f} for vLLM "
        f"= {usable:.1f} GiB",
        hint="use more or larger GPUs, a smaller or quantized model, or lower "
        "`serve.max_model_len`; `place.tensor_parallel_size` overrides this estimate",
    )
