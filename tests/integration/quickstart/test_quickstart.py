"""The main job on the real embedded model: SmolLM2-135M under llama.cpp."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

from tests.cli.terminal import OnTerminal
from tests.cli.test_serve import ask, processes_with
from tests.conftest import REPOSITORY, SHELL_MBT

pytestmark = pytest.mark.skipif(
    find_spec("xllamacpp") is None, reason='no xllamacpp: pip install "mbt-cli[embedded]"'
)
QUICKSTART = str(REPOSITORY / "manifests/quickstart.toml")
SMALL = ("--set", "benchmarks.tinyhop.limit=3")
FILES = {
    "hotpotqa": "hotpotqa/hotpot_dev_distractor_v1.sample100.json",
    "musique": "musique/musique_ans_v1.0_dev.sample100.jsonl",
    "2wikimultihopqa": "2wikimultihopqa/dev.sample82.json",
}


def mbt(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mbt_cli", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


def replies(folder: Path) -> list[tuple[str, str]]:
    rows = pl.scan_parquet(folder / "runs/quickstart/base/**/rows.parquet", hive_partitioning=False)
    return sorted(rows.select("request_key", "reply").collect().rows())


def test_the_quickstart_runs_to_its_table_and_then_asks_nothing_again(tmp_path):
    first = mbt(tmp_path, "run", QUICKSTART, *SMALL)
    second = mbt(tmp_path, "run", QUICKSTART, *SMALL)

    assert first.returncode == 0, first.stderr
    assert "smollm2-135m" in first.stdout
    assert "smollm2-135m-mbt" in first.stdout
    assert second.returncode == 0
    assert "0 model calls" in second.stdout
    assert "smollm2-135m" in second.stdout


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """A folder in which all is typed that the topic tells to type, on twelve questions."""
    folder = tmp_path_factory.mktemp("typed")
    text = (REPOSITORY / "mbt_cli/help/quickstart.md").read_text()
    # those marked `sh run` are quick, and run with the other topics
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("mbt ")]

    for line in lines:
        small = r"\g<0> --set benchmarks.tinyhop.limit=12"
        done = subprocess.run(
            ["bash", "-c", f"{SHELL_MBT}\n{re.sub('^mbt (run|report) quickstart', small, line)}"],
            cwd=folder,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "BROWSER": "true"},
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return folder, [line.split(" #")[0].strip() for line in lines]


def test_what_the_quickstart_topic_tells_to_type_runs(typed):
    _, lines = typed

    assert "mbt run quickstart" in lines


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(tmp_path):
    # requests in one batch change each other's replies by rounding
    one_by_one = ("--set", "run.concurrency=1")
    only = ("rollout", QUICKSTART, *SMALL, *one_by_one, "--only", "base/prompt=answer")
    folders = [tmp_path / name for name in ("one", "two", "other")]
    for folder, extra in zip(folders, ((), (), ("--set", "study.seed=43")), strict=True):
        folder.mkdir()
        assert mbt(folder, *only, *extra).returncode == 0

    one, two, other = map(replies, folders)
    assert one == two
    assert {key for key, _ in one}.isdisjoint({key for key, _ in other})
    assert [text for _, text in one] != [text for _, text in other]


def test_the_adapter_of_the_quickstart_answers_where_the_base_model_does_not(typed):
    folder, _ = typed

    table = pl.read_parquet(
        folder / "runs/quickstart/tables/files/main_results.parquet", hive_partitioning=False
    )
    found = {
        (model, prompt): (rate, match)
        for model, prompt, rate, match in table.select(
            "model", "prompt", "answer_rate", "exact_match"
        ).rows()
    }
    assert found["smollm2-135m", "answer"] < (0.25, 0.25)
    assert found["smollm2-135m-mbt", "answer"][0] > 0.75
    assert found["smollm2-135m-mbt", "answer"][1] > found["smollm2-135m", "answer"][1]


def test_real_benchmark_rows_run_to_a_table(tmp_path, shared):
    study = (REPOSITORY / "manifests/quickstart.toml").read_text()
    start, _, rest = study.partition("[benchmarks.tinyhop]")
    tables = "".join(
        f'[benchmarks.{name}]\nkind = "{name}"\nlimit = 1\n'
        f'files = {{ validation = "{shared / "data" / file}" }}\n'
        for name, file in FILES.items()
    )
    text = start + tables + "[[stage]]" + rest.partition("[[stage]]")[2]
    text = text.replace('benchmark = ["tinyhop"]', f"benchmark = {list(FILES)}")
    text = text.replace('["answer", "metacognitive"]', '["answer"]')
    (tmp_path / "real.toml").write_text(text)

    ran = mbt(tmp_path, "run", "real.toml", "--set", "sampling.student.max_tokens=48")

    assert ran.returncode == 0, ran.stderr
    assert all(name in ran.stdout for name in FILES)


def test_the_embedded_preset_answers_a_real_request_and_ends_with_ctrl_c(tmp_path):
    run = OnTerminal(tmp_path, "serve", "smollm2-135m", MBT_TEST_MARK=str(tmp_path))
    shown = run.wait_for("stop with Ctrl-C")
    base_url = re.search(r"base_url: (\S+)", shown)[1]
    key = re.search(r"export MBT_ENDPOINT_KEY=(\S+)", shown)[1]

    reply = ask(base_url, key, "smollm2-135m")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(base_url, "another-key", "smollm2-135m")
    run.process.send_signal(signal.SIGINT)
    code = run.finish()

    assert reply["choices"][0]["message"]["content"]
    assert code == 0, run.shown
    assert "all processes of the server have ended" in run.shown
    assert run.shown.count(key) == 1
    assert processes_with(f"MBT_TEST_MARK={tmp_path}") == []


def test_doctor_starts_the_embedded_model_and_asks_it(tmp_path):
    mbt(tmp_path, "init", "first.toml", "--kind", "embedded", "--yes")

    ran = mbt(tmp_path, "doctor", "first.toml", "--json")

    assert ran.returncode == 0, ran.stdout
    (found,) = (
        finding["found"]
        for finding in json.loads(ran.stdout)["findings"]
        if (finding["group"], finding["what"]) == ("replies", "smollm2-135m")
    )
    assert "answered within" in found


def test_the_notebook_cell_of_the_python_topic_asks_the_model(tmp_path):
    topic = (REPOSITORY / "mbt_cli/help/python.md").read_text(encoding="utf-8")
    (code,) = [text for text in re.findall(r"```py\n(.*?)```", topic, re.DOTALL) if "ask(" in text]

    done = subprocess.run(
        [sys.executable, "-c", code + "print(rivers.height, hop.height)"],
        cwd=tmp_path,
        env={**os.environ, "MBT_RUNS": "runs"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "4 4"
    assert len(list((tmp_path / "runs").glob("ask-*"))) == 2
