"""The page in a real Chromium, opened as a file.

The made study has 12 questions, q0 .. q11. Method `base` is wrong on every 2nd, `mbt_s` on every
3rd; the judge says wrong on q3 whatever the answer and cannot be read on q4; q10 is cut.
"""

import os
import subprocess
import sys

import pytest

from tests.cli.test_programs import CHECK, PROGRAM
from tests.cli.test_uplift import World, write_study
from tests.conftest import REPOSITORY
from tests.integration.browser.conftest import Page
from tests.integration.browser.made_study import MadeStudy, Size

POISON = (
    "<script>window.poisoned = 1</script><img src=x onerror='window.poisoned = 2'></template>"
    "</script><svg onload=alert(1)>\u202e right to left \u2028\u2029 \U0001f9ea [[M01]] "
)
A = "#/traces?a=base%2Fbenchmark%3Dtiny%2Fsplit%3Dvalidation%2Fmodel%3Dm%2Fvariant%3Dbase"
BOTH = A + "&b=base%2Fbenchmark%3Dtiny%2Fsplit%3Dvalidation%2Fmodel%3Dm%2Fvariant%3Dmbt_s"


def test_a_table_sorts_by_the_unrounded_numbers_and_keeps_the_dash_last(page):
    page.open()
    assert page.texts("tbody th") == ["base", "mbt_s", "not_run"]

    page.run("document.querySelectorAll('thead button')[1].click()")  # best is high: from the top
    assert page.texts("tbody th") == ["mbt_s", "base", "not_run"]
    assert page.run("return document.querySelectorAll('thead th')[1].ariaSort") == "descending"

    page.run("document.querySelectorAll('thead button')[1].click()")
    assert page.texts("tbody th") == ["base", "mbt_s", "not_run"]


def test_a_number_tells_n_interval_failures_and_leads_to_its_traces(page):
    page.open()

    page.run("document.querySelector('tbody td button').click()")

    told = page.texts(".behind")[0]
    assert "n 12" in told
    assert "failed 1" in told
    assert "40.0 to 70.0" in told
    assert "mbt report MANIFEST --trace main_results 1 exact_match" in told
    # the details stand below the row of the number; Escape closes them
    row = "document.querySelector('tbody tr')"
    assert page.run(f"return {row}.nextSibling.querySelector('.behind') !== null")
    escape = "new KeyboardEvent('keydown', {key: 'Escape', bubbles: true})"
    page.run(f"document.activeElement.dispatchEvent({escape})")
    assert page.texts(".behind") == []
    page.run("document.querySelector('tbody td button').click()")
    page.run("document.querySelector('.behind a').click()")
    page.wait("return document.documentElement.dataset.ready === 'traces'")
    page.wait_for_trace()
    assert page.count == "12 of 24 traces"


@pytest.mark.parametrize(
    ("name", "words", "count"),
    [
        # A right by the judge, q4 by the verifier: 1 5 7 9 11; B wrong there: 9
        ("outcome", "A right and B wrong", 1),
        ("outcome", "both wrong", 3),  # 0 3 6
        ("difficulty", "easy", 4),  # 0 3 6 9
        ("show", "truncated", 1),  # 10
        ("show", "judge and verifier disagree", 1),  # 3, of A
        ("show", "unparsed verdict", 1),  # 4
        ("a", "any method", 24),
    ],
)
def test_filters_find_what_was_counted_by_hand(page, name, words, count):
    page.open(BOTH, ready="traces")

    page.choose(name, words)

    assert page.count == f"{count} of 24 traces"


def test_right_can_be_taken_from_the_verifier(page):
    page.open(BOTH, ready="traces")

    page.choose("by", "verifier")
    page.choose("outcome", "A right and B wrong")

    assert page.count == "2 of 24 traces"  # 3 9


def test_search_finds_questions_and_inside_traces(page):
    page.open(BOTH, ready="traces")
    search = "const s = document.getElementById('text'); s.value = arguments[0];"
    page.run(search + "s.dispatchEvent(new Event('input'))", "harbour 7")
    assert page.count == "1 of 24 traces"

    page.run(search + "s.dispatchEvent(new Event('input'))", "harbour 7, BASE")
    assert page.count == "0 of 24 traces"
    page.run("document.getElementById('inside').click()")
    page.wait("return document.querySelector('.count').textContent === '1 of 24 traces'")
    page.run("document.getElementById('reset').click()")
    page.wait("return document.querySelector('.count').textContent === '12 of 24 traces'")
    assert page.run("return document.getElementById('text').value") == ""
    assert page.run("return document.getElementById('inside').checked") is False


