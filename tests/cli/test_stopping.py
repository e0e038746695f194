"""A run that is killed or interrupted goes on where it was, and pays for no reply twice."""

import json
import os
import signal
import subprocess
import sys
import time

import polars as pl
import pytest

from tests.cli.chat_server import ChatServer
from tests.conftest import SMALL_STUDY

CELL = "base/benchmark=tiny/split=validation/model=parrot/prompt=answer"
IN_FLIGHT = 8


def study(server: ChatServer) -> str:
    canned = 'backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>", "no idea"] }'
    hosted = (
        f'backend = {{ kind = "openai", base_url = "{server.base_url}", '
        'api_key_env = "PARROT_KEY" }'
    )
    return (
        SMALL_STUDY.replace(canned, hosted)
        .replace("limit = 6", "limit = 60")
        .replace('["answer", "metacognitive"]', '["answer"]')
        + f"\n[run]\nconcurrency = {IN_FLIGHT}\n"
    )


def start(workplace) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "mbt_cli", "rollout", "study.toml"],
        cwd=workplace,
        env={**os.environ, "PARROT_KEY": "sk-parrot-secret-123456"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_until_answered(server: ChatServer, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 90
    while server.answered.total() < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "the server was not asked"
        time.sleep(0.01)


def test_after_sigkill_only_what_was_in_flight_is_asked_for_again(workplace, mbt):
    with ChatServer(delay_seconds=0.05) as server:
        (workplace / "study.toml").write_text(study(server))
        process = start(workplace)
        wait_until_answered(server, 40, process)
        process.kill()
        process.communicate()

        again = mbt("rollout", "study.toml", PARROT_KEY="sk-parrot-secret-123456")

    assert again.code == 0, again.err
    twice = [key for key, times in server.asked.items() if times > 1]
    assert len(twice) <= IN_FLIGHT
    # 60 questions x 2 samples, each under the key that an unbroken run gives it
    rows = pl.read_parquet(
        workplace / "runs/small" / CELL / "rows.parquet", hive_partitioning=False
    )
    assert rows.height == rows["request_key"].n_unique() == 120
    assert rows["failure"].null_count() == 120


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]
)
def test_a_signal_stops_in_order_and_says_how_to_go_on(workplace, sent, code):
    with ChatServer(delay_seconds=0.05) as server:
        (workplace / "study.toml").write_text(study(server))
        process = start(workplace)
        wait_until_answered(server, 20, process)
        process.send_signal(sent)
        _, err = process.communicate(timeout=60)

    assert process.returncode == code, err
    assert "mbt rollout study.toml" in err
    assert "Traceback" not in err
    journal = workplace / "runs/small" / CELL / "journal"
    lines = [line for p in journal.glob("*.jsonl") for line in p.read_text().splitlines()]
    kept = [json.loads(line) for line in lines]
    assert len(kept) >= 20


def test_a_key_reaches_the_endpoint_and_nothing_else(workplace, mbt):
    with ChatServer() as server:
        (workplace / "study.toml").write_text(study(server))
        ran = mbt("rollout", "study.toml", "-v", PARROT_KEY="sk-parrot-secret-123456")

    assert ran.code == 0, ran.err
    assert server.keys == {"Bearer sk-parrot-secret-123456"}
    for path in (workplace / "runs").rglob("*"):
        if path.is_file():
            assert b"sk-parrot-secret" not in path.read_bytes(), path


def test_another_process_on_the_same_cell_is_refused_while_the_first_lives(workplace, mbt):
    with ChatServer(delay_seconds=2) as server:
        (workplace / "study.toml").write_text(study(server))
        first = start(workplace)
        wait_until_answered(server, 8, first)

        second = mbt("rollout", "study.toml", PARROT_KEY="sk-parrot-secret-123456")
        first.kill()
        first.communicate()
        server.delay_seconds = 0
        third = mbt("rollout", "study.toml", PARROT_KEY="sk-parrot-secret-123456")

    assert second.code == 1
    assert "is locked by process" in second.err
    assert third.code == 0, third.err
