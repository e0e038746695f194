"""A `vllm` as far as mbt can see: the test server under its name, with a worker of its own."""

import sys
from pathlib import Path

SERVER = Path(__file__).parents[1] / "inference" / "fault_server.py"
WORKER = "/bin/sleep 601"
SCRIPT = f"""#!{sys.executable}
import os, subprocess, sys
port = sys.argv[sys.argv.index("--port") + 1]
print("flags:", *sys.argv[1:], "key:", os.environ["VLLM_API_KEY"], flush=True)
subprocess.Popen({WORKER.split()})
os.execv(sys.executable, [sys.executable, "{SERVER}", "--port", port, "--key",
    os.environ["VLLM_API_KEY"]])
"""


def write_vllm_preset(folder: Path) -> str:
    """Write the command `vllm` and a preset that names it into a folder; gives its name."""
    command = folder / "vllm"
    command.write_text(SCRIPT)
    command.chmod(0o755)
    presets = folder / "presets" / "models"
    presets.mkdir(parents=True)
    (presets / "small.toml").write_text(
        '[backend]\nkind = "vllm"\nmodel = "org/small"\n[serve]\nmax_model_len = 2048\n'
        f'[place]\nexecutable = "{command}"\n'
    )
    return "small"
