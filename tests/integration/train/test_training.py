"""Real trainings of a made model: killed, resumed, with adapters, by rewards, and served."""

import os
import signal
import socket
import time

import polars as pl
import pytest

from tests.integration.train.conftest import STUDY

FULL, LORA = "sft/model=tiny/variant=full", "sft/model=tiny/variant=lora"


@pytest.fixture(scope="module")
def unbroken(place):
    """Loss by step of both variants, without interruption."""
    table = 'stage.sft.recipe.tracking={tensorboard = true, wandb = "offline"}'
    ran = place.run("train", "study.toml", "--only", "sft", "--set", table)
    assert ran.code == 0, ran.out
    return {address: place.rows(address)["loss"].to_list() for address in (FULL, LORA)}


@pytest.mark.parametrize(
    ("variant", "number", "code"),
    [
        pytest.param("full", signal.SIGKILL, -9, id="killed"),
        pytest.param("full", signal.SIGTERM, 75, id="told to stop", marks=pytest.mark.long),
        pytest.param("full", signal.SIGUSR1, 75, id="told by the queue", marks=pytest.mark.long),
        pytest.param("lora", signal.SIGKILL, -9, id="adapter, killed", marks=pytest.mark.long),
    ],
)
def test_a_broken_run_ends_as_an_unbroken_one(unbroken, fresh, variant, number, code):
    address = f"sft/model=tiny/variant={variant}"
    broken = fresh()
    assert broken.run("run", "study.toml", "--only", "base").code == 0

    stopped = broken.run_until_step(5, number, "train", "study.toml", "--only", address)
    resumed = broken.run("train", "study.toml", "--only", address)

    assert stopped.code == code, stopped.out
    assert resumed.code == 0, resumed.out
    # 12 questions x 2 samples in batches of 4, twice: 12 steps
    assert broken.rows(address)["step"].to_list() == list(range(1, 13))
    assert broken.rows(address)["loss"].to_list() == pytest.approx(unbroken[address], rel=1e-4)
    assert (broken.rows(address)["tokens"].diff().drop_nulls() > 0).all()  # of both processes
    log = "".join(path.read_text() for path in broken.cell(address).glob("logs/*.train.log"))
    assert "resuming from step" in log


