import contextlib
import hashlib
import random
import resource
import subprocess
import sys
from datetime import UTC, datetime

import polars as pl
import pytest

from mbt_cli.core import rows
from mbt_cli.errors import ArtifactError, MissingInputError
from mbt_cli.stages.report import study_cells
from mbt_cli.store.artifacts import ArtifactWriter, complete_finish
from mbt_cli.store.cells import cell_folder, complete_move, move_aside, read_failure, record_failure
from mbt_cli.store.lineage import Lineage, read_lineage
from mbt_cli.store.parquet import ParquetStream, intact_rows
from mbt_cli.store.reading import input_sha256, read_rows, scan_study, verify

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
ADDRESS = "base/benchmark=tiny/model=1e-4"


def draft(address=ADDRESS, **fields):
    basis = {"study": "s", "stage": "base", "kind": "rollout", "address": address, "spec": {"a": 1}}
    return Lineage(
        **{**basis, "fingerprint": "f1", "base_fingerprint": "b1", **fields}, started_at=NOON
    )


def rollouts(*rollout_rows):
    blank = dict.fromkeys(rows.ROLLOUTS)
    return pl.DataFrame([{**blank, **row} for row in rollout_rows], schema=rows.ROLLOUTS)


TWO = rollouts(
    {
        "question_id": "q1", "sample": 0, "reply": "Oslo", "prompt_tokens": 10,
        "completion_tokens": 3, "messages": [{"role": "user", "content": "Capital?"}],
    },
    {"question_id": "q2", "sample": 0, "failure": "http_400: too long", "prompt_tokens": 5},
)  # fmt: skip


def write(folder, frame=TWO, *, address=ADDRESS, lineage=None):
    writer = ArtifactWriter(folder, rows.ROLLOUTS, address=address, fingerprint="f1")
    with writer:
        writer.write(frame)
        (writer.files / "note.txt").write_text("hello")
        return writer.finish(lineage or draft(address))


def interrupt_after(folder, act):
    """A run of a cell that is interrupted after `act`."""
    with (
        contextlib.suppress(KeyboardInterrupt),
        ArtifactWriter(folder, rows.ROLLOUTS, address="a", fingerprint="f1") as writer,
    ):
        act(writer)
        raise KeyboardInterrupt


def test_what_was_written_is_read_back_with_its_lineage(tmp_path):
    written = write(tmp_path)

    assert read_rows(tmp_path).collect().equals(TWO)
    assert read_lineage(tmp_path) == written
    assert written.files["files/note.txt"].sha256 == hashlib.sha256(b"hello").hexdigest()
    assert (tmp_path / "files/note.txt").read_text() == "hello"
    assert (written.rows, written.failed_rows, written.failures) == (2, 1, {"http_400": 1})
    assert (written.tokens.prompt, written.tokens.completion) == (15, 3)
    assert written.columns["sample"] == "Int64"
    assert written.packages["polars"] == pl.__version__
    assert verify(tmp_path) == []


