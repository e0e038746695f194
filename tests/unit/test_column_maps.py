"""Data sets of others in place of a stage: keyed rows, or a clear refusal."""

import tomllib
from pathlib import Path

import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.core.column_maps import ColumnMap, SourcePreset, mapped_rows
from mbt_cli.errors import MissingInputError, UsageError
from mbt_cli.store.hub import HubAccess
from mbt_cli.store.imports import read_foreign, read_published

PRESETS = sorted((Path(__file__).parents[2] / "presets" / "sources").glob("*.toml"))

# two traces of question a, one of b, as a published table would hold them
PUBLISHED = pl.DataFrame(
    {
        "sample_id": [1, 1, 2],
        "metadata": [
            {"id": "a", "level": "x"},
            {"id": "a", "level": "x"},
            {"id": "b", "level": "x"},
        ],
        "rollout_id": [1, 1, 1],
        "trace_id": [1, 2, 1],
        "refined_trace": ["First.", "Second.", "Third."],
        "valid": [True, False, True],
    }
)
MAP = ColumnMap(
    columns={
        "question_id": "metadata.id",
        "sample": "rollout_id",
        "trace_id": "trace_id",
        "trace": "refined_trace",
    },
    numbers_from=1,
)


def preset(name):
    (path,) = [path for path in PRESETS if path.stem == name]
    return SourcePreset(**tomllib.loads(path.read_text(encoding="utf-8")))


def test_rows_get_our_keys_counted_from_0_and_every_column():
    made = mapped_rows(PUBLISHED, MAP, rows.TRACES)

    assert made.schema == rows.TRACES
    assert made.select("question_id", "sample", "trace_id", "trace").rows() == [
        ("a", 0, 0, "First."),
        ("a", 0, 1, "Second."),
        ("b", 0, 0, "Third."),
    ]
    assert made["failure"].null_count() == 3


def test_rows_that_the_source_calls_invalid_are_failed_rows_not_lost_ones():
    made = mapped_rows(PUBLISHED, MAP.model_copy(update={"valid": "valid"}), rows.TRACES)

    assert made["failure"].to_list() == [None, "not_valid_in_source", None]


def test_a_row_is_valid_only_if_each_of_several_columns_says_so():
    graded = PUBLISHED.with_columns(evaluation=pl.Series([0.0, 1.0, 1.0]))
    both = MAP.model_copy(update={"valid": ("valid", "evaluation")})

    made = mapped_rows(graded, both, rows.TRACES)

    assert made["failure"].to_list() == ["not_valid_in_source", "not_valid_in_source", None]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("refined_trace", "`refined_trace` is String, not true or false"),
        ("evaluation", "no column `evaluation`"),
    ],
)
def test_a_column_that_cannot_say_what_is_valid_is_refused(column, message):
    with pytest.raises(ValueError, match=message):
        mapped_rows(PUBLISHED, MAP.model_copy(update={"valid": ("valid", column)}), rows.TRACES)


def test_missing_numbers_are_counted_within_a_question():
    columns = {"question_id": "metadata.id", "trace": "refined_trace"}

    made = mapped_rows(PUBLISHED, ColumnMap(columns=columns), rows.TRACES)

    assert made.select("question_id", "sample", "trace_id").rows() == [
        ("a", 0, 0),
        ("a", 0, 1),
        ("b", 0, 0),
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"question_id": "id"}, "no column `id`; it has sample_id, metadata"),
        ({"question_id": "metadata.key"}, "`metadata` has no field `key`"),
        ({"question_id": "metadata.id", "text": "refined_trace"}, "no column `text`"),
        ({"trace": "refined_trace"}, "does not map `question_id`"),
        (
            {"question_id": "metadata.id", "sample": "refined_trace"},
            "column for `sample` is String, not Int64",
        ),
        (
            {"question_id": "metadata.id", "trace_id": "rollout_id"},
            "2 rows do not have a unique key, such as question_id a, sample 0, trace_id 1",
        ),
    ],
)
def test_a_map_that_does_not_fit_is_refused_in_words(columns, message):
    with pytest.raises(ValueError, match=message):
        mapped_rows(PUBLISHED, ColumnMap(columns=columns), rows.TRACES)


def test_a_row_without_a_question_id_is_refused():
    holed = PUBLISHED.with_columns(metadata=pl.lit(None).cast(PUBLISHED.schema["metadata"]))

    with pytest.raises(ValueError, match="3 rows have no question id"):
        mapped_rows(holed, MAP, rows.TRACES)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_shipped_source_is_a_valid_preset_whose_columns_we_have(path):
    source = preset(path.stem)

    schema = rows.ROLLOUTS if source.makes == "rollout" else rows.TRACES
    assert set(source.columns) <= set(schema)
    assert source.repo == f"metacognitive-behavioral-tuning/{path.stem}"


def test_the_five_published_sets_are_there():
    assert [path.stem for path in PRESETS] == [
        "distill-r-hotpotqa",
        "mbt-r-hotpotqa",
        "mbt-s-gpt-oss-120b",
        "rollouts-hotpotqa",
        "solutions-gpt-oss-120b",
    ]


def test_a_folder_in_the_hubs_layout_stands_in_for_a_stage(tmp_path):
    folder = tmp_path / "Qwen3-0.6B"
    folder.mkdir()
    PUBLISHED.write_parquet(folder / "train-00000-of-00001.parquet")
    source = preset("mbt-r-hotpotqa").model_copy(update={"repo": str(tmp_path)})
    axes = {"benchmark": "hotpotqa", "split": "train", "model": "qwen3-0.6b"}

    found = read_published(source, axes, rows.TRACES, HubAccess(offline=True))

    assert found.frame["trace"].to_list() == ["First.", "Second.", "Third."]
    assert found.frame["rollout_sample"].to_list() == [0, 0, 0]
    assert list(found.files) == ["train-00000-of-00001.parquet"]
    with pytest.raises(MissingInputError, match=r"Qwen3-4B/train-\*\.parquet"):
        read_published(source, axes | {"model": "qwen3-4b"}, rows.TRACES, HubAccess(offline=True))
    with pytest.raises(UsageError, match="no axis 'model'"):
        read_published(source, {"split": "train"}, rows.TRACES, HubAccess(offline=True))


def test_predictions_in_json_lines_become_rollouts(tmp_path):
    path = tmp_path / "predictions.jsonl"
    path.write_text('{"qid": 7, "text": "So <answer>4</answer>", "pred": "4"}\n')
    columns = {"question_id": "qid", "reply": "text", "answer": "pred"}

    found = read_foreign(str(path), ColumnMap(columns=columns), rows.ROLLOUTS)

    assert found.frame.select("question_id", "sample", "answer").rows() == [("7", 0, "4")]
    with pytest.raises(UsageError, match="no column `nope`"):
        read_foreign(str(path), ColumnMap(columns={"question_id": "nope"}), rows.ROLLOUTS)
