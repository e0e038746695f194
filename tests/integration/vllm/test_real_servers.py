"""Real vLLM and real `transformers serve`, on a processor, under `mbt rollout`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

STUDY = """
[study]
name = "real"
seed = 5
max_failed_share = 0

[run]
concurrency = 8

[sampling.plain]
temperature = 0.6
top_p = 0.95
max_tokens = {max_tokens}
# vLLM's CPU build 0.32 dies of a seeded request: "CPU Generator does not use offset"
seedable = false

[models.small]
backend = {{ kind = "{kind}", model = "{folder}"{backend} }}
sampling = "plain"

{tables}

[benchmarks.tiny]
kind = "tinyhop"
limit = {limit}

[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = ["tiny"], split = ["validation"], model = ["small"] }}
prompt = "answer"
samples = 1
"""
VLLM_TABLES = """
[models.small.serve]
max_model_len = 4096
# without AVX-512, the bfloat16 kernels of a processor are a hundred times slower
dtype = "float32"
reasoning_parser = "deepseek_r1"

[models.small.place]
environment = { VLLM_CPU_KVCACHE_SPACE = "2", HF_HUB_OFFLINE = "1" }
flags = { enforce_eager = true }
"""
BESIDE = Path(sys.executable).parent


def need(command: str) -> None:
    if shutil.which(command) is None and not (BESIDE / command).is_file():
        pytest.skip(f"`{command}` is not here: .ci/setup_vllm.sh makes .venv-vllm")


def mbt(folder: Path) -> subprocess.Popen:
    command = [str(BESIDE / "mbt"), "rollout", "study.toml"]
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)


def processes_with(text: str, folder: Path) -> list[int]:
    """Processes of a test, which all run in its folder, with a text in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode()
            is_own = path.with_name("cwd").readlink() == folder
        except OSError:
            continue
        if is_own and text in words:
            found.append(int(path.parent.name))
    return found


def cell(folder: Path) -> Path:
    (found,) = folder.glob("runs/real/base/*/*/*")
    return found


def kept(folder: Path) -> int:
    return sum(p.read_bytes().count(b"\n") for p in folder.glob("runs/**/journal/*.jsonl"))


def test_vllm_survives_a_kill_in_the_middle_and_leaves_nothing(hub_layout, tmp_path):
    need("vllm")
    study = STUDY.format(
        kind="vllm", folder=hub_layout, backend="", tables=VLLM_TABLES, limit=32, max_tokens=96
    )
    (tmp_path / "study.toml").write_text(study)

    process = mbt(tmp_path)
    while kept(tmp_path) < 8:
        assert process.poll() is None, (tmp_path / "output").read_text()
        time.sleep(0.2)
    servers = processes_with(f"serve {hub_layout}", tmp_path)
    os.kill(max(servers), signal.SIGKILL)
    code = process.wait(timeout=1_500)

    assert code == 0, (tmp_path / "output").read_text()
    rows = pl.read_parquet(cell(tmp_path) / "rows.parquet")
    assert rows.height == 32
    assert rows["failure"].null_count() == 32
    # no think block ever ends, so the parser takes all for reasoning
    assert rows["reasoning"].str.len_chars().min() > 0
    # the model's own limit of 5 tokens does not cap replies
    assert rows["completion_tokens"].max() > 5
    assert "restarting the server" in (tmp_path / "output").read_text()
    lineage = json.loads((cell(tmp_path) / "lineage.json").read_text())
    assert lineage["server"]["version"].startswith("vllm 0.")
    # what the dying server turned away was sent again; good replies were lost in flight alone
    requests = lineage["requests"]
    assert 32 <= requests["sent"] - requests["retried"] <= 32 + 8
    assert processes_with(f"serve {hub_layout}", tmp_path) == []
    assert processes_with("VLLM::", tmp_path) == []


# the engine stands still, and the process that answers `/health` does not know; or nothing answers
@pytest.mark.long
@pytest.mark.parametrize(
    "frozen",
    [
        pytest.param("VLLM::EngineCore", id="engine"),
        pytest.param("serve {folder}", id="server"),
    ],
)
def test_vllm_that_hangs_is_restarted_and_loses_no_row(hub_layout, tmp_path, frozen):
    need("vllm")
    study = STUDY.format(
        kind="vllm", folder=hub_layout, backend="", tables=VLLM_TABLES, limit=24, max_tokens=96
    ).replace("[run]", "[run]\nserver_stall_seconds = 40\nserver_probe_seconds = 60")
    (tmp_path / "study.toml").write_text(study)

    process = mbt(tmp_path)
    while kept(tmp_path) < 8:
        assert process.poll() is None, (tmp_path / "output").read_text()
        time.sleep(0.2)
    os.kill(max(processes_with(frozen.format(folder=hub_layout), tmp_path)), signal.SIGSTOP)
    code = process.wait(timeout=1_500)

    output = (tmp_path / "output").read_text()
    assert code == 0, output
    assert output.count("the server hangs: no byte of any reply") == 1
    rows = pl.read_parquet(cell(tmp_path) / "rows.parquet")
    assert (rows.height, rows["failure"].null_count()) == (24, 24)
    # each row was sent once, and those that were in flight once more
    requests = json.loads((cell(tmp_path) / "lineage.json").read_text())["requests"]
    assert 24 <= requests["sent"] <= 24 + 8
    assert processes_with(f"serve {hub_layout}", tmp_path) == []
    assert processes_with("VLLM::", tmp_path) == []


def test_transformers_serve_answers_a_small_cell(hub_layout, tmp_path):
    need("transformers")
    study = STUDY.format(
        kind="transformers",
        folder=hub_layout,
        backend=", context = 4096",
        tables='[models.small.place]\nenvironment = { HF_HUB_OFFLINE = "1" }',
        limit=4,
        max_tokens=24,
    )
    (tmp_path / "study.toml").write_text(study)

    code = mbt(tmp_path).wait(timeout=1_500)

    assert code == 0, (tmp_path / "output").read_text()
    rows = pl.read_parquet(cell(tmp_path) / "rows.parquet")
    assert rows["failure"].null_count() == rows.height == 4
    assert rows["completion_tokens"].max() > 5
    assert processes_with(f"serve {hub_layout}", tmp_path) == []