def test_batches_are_appended_in_order_and_hashed(tmp_path):
    with ArtifactWriter(tmp_path, rows.ROLLOUTS, address="a", fingerprint="f1") as writer:
        for number in range(5):
            writer.write(TWO.with_columns(sample=pl.lit(number, pl.Int64)))
        lineage = writer.finish(draft("a"))

    on_disk = (tmp_path / "rows.parquet").read_bytes()
    assert lineage.files["rows.parquet"].sha256 == hashlib.sha256(on_disk).hexdigest()
    assert lineage.files["rows.parquet"].bytes == len(on_disk)
    assert read_rows(tmp_path).collect()["sample"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_an_empty_artifact_keeps_its_columns(tmp_path):
    with ArtifactWriter(tmp_path, rows.ROLLOUTS, address="a", fingerprint="f1") as writer:
        writer.finish(draft("a"))

    assert read_rows(tmp_path).collect_schema() == rows.ROLLOUTS


def test_columns_that_differ_from_the_schema_are_refused(tmp_path):
    with ArtifactWriter(tmp_path, rows.ROLLOUTS, address="a", fingerprint="f1") as writer:
        wrong = TWO.with_columns(sample=pl.lit("zero")).drop("seed")

        with pytest.raises(
            ArtifactError, match=r"`sample` is String, not Int64; `seed` is missing"
        ):
            writer.write(wrong)


def test_a_column_of_nulls_takes_the_type_of_the_schema(tmp_path):
    write(tmp_path, TWO.with_columns(reasoning=pl.lit(None)))

    assert read_rows(tmp_path).collect_schema() == rows.ROLLOUTS


def test_an_interrupted_run_leaves_no_artifact_and_keeps_the_journal(tmp_path):
    (tmp_path / "journal").mkdir()

    interrupt_after(tmp_path, lambda writer: writer.write(TWO))

    assert read_lineage(tmp_path) is None
    assert not (tmp_path / "rows.parquet").exists()
    assert not (tmp_path / "rows.parquet.partial").exists()
    assert (tmp_path / "journal").exists()
    with pytest.raises(MissingInputError):
        read_rows(tmp_path)


def test_files_of_an_interrupted_run_do_not_enter_the_next(tmp_path):
    interrupt_after(tmp_path, lambda writer: (writer.files / "old.txt").write_text("old"))

    assert set(write(tmp_path).files) == {"rows.parquet", "files/note.txt"}


def test_a_finished_artifact_removes_journal_and_failure(tmp_path):
    (tmp_path / "journal").mkdir()
    record_failure(tmp_path, ADDRESS, ArtifactError("no", hint="do"), now=NOON)
    assert read_failure(tmp_path)["hint"] == "do"

    write(tmp_path)

    assert not (tmp_path / "journal").exists()
    assert read_failure(tmp_path) is None


@pytest.mark.parametrize("renamed", [(), ("rows.parquet",), ("rows.parquet", "files")])
def test_a_crash_between_the_last_renames_is_completed(tmp_path, renamed):
    finished = write(tmp_path)
    for name in ("lineage.json", *({"rows.parquet", "files"} - set(renamed))):
        (tmp_path / name).rename(tmp_path / f"{name}.partial")

    completed = complete_finish(tmp_path)

    assert completed == finished
    assert verify(tmp_path) == []
    assert not list(tmp_path.glob("*.partial"))


def test_a_crash_while_rows_arrive_completes_nothing(tmp_path):
    write(tmp_path)
    (tmp_path / "lineage.json").rename(tmp_path / "lineage.json.partial")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")

    assert complete_finish(tmp_path) is None
    assert complete_finish(tmp_path) is None
    assert read_lineage(tmp_path) is None


def test_extending_a_cell_keeps_the_old_artifact_until_the_end(tmp_path):
    write(tmp_path)
    writer = ArtifactWriter(tmp_path, rows.ROLLOUTS, address=ADDRESS, fingerprint="f2")

    with writer:
        writer.write(pl.concat([TWO, TWO.with_columns(sample=pl.lit(1, pl.Int64))]))
        while_running = read_rows(tmp_path).collect().height
        writer.finish(draft(fingerprint="f2"))

    assert while_running == 2
    assert read_rows(tmp_path).collect().height == 4
    assert verify(tmp_path) == []


def test_a_file_of_another_length_is_not_read(tmp_path):
    write(tmp_path)
    with (tmp_path / "rows.parquet").open("ab") as file:
        file.write(b"x")

    with pytest.raises(ArtifactError, match=r"rows\.parquet` has \d+ bytes, its lineage says"):
        read_rows(tmp_path)


def test_a_file_whose_footer_is_gone_is_not_read(tmp_path):
    write(tmp_path)
    path = tmp_path / "rows.parquet"
    path.write_bytes(path.read_bytes()[:-4] + b"xxxx")

    with pytest.raises(ArtifactError, match="not a complete Parquet file"):
        read_rows(tmp_path)


def test_a_file_of_another_fingerprint_is_not_read(tmp_path):
    write(tmp_path, lineage=draft(fingerprint="f9"))

    with pytest.raises(ArtifactError, match="made with the fingerprint f1"):
        read_rows(tmp_path)


def test_one_changed_byte_is_found_when_an_artifact_becomes_an_input(tmp_path):
    write(tmp_path)
    before = input_sha256(tmp_path)
    path = tmp_path / "files/note.txt"
    path.write_text("hullo")

    assert before == read_lineage(tmp_path).content_sha256()
    assert verify(tmp_path) == [f"`{path}` differs from its lineage (sha256)"]
    with pytest.raises(ArtifactError, match=r"note\.txt"):
        input_sha256(tmp_path)


def test_rows_are_intact_exactly_where_no_byte_changed(tmp_path):
    made = pl.DataFrame({"n": range(60_000), "text": [f"{n * 7919:>400}" for n in range(60_000)]})
    path = tmp_path / "rows.parquet"
    stream = ParquetStream(path, made.schema, {})
    for start in range(0, made.height, 1_000):
        stream.append(made.slice(start, 1_000))
    record = stream.finish()
    content = path.read_bytes()
    draw = random.Random(5)

    assert intact_rows(path, record) == [range(60_000)]
    lost = set()
    for _ in range(40):
        changed = bytearray(content)
        changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        intact = intact_rows(path, record)
        for part in intact:
            read = pl.scan_parquet(path).slice(part.start, len(part)).collect()
            assert read.equals(made.slice(part.start, len(part)))
        lost.add(60_000 - sum(map(len, intact)))
    assert 0 < min(lost) < 30_000
    path.write_bytes(content[:-1])
    assert intact_rows(path, record) == []


def test_verify_finds_missing_and_unknown_files(tmp_path):
    write(tmp_path)
    (tmp_path / "files/note.txt").rename(tmp_path / "files/other.txt")

    assert verify(tmp_path) == [
        f"`{tmp_path}/files/note.txt` is missing",
        f"`{tmp_path}/files/other.txt` is not in the lineage",
    ]


def test_scan_gives_every_axis_as_text(tmp_path):
    for model in ("1e-4", "m=2"):
        address = f"base/benchmark=tiny/model={model}"
        write(cell_folder(tmp_path, "s", address), address=address)

    found = scan_study(tmp_path / "s", "base").sort("model", "question_id").collect()

    assert found["model"].to_list() == ["1e-4", "1e-4", "m=2", "m=2"]
    assert found["benchmark"].unique().to_list() == ["tiny"]
    assert found["address"].unique().sort().to_list() == [
        "base/benchmark=tiny/model=1e-4",
        "base/benchmark=tiny/model=m=2",
    ]


def test_an_unfinished_cell_is_not_scanned(tmp_path):
    write(tmp_path / "a=1", address="base/a=1")
    write(tmp_path / "a=2", address="base/a=2")
    (tmp_path / "a=2" / "lineage.json").unlink()

    assert scan_study(tmp_path).collect()["a"].unique().to_list() == ["1"]


def test_polars_reads_a_stage_with_its_axes_as_columns(tmp_path):
    write(tmp_path / "s/base/model=a", address="base/model=a")

    found = pl.scan_parquet(tmp_path / "s/base/**/rows.parquet", hive_partitioning=True).collect()

    assert found["model"].to_list() == ["a", "a"]


@pytest.mark.parametrize("address", ["", "..", "base/../x", "/base", "base//x", ".replaced/x"])
def test_an_address_never_leaves_the_study(tmp_path, address):
    with pytest.raises(ValueError, match="not a cell address"):
        cell_folder(tmp_path, "s", address)


def test_a_replaced_artifact_is_moved_whole_and_its_lock_stays(tmp_path):
    folder = cell_folder(tmp_path, "s", "base/model=a")
    write(folder, address="base/model=a")
    (folder / "lock").write_text("{}")

    first = move_aside(tmp_path, "s", folder, now=NOON)
    write(folder, address="base/model=a")
    second = move_aside(tmp_path, "s", folder, now=NOON)

    assert first == tmp_path / ".replaced/s/2026-01-02T120000Z/base/model=a"
    assert verify(first) == []
    assert verify(second) == []
    assert read_lineage(folder) is None
    assert (folder / "lock").exists()
    assert move_aside(tmp_path, "s", folder, now=NOON) is None


@pytest.mark.parametrize("moved", [["lineage.json"], ["lineage.json", "rows.parquet"]])
def test_a_move_that_a_crash_interrupted_is_completed(tmp_path, moved):
    folder = cell_folder(tmp_path, "s", "base/model=a")
    write(folder, address="base/model=a")
    whole = move_aside(tmp_path, "s", folder, now=NOON)
    write(folder, address="base/model=a")
    half = whole.with_name("model=a+")
    half.mkdir()
    for name in moved:
        (folder / name).rename(half / name)

    complete_move(tmp_path, "s", folder)

    assert verify(half) == verify(whole) == []
    assert list(folder.iterdir()) == []


def test_rows_that_no_moved_artifact_lacks_stay(tmp_path):
    folder = cell_folder(tmp_path, "s", "base/model=a")
    write(folder, address="base/model=a")
    move_aside(tmp_path, "s", folder, now=NOON)
    write(folder, address="base/model=a")
    (folder / "lineage.json").unlink()  # by hand, as a message of mbt says

    complete_move(tmp_path, "s", folder)

    assert (folder / "rows.parquet").is_file()


def test_a_file_in_place_of_a_folder_is_a_clear_error(tmp_path):
    (tmp_path / "runs").write_text("a file where a folder should be")
    writer = ArtifactWriter(tmp_path / "runs" / "s", rows.ROLLOUTS, address="a", fingerprint="f1")

    with (
        pytest.raises(
            ArtifactError, match=r"cannot write `.*runs/s`: .* is a file where a folder is needed"
        ),
        writer,
    ):
        pass


FILL = """
import sys, resource, random
from pathlib import Path
sys.path.insert(0, "tests/unit")
import polars as pl
from test_store_artifacts import TWO, draft
from mbt_cli.core import rows
from mbt_cli.errors import ArtifactError
from mbt_cli.store.artifacts import ArtifactWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
long = TWO.with_columns(reply=pl.lit(random.Random(0).randbytes(500_000).hex()))
try:
    with ArtifactWriter(Path(sys.argv[1]), rows.ROLLOUTS, address="a", fingerprint="f1") as writer:
        writer.write(long)
        writer.finish(draft("a"))
except ArtifactError as error:
    print(error.message, error.hint, sep="|")
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on file sizes")
def test_a_full_disk_is_a_clear_error_and_the_earlier_artifact_stays_whole(tmp_path):
    write(tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    message, hint = done.stdout.strip().split("|")
    assert message.startswith(f"cannot write `{tmp_path}/rows.parquet.partial`: ")
    assert "free some space" in hint
    assert verify(tmp_path) == []
    assert not (tmp_path / "rows.parquet.partial").exists()


def test_the_cells_of_a_study_come_from_their_lineages(tmp_path):
    write(tmp_path / "base/model=a", address="base/model=a")
    write(
        tmp_path / "base/model=b",
        address="base/model=b",
        lineage=draft("base/model=b", notes={"funnel": {"kept": 1}}),
    )

    cells = study_cells(tmp_path)

    assert cells["address"].to_list() == ["base/model=a", "base/model=b"]
    assert cells["prompt_tokens"].to_list() == [15, 15]
    assert cells["failed_rows"].to_list() == [1, 1]
    assert cells["notes"].to_list() == ["{}", '{"funnel":{"kept":1}}']
