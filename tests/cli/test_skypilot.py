"""`mbt submit --sky`: a study through a stand-in for SkyPilot that runs its tasks here."""

import json
import sys

import yaml

from tests.unit.test_skypilot import FAKE_SKY


def test_a_study_runs_through_skypilot_and_is_followed(mbt, workplace):
    (workplace / "sky.py").write_text(FAKE_SKY)
    folder = workplace / "presets" / "skypilot"
    folder.mkdir(parents=True)
    command = json.dumps([sys.executable, str(workplace / "sky.py")])
    (folder / "mine.toml").write_text(f"sky = {command}\npoll_seconds = 0.1\n[gpu_job]\n")
    (workplace / "plan.json").write_text(mbt("plan", "study.toml", "--json").out)

    shown = mbt("submit", "plan.json", "--sky", "--preset", "mine")

    assert shown.code == 0, shown.err
    assert "5 jobs submitted" in shown.out
    assert "0 left" in shown.out
    (record,) = (workplace / "runs" / "small" / "submissions").iterdir()
    for script in (record / "scripts").iterdir():
        assert yaml.safe_load(script.read_text())["resources"] == {"cpus": "4+", "memory": "16+"}
        assert (record / "logs" / f"{script.stem}.log").read_text()
    assert not (record / "skypilot" / "launching").exists()
    status = json.loads(mbt("status", "small", "--json").out)
    assert {cell["doing"] for cell in status["cells"]} == {"done"}
    assert "2 cells run" in mbt("logs", "scores").out
