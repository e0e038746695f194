"""vLLM on this machine: `vllm serve` with the flags of a preset."""

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import orjson
from pydantic import Field, field_validator

from mbt_cli.backends.flags import executable_finding, find_executable, flags_of, unknown_flags
from mbt_cli.backends.model_cards import preset_text, read_card
from mbt_cli.backends.model_sizes import folder_size, model_size
from mbt_cli.backends.weights import (
    ADAPTER_CONFIG,
    HubModel,
    adapter_sha256,
    check_names,
    file_sha256,
    hub_cache,
    is_folder,
    weights_identity,
)
from mbt_cli.core.chat import Endpoint, Json, Wants
from mbt_cli.core.findings import Finding, absent, broken, find_command, installed, ok, pip_line
from mbt_cli.core.gpus import GPUs, gpus_at_hand, nodes_of
from mbt_cli.core.model_settings import Sampling
from mbt_cli.core.placement import (
    ASSUMED_CONTEXT,
    MEMORY_SHARE,
    ModelSize,
    Placement,
    Serving,
    choose_placement,
)
from mbt_cli.core.plugin import AbsentByDefault, Flags, RunOnly, Settings, Variable
from mbt_cli.core.serving import ServerPlace
from mbt_cli.core.training_job import ADAPTER, Weights
from mbt_cli.errors import BackendError, UsageError
from mbt_cli.inference.nodes import joined_nodes, over_nodes
from mbt_cli.inference.origins import context_of
from mbt_cli.inference.server import (
    LOOPBACK,
    Cause,
    RunningServer,
    ServerCommand,
    post,
    running_server,
)
from mbt_cli.interfaces import Backend

_CPU_BUILD = "VLLM_CPU_KVCACHE_SPACE"
_PARALLEL = frozenset({"pipeline_parallel_size", "data_parallel_size"})
_EXECUTOR = "distributed_executor_backend"
_RAY, _RAY_ADDRESS = "ray", "RAY_ADDRESS"
_CACHES = "TMPDIR, TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR"

CAUSES = (
    Cause(
        r"(?:waiting for \d+ other nodes?|\d+ of \d+ other nodes: \S+ joined)\Z",
        "look in the log of the job why `mbt node` does not run on the other nodes, and whether "
        "they reach this one",
    ),
    Cause(
        r"unrecognized arguments|ambiguous option",
        "remove the key of `serve` or `place.flags` that this vLLM does not know, or set "
        "`place.executable` to another vLLM",
    ),
    Cause(
        r"larger than the available KV cache|no available memory for the cache blocks|"
        r"KV cache is needed",
        "lower `serve.max_model_len`, or raise `place.gpu_memory_utilization` (on a CPU: "
        "VLLM_CPU_KVCACHE_SPACE in `place.environment`)",
    ),
    Cause(
        r"free memory on device .* is less than desired",
        "another process uses memory of this GPU: stop it, or lower `place.gpu_memory_utilization`",
    ),
    Cause(
        r"out of memory|OutOfMemoryError",
        "raise `place.tensor_parallel_size`, or lower `serve.max_model_len` or "
        "`place.gpu_memory_utilization`",
    ),
    Cause(
        r"max_model_len .* is greater than|max_model_len.*derived",
        "lower `serve.max_model_len` to the maximum of the model's config",
    ),
    Cause(
        r"gated repo|GatedRepoError|is restricted|401 Client Error",
        "accept the model's licence on the hub and set HF_TOKEN",
    ),
    Cause(
        # its log says trust_remote_code=False at every start
        r"set the option `trust_remote_code|contains custom code|execute the configuration file",
        "the model has custom code: read it, then set `backend.trust_remote_code = true`",
    ),
    Cause(
        r"failed to map segment from shared object|cannot open shared object file: Permission|"
        r"Permission denied: .*(?:triton|inductor)",
        f"the caches are on a file system that forbids execution: set {_CACHES} in "
        "`place.environment`",
    ),
    Cause(
        r"must be divisible by tensor parallel size|tensor_parallel_size.*divi",
        "choose a `place.tensor_parallel_size` that divides the model's attention heads",
    ),
    Cause(
        r"LocalEntryNotFoundError|offline mode|OfflineModeIsEnabled|couldn't connect to",
        "the model is not on this machine: run `hf download MODEL` with a network, or use a folder",
    ),
    Cause(r"reasoning parser.*(?:not found|invalid)", "change `serve.reasoning_parser`"),
    Cause(r"address already in use", "another process uses `place.port`: remove it"),
)


