import shutil
from pathlib import Path

import polars as pl
import pytest

from mbt_cli.core.tables import Column, TableData
from mbt_cli.errors import ManifestError, UsageError
from mbt_cli.registry import SCORES
from mbt_cli.report.formats import formatted_rows
from mbt_cli.report.metrics import METRIC_NAMES
from mbt_cli.report.references import (
    lines_without_number,
    read_reference,
    reference_file,
    reference_problems,
    with_reference,
)
from tests.conftest import SMALL_STUDY

AXES = ("benchmark", "model")
TABLE = TableData(
    name="t",
    title="T",
    columns=[
        Column("model", "model", kind="label"),
        Column("exact_match", "exact match", unit="percent", best="high"),
        Column("tokens", "tokens", decimals=0),
    ],
    rows=pl.DataFrame(
        {
            "benchmark": ["musique", "musique"],
            "model": ["small", "large"],
            "exact_match": [0.417, None],
            "tokens": [700.0, 900.0],
        }
    ),
)


def reference(tmp_path, text):
    path = tmp_path / "published.csv"
    path.write_text(text)
    return read_reference(path)


def test_published_numbers_stand_beside_ours_with_the_difference(tmp_path):
    found = reference(
        tmp_path,
        "# from the paper, table 2\nbenchmark,model,metric,value\n"
        "musique,small,exact_match,40.2\nhotpotqa,large,exact_match,1\n,large,tokens,731\n",
    )

    table = with_reference(TABLE, found, AXES)

    assert [column.title for column in table.columns] == [
        "model", "exact match", "exact match, published", "difference", "tokens",
        "tokens, published", "difference",
    ]  # fmt: skip
    assert [[cell.text for cell in row] for row in formatted_rows(table)] == [
        ["small", "41.7", "40.2", "1.5", "700", "—", "—"],
        ["large", "—", "—", "—", "900", "731", "169"],
    ]


def test_a_reference_without_axes_is_about_every_row(tmp_path):
    table = with_reference(TABLE, reference(tmp_path, "metric,value\ntokens,800\n"), AXES)

    assert [[cell.text for cell in row[-2:]] for row in formatted_rows(table)] == [
        ["800", "-100"],
        ["800", "100"],
    ]


def test_two_values_for_one_number_are_refused(tmp_path):
    found = reference(tmp_path, "model,metric,value\nsmall,exact_match,1\n,exact_match,2\n")

    with pytest.raises(ValueError, match="2 values for model small"):
        with_reference(TABLE, found, AXES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,value\na,1\n", "has no column `metric`"),
        ("metric,value\nexact_match,many\n", "line 2: `many` is not a number"),
        ("", "cannot read the reference"),
    ],
)
def test_a_reference_that_cannot_be_read_says_why(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        reference(tmp_path, text)


def test_a_missing_reference_says_where(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.csv"):
        read_reference(tmp_path / "nowhere.csv")


def test_unknown_names_are_found_with_their_lines(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text(
        "# the paper\nbenchmark,modell,metric,value,source\nmusiqe,small,exact_mach,1,p. 3\n"
        "musique,small,pass@4,2,\n,,rrp_new,3,\n"
    )
    axes = {"benchmark": {"musique"}, "model": {"small"}}

    assert list(reference_problems(path, axes, {"exact_match", "rrp"})) == [
        f"`{path}`: no axis `modell`; did you mean `model`?",
        f"`{path}`, line 3: no metric `exact_mach`; did you mean `exact_match`?",
        f"`{path}`, line 3: no benchmark `musiqe`; did you mean `musique`?",
    ]


def test_lines_that_no_table_shows_are_listed(tmp_path):
    found = reference(
        tmp_path, "model,metric,value\nsmall,tokens,1\nother,tokens,2\nsmall,mqi,3\n,tokens,4\n"
    )

    assert lines_without_number(found, [TABLE], AXES) == [3, 4]


def test_a_shipped_reference_is_named_without_a_path_and_read():
    published = read_reference(reference_file("qwen3-1.7b-base"))

    strict = published.filter(metric="verified:strict")
    assert dict(strict["benchmark", "value"].iter_rows()) == {"gsm8k": 69.60, "gsm8k-4shot": 59.44}
    keys = published.select("model", "benchmark", "metric")
    assert not keys.is_duplicated().any()


def test_a_shipped_reference_knows_the_metrics_and_may_have_more_than_a_study(tmp_path):
    axes = {"benchmark": {"mbpp"}, "model": {"qwen3-1.7b-base", "mine"}}
    metrics = {*SCORES.kinds(), *METRIC_NAMES}
    path = reference_file("qwen3-1.7b-base")
    assert list(reference_problems(path, axes, metrics)) == []
    # as a file of the user's, every name counts
    own = shutil.copy(path, tmp_path)
    known = {name: set(read_reference(path)[name]) for name in axes}
    assert list(reference_problems(Path(own), known, metrics)) == []
    (wrong,) = reference_problems(path, {**axes, "model": {"mine"}}, metrics)
    assert wrong.startswith("no line of `qwen3-1.7b-base` is about this study; it has model: qwen3")


def test_published_numbers_of_a_shipped_reference_stand_beside_those_of_their_judge():
    table = TableData(
        name="t",
        title="T",
        columns=[
            Column("verified:strict", "strict", unit="percent"),
            Column("verified", "verified", unit="percent"),
        ],
        rows=pl.DataFrame(
            {
                "benchmark": ["gsm8k", "mbpp", "gsm8k"],
                "model": ["qwen3-1.7b-base", "qwen3-1.7b-base", "other"],
                "verified:strict": [0.7, None, 0.1],
                "verified": [None, 0.5, None],
            }
        ),
    )

    shown = with_reference(table, read_reference(reference_file("qwen3-1.7b-base")), AXES)

    assert [[cell.text for cell in row] for row in formatted_rows(shown)] == [
        ["70.0", "69.6", "0.4", "—", "—", "—"],
        ["—", "—", "—", "50.0", "55.8", "-5.8"],
        ["10.0", "—", "—", "—", "—", "—"],
    ]


REPORT = 'tables = ["main_results"]\n'


def test_the_content_of_a_reference_is_in_the_fingerprint(load, tmp_path):
    path = tmp_path / "published.csv"
    text = SMALL_STUDY.replace(REPORT, f'{REPORT}reference = "{path}"\n')

    def spec(content):
        path.write_text(content)
        return load(text).cells["tables"].spec

    one = spec("metric,value\nexact_match,40\n")

    assert one == spec("metric,value\nexact_match,40\n")
    assert one != spec("metric,value\nexact_match,41.5\n")
    assert "reference" not in {k for k, v in load().cells["tables"].spec.items() if v}


def test_a_manifest_names_what_is_wrong_with_its_reference(load, tmp_path):
    path = tmp_path / "published.csv"
    text = SMALL_STUDY.replace(REPORT, f'{REPORT}reference = "{path}"\n')

    with pytest.raises(ManifestError, match=r"stage\.tables\.reference.*no file"):
        load(text)
    path.write_text("model,metric,value\nparot,exact_match,1\n")
    with pytest.raises(ManifestError, match=r"line 2: no model `parot`; did you mean `parrot`"):
        load(text)