def test_a_deep_link_opens_its_trace_beside_the_other_method(page):
    page.open(BOTH + "&q=q7", ready="traces")

    assert page.texts(".question h2") == ["Which city does harbour 7 belong to?"]
    assert page.texts(".trace h3") == ["Abase", "Bmbt_s"]
    # 7 % 6 = 1: Oslo; 7 is odd and no multiple of 3, so both are right
    assert page.texts(".trace .final strong") == ["Oslo", "Oslo"]
    assert page.texts(".trace header .tag") == ["right", "right"]
    assert page.texts(".supporting h4 bdi") == ["Oslo"]
    assert page.texts("mark") == ["It belongs to Oslo."]


def test_paragraphs_bear_the_judges_marks_and_phases_their_names(page):
    page.open(A + "&b=none&q=q1", ready="traces")

    assert page.texts(".paragraphs li.reached .tag") == ["answer reached"]
    assert len(page.texts(".paragraphs li")) == 4
    assert page.run(
        "return [...document.querySelectorAll('.paragraphs li')].map(n=>n.className)"
    ) == [
        "",
        "",
        "reached",
        "redundant",
    ]
    assert page.texts(".phases li.seen") == [
        "● understanding and filtering (shown)",
        "● planning (shown)",
        "● execution and monitoring (shown)",
    ]
    assert '{"grade": "A"}' in page.texts(".verdicts .reply")


@pytest.fixture(scope="module")
def ruled(driver, tmp_path_factory):
    return Page(driver, MadeStudy(tmp_path_factory.mktemp("ruled"), Size(rules=True)).page())


def test_a_verdict_of_a_verifier_shows_its_parts_and_the_last_output(ruled):
    ruled.open(A + "&b=none&q=q7", ready="traces")

    assert ruled.texts(".verdicts details[open] > summary") == [
        "verifier — not passed passed loosely 2 of 3 parts · 0.25 s CPU"
    ]
    assert ruled.texts(".parts li") == [
        "passedtest 1",
        "passedtest 2",
        "not passedpassed looselytest 3assert f(2) == 3: returned <b>4</b>",
    ]
    assert ruled.texts("details.output pre")[0].endswith("AssertionError\n")
    assert ruled.run("return document.querySelector('details.output').open") is False
    assert "decided by a rule, without a model" in ruled.texts(".verdicts details[open] > .where")
    assert '{"value": 1}' not in ruled.texts(".verdicts .reply")

    ruled.open(A + "&b=none&q=q2", ready="traces")  # 40 tests, the last one fails
    assert ruled.texts(".parts li")[0].startswith("not passed")
    assert "39 parts that passed" in ruled.texts(".verdicts summary")

    ruled.open(A + "&b=none&q=q5", ready="traces")
    assert ruled.texts(".verdicts .bad")[-1] == "no_verdict: the sandbox died"
    assert ruled.texts(".parts li") == []


def test_right_and_wrong_follow_the_verdicts_of_a_verifier(ruled):
    ruled.open(A + "&b=none", ready="traces")
    ruled.choose("by", "verifier")

    # base is wrong on 0 2 4 6 8 10, the verifier also on 7; 5 has no verdict and is neither
    ruled.choose("outcome", "A wrong")
    assert ruled.count == "7 of 24 traces"
    ruled.choose("outcome", "A right")
    assert ruled.count == "4 of 24 traces"
    search = "const s = document.getElementById('text'); s.value = 'returned <b>4';"
    ruled.choose("outcome", "any outcome")
    ruled.run(search + "s.dispatchEvent(new Event('input'))")
    ruled.run("document.getElementById('inside').click()")
    ruled.wait("return document.querySelector('.count').textContent === '7 of 24 traces'")


def test_j_and_k_walk_through_the_traces_and_the_address_follows(page):
    page.open(BOTH, ready="traces")

    page.press("j")
    page.press("j")
    assert "q=q2" in page.hash
    assert page.texts(".question h2") == ["Which city does harbour 2 belong to?"]
    page.press("k")
    assert "q=q1&" in f"{page.hash}&"
    assert page.texts(".line.chosen .asks") == ["Which city does harbour 1 belong to?"]


