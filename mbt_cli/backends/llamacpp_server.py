"""The process of the embedded server: llama.cpp over HTTP until it is killed.

    python -P llamacpp_server.py '{"path": ..., "port": ..., ...}'

It reads its API key from the environment variable MBT_SERVER_KEY.
"""

import json
import os
import signal
import sys


def main() -> None:
    """Serve one GGUF file on a loopback port."""
    import xllamacpp

    settings = json.loads(sys.argv[1])
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["path"]
    parameters.model_alias = {settings["name"]}
    if settings["adapter"] is not None:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = settings["adapter"], 1.0
        parameters.lora_adapters = [adapter]
    parameters.n_ctx = settings["context"] * settings["parallel"]
    parameters.n_parallel = settings["parallel"]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = settings["port"]
    parameters.reuse_port = True
    parameters.api_keys = [os.environ["MBT_SERVER_KEY"]]
    parameters.cache_prompt = False
    parameters.cache_ram_mib = 0
    parameters.ui = False
    parameters.endpoint_slots = False
    parameters.endpoint_metrics = True
    parameters.verbosity = settings["verbosity"]
    if settings["threads"]:
        parameters.cpuparams.n_threads = settings["threads"]
        parameters.cpuparams_batch.n_threads = settings["threads"]
    server = xllamacpp.Server(parameters)
    sys.stderr.write(f"listening on {server.listening_address}\n")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
