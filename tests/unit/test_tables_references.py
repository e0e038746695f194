import polars as pl
import pytest

from mbt_cli.core.tables import Column, TableData
from mbt_cli.errors import UsageError
from mbt_cli.report.formats import formatted_rows
from mbt_cli.report.references import read_reference, with_reference

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
        ("metric,value\nexact_match,many\n", "row 1: `many` is not a number"),
        ("", "cannot read the reference"),
    ],
)
def test_a_reference_that_cannot_be_read_says_why(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        reference(tmp_path, text)


def test_a_missing_reference_says_where(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.csv"):
        read_reference(tmp_path / "nowhere.csv")
