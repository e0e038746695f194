"""The page's data: scripts that a browser can take, signs to filter by, chunks that fit."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from mbt_cli.core.seals import sealed
from mbt_cli.core.tables import Column, TableData
from mbt_cli.report.page import PageInputs, page_table, script, write_page
from mbt_cli.report.traces import SIGNS, page_trace, signs
from mbt_cli.store.reading import upstream
from tests.integration.browser.made_study import MadeStudy, Size

ASSETS = Path(__file__).resolve().parents[2] / "mbt_cli" / "report" / "assets"
ROLLOUT = {
    "reasoning": "One.\n\nTwo.",
    "reply": "<answer>Oslo</answer>",
    "answer": "Oslo",
    "finish_reason": "stop",
    "failure": None,
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens", "seed")),
    **dict.fromkeys(("attempts", "seconds", "request_key")),
}


def taken(path: Path):
    """The value that a script gives the page."""
    name, value = re.fullmatch(r'mbt\.take\("([^"]+)",(.*)\);\n', path.read_text()).groups()
    assert path.name == f"{name}.js"
    return json.loads(value)


def names_of(bits: int) -> set[str]:
    return {sign for k, sign in enumerate(SIGNS) if bits >> k & 1}


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--", "a\u2028b\u2029c", "\x00", "\U0001f9ea"]
)
def test_a_script_holds_any_text_without_ending_early(text):
    written = script("x", {"text": text})

    body = written.decode().removeprefix('mbt.take("x",').removesuffix(");\n")
    assert json.loads(body) == {"text": text}
    assert "<" not in body
    assert "\u2028" not in body
    assert "\u2029" not in body


def test_signs_take_the_majority_of_the_parsed_votes():
    right_vote, wrong_vote = ("A", 1.0), ("B", 0.0)
    unparsed = {"failure": "unreadable_verdict: no verdict"}

    right = signs(ROLLOUT, 1.0, [unparsed], [right_vote, right_vote, wrong_vote])
    tie = signs(ROLLOUT, 0.0, [], [right_vote, wrong_vote])

    assert names_of(right) == {
        "judged",
        "judge_right",
        "matched",
        "match_right",
        "votes_differ",
        "unread",
    }
    assert names_of(tie) == {"matched", "votes_differ"}


def test_a_failed_rollout_has_no_unparsed_verdict():
    row = {**ROLLOUT, "failure": "http_500", "answer": None, "finish_reason": None}
    verdict = {"grade": None, "failure": "rollout_failed: http_500"}

    assert names_of(signs(row, None, [verdict])) == {"failed", "no_answer"}


@pytest.mark.parametrize("failure", ["empty", "refusal: no", "content_filter"])
def test_a_reply_without_text_is_a_wrong_answer_and_no_failure(failure):
    row = {**ROLLOUT, "failure": failure}
    verdict = {"grade": None, "failure": f"rollout_failed: {failure}"}

    assert names_of(signs(row, 0.0, [verdict])) == {"matched", "no_answer"}


def test_a_cut_rollout_has_the_sign():
    row = {**ROLLOUT, "finish_reason": "length", "answer": " "}

    assert names_of(signs(row, 0.0, [])) == {"matched", "cut", "no_answer"}


def test_a_trace_is_separate_from_the_reply_around_it():
    direct = {**ROLLOUT, "reasoning": None, "reply": " It is so. <answer>Oslo</answer> Bye."}

    thinking, answering = page_trace(ROLLOUT, {}), page_trace(direct, {})

    assert thinking["paragraphs"] == ["One.", "Two."]
    assert (thinking["within"], thinking["before"]) == (False, "<answer>Oslo</answer>")
    assert answering["paragraphs"] == ["It is so."]
    assert (answering["before"], answering["within"]) == (" ", True)
    assert answering["after"] == " <answer>Oslo</answer> Bye."


def test_a_table_has_texts_as_shown_and_numbers_to_sort_by():
    columns = (
        Column("model", "model", kind="label"),
        Column("em", "EM", unit="percent", best="high"),
    )
    rows = pl.DataFrame(
        {
            "address": ["s/a=1", None],
            "model": ["<m>", "n"],
            "em": [0.41666, None],
            "em_n": [6, None],
        }
    )

    made = page_table(TableData("t", "T", columns, rows))

    assert made["rows"] == [
        [{"t": "<m>"}, {"t": "41.7", "v": 0.41666, "n": 6}],
        [{"t": "n"}, {"t": "—"}],
    ]
    assert made["columns"][1]["title"] == "EM (%)"
    assert made["addresses"] == [["s/a=1"], [None]]
    assert made["groups"] == [{"key": "", "title": ""}]


def test_the_page_is_one_folder_with_every_trace_where_the_index_says(tmp_path):
    index_html = MadeStudy(tmp_path, Size(questions=70)).page()

    data = index_html.parent / "data"
    index = taken(data / "index.js")
    assert [cell["axes"]["variant"] for cell in index["cells"]] == ["base", "mbt_s"]
    for number, cell in enumerate(index["cells"]):
        chunks = [taken(data / f"traces-{number}-{k}.js") for k in range(len(cell["starts"]))]
        records = [record for chunk in chunks for record in chunk]
        assert len(records) == 70
        assert [r["answer"] for r in records] == cell["traces"]["answer"]
        starts = [sum(len(chunk) for chunk in chunks[:k]) for k in range(len(chunks))]
        assert starts == cell["starts"]
    (questions,) = index["sets"]
    assert questions["id"] == [f"q{k}" for k in range(70)]
    assert [q["question_id"] for q in taken(data / "questions-0-1.js")] == [
        f"q{k}" for k in range(64, 70)
    ]


def test_a_report_without_traces_writes_none(tmp_path):
    index_html = MadeStudy(tmp_path, Size()).page(traces=0)

    names = {path.name for path in (index_html.parent / "data").iterdir()}
    assert names == {"overview.js", "index.js", "cells.js", "compare-0.js"}


def test_a_limit_shows_the_same_first_questions_of_every_method(tmp_path):
    index_html = MadeStudy(tmp_path, Size()).page(traces=5)

    index = taken(index_html.parent / "data" / "index.js")
    assert [cell["traces"]["question"] for cell in index["cells"]] == [[0, 1, 2, 3, 4]] * 2
    assert [cell["rows"] for cell in index["cells"]] == [12, 12]


def test_ten_thousand_traces_are_shared_among_the_cells(tmp_path):
    index_html = MadeStudy(tmp_path, Size(questions=3_400, methods=("a", "b", "c"))).page()

    index = taken(index_html.parent / "data" / "index.js")
    # 10,000 / 3 rounded up
    assert [len(cell["traces"]["sample"]) for cell in index["cells"]] == [3_334] * 3


def test_the_page_lists_deleted_and_changed_inputs(tmp_path):
    study = MadeStudy(tmp_path, Size())
    inputs = study.write()
    rollouts = "base/benchmark=tiny/split=validation/model=m/variant=base"
    lineage = study.folder / rollouts / "lineage.json"
    record = json.loads(lineage.read_text())
    record["files"]["files/more"] = {"bytes": 1, "sha256": "0" * 64}
    lineage.write_text(json.dumps(sealed(record)))
    (study.folder / rollouts.replace("=base", "=mbt_s") / "lineage.json").unlink()

    found = upstream(study.folder, inputs.scores)
    page = write_page(study.report, inputs)

    assert found.changed == [rollouts]
    assert found.lost == [rollouts.replace("=base", "=mbt_s")]
    overview = taken(page.parent / "data" / "overview.js")
    assert overview["changed"] == found.changed
    assert overview["lost"] == found.lost


def test_a_study_without_scores_still_has_a_page(tmp_path):
    inputs = PageInputs(study="none", address="tables", study_folder=tmp_path, scores=())

    page = write_page(tmp_path / "files", inputs)

    assert taken(page.parent / "data" / "overview.js")["tables"] == []


# --- the assets themselves


def test_no_script_ever_parses_text_as_html_or_code():
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
        r"|createContextualFragment|DOMParser|setHTML|fetch\(|XMLHttpRequest|import\("
    )

    found = {p.name: forbidden.findall(p.read_text()) for p in ASSETS.glob("*.js")}

    assert found
    assert {name for name, hits in found.items() if hits} == set()


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_the_page_allows_nothing_but_its_own_files():
    parser = _Tags()
    parser.feed((ASSETS / "index.html").read_text())

    policies = [a["content"] for t, a in parser.tags if a.get("http-equiv")]
    (policy,) = policies
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self' file:"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in policy
    named = [a.get("src") or a.get("href") for _, a in parser.tags if "src" in a or "href" in a]
    files = [name for name in named if not name.startswith("#")]
    assert all((ASSETS / name).is_file() for name in files)
    assert not [a for _, a in parser.tags if "style" in a or any(k.startswith("on") for k in a)]


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
@pytest.mark.parametrize(
    ("ink", "ground"),
    [
        *(("ink", g) for g in ("ground", "card", "hover", "accent-ground", "good-ground")),
        *(("soft", g) for g in ("ground", "card", "hover", "accent-ground")),
        *(("accent", g) for g in ("ground", "card", "accent-ground")),
        *((s, f"{s}-ground") for s in ("good", "bad", "warn", "none")),
        *((s, "card") for s in ("good", "bad", "warn", "none")),
    ],
)
def test_text_keeps_a_contrast_of_four_and_a_half(theme, ink, ground):
    block = (ASSETS / "style.css").read_text().split(theme, 1)[1].split("}", 1)[0]
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))

    light, dark = sorted((_luminance(colours[ink]), _luminance(colours[ground])), reverse=True)

    assert (light + 0.05) / (dark + 0.05) >= 4.5
