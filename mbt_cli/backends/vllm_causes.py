"""Why vLLM did not start, by what its log says, and the key to change."""

from mbt_cli.inference.server import Cause

_CACHES = "TMPDIR, TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR"

CAUSES = (
    Cause(
        r"unrecognized arguments|ambiguous option",
        "this vLLM does not know a key of `serve` or `place.flags`: take it out, or use another "
        "vLLM by `place.executable`",
    ),
    Cause(
        r"larger than the available KV cache|no available memory for the cache blocks|"
        r"KV cache is needed",
        "lower `serve.max_model_len`, or raise `place.gpu_memory_utilization` (on a processor: "
        "VLLM_CPU_KVCACHE_SPACE in `place.environment`)",
    ),
    Cause(
        r"free memory on device .* is less than desired",
        "something else holds memory of this GPU: lower `place.gpu_memory_utilization`, or end it",
    ),
    Cause(
        r"out of memory|OutOfMemoryError",
        "raise `place.tensor_parallel_size`, or lower `serve.max_model_len` or "
        "`place.gpu_memory_utilization`",
    ),
    Cause(
        r"max_model_len .* is greater than|max_model_len.*derived",
        "lower `serve.max_model_len` to what the model's config allows",
    ),
    Cause(
        r"gated repo|GatedRepoError|is restricted|401 Client Error",
        "accept the model's licence on the hub and set HF_TOKEN",
    ),
    Cause(
        # its log says trust_remote_code=False at every start
        r"set the option `trust_remote_code|contains custom code|execute the configuration file",
        "the model brings code of its own: read it, then set `backend.trust_remote_code = true`",
    ),
    Cause(
        r"failed to map segment from shared object|cannot open shared object file: Permission|"
        r"Permission denied: .*(?:triton|inductor)",
        f"caches stand where nothing may be executed: point {_CACHES} elsewhere by "
        "`place.environment`",
    ),
    Cause(
        r"must be divisible by tensor parallel size|tensor_parallel_size.*divi",
        "choose a `place.tensor_parallel_size` that divides the model's attention heads",
    ),
    Cause(
        r"LocalEntryNotFoundError|offline mode|OfflineModeIsEnabled|couldn't connect to",
        "the model is not on this machine: `hf download MODEL` where there is a network, or name "
        "a folder",
    ),
    Cause(r"reasoning parser.*(?:not found|invalid)", "change `serve.reasoning_parser`"),
    Cause(r"address already in use", "another process took `place.port`: leave it out"),
)
