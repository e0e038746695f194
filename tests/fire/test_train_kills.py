"""A training that is killed at any point ends like an unbroken one; `make test-train` runs it."""

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("trl", reason="the training tests need the extra `train`")

from tests.fire.conftest import KILLS
from tests.fire.killing import Place, check_artifacts, choose_call, compiled_shim, what_is_left
from tests.integration.train.conftest import STUDY
from tests.integration.train.tiny_models import tiny_model

TRAIN = "train study.toml --only sft/model=tiny/variant=full"
CELL = "runs/loop/sft/model=tiny/variant=full"
TRAINER = "mbt_cli.training.sft"


@dataclass
class Ready:
    """The folder before the training, and what an unbroken training leaves and calls."""

    folder: Path
    shim: Path
    losses: pl.DataFrame
    files: set[str]
    calls: dict[str, list[str]]
    seconds: float


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Ready:
    folder = tmp_path_factory.mktemp("training")
    shim = compiled_shim(folder)
    prepared = Place(folder / "prepared", shim)
    tiny_model(prepared.folder / "tiny")
    (prepared.folder / "short.md").write_text("=== user ===\n{{ question }}\n")
    (prepared.folder / "study.toml").write_text(STUDY)
    prepared.run("run study.toml --only base")
    calls = {}
    for command in ("mbt_cli", TRAINER):
        unbroken = Place(folder / command, shim)
        shutil.copytree(prepared.folder, unbroken.folder)
        log, began = folder / "calls", time.monotonic()
        log.unlink(missing_ok=True)
        unbroken.run(TRAIN, FIRE_COMMAND=command, FIRE_AT="0", FIRE_LOG=str(log))
        seconds = time.monotonic() - began
        calls[command] = log.read_text().splitlines()
    assert calls[TRAINER]
    return Ready(prepared.folder, shim, log_of(unbroken), files_of(unbroken), calls, seconds)


def log_of(place: Place) -> pl.DataFrame:
    return pl.read_parquet(place.folder / CELL / "rows.parquet", columns=["step", "loss"])


def files_of(place: Place) -> set[str]:
    files = (place.folder / CELL / "files").rglob("*")
    return {path.relative_to(place.folder).as_posix() for path in files if path.is_file()}


def trainers(place: Place) -> list[int]:
    """Processes that train in this place."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if (
                TRAINER.encode() in words
                and b"watchdog" not in words[2]
                and str(place.folder).encode() in b"".join(words)
            ):
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("number", range(max(1, KILLS // 10)))
def test_a_killed_training_ends_as_an_unbroken_one(ready, tmp_path, number, record_property):
    draw = random.Random(f"train {number}")
    place = Place(tmp_path / "broken", ready.shim)
    shutil.copytree(ready.folder, place.folder)
    kills = 0

    for _ in range(2):
        who, how = draw.choice(["mbt_cli", TRAINER]), draw.choice(["call", "moment"])
        if how == "call":
            at, when = choose_call(ready.calls[who], draw), draw.choice(["before", "after", "torn"])
            process = place.start(TRAIN, FIRE_COMMAND=who, FIRE_AT=str(at), FIRE_WHEN=when)
        else:
            process = place.start(TRAIN)
            time.sleep(draw.uniform(0.2, 1) * ready.seconds)
            dying = [process.pid] if who == "mbt_cli" else trainers(place)
            for pid in dying:
                os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=600)
        was_killed = process.returncode == -signal.SIGKILL
        kills += was_killed or process.returncode == 1
        assert process.returncode == 0 or was_killed or "the same command resumes" in err, err
    place.run(TRAIN)

    record_property("kills", f"{kills} train")
    found = log_of(place)
    assert found["step"].to_list() == ready.losses["step"].to_list()
    assert found["loss"].to_list() == pytest.approx(ready.losses["loss"].to_list(), rel=1e-4)
    assert files_of(place) == ready.files
    what_is_left(place.folder / "runs")  # no lock, no temporary file, no journal
    check_artifacts(place.folder / "runs")
    assert trainers(place) == []


def test_a_training_waits_until_the_process_of_a_killed_run_is_gone(ready, tmp_path):
    place = Place(tmp_path / "broken", ready.shim)
    shutil.copytree(ready.folder, place.folder)
    first = place.start(TRAIN)
    while not (pids := trainers(place)):
        assert first.poll() is None
        time.sleep(0.05)
    os.kill(pids[0], signal.SIGSTOP)  # a process that writes a large checkpoint, say
    first.kill()
    first.communicate()

    second = place.start(TRAIN)
    time.sleep(ready.seconds)
    while_first_lives = trainers(place)
    os.kill(pids[0], signal.SIGKILL)
    _, err = second.communicate(timeout=600)

    assert while_first_lives == pids
    assert "waiting for the training process" in err
    assert second.returncode == 0, err
    assert log_of(place)["step"].to_list() == ready.losses["step"].to_list()
