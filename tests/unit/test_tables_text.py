import csv
import io
import shutil
import subprocess
from decimal import Decimal

import polars as pl
import pytest

from mbt_cli.core.number_text import number_text, p_text, rounded
from mbt_cli.core.tables import Column, TableData
from mbt_cli.errors import ArtifactError
from mbt_cli.report.files import read_table, write_tables
from mbt_cli.report.formats import csv_text, escape_latex, formatted_rows, html, latex, markdown

HOSTILE = "a_b & 50% $x$ #1 ~ ^"
COLUMNS = [
    Column("model", "model", kind="label"),
    Column("em", "EM", unit="percent", best="high"),
    Column("tokens", "tokens", decimals=0, best="low"),
    Column("aes", "AES", decimals=3),
]


def table(**changes):
    rows = pl.DataFrame(
        {
            "model": ["one", HOSTILE, "<b>three</b>", "four"],
            "em": [0.4166, 0.625, 0.05, None],
            "em_low": [0.2083, 0.4583, 0.0, None],
            "em_high": [0.625, 0.7917, 0.1667, None],
            "em_n": [24, 24, 20, None],
            "em_failed": [0, 1, 4, None],
            "em_tied": [True, False, False, None],
            "tokens": [1000.5, 999.5, 12.0, None],
            "aes": [-0.5, 0.25, None, None],
        }
    )
    facts = {"name": "t", "title": "T", "columns": COLUMNS, "rows": rows, "notes": ["A | note."]}
    return TableData(**{**facts, **changes})


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.285, "percent", 0, "29"),  # as a float product 28.499999999999996
        (2.675, "", 2, "2.68"),  # as a float a little below
        (-2.5, "", 0, "-3"),  # halves go away from zero
        (-0.0004, "", 3, "0.000"),  # no negative zero
        (1e-9, "percent", 1, "0.0"),
        (1234567.0, "tokens", 0, "1234567"),
        (1.0, "percent", 1, "100.0"),
        (None, "", 1, "—"),
        (float("nan"), "", 1, "—"),
        (float("inf"), "", 1, "—"),
    ],
)
def test_numbers_are_rounded_by_one_rule(value, unit, decimals, text):
    assert number_text(value, unit=unit, decimals=decimals) == text


def test_a_number_on_the_edge_is_rounded_as_its_digits_stand():
    assert rounded(0.125, decimals=2) == Decimal("0.13")
    assert rounded(0.41666, unit="percent", decimals=1) == Decimal("41.7")


@pytest.mark.parametrize(
    ("p", "text"), [(0.0005, "0.001"), (0.00049, "<0.001"), (1, "1.000"), (None, "—")]
)
def test_a_p_value_is_never_zero(p, text):
    assert p_text(p) == text


def test_markdown_is_aligned_and_marks_the_best():
    lines = markdown(table()).splitlines()
    assert lines[0] == "### T"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:8]]
    assert cells == [
        ["one", "41.7† [20.8, 62.5]", "1001", "-0.500"],
        [HOSTILE, "**62.5** [45.8, 79.2]", "1000", "0.250"],
        [r"\<b\>three\</b\>", "5.0 [0.0, 16.7]", "**12**", "—"],
        ["four", "—", "—", "—"],
    ]
    assert len({len(line) for line in lines[2:8]}) == 1
    assert lines[-1] == r"- A \| note."


def test_csv_holds_each_number_with_its_interval_and_counts():
    rows = list(csv.DictReader(io.StringIO(csv_text(table()))))

    assert rows[1] == {
        "model": HOSTILE, "em": "62.5", "em_low": "45.8", "em_high": "79.2", "em_n": "24",
        "em_failed": "1", "em_mark": "best", "tokens": "1000", "tokens_mark": "second",
        "aes": "0.250",
    }  # fmt: skip
    assert rows[0]["em_mark"] == "second †"
    assert rows[3] == {**dict.fromkeys(rows[0], ""), "model": "four"}


def test_csv_holds_the_bounds_that_missing_samples_leave_open():
    bounds = [
        pl.Series("em_if_wrong", [0.4, None, 0.04, None]),
        pl.Series("em_if_right", [0.5] * 4),
    ]
    rows = table().rows.with_columns(bounds)

    found = list(csv.DictReader(io.StringIO(csv_text(table(rows=rows)))))

    assert [row["em_if_wrong"] for row in found] == ["40.0", "", "4.0", ""]
    assert found[0]["em_if_right"] == "50.0"


def test_csv_and_latex_without_intervals_hold_no_marks_of_significance():
    notes = ["†: not different.", "[—]: no interval: one question.", "A note."]
    one = table(notes=notes)

    plain = next(csv.DictReader(io.StringIO(csv_text(one, intervals=False))))
    tex = latex(one, intervals=False)

    assert set(plain) == {"model", "em", "em_n", "em_failed", "tokens", "aes"}
    assert "dagger" not in tex
    assert "scriptsize" not in tex
    assert "interval" not in tex
    assert "A note." in tex