def test_a_cell_of_the_lineage_lights_up_what_it_stands_on(page):
    page.open("#/lineage", ready="lineage")

    page.run(
        "[...document.querySelectorAll('button.kind-score')]"
        ".find((b) => b.textContent.includes('mbt_s')).click()"
    )

    lit = page.texts(".cell.lit .name")
    assert "tiny · validation" in lit
    assert "tiny · validation · m · mbt_s" in lit
    assert "tiny · validation · m · base" not in lit
    page.wait("return document.querySelector('.detail .facts') !== null")
    assert "scores/benchmark=tiny/split=validation/model=m/variant=mbt_s" in page.texts(
        ".detail h2"
    )


def test_the_manifest_and_the_figures_are_there_as_they_are(page):
    page.open("#/manifest", ready="manifest")
    assert page.texts("pre") == ['[study]\nname = "made"  # <b>as written</b>\n']

    page.open("#/figures", ready="figures")
    page.wait("return document.querySelector('img').naturalWidth === 300")


def test_nothing_leaves_the_folder_and_the_console_stays_empty(page):
    page.requested(), page.console()

    for view in ("tables", "figures", "manifest", "lineage"):
        page.open(f"#/{view}", ready=view)
    page.open(BOTH, ready="traces")

    asked = {url for url in page.requested() if url != "about:blank"}
    assert asked
    assert {url for url in asked if not url.startswith(page.folder.as_uri())} == set()
    assert page.console() == []


def test_a_poisoned_trace_is_shown_as_text(driver, tmp_path):
    poison = POISON + "\n\n" + "x" * 200_000 + "\n\n" + "<b>end</b>"
    page = Page(driver, MadeStudy(tmp_path, Size(3, ("base", "odd"), poison)).page())
    page.requested(), page.console()

    page.open("#/traces?q=q0", ready="traces")
    page.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    page.run("document.querySelectorAll('button.more').forEach((b) => b.click())")

    shown = page.run(
        "return [...document.querySelectorAll('.trace')].at(-1)"
        ".querySelectorAll('.paragraphs p').values().map((n) => n.textContent).toArray()"
    )
    assert shown == [POISON.strip(), "x" * 200_000, "<b>end</b>"]
    assert page.texts(".question h2")[0].endswith(poison)
    assert page.texts(".verdicts .reply")[-3] == poison
    assert page.run("return window.poisoned") is None
    assert (
        page.run("return document.querySelectorAll('.reading :is(script, img, svg)').length") == 0
    )
    # the 200 kB word stays within its column
    assert (
        page.run(
            "const r = document.querySelector('.reading'); return r.scrollWidth - r.clientWidth"
        )
        == 0
    )
    assert page.console() == []
    assert all(url.startswith(page.folder.as_uri()) for url in page.requested() - {"about:blank"})


def test_html_cannot_be_set_by_any_script_of_the_page(page):
    page.open()

    refused = page.run(
        "try { document.body.innerHTML = '<p>x</p>'; return false } catch { return true }"
    )

    assert refused
    page.console()  # what was refused is told there


def test_every_control_has_a_name(page):
    for view in ("tables", "figures", "manifest", "lineage", "traces"):
        page.open(f"#/{view}", ready=view)
        nameless = page.run(
            "return [...document.querySelectorAll('input, select, button, a, img, [role=listbox]')]"
            ".filter((n) => !(n.labels?.length || n.textContent.trim() || n.alt || n.ariaLabel))"
            ".map((n) => n.outerHTML)"
        )
        assert nameless == [], view


def test_fifty_thousand_traces_are_ready_in_two_seconds_and_filtered_in_300_ms(driver, tmp_path):
    methods = [f"method{k}" for k in range(10)]
    page = Page(driver, MadeStudy(tmp_path, Size(5_000, methods)).page(traces="all"))
    filtering = """
        const done = arguments[arguments.length - 1];
        const [name, value] = arguments;
        const began = performance.now();
        const node = document.getElementById(name);
        node.value = value;
        node.dispatchEvent(new Event(name === "text" ? "input" : "change"));
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0));
    """

    opened = []
    for _ in range(3):
        page.open("#/traces?a=any", ready="traces")
        opened.append(page.run("return performance.getEntriesByName('first trace')[0].startTime"))
    assert page.count == "50,000 of 50,000 traces"
    choices = (("outcome", "a_right"), ("difficulty", "hard"), ("show", "cut"), ("text", "7"))
    took = {name: driver.execute_async_script(filtering, name, value) for name, value in choices}

    print(f"\nready in {[round(ms) for ms in opened]} ms; filters in {took} ms")  # noqa: T201
    assert min(opened) < 2_000
    assert max(took.values()) < 300


