"""Sampling settings, and run settings, which never change results."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from mbt_cli.core.chat import Json
from mbt_cli.core.plugin import AbsentByDefault, Settings

_MOST_TOKENS = 100_000_000  # ten times the longest context of any model
_StopText = Annotated[str, Field(min_length=1, max_length=200)]


class Sampling(Settings):
    """One `[sampling.NAME]` table."""

    temperature: float = Field(ge=0, le=5, strict=True)
    """Softmax temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1, strict=True)
    """Nucleus sampling: probability mass of the tokens that are kept; 1 keeps all."""
    top_k: int = Field(default=0, ge=0, strict=True)
    """Number of likeliest tokens that are kept; 0 keeps all and is not sent."""
    min_p: Annotated[float, AbsentByDefault] = Field(default=0.0, ge=0, le=1, strict=True)
    """Probability, relative to the likeliest token's, below which tokens are dropped; 0 drops none
    and is not sent."""
    presence_penalty: Annotated[float, AbsentByDefault] = Field(
        default=0.0, ge=-2, le=2, strict=True
    )
    """Subtracted from the logit of every token that the reply has already; 0 is not sent."""
    repetition_penalty: Annotated[float, AbsentByDefault] = Field(
        default=1.0, gt=0, le=2, strict=True
    )
    """Divides the logit of every token that prompt or reply have already; 1 is not sent."""
    stop: Annotated[tuple[_StopText, ...], AbsentByDefault] = Field(default=(), max_length=16)
    """Texts that end a reply; they are not part of it. Endpoints may take fewer (OpenAI: 4)."""
    max_tokens: (
        Annotated[int, Field(gt=0, le=_MOST_TOKENS, strict=True)] | Literal["rest", "inferred"]
    )
    """Maximum tokens of a reply, including reasoning. `rest`: what the context leaves; `inferred`:
    the model's context without a margin for prompts (an eighth of it, 4,096 to 32,768 tokens)."""
    seedable: bool = Field(default=True, strict=True)
    """Whether a seed is sent with each request. With `top_k` or `top_p`, vLLM samples 15 to 20 %
    slower with seeds, by its own figures; without them, a request that is sent again has another
    reply."""

    @property
    def limit(self) -> int | Literal["rest"]:
        """The token limit of a reply, once it is inferred."""
        assert self.max_tokens != "inferred"
        return self.max_tokens

    def body(self) -> dict[str, Json]:
        """Fields of a chat request, except the token limit and the seed."""
        fields: dict[str, Json] = {"temperature": self.temperature, "top_p": self.top_p}
        neutral = {"top_k": 0, "min_p": 0, "presence_penalty": 0, "repetition_penalty": 1}
        set_here = {name: getattr(self, name) for name in neutral}
        fields |= {name: value for name, value in set_here.items() if value != neutral[name]}
        return {**fields, "stop": list(self.stop)} if self.stop else fields


_LEAST_MARGIN, _MOST_MARGIN, _SHORTEST_REPLY = 4_096, 32_768, 256