def test_every_format_shows_the_same_text_for_a_number():
    texts = [cell.text for row in formatted_rows(table()) for cell in row[1:] if cell.text != "—"]

    for written in (markdown(table()), csv_text(table()), latex(table()), html(table())):
        assert [text for text in texts if text not in written] == []


def test_latex_marks_best_second_and_ties_and_aligns_the_rest():
    lines = latex(table()).splitlines()

    dagger = r"$^{\dagger}$"
    assert rf"one & {{\underline{{41.7}}{dagger}}} & 1001 & -0.500 \\" in lines
    assert (
        r"a\_b \& 50\% \$x\$ \#1 \textasciitilde{} \textasciicircum{} & \bfseries 62.5 & "
        r"{\underline{1000}} & 0.250 \\"
    ) in lines
    assert any(line.endswith(r" & 5.0 & \bfseries 12 & {---} \\") for line in lines)
    assert r" & {\scriptsize [45.8, 79.2]} &  &  \\[2pt]" in lines
    assert any("Below numbers: 95 \\% intervals" in line for line in lines)
    columns = next(line for line in lines if line.startswith(r"\begin{tabular}"))
    assert f"S[table-format=2.1,table-space-text-post={{{dagger}}}]" in columns
    assert "S[table-format=4.0]" in columns
    assert "S[table-format=-1.3]" in columns


def test_an_underlined_number_is_padded_to_the_width_of_its_column():
    rows = pl.DataFrame({"model": ["a", "b", "c"], "x": [-123.0, 100.0, 7.0]})
    narrow = table(columns=[COLUMNS[0], Column("x", "x", best="high")], rows=rows)

    assert r"{\phantom{00$-$}\underline{7.0}}" in latex(narrow)


def test_nothing_in_a_name_means_anything_to_tex():
    assert escape_latex('{\\x} "q" <a|b>') == (
        r"\{\textbackslash{}x\} ''q'' \textless{}a\textbar{}b\textgreater{}"
    )


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a paper"])
def test_latex_compiles(tmp_path, alone):
    (tmp_path / "t.tex").write_text(latex(table()))
    paper = (
        "\\documentclass{article}\\usepackage{booktabs,siunitx}\\begin{document}"
        "Before\\input{t}\\input{t}after\\end{document}"
    )
    (tmp_path / "paper.tex").write_text(paper)

    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t" if alone else "paper"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-2000:]


def test_html_escapes_every_text_and_keeps_raw_numbers_for_sorting():
    page = html(table(title="<script>alert(1)</script>"))

    assert "<script>" not in page
    assert "&lt;b&gt;three&lt;/b&gt;" in page
    assert (
        '<td class="number" data-value="0.625" title="n 24, failed 1"><b>62.5</b>'
        " <small>[45.8, 79.2]</small></td>"
    ) in page


def test_ranks_go_by_the_numbers_as_shown_within_each_group():
    rows = pl.DataFrame(
        {"benchmark": ["a", "a", "a", "b", "b", "b"], "em": [0.50001, 0.5, 0.4, 0.9, 0.9, None]}
    )
    columns = [Column("benchmark", "benchmark", kind="label"), COLUMNS[1]]
    grouped = table(columns=columns, rows=rows, compared_within=["benchmark"])

    ranks = [row[1].rank for row in formatted_rows(grouped)]

    # 50.0 twice is the best twice; of two different numbers only one is marked; equal ones are not
    assert ranks == ["best", "best", "", "", "", ""]


def test_the_second_best_needs_a_third():
    rows = pl.DataFrame({"model": ["a", "b", "c"], "em": [0.1, 0.3, 0.2]})

    ranks = [row[1].rank for row in formatted_rows(table(columns=COLUMNS[:2], rows=rows))]

    assert ranks == ["", "best", "second"]


def test_an_empty_table_is_written_in_every_format():
    empty = table(rows=table().rows.clear())

    assert "EM (%)" in markdown(empty)
    assert csv_text(empty).count("\n") == 1
    assert r"\bottomrule" in latex(empty)
    assert "<tbody>" in html(empty)


def test_a_table_is_written_in_five_formats_and_reads_back_equal(tmp_path):
    paths = write_tables(tmp_path, [table()])

    assert [path.name for path in paths] == ["t.md", "t.csv", "t.tex", "t.html", "t.parquet"]
    back = read_table(tmp_path / "t.parquet")
    assert back.rows.equals(table().rows)
    assert (back.columns, back.title, back.notes) == (COLUMNS, "T", ["A | note."])


def test_another_parquet_file_is_no_table(tmp_path):
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "x.parquet")

    with pytest.raises(ArtifactError, match="not a table written by mbt"):
        read_table(tmp_path / "x.parquet")