STEPS_STUDY = """
[study]
name = "steps"
seed = 1
plugins = ["checked.py"]

[models.parrot]
backend = { kind = "canned", replies = ["It is <answer>Oslo</answer>"] }
sampling = { temperature = 0, max_tokens = 32 }

[models.grader]
backend = { kind = "canned", replies = ["<b>so</b> grade 7"] }
sampling = { temperature = 0, max_tokens = 8 }

[models.mute]
backend = { kind = "canned", replies = ["who knows"] }
sampling = { temperature = 0, max_tokens = 8 }

[benchmarks.tiny]
kind = "tinyhop"
limit = 2

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "tiny", split = "validation", model = "parrot", program = "checked" }
prompt = "answer"

[stage.variants]
read = { roles = { verifier = "grader" } }
unread = { roles = { verifier = "mute" } }

[[stage]]
kind = "score"
rollouts = "base"

[[stage]]
kind = "report"
"""


@pytest.fixture(scope="module")
def stepped(driver, tmp_path_factory):
    """The page of a study whose rollouts were made by a program of several steps."""
    folder = tmp_path_factory.mktemp("steps")
    (folder / "study.toml").write_text(STEPS_STUDY)
    (folder / "checked.py").write_text(PROGRAM)
    (folder / "check.md").write_text(CHECK)
    command = [sys.executable, "-m", "mbt_cli", "run", "study.toml", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    (index,) = folder.glob("runs/steps/report/**/index.html")
    return Page(driver, index)


def test_the_steps_of_a_program_are_a_foldable_tree_with_names_roles_and_verdicts(stepped):
    base = "base/benchmark=tiny/split=validation/model=parrot/variant="
    stepped.open(f"#/traces?a={base}read/program=checked&b=none", ready="traces")

    assert stepped.texts(".program > summary") == ["5 steps of the program"]
    assert stepped.run("return document.querySelector('.program').open") is False
    assert stepped.texts(".step > summary") == [
        "0 draft by parrot",
        "1 draft by parrot",
        "2 gradeverifier by grader7",
        "3 gradeverifier by grader7",
        "4 final by parrotthe answer",
    ]
    assert stepped.texts(".branch > summary") == [
        "branch 1.0: grade 1 step",
        "branch 1.1: grade 1 step",
    ]
    assert "built on 0" in stepped.texts(".branch .step > .where")[0]
    assert stepped.texts(".branch .step pre")[0] == "<b>so</b> grade 7"  # as text
    stepped.run("document.querySelector('.branch > summary').click()")
    assert stepped.run("return document.querySelector('.branch').open") is False

    stepped.open(f"#/traces?a={base}unread/program=checked&b=none", ready="traces")
    assert stepped.texts(".program > summary") == ["7 steps of the program4 unread"]
    assert stepped.texts(".branch .step > summary .tag.warn") == ["unread"] * 4
    assert not stepped.console()


def test_a_scored_finding_shows_which_of_its_tokens_the_reasoning_foretold(driver, tmp_path):
    hostile = "<b>Eleven</b> vessels anchor"
    with World(model={"id": "p"}) as server:
        write_study(tmp_path, server)
        said, server.reply_to = (
            server.reply_to,
            lambda body: (said(body) or "").replace("Eleven vessels", hostile[:-7]),
        )
        command = [sys.executable, "-m", "mbt_cli", "run", "study.toml", "-q"]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    (index,) = tmp_path.glob("runs/world/tables/**/index.html")
    page = Page(driver, index)

    page.open("#/traces?a=replies/benchmark=ports/split=test/model=policy&b=none", ready="traces")

    assert page.texts(".evidence > summary") == ["Evidence token by token"]
    assert page.texts(".heat")[0] == hostile  # as text
    classes = page.run(
        "return [...document.querySelectorAll('.heat span')].map((s) => s.className)"
    )
    assert classes == ["up2"] * 6
    assert page.texts(".evidence li .where")[0] == "gain: +4.16 nats, +1.39 a token"
    assert page.texts(".tasks p")[0] == "Look at the boats of port 1."
    assert not page.console()