# what Slurm's `srun` does, on one machine: the command once a node, each with its number; SIGUSR1
# goes to all that was started, and SIGTERM kills it
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
  case $1 in --nodes=*) nodes=${1#*=};; esac
  shift
done
below() { local pid; for pid in $(pgrep -P "$1"); do echo "$pid"; below "$pid"; done; }
trap 'kill -USR1 $(below $$)' USR1
trap 'kill -KILL $(below $$)' TERM
for ((node = 0; node < nodes; node++)); do SLURM_NODEID=$node "$@" & done
code=0
for job in $(jobs -p); do
  while got=0; wait "$job" || got=$?; [ "$got" -gt 128 ] && kill -0 "$job" 2>/dev/null; do :; done
  if [ "$got" -gt "$code" ]; then code=$got; fi
done
exit "$code"
"""


# accelerate refuses a whole file for one key that its version does not know
OWN_DEFAULTS = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: { fsdp_version: 2 }
key_of_another_version: true
num_processes: 8
"""


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """Options of a training over two nodes of one process, and the variables that a job sets.

    The user's own defaults of accelerate must not matter.
    """
    defaults = tmp_path / "hf/accelerate/default_config.yaml"
    defaults.parent.mkdir(parents=True)
    defaults.write_text(OWN_DEFAULTS)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text(SRUN)
    (tools / "srun").chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SLURM_NNODES": 2, "MBT_PROCESSES": 2}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    launch = '{ accelerate = "multi_node", flags = { mixed_precision = "no" } }'
    return ("--only", FULL, "--set", f"stage.sft.launch={launch}")


def test_two_nodes_train_as_one_does_and_go_on_where_they_were_stopped(unbroken, fresh, two_nodes):
    place = fresh()
    assert place.run("run", "study.toml", "--only", "base").code == 0

    stopped = place.run_until_step(5, signal.SIGUSR1, "train", "study.toml", *two_nodes)
    resumed = place.run("train", "study.toml", *two_nodes)

    assert stopped.code == 75, stopped.out
    assert resumed.code == 0, resumed.out
    log = "".join(path.read_text() for path in place.cell(FULL).glob("logs/*.train.log"))
    assert "resuming from step" in log
    assert place.lineage(FULL)["notes"]["training"]["processes"] == 2
    # the same batches, each shared by two: the same steps, and losses but for the order of sums
    assert place.rows(FULL)["step"].to_list() == list(range(1, 13))
    assert place.rows(FULL)["loss"].to_list() == pytest.approx(unbroken[FULL], rel=0.02)


@pytest.mark.long
@pytest.mark.parametrize("address", [FULL, LORA])
def test_a_crash_after_the_last_step_takes_no_other_step(fresh, address):
    text = STUDY.replace("num_train_epochs = 2 }", "num_train_epochs = 2, max_steps = 5 }")
    place = fresh(text.replace("save_every_steps = 4", "save_every_steps = 5"))
    place.run("run", "study.toml", "--only", "base")
    process = place.start("train", "study.toml", "--only", address)
    while not (jobs := list(place.cell(address).glob("journal/training/*/job.json"))):
        time.sleep(0.05)
    in_the_way = jobs[0].with_name("summary.json")
    in_the_way.mkdir()
    out, _ = process.communicate(timeout=300)
    log = place.last_step()
    in_the_way.rmdir()

    ran = place.run("train", "study.toml", "--only", address)

    assert (process.returncode, log) == (1, 5), out
    assert ran.code == 0, ran.out
    rows, told = place.rows(address), place.lineage(address)["notes"]["training"]
    assert rows["step"].to_list() == [1, 2, 3, 4, 5]
    assert told["steps"] == 5
    assert (told["tokens"], told["last_loss"]) == rows.select("tokens", "loss").row(-1)
    assert (place.cell(address) / "files/checkpoint/model.safetensors").is_file()


def test_the_loss_falls(unbroken):
    for losses in unbroken.values():
        assert losses[-1] < losses[0] - 0.2


def test_the_training_set_is_written_with_what_is_trained(unbroken, place):
    rows = pl.read_parquet(place.cell(FULL) / "files" / "training_set.parquet")

    assert rows.height == 24
    assert set(rows["completion"]) == {
        "It is <answer>Oslo</answer><|im_end|>",
        "It is <answer>Rome</answer><|im_end|>",
    }
    assert rows["prompt"].str.ends_with("<|im_start|>assistant\n").all()
    assert (rows["trained_tokens"] < rows["tokens"]).all()
    assert (place.cell(FULL) / "files" / "loss.png").stat().st_size > 1000


def test_the_lineage_tells_what_was_trained_on(unbroken, place):
    told = place.lineage(LORA)["notes"]

    assert told["funnel"] == {"rows": 24, "chosen": 24, "trained": 24}
    assert told["training"]["steps"] == 12
    assert told["training"]["tuning"] == "lora"
    # r 4 on q, k, v, o, gate, up, down of two layers of width 32: 2 x 4 x (32+32 + 32+16 + 32+16
    # + 32+32 + 32+64 + 32+64 + 64+32) = 4,096
    assert told["training"]["trained_parameters"] == 4096


def test_all_weights_are_trained_or_an_adapter_alone(unbroken, place):
    full, lora = (place.lineage(address)["notes"]["training"] for address in (FULL, LORA))

    assert full["trained_parameters"] == full["parameters"]
    assert lora["parameters"] == full["parameters"] + 4096


def test_the_card_of_a_checkpoint_has_the_settings_that_counted(unbroken, place):
    full, lora = (
        place.run("export", f"runs/loop/{address}", "--to", "out") for address in (FULL, LORA)
    )

    assert full.code == lora.code == 0, full.out + lora.out
    assert "- trainer.learning_rate: 0.01\n" in full.out
    assert "- lora." not in full.out
    assert "- lora.r: 4\n" in lora.out
    assert "reward_words" not in full.out + lora.out


def test_curves_for_tensorboard_stay_beside_the_log(unbroken, place):
    for address in (FULL, LORA):
        (events,) = place.cell(address).glob("logs/tensorboard/events.out.tfevents.*")
        assert events.stat().st_size > 1000


def test_an_offline_run_of_wandb_needs_no_key_and_bears_study_and_axes(unbroken, place):
    for address in (FULL, LORA):
        (run,) = place.cell(address).glob("logs/wandb/offline-run-*/run-*.wandb")
        told = run.read_bytes()
        for text in ("loop", address, *address.split("/")[1:]):
            assert text.encode() in told


@pytest.mark.long
def test_a_resumed_training_continues_its_run_of_wandb(fresh, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "of-the-shell")
    key = "0123456789abcdef" * 2 + "01234567"  # as long as theirs
    monkeypatch.setenv("WANDB_API_KEY", key)
    broken = fresh()
    assert broken.run("run", "study.toml", "--only", "base").code == 0
    table = 'stage.sft.recipe.tracking={wandb = "offline"}'
    arguments = ("train", "study.toml", "--only", FULL, "--set", table)

    stopped = broken.run_until_step(5, signal.SIGTERM, *arguments)
    (kept,) = broken.cell(FULL).glob("journal/training/*/wandb_run_id")
    run = kept.read_text()
    resumed = broken.run(*arguments)

    assert (stopped.code, resumed.code) == (75, 0), resumed.out
    parts = sorted(broken.cell(FULL).glob("logs/wandb/offline-run-*"))
    assert len(parts) == 2  # one of each process, of the same run
    assert {part.name.rpartition("-")[2] for part in parts} == {run}
    assert run != "of-the-shell"
    written = [path for path in (broken.folder / "runs").rglob("*") if path.is_file()]
    assert not [path for path in written if key.encode() in path.read_bytes()]


def test_a_trained_cell_is_a_model(unbroken, place):
    ran = place.run("rollout", "study.toml", "--only", "trained")

    assert ran.code == 0, ran.out
    for variant in ("full", "lora"):
        address = f"trained/benchmark=tiny/split=validation/model=tiny/variant={variant}"
        rows = place.rows(address)
        assert rows.height == 12
        assert rows["failure"].null_count() == 12


def test_reinforcement_raises_its_reward(place):
    ran = place.run("train", "study.toml", "--only", "rl")

    assert ran.code == 0, ran.out
    rewards = place.rows("rl/model=tiny")["reward"]
    assert rewards.len() == 12
    assert rewards[-4:].mean() > rewards[:4].mean() + 0.02