# By default vLLM fills in missing request fields from the model's generation_config.json: its
# max_new_tokens would cap replies, and its top_k and penalties would change them unnoticed.
_OWN_FLAGS: Mapping[str, Json] = {"generation_config": "vllm", "disable_uvicorn_access_log": True}
_KEY = "VLLM_API_KEY"
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that `--max-lora-rank` takes."""
_ADAPTER_SECONDS = 300.0
_OK = 200
_PHASES = (
    (r"init engine \(profile|Graph capturing finished|Starting vLLM server", "its last steps"),
    (r"Application startup complete", "its last steps"),
    (r"Capturing CUDA graphs|Profiling CUDA graph memory", "capturing graphs"),
    (
        r"Starting torch\.compile|for vLLM's torch\.compile|torch\.compile (?:took|takes)|"
        r"Dynamo bytecode|Compiling a graph|Directly load (?:the compiled|AOT)|"
        r"[Ww]arming up model|Initial profiling/warmup",
        "compiling and warming up",
    ),
    (
        r"Model loading took|Loading weights took|KV cache (?:memory|size)",
        "making room for its cache",
    ),
    (r"Loading safetensors|checkpoint shards|Starting to load model", "loading the weights"),
    (r"Initializing a V1 LLM engine", "starting its processes"),
)
"""Lines of vLLM's log; none is a line that prints its settings, which name everything."""
_LEAST_READY_SECONDS, _START_SECONDS, _GB_A_SECOND = 1_200.0, 600.0, 0.08
_WORK = "vllm:(?:generation_tokens|prompt_tokens|kv_cache_usage)"
"""Metrics that change while tokens are computed, also while long prompts are read."""
_MEETING = (
    *("--node-rank", "{rank}", "--master-addr", "{address}", "--master-port", "{port}"),
    *("--data-parallel-rpc-port", "{port 2}"),
)
"""How the processes of a server over several nodes find each other; see `inference.ranks`."""
_OWN_FIELDS = {
    "tensor_parallel_size": "`place.tensor_parallel_size`",
    "gpu_memory_utilization": "`place.gpu_memory_utilization`",
    "trust_remote_code": "`backend.trust_remote_code`",
    "revision": "`backend.revision`",
    "served_model_name": "`id`",
}


_ON_ONE_GPU_GB = 64.0
"""Weights that a GPU of 80 GB holds with room for a cache."""


class VLLMPlace(Settings):
    """`[place]`: where the model is served and on how many GPUs; never changes results."""

    tensor_parallel_size: int | None = Field(default=None, ge=1)
    """GPUs that share the model. Default: as few as hold it with room for its cache, and replicas
    on the others; `mbt show MANIFEST` has the numbers."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Fraction of each GPU's memory that vLLM uses."""
    executable: str = "vllm"
    """The command, or its path in another environment."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the server. Default: a free port."""
    environment: dict[Variable, str] = Field(default_factory=dict)
    """Environment variables of the server, such as `VLLM_CPU_KVCACHE_SPACE = "8"`; secrets are
    refused: export them, the server inherits them."""
    flags: Flags = Field(default_factory=dict)
    """More flags that only change speed, such as `max_num_seqs`."""
    serve_adapters: bool = False
    """Serve the LoRA of a training on the weights that it began with, so that one server answers
    for many trainings. Default: the merged weights, whose replies differ by rounding."""