def inferred_limit(context: int) -> int:
    """The token limit of a reply that leaves room for the prompt.

    Args:
        context: Context of the model in tokens.

    Example:
        >>> inferred_limit(40_960), inferred_limit(262_144), inferred_limit(2_048)
        (35840, 229376, 256)
    """
    margin = min(_MOST_MARGIN, max(_LEAST_MARGIN, context // 8))
    return context - min(margin, context - _SHORTEST_REPLY)


_MOST_REQUESTS = 10_000


Reuse = Literal["machine", "study", "off"]
"""Whose replies answer equal requests."""


SandboxLevel = Literal["auto", "namespaces", "bubblewrap", "landlock", "container"]
"""What confines the programs of models."""


HubName = Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
"""`OWNER/NAME`, of a model or a data set."""
PlaceAddress = Annotated[str, StringConstraints(pattern=r"^s3://[a-z0-9][a-z0-9.-]{2,62}(/.*)?$")]
"""A folder of objects."""


OF_STUDY = frozenset({"places", "mirror", "mirror_seconds"})
"""Keys of `[run]` that no model has of its own."""


class RunSettings(Settings):
    """A `[run]` or `[models.X.run]` table; the model's keys override the study's."""

    concurrency: int = Field(default=64, ge=1, le=_MOST_REQUESTS)
    """Maximum number of requests in flight; unless set, this many for each replica of a server."""
    request_timeout_seconds: float = Field(default=3600, gt=0)
    """Timeout of one request, from sending to the complete reply."""
    connect_timeout_seconds: float = Field(default=30, gt=0)
    """Timeout of a connection attempt."""
    max_reply_megabytes: float = Field(default=256, gt=0)
    """Maximum size of one response, decompressed; the row of a larger one fails. 100,000 tokens
    with 20 alternatives each take about 200 MB, their text alone less than one."""
    max_attempts: int = Field(default=6, ge=1, le=100)
    """How often a request is sent before its row fails."""
    stop_after_failures: int = Field(default=50, ge=0)
    """Stop when the first requests all fail alike and so many have failed; 0 never stops."""
    max_retry_after_seconds: float = Field(default=600, gt=0, le=86_400)
    """Longest wait that a server can ask for with `Retry-After`."""
    server_ready_timeout_seconds: float | None = Field(default=None, gt=0)
    """Timeout of the start of a server, until its first reply; it begins again with each part of
    the weights that is downloaded. Default: 1,200, and for weights of 48 GB or more 600 and the
    time to read them at 80 MB a second: 3,600 for 240 GB."""
    server_restarts: int = Field(default=3, ge=0)
    """How often a server that died or hangs is restarted within one cell."""
    server_stall_seconds: float = Field(default=300, gt=0)
    """When no byte of any reply has come for so long, a server that mbt started is asked for one
    token, to tell whether it hangs; of another server mbt says that nothing comes."""
    server_probe_seconds: float | None = Field(default=None, gt=0)
    """How long the answer to that may take, before the server is restarted. Default: 300 if the
    server counts its tokens (vLLM, llama.cpp), and counted none meanwhile or does not even say;
    otherwise `request_timeout_seconds`, since the question may wait behind long replies."""
    drain_seconds: float = Field(default=20, ge=0)
    """How long to wait for replies in flight after a signal to stop."""
    reuse: Reuse | None = None
    """Whose replies answer equal requests: those of all studies of this machine (`machine`), of
    this study, or of the cell itself alone (`off`). Default: `$MBT_REUSE`, or `machine`."""
    sandbox: SandboxLevel | None = None
    """What confines the programs of models that a verifier runs: `auto` takes the strongest that
    works here; `container` takes what there is, in a container that you can throw away. Default:
    `$MBT_SANDBOX`, or `auto`."""
    sandbox_workers: int | None = Field(default=None, ge=1, le=1_024)
    """Programs of models that run at the same time. Default: `$MBT_SANDBOX_WORKERS`, or one for
    each processor."""
    places: dict[HubName, PlaceAddress] = Field(default_factory=dict)
    """Models and data sets of the hub to the folder of objects where they are looked for first:
    `{ "Qwen/Qwen3-1.7B-Base" = "s3://bucket/models/Qwen3-1.7B-Base" }`. Default:
    `$MBT_PLACES`, as JSON."""
    mirror: PlaceAddress | Literal["off"] | None = None
    """Folder of objects, `s3://BUCKET/FOLDER`, to which finished cells, replies and checkpoints go
    up while the study runs, and from which they come down before it runs elsewhere. Default:
    `$MBT_MIRROR`, or `off`."""
    mirror_seconds: float = Field(default=5, gt=0, le=3_600)
    """How often it looks for something new: a lost machine loses so many seconds of replies."""
    expected_tokens_per_second: float | None = Field(default=None, gt=0)
    """Tokens per second of the server over all requests; `mbt plan` estimates times with it."""

    def for_replicas(self, replicas: int) -> "RunSettings":
        """These settings for so many copies of a model; concurrency follows them unless said."""
        if replicas == 1 or "concurrency" in self.model_fields_set:
            return self
        most = min(self.concurrency * replicas, _MOST_REQUESTS)
        return self.model_copy(update={"concurrency": most})
