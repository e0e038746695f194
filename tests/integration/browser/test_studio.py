"""The studio in Chromium: from an empty folder to a table, another judge, a stopped run."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.chat_server import HoldingServer
from tests.integration.browser.conftest import Page

STUDY = """# written in the studio
[study]
name = "first"
max_failed_share = 0

[run]
concurrency = 2

[sampling.plain]
temperature = 0
max_tokens = 32

[models.stub]  # on this machine
backend = {{ kind = "openai", base_url = "{url}" }}
id = "stub"
sampling = "plain"

[benchmarks.tiny]
kind = "tinyhop"
limit = 6

[[stage]]
kind = "rollout"
name = "base"
matrix = {{ benchmark = "tiny", split = "validation", model = "stub", prompt = ["answer", "metacognitive"] }}
samples = 2

[[stage]]
kind = "score"
name = "scores"
rollouts = "base"
metrics = ["exact_match", "answer_rate", "tokens"]  # more with a judge

[[stage]]
kind = "report"
name = "tables"
scores = "scores"
tables = ["main_results"]
"""  # noqa: E501


class Judge(HoldingServer):
    """Answers questions, and grades answers."""

    def reply_to(self, body):
        text = json.dumps(body["messages"])
        return '{"grade": "A"}' if "grade" in text else "It is <answer>Oslo</answer>"


class Studio(Page):
    """The studio in the browser, the way a person uses it."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def ready(self, view):
        self.wait(f"return document.documentElement.dataset.ready === {json.dumps(view)}")

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def click(self, selector):
        self.wait(f"return document.querySelector({json.dumps(selector)})?.disabled === false", 60)
        self.find(selector).click()

    def typed(self, text):
        """Replace the text of the editor, as by pasting."""
        self.run(
            "const a = document.getElementById('text'); a.focus(); a.select();"
            "a.setRangeText(arguments[0], 0, a.value.length, 'end');"
            "a.dispatchEvent(new Event('input'))",
            text,
        )
        self.checked()

    def checked(self):
        self.wait(
            "return document.querySelector('main .page').dataset.checked ==="
            " String(document.getElementById('text').value.length)",
            60,
        )

    @property
    def text(self):
        return self.run("return document.getElementById('text').value")

    def open_forms(self, what):
        if self.run("return document.getElementById('forms').open") is False:
            self.find("#forms > summary").click()
        self.choose("form-family", what)

    def tag(self):
        return self.run("return document.querySelector('.title .tag').textContent")

    def until(self, state):
        self.wait(
            f"return document.querySelector('.title .tag')?.textContent === {json.dumps(state)}"
            " && !document.getElementById('run').disabled",
            60,
        )


def started(folder: Path) -> tuple[subprocess.Popen, str]:
    told = {**os.environ, "MBT_NO_DOTENV": "1", "NO_COLOR": "1"}
    words = [sys.executable, "-m", "mbt_cli", "studio", "--no-open"]
    process = subprocess.Popen(words, cwd=folder, env=told, stdout=subprocess.PIPE, text=True)
    return process, re.search(r"http\S+", process.stdout.readline())[0]


@pytest.fixture
def studio(driver, tmp_path):
    process, url = started(tmp_path)
    driver.get(url)
    page = Studio(driver, url)
    page.ready("studies")
    page.console()
    yield page
    driver.get("about:blank")
    process.terminate()
    process.communicate(timeout=20)


