"""A cell that waits for a batch and is killed again and again uploads once and loses no reply.

A kill is SIGKILL over the upload, the wait or the download. `MBT_FIRE_KILLS` beyond its default is
the number of kills.
"""

import random
import signal
import time

from tests.fire.conftest import KILLS
from tests.fire.killing import Place, check_artifacts, what_is_left
from tests.inference.test_batches import batch_server

FEWEST = 4
STUDY = """
[study]
name = "small"
seed = 1

[models.student]
backend = { kind = "openai", base_url = "OWN", id = "student", client = "batch" }
sampling = { temperature = 0.6, max_tokens = 64 }

[benchmarks.tiny]
kind = "tinyhop"
limit = 20

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "tiny", split = "validation", model = "student" }
prompt = "answer"
"""


def placed(folder, server):
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY.replace("OWN", server.base_url))
    return Place(folder, folder / "no_shim")


def test_a_killed_batch_is_uploaded_once(tmp_path):
    draw, kills = random.Random(28), KILLS if KILLS > 10 else FEWEST
    codes = []
    with batch_server("--slow", "0.3", "--polls", str(2 * kills)) as server:
        killed = placed(tmp_path / "killed", server)
        for n in range(kills):
            # the upload, the batch's beginning and its first questions; then any call of a run
            before, calls = server.stats()["calls"], n % 4 + 1
            process = killed.start("run study.toml")
            while process.poll() is None and server.stats()["calls"] < before + calls:
                time.sleep(0.01)
            time.sleep(draw.random() * 0.3)
            process.kill()
            process.communicate(timeout=60)
            codes.append(process.returncode)
        killed.run("run study.toml")
        found = server.stats()
        unbroken = placed(tmp_path / "unbroken", server)
        unbroken.run("run study.toml")

    assert codes.count(-signal.SIGKILL) > kills / 2
    assert found["problems"] == []
    assert (found["uploads"], found["batches"]) == (1, 1)
    assert (found["answered"], found["distinct"]) == (20, 20)
    assert what_is_left(killed.folder / "runs") == what_is_left(unbroken.folder / "runs")
    check_artifacts(killed.folder / "runs")
