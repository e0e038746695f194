"""Text from outside cannot control the terminal, whichever verb shows it."""

import json
import os

import pytest

from tests.cli.terminal import OnTerminal
from tests.cli.wrong import typed
from tests.conftest import SMALL_STUDY

POISON = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\x08\x7f[bold]:smile:"
ATTACKS = ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\x08", "\x7f", "😄")
WRITTEN = "".join(f"\\u{ord(c):04x}" for c in POISON)  # as a JSON or TOML text has it
CELL = "runs/small/base/benchmark=tiny/split=test/model=parrot/prompt=answer"
SCORED = CELL.replace("base", "scores")
ASKED = f"q{POISON}1"
BROKEN = f"a{POISON}.toml"
TABLE = ("main_results", "answer", "exact_match")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, warm):
    """A finished study whose questions, replies and settings hold the attacks, and a failed one."""
    folder = tmp_path_factory.mktemp("hostile")
    lines = (
        f'{{"id": "q{WRITTEN}{n}", "question": "Who{WRITTEN}?", "answer": "{WRITTEN}{n}"}}\n'
        for n in range(3)
    )
    (folder / "q.jsonl").write_text("".join(lines))
    study = SMALL_STUDY
    for old, new in {
        '"no idea"': f'"no{WRITTEN}idea"',
        'kind = "tinyhop"\nlimit = 6': 'kind = "question_answer"\nfiles = { test = "q.jsonl" }',
        '["validation"]': '["test"]',
        "\n[models.judge]": f'request = {{ user = "{WRITTEN}" }}\n[models.judge]',
    }.items():
        assert old in study
        study = study.replace(old, new)
    (folder / "study.toml").write_text(study)
    broken = study.replace('name = "small"', 'name = "broken"').replace('{"grade": "A"}', POISON)
    (folder / BROKEN).write_text(broken.replace(f"['{POISON}']", f'["{WRITTEN}"]'))
    (folder / "cache/weights").mkdir(parents=True)
    (folder / "cache/weights" / f"w{POISON}.gguf").write_bytes(b"x")
    told = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    assert warm.run(["run", "study.toml"], folder, told).returncode == 0
    plan = warm.run(["plan", BROKEN, "--json"], folder, told).stdout
    assert warm.run(["submit", "--local", "1"], folder, told, text=plan).returncode == 1
    return folder


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(arguments, code, id=" ".join(arguments).replace(POISON, "POISON"))
        for arguments, code in (
            (("show", CELL), 0),
            (("show", CELL, "--json"), 0),
            (("show", CELL, "--prompt", ASKED), 0),
            (("show", CELL, "--prompt", POISON), 2),
            (("show", "study.toml"), 0),
            (("show", f"runs/{POISON}"), 2),
            (("show", "runs/broken/answers"), 2),
            (("view", CELL, "--terminal"), 0),
            (("view", CELL, "--terminal", "--question", POISON), 2),
            (("run", "study.toml"), 0),
            (("run", BROKEN), 1),
            (("run", BROKEN, "--dry-run"), 0),
            (("run", BROKEN, "--dry-run", "--json"), 0),
            (("check", BROKEN), 0),
            (("check", "study.toml", "--set", f'study.name="{POISON}"'), 2),
            (("check", "study.toml", "--set", f'models.parrot."{POISON}"=1'), 2),
            (("check", "study.toml", "--set", f'stage.base.samples="{WRITTEN}"'), 2),
            (("check", f"{POISON}.toml"), 2),
            (("plan", BROKEN), 0),
            (("plan", BROKEN, "--json"), 0),
            (("status", "broken"), 0),
            (("status", "broken", "--json"), 0),
            (("logs", "answers", "--study", "broken"), 0),
            (("compare", SCORED, SCORED.replace("=answer", "=metacognitive")), 0),
            (("compare", "runs/small/answers", "runs/small/answers"), 2),
            (("compare", POISON, POISON), 2),
            (("report", "study.toml", "--trace", *TABLE), 0),
            (("report", "study.toml", "--trace", POISON, "1", "1"), 2),
            (("data", "ls"), 0),
            (("data", "ls", "--json"), 0),
            (("doctor", BROKEN, "--json"), 0),
            (("export", CELL, "--to", f"out{POISON}"), 0),
            (("help", POISON), 2),
            ((POISON,), 2),
        )
    ],
)
def test_no_verb_prints_a_control_character_from_outside(hostile, arguments, code, capfd):
    done = typed(arguments, hostile, {"MBT_CACHE": "cache"}, capfd)

    shown = done.out + done.err
    assert done.code == code, shown
    assert not [attack for attack in ATTACKS if attack in shown]
    if "--json" in arguments:
        json.loads(done.out)


def test_what_is_printed_as_json_is_the_same_document(hostile, capfd):
    done = typed(["data", "ls", "--json"], hostile, {"MBT_CACHE": "cache"}, capfd)

    assert f"w{POISON}.gguf" in {each["name"] for each in json.loads(done.out)}


def test_a_terminal_gets_the_styles_of_mbt_and_no_others(hostile):
    shown = OnTerminal(hostile, "show", CELL, "--prompt", ASKED, NO_COLOR="", TERM="xterm")
    assert shown.finish() == 0

    assert "\x1b[1" in shown.shown  # the question is bold
    assert not [attack for attack in ATTACKS if attack in shown.shown]
    assert "no\\x1b[2J" in shown.shown
    assert "[bold]:smile:idea" in shown.shown


def test_a_log_shows_the_lines_of_servers_without_their_colours(hostile, capfd):
    words = ["logs", "answers", "--study", "broken"]
    log = hostile / typed(words, hostile, {}, capfd).err.removeprefix("==> ").strip()
    log.write_bytes(b"\x1b[36m(APIServer)\x1b[0m 10%\r 99%\r\nready \x07\xff\n")

    done = typed(words, hostile, {}, capfd)

    assert "(APIServer) 10%\n 99%\nready \\x07\ufffd\n" in done.out