def test_from_an_empty_folder_to_a_table_a_judge_and_a_resumed_run(studio, tmp_path):
    from selenium.webdriver.common.keys import Keys

    with Judge(answers_first=24 + 4) as server:
        # a new study, by the keyboard
        studio.find("details.new summary").send_keys(Keys.ENTER)
        studio.find("#new-name").send_keys("first", Keys.ENTER)
        studio.ready("edit")
        studio.wait("return /no problems/.test(document.getElementById('state').textContent)", 60)
        assert 'name = "first"' in studio.text

        # a mistake is shown beside its line; a key is completed from the schema
        text = STUDY.format(url=server.base_url)
        studio.typed(text.replace("limit = 6", "limt = 6"))
        assert studio.texts(".problems li") == [
            "line 20 benchmarks.tiny.limt: unknown key; did you mean `limit`?"
        ]
        assert studio.texts(".gutter .wrong") == ["20"]
        assert "unknown key" in studio.texts(".beside div")[0]
        studio.typed(text.replace("limit = 6\n", ""))
        studio.run(
            "const a = document.getElementById('text');"
            "const n = a.value.indexOf('kind = \"tinyhop\"') + 16; a.setSelectionRange(n, n);"
        )
        studio.find("#text").send_keys(Keys.ENTER, "lim")
        assert studio.texts(".completions b") == ["limit"]
        studio.find("#text").send_keys(Keys.TAB, "6")
        studio.checked()
        assert studio.text == text

        # to the finished table
        studio.click("#save-run")
        studio.ready("study")
        studio.until("done")
        assert studio.texts("main table caption, main section h2")[0]
        assert any("metacognitive" in row for row in studio.texts("main table tbody tr"))
        assert (tmp_path / "runs/first/tables").is_dir()
        first = Counter(server.asked)
        assert sum(first.values()) == 24  # 6 questions, 2 prompts, 2 samples

        # a judge, and the stage that asks it, through the forms
        studio.run("location.hash = mbt.link('edit', {path: 'first.toml'})")
        studio.ready("edit")
        studio.checked()
        studio.open_forms("a judge")
        studio.find("#form-name").send_keys("strict")
        studio.choose("form-kind", "answer_match")
        studio.find("#form-add").click()
        studio.wait("return document.getElementById('text').value.includes('[judges.strict]')")
        studio.checked()
        studio.open_forms("a stage")
        studio.choose("form-kind", "judge")
        studio.find("#form-name").send_keys("graded")
        for name, words in {"rollouts": '"base"', "judge_model": "stub"}.items():
            field = studio.find(f"#form-{name}")
            if field.tag_name == "select":
                studio.choose(f"form-{name}", words.strip('"'))
            else:
                field.send_keys(words)
        studio.find("#form-matrix").send_keys('{ judge = ["strict"] }')
        studio.find("#form-add").click()
        studio.wait("return document.getElementById('text').value.includes('\"graded\"')")
        studio.checked()
        studio.open_forms("the stage scores")
        studio.find("#form-verdicts").send_keys('"graded"')
        metrics = studio.find("#form-metrics")
        metrics.clear()
        metrics.send_keys('["exact_match", "judge_accuracy"]')
        studio.find("#form-add").click()
        studio.wait("return document.getElementById('text').value.includes('judge_accuracy')")
        studio.checked()
        assert studio.texts("#state")[0].startswith("no problems"), studio.texts("#problems")
        assert "# written in the studio" in studio.text
        assert "# more with a judge" in studio.text

        # stopped in the middle, and resumed: nothing is asked twice
        studio.click("#save")
        studio.wait("return document.getElementById('save').textContent === 'Saved'")
        studio.run("location.hash = mbt.link('study', {name: 'first'})")
        studio.ready("study")
        studio.find("#replace").click()
        studio.click("#run")
        studio.wait("return document.querySelector('.title .tag').textContent === 'running'", 60)
        wait_for(lambda: sum(server.answered.values()) == 28)
        studio.click("#stop")
        studio.wait("return !document.getElementById('run').disabled", 60)
        assert studio.tag() != "done"
        after_stop = Counter(server.answered)
        assert sum(after_stop.values()) == 28
        server.is_released = True
        studio.click("#run")
        studio.until("done")
        assert any("100.0" in row for row in studio.texts("main table tbody tr"))  # all graded A
        assert all(server.asked[key] == 1 for key in after_stop)
        assert not [line for line in studio.console() if "409" not in line]


def wait_for(condition, seconds=60):
    import time

    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
