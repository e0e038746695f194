"""A cell that waits for a batch and is killed again and again uploads once and loses no reply.

Each cell is killed by SIGKILL over the upload, the beginning of its batch, the wait and the
download. `MBT_FIRE_KILLS` beyond its default is about the number of kills.
"""

import random
import signal
import time

from tests.fire.conftest import KILLS
from tests.fire.killing import Place, check_artifacts, what_is_left
from tests.inference.conftest import batch_server
from tests.inference.test_batches import STUDY

MOMENTS = ("uploads", "batches", "polls", "downloads")


def placed(folder, server):
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY.replace("OWN", server.base_url))
    return Place(folder, folder / "no_shim")


def test_a_killed_batch_is_uploaded_once(tmp_path):
    draw = random.Random(28)
    rounds = max(1, round(KILLS / len(MOMENTS))) if KILLS > 10 else 1
    codes = []
    with batch_server("--slow", "0.5") as server:
        places = [placed(tmp_path / f"killed{n}", server) for n in range(rounds)]
        for place in places:
            before = server.stats()
            for moment in MOMENTS:
                process = place.start("run study.toml")
                while process.poll() is None and server.stats()[moment] == before[moment]:
                    time.sleep(0.01)
                time.sleep(draw.random() * 0.3)
                process.kill()
                process.communicate(timeout=60)
                codes.append(process.returncode)
            place.run("run study.toml")
        found = server.stats()
        unbroken = placed(tmp_path / "unbroken", server)
        unbroken.run("run study.toml")

    assert codes == [-signal.SIGKILL] * len(codes)
    assert found["problems"] == []
    assert (found["uploads"], found["batches"]) == (rounds, rounds)
    assert (found["answered"], found["distinct"]) == (20 * rounds, 20)
    for place in places:
        assert what_is_left(place.folder / "runs") == what_is_left(unbroken.folder / "runs")
        check_artifacts(place.folder / "runs")