class VLLMBackend(Backend):
    """Start `vllm serve`, and stop it with all its processes."""

    own_flags: ClassVar[Mapping[str, Json]] = _OWN_FLAGS
    only_serves: ClassVar[frozenset[str]] = frozenset({"serve"})

    writes_presets: ClassVar[bool] = True
    limit_must_fit: ClassVar[bool] = True
    can_give: ClassVar[tuple[Wants, ...]] = ("text", "top_logprobs", "likelihood")

    kind: Literal["vllm"] = "vllm"
    """Names the backend in a manifest."""
    model: HubModel
    """Name on the hub, or a folder with config and weights."""
    revision: str | None = None
    """Revision on the hub. Default: the newest one, or the one in the local cache."""
    weights_sha256: str | None = None
    """Hash of a trained folder, if known. Default: mbt hashes the folder."""
    trust_remote_code: bool = False
    """Run code from the model's repository; only for architectures that need it."""
    serve: Flags = Field(default_factory=dict)
    """Flags that change results: `max_model_len`, `reasoning_parser`, `dtype`, ..."""
    adapter: Annotated[str | None, RunOnly] = None
    """Folder of a LoRA in PEFT's layout, or its name on the hub; `adapter` of the model sets it."""
    adapter_sha256: Annotated[str | None, AbsentByDefault] = None
    """Hash of its files; for an adapter on the hub, its name."""
    place: Annotated[VLLMPlace, RunOnly] = Field(default_factory=VLLMPlace)
    """Where it is served and on how many GPUs."""
    size: Annotated[ModelSize | None, RunOnly] = None
    """Its size, from which the number of GPUs follows. Default: that of its files."""

    @field_validator("serve")
    @classmethod
    def _holds_known_flags(cls, serve: dict[str, Json]) -> dict[str, Json]:
        problems = []
        for key in serve:
            if place := _OWN_FIELDS.get(key.replace("-", "_")):
                problems.append(f"set {place} instead of `{key}`")
        if problems:
            raise ValueError("; ".join(problems))
        return serve

    def warnings(self) -> Iterator[str]:
        for key, nearest in unknown_flags({**self.serve, **self.place.flags}, known_flags()):
            meant = f"; did you mean `{nearest}`?" if nearest else ""
            yield f"vLLM {_checked_version()} has no flag `{key}`, another version may{meant}"

    def weights_name(self) -> str:
        return self.model

    def identity(self) -> Mapping[str, Json]:
        weights = weights_identity(self.model, self.revision, self.weights_sha256)
        added = {} if self.adapter_sha256 is None else {"adapter": self.adapter_sha256}
        return {**weights, "serve": self.serve, **self._template(), **added}

    def spec(self) -> dict[str, Json]:
        return {**super().spec(), **self._template()}

    def _template(self) -> Mapping[str, Json]:
        """The content of a chat template that is a file on this machine."""
        named = self.serve.get("chat_template", self.serve.get("chat-template"))
        if not isinstance(named, str) or "{" in named:  # none, or the template itself
            return {}
        path = Path(named).expanduser()
        return {"chat_template_sha256": file_sha256(path)} if path.is_file() else {}

    @classmethod
    def preset_text(
        cls, model: str, revision: str | None, environment: Mapping[str, str], *, today: str
    ) -> str:
        card = read_card(model, revision, environment)
        kind = cls.model_fields["kind"].default
        return preset_text(card, kind, revision, today=today)

    def known_context(self) -> int | None:
        stated = self.serve.get("max_model_len", self.serve.get("max-model-len"))
        if isinstance(stated, int):
            return stated
        size = self.size or model_size(self.model, self.revision, {}, ask_hub=False)
        return None if size is None else size.context

    def flags(self) -> tuple[str, ...]:
        """Every flag except address and name."""
        place = self.place
        wide: dict[str, Json] = {"tensor_parallel_size": place.tensor_parallel_size or 1}
        if place.gpu_memory_utilization is not None:
            wide["gpu_memory_utilization"] = place.gpu_memory_utilization
        if self.revision is not None:
            wide["revision"] = self.revision
        if self.trust_remote_code:
            wide["trust_remote_code"] = True
        if self.adapter is not None:
            rank = _served_rank(_adapter_folder(self.adapter))
            wide |= {"enable_lora": True, "max_lora_rank": rank, "api_server_count": 1}
        return flags_of({**self.own_flags, **wide, **place.flags, **self.serve}, known_flags())

    @classmethod
    def doctor(cls, environment: Mapping[str, str], cache: Path) -> Iterator[Finding]:
        path, version = find_command("vllm", environment), installed("vllm")
        if path is None:
            do = f"{pip_line('vllm')}, or set `place.executable` to another environment's command"
            yield absent("serving", "vLLM", "command `vllm` not found", do)
        else:
            yield ok("serving", "vLLM", f"{version} at {path}" if version else path)

    def findings(self, name: str, environment: Mapping[str, str]) -> Iterator[Finding]:
        yield executable_finding(name, self.place.executable, environment, install=pip_line("vllm"))
        everything = {**environment, **self.place.environment}
        what, visible = f"model {name} GPUs", visible_gpus(everything)
        try:
            placed, placement = self._placed_here(everything, ask_hub=False)
        except UsageError as error:
            yield broken("needs", what, error.message, error.hint or "use larger GPUs")
            return
        if placement is not None:
            yield ok("needs", what, str(placement))
            return
        wanted, nodes = placed.gpus(), nodes_of(everything)
        visible *= nodes
        found = f"needs {wanted}, {visible} visible{f' on {nodes} nodes' if nodes > 1 else ''}"
        if wanted <= visible:
            yield ok("needs", what, found)
        elif _CPU_BUILD in everything:
            yield ok("needs", what, f"none: {_CPU_BUILD} is set, so vLLM runs on the CPU")
        else:
            lower = f"--set models.{name}.place.tensor_parallel_size={visible}, or "
            do = "run it on a cluster: mbt plan MANIFEST | mbt submit --slurm"
            yield broken("needs", what, found, f"{lower if visible else ''}{do}")

    def seed_price(self, sampling: Sampling) -> str:
        # its fused sampler is for top-k and top-p alone, and takes no seeds
        is_fused = sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1)
        return "15 to 20 % of vLLM's speed, by its own figures" if is_fused else ""

    def divides_layers(self) -> int:
        needs_several = self.size is not None and self.size.weights_gb > _ON_ONE_GPU_GB
        return 1 if needs_several else self.place.tensor_parallel_size or 1

    def gpus(self) -> int:
        count = self.place.tensor_parallel_size or 1
        for name in ("pipeline_parallel_size", "data_parallel_size"):
            count *= int(self.place.flags.get(name) or self.serve.get(name) or 1)
        return count

    def placed(
        self, gpus: GPUs, environment: Mapping[str, str], *, ask_hub: bool
    ) -> tuple["VLLMBackend", Placement | None]:
        if self.place.tensor_parallel_size is not None or _PARALLEL & self._said().keys():
            return self, None
        size = folder_size(Path(self.model).expanduser()) if is_folder(self.model) else None
        size = size or self.size
        if size is None:
            size = model_size(self.model, self.revision, environment, ask_hub=ask_hub)
        if size is None:
            return self, None
        chosen = choose_placement(size, self._serving(size), gpus)
        flags = dict(self.place.flags)
        if chosen.pipeline_parallel > 1:
            flags["pipeline_parallel_size"] = chosen.pipeline_parallel
        if chosen.replicas > 1:
            flags["data_parallel_size"] = chosen.replicas
            if chosen.experts and "enable_expert_parallel" not in self._said():
                # without it vLLM divides each expert over all replicas, finer than its blocks
                flags["enable_expert_parallel"] = True
        update = {"tensor_parallel_size": chosen.tensor_parallel, "flags": flags}
        return self.model_copy(update={"place": self.place.model_copy(update=update)}), chosen

    def check(self, environment: Mapping[str, str]) -> None:
        """Refuse what cannot start here.

        Weights that vLLM would not find, a model of known size that does not fit, or no vLLM.
        """
        check_names(self.model)
        self._placed_here({**environment, **self.place.environment}, ask_hub=False)
        self._executable(environment)

    def _executable(self, environment: Mapping[str, str]) -> str:
        return find_executable(self.place.executable, environment, install=pip_line("vllm"))

    def _placed_here(
        self, environment: Mapping[str, str], *, ask_hub: bool = True
    ) -> tuple["VLLMBackend", Placement | None]:
        """The placement on the GPUs of this machine; unchanged on a CPU or without a GPU."""
        if _CPU_BUILD in environment or (gpus := gpus_at_hand(environment)) is None:
            return self, None
        has_choice = (gpus.count or 0) * gpus.nodes > 1
        return self.placed(gpus, environment, ask_hub=ask_hub and has_choice)

    def _said(self) -> Mapping[str, Json]:
        """Flags that manifest or preset say, and their values."""
        said = {**self.place.flags, **self.serve}
        return {key.replace("-", "_"): value for key, value in said.items()}

    def _serving(self, size: ModelSize) -> Serving:
        """What its flags say about the memory that it takes."""
        said = self._said()
        context, batch = said.get("max_model_len"), said.get("max_num_batched_tokens")
        is_small = str(said.get("kv_cache_dtype", "auto")).startswith("fp8")
        return Serving(
            model=self.model,
            context=context if isinstance(context, int) else size.context or ASSUMED_CONTEXT,
            memory_share=self.place.gpu_memory_utilization or MEMORY_SHARE,
            cache_factor=0.5 if is_small else 1.0,
            batch_tokens=batch if isinstance(batch, int) else None,
        )

    def weights(self, place: ServerPlace) -> Weights:
        if self.adapter is not None:
            raise UsageError(
                f"a training cannot start from `{self.model}` with an adapter",
                hint="train the model without `adapter`, or merge the adapter into its weights",
            )
        return Weights(
            model=self.model, revision=self.revision, trust_remote_code=self.trust_remote_code
        )

    @classmethod
    def adapter_fields(cls, place: Path | None, name: str) -> Mapping[str, Json]:
        if place is None and not is_folder(name) and name.count("/") == 1:
            return {"adapter": name, "adapter_sha256": name}
        if place is None:
            raise ValueError("it is neither a folder nor a name on the hub, such as `owner/name`")
        try:
            digest = adapter_sha256(place)
        except UsageError as error:
            raise ValueError(error.message) from None
        return {"adapter": str(place.absolute()), "adapter_sha256": digest}

    def unread_files(self) -> Collection[str]:
        load_format = self._said().get("load_format", "auto")
        if load_format == "auto":  # consolidated files if there are any, others otherwise
            return ()
        return ("model*.safetensors",) if load_format == "mistral" else super().unread_files()

    def serving(self, folder: str, sha256: str) -> Backend:
        trained: dict[str, Json] = {"model": folder, "revision": None, "weights_sha256": sha256}
        adapter = Path(folder).parent / ADAPTER
        if self.place.serve_adapters and _began_with(adapter, self.model):
            trained = {"adapter": str(adapter), "weights_sha256": sha256}
        return self.model_copy(update=trained)

    def switched(self, running: Backend, endpoint: Endpoint) -> Endpoint | None:
        if not isinstance(running, VLLMBackend) or self.adapter is None or running.adapter is None:
            return None
        apart = dict.fromkeys(("adapter", "adapter_sha256", "weights_sha256"))
        if self.model_copy(update=apart) != running.model_copy(update=apart):
            return None
        if self.flags() != running.flags():
            return None  # another rank
        try:
            self._load_adapter(endpoint.base_url, endpoint.api_key or "")
        except BackendError:  # a server of its own says why
            return None
        _post(endpoint, "unload_lora_adapter", {"lora_name": running._served_name()})
        return replace(endpoint, model=self._served_name())

    def _load_adapter(self, base_url: str, key: str) -> None:
        """Add the adapter to a running server.

        Raises:
            BackendError: vLLM refuses it.
        """
        assert self.adapter is not None
        body = {"lora_name": self._served_name(), "lora_path": str(_adapter_folder(self.adapter))}
        path, seconds = "/v1/load_lora_adapter", _ADAPTER_SECONDS
        status, answer = post(base_url, key, path, body, seconds=seconds)
        if status != _OK:
            raise BackendError(
                f"vLLM does not load the adapter `{self.adapter}`: {answer[:500]}",
                hint="serve the merged weights: leave `place.serve_adapters` out, or merge the "
                "adapter and name the folder as `model`",
            )

    def open(self, place: ServerPlace) -> AbstractContextManager[Endpoint]:
        everything = {**place.environment, **self.place.environment}
        try:
            placed, placement = self._placed_here(everything)
        except UsageError as error:
            raise BackendError(error.message, hint=error.hint) from error
        note, replicas = "", 1
        if placement is not None:
            note, replicas = f"{self._name()}: {placement}", placement.replicas
        elif self.place.tensor_parallel_size is None and (unused := self._unused(everything)):
            note = (
                f"the size of `{self.model}` is unknown: it gets {self.gpus()} of {unused} GPUs; "
                "set `place.tensor_parallel_size`, or `[size]` of the model"
            )
        return placed._open(place, note, replicas)

    def _unused(self, environment: Mapping[str, str]) -> int:
        """The GPUs at hand, if there are more than it uses; 0 otherwise."""
        visible = 0 if _CPU_BUILD in environment else visible_gpus(environment)
        return visible if visible > self.gpus() else 0

    @contextmanager
    def _open(self, place: ServerPlace, note: str, replicas: int) -> Iterator[Endpoint]:
        executable = self._executable(place.environment)
        spread = self._spread({**place.environment, **self.place.environment})
        own = (*self.flags(), *spread)

        def command_for(port: int, key: str) -> ServerCommand:
            address = ("--host", LOOPBACK, "--port", str(port))
            flags = ("--served-model-name", self._name(), *own)
            environment = self._environment(place, key)
            if self.adapter is not None:
                environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
            command = (executable, "serve", self.model, *address, *flags)
            if "--nnodes" in spread:
                each = {name: value for name, value in environment.items() if name != _KEY}
                command = over_nodes(
                    (executable, "serve", self.model, *flags, *_MEETING),
                    first=address,
                    # they have no API server, and vLLM refuses one that is asked for
                    others=("--headless", "--api-server-count", "0"),
                    nodes=int(spread[1]),
                    environment={"VLLM_HOST_IP": "{own_address}", **each},
                    place=place,
                )
            return ServerCommand(
                command,
                self._name(),
                environment=environment,
                work=_WORK,
                causes=CAUSES,
                phases=_PHASES,
                downloads=self._downloads({**place.environment, **self.place.environment}),
                ready_seconds=self._ready_seconds(),
            )

        with running_server(command_for, place, port=self.place.port) as server:
            endpoint = self._endpoint(server)
            if self.adapter is not None:
                self._load_adapter(server.base_url, server.api_key)
            yield replace(endpoint, replicas=replicas, note=note, flags=own)

    def _endpoint(self, server: RunningServer) -> Endpoint:
        version = server.get("/version")
        stated = self.serve.get("max_model_len")
        if isinstance(stated, int):
            context: int | None = stated
        else:
            listed = server.get("/v1/models")
            models = listed.get("data") if isinstance(listed, dict) else None
            context = context_of(models[0]) if models else None
        return Endpoint(
            base_url=server.base_url,
            model=self._served_name(),
            api_key=server.api_key,
            context=context,
            version=f"vllm {version['version']}" if isinstance(version, dict) else "vllm",
            alive=server.alive,
            vitals=server.vitals,
        )

    def _downloads(self, environment: Mapping[str, str]) -> Path | None:
        """The folder of the hub's cache into which vLLM downloads the weights."""
        if is_folder(self.model):
            return None
        said = self._said().get("download_dir")
        cache = Path(said).expanduser() if isinstance(said, str) else hub_cache(environment)
        return cache / f"models--{self.model.replace('/', '--')}" / "blobs"

    def _name(self) -> str:
        return self.model.rstrip("/").rsplit("/", maxsplit=1)[-1]

    def _ready_seconds(self) -> float:
        """How long it may take to start: a slow disk reads 80 MB a second."""
        size = self.size or model_size(self.model, self.revision, {}, ask_hub=False)
        read = 0.0 if size is None else size.weights_gb / _GB_A_SECOND
        return max(_LEAST_READY_SECONDS, _START_SECONDS + read)

    def _served_name(self) -> str:
        """The server's name for the model, with its adapter."""
        if self.adapter is None:
            return self._name()
        return f"adapter-{sha256(self.adapter.encode()).hexdigest()[:12]}"

    def _environment(self, place: ServerPlace, key: str) -> dict[str, str]:
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", _KEY: key}
        return {**compiled_caches(place), **quiet, **self.place.environment}

    def _spread(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """More flags for a server over several nodes; none if this one has enough GPUs.

        Raises:
            BackendError: It needs more GPUs than there are.
        """
        wanted, visible = self.gpus(), visible_gpus(environment)
        if wanted <= max(visible, 1):
            return ()
        is_on_cpu = _CPU_BUILD in environment
        executor = self.place.flags.get(_EXECUTOR) or self.serve.get(_EXECUTOR)
        has_ray = bool(environment.get(_RAY_ADDRESS))
        if has_ray and executor == _RAY:
            return ()  # the GPUs are those of all nodes that have joined
        nodes = nodes_of(environment) if has_ray else joined_nodes(environment)
        if nodes > 1 and not has_ray and executor == _RAY:
            raise BackendError(
                f"`{self.model}` asks for Ray, and Ray does not run on the nodes of this job",
                hint=f"remove `{_EXECUTOR}`: vLLM itself starts on each node; or set "
                '`multi_node = "ray"` in the preset of the cluster',
            )
        most = -(-wanted // nodes) if is_on_cpu else visible  # processes of a node
        for count in range(2, nodes + 1):
            if wanted % count == 0 and wanted // count <= most:
                own = ("--nnodes", str(count))
                return (f"--{_EXECUTOR.replace('_', '-')}", _RAY) if has_ray else own
        if is_on_cpu:
            return ()
        if nodes > 1:
            raise BackendError(
                f"`{self.model}` needs {wanted} GPUs, and {nodes} nodes have {visible} each",
                hint="choose `place.tensor_parallel_size` and `pipeline_parallel_size` so that "
                "the GPUs divide evenly among the nodes, or request more",
            )
        raise BackendError(
            f"`{self.model}` needs {wanted} GPUs, and this machine has {visible}",
            hint="lower `place.tensor_parallel_size`, or request more GPUs",
        )


def _post(endpoint: Endpoint, verb: str, body: Json) -> int:
    key = endpoint.api_key or ""
    return post(endpoint.base_url, key, f"/v1/{verb}", body, seconds=_ADAPTER_SECONDS)[0]


def _adapter_folder(adapter: str) -> Path:
    """The folder of an adapter, downloaded if it is on the hub.

    Raises:
        BackendError: It cannot be had.
    """
    path = Path(adapter).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download  # only for adapters on the hub

    try:
        files = ["adapter_*"]
        return Path(snapshot_download(adapter, allow_patterns=files))
    except Exception as error:
        raise BackendError(
            f"the adapter `{adapter}` cannot be had: {type(error).__name__}: {error}",
            hint="`hf download` it with a network, or name a folder",
        ) from error


def _settings_of(adapter: Path) -> Mapping[str, Json]:
    try:
        found = orjson.loads((adapter / ADAPTER_CONFIG).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _served_rank(adapter: Path) -> int:
    """The least rank of vLLM's that holds an adapter."""
    found = _settings_of(adapter)
    pattern = found.get("rank_pattern")
    own = [found.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    rank = max((one for one in own if isinstance(one, int)), default=_RANKS[1])
    return next((known for known in _RANKS if known >= rank), _RANKS[-1])


def _began_with(adapter: Path, model: str) -> bool:
    """Whether a folder has a LoRA that was trained on a model."""
    base = _settings_of(adapter).get("base_model_name_or_path")
    if not isinstance(base, str):
        return False
    if is_folder(model) and is_folder(base):
        return Path(base).expanduser().resolve() == Path(model).expanduser().resolve()
    return base == model


def known_flags() -> Mapping[str, str]:
    """Flags of the vLLM version that mbt was tested with, and the values that they expect."""
    keys: Mapping[str, str] = _checked()["keys"]
    return keys


def _checked_version() -> str:
    return str(_checked()["version"])


@cache
def _checked() -> Mapping[str, Json]:
    text = (resources.files("mbt_cli") / "backends" / "vllm_keys.json").read_bytes()
    found: Mapping[str, Json] = orjson.loads(text)
    return found


def visible_gpus(environment: Mapping[str, str]) -> int:
    """Number of GPUs that a server started here can use."""
    gpus = gpus_at_hand(environment)
    return 0 if gpus is None else gpus.count or 0


def compiled_caches(place: ServerPlace) -> dict[str, str]:
    """Variables that move compiled kernels to mbt's cache if the temporary folder is noexec."""
    environment = place.environment
    usual = Path(environment.get("TMPDIR") or tempfile.gettempdir())
    if not usual.is_dir():  # the folder of a job, in a container that does not have it
        usual = Path(tempfile.gettempdir())
    if not os.statvfs(usual).f_flag & os.ST_NOEXEC:
        return {}
    folder = place.cache / "compiled"
    names = {"TMPDIR": "tmp", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    for name in names.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {variable: str(folder / name) for variable, name in names.items()}
