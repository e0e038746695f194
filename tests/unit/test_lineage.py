from datetime import UTC, datetime

import orjson
import pytest

from mbt_cli.errors import ArtifactError
from mbt_cli.store.lineage import Lineage, lineage_json, read_lineage
from mbt_cli.store.provenance import code, host, packages

PLAIN = Lineage(
    study="s", stage="base", kind="rollout", address="base/a=1", fingerprint="f",
    base_fingerprint="b", spec={"seed": 1}, started_at=datetime(2026, 1, 2, tzinfo=UTC),
)  # fmt: skip


def write(folder, **changes):
    record = {**orjson.loads(lineage_json(PLAIN)), **changes}
    (folder / "lineage.json").write_bytes(orjson.dumps(record))


def test_a_lineage_reads_back_equal(tmp_path):
    (tmp_path / "lineage.json").write_bytes(lineage_json(PLAIN))

    assert read_lineage(tmp_path) == PLAIN


def test_a_cell_without_lineage_is_unfinished(tmp_path):
    assert read_lineage(tmp_path) is None
    assert read_lineage(tmp_path / "nowhere") is None


def test_an_unknown_layout_is_refused(tmp_path):
    write(tmp_path, schema_version=7, something_new=1)

    with pytest.raises(ArtifactError, match="has schema version 7; this mbt reads version 1") as e:
        read_lineage(tmp_path)
    assert "away and run again" in e.value.hint


@pytest.mark.parametrize("content", [b"", b'{"study": ', b"[1]", b'{"study": 1}'])
def test_a_damaged_lineage_is_refused_by_its_path(tmp_path, content):
    (tmp_path / "lineage.json").write_bytes(content)

    with pytest.raises(ArtifactError, match=r"lineage\.json` is damaged"):
        read_lineage(tmp_path)


def test_a_time_without_a_zone_is_damage(tmp_path):
    write(tmp_path, started_at="2026-01-02T00:00:00")

    with pytest.raises(ArtifactError, match="started_at"):
        read_lineage(tmp_path)


def test_the_content_hash_depends_on_names_and_hashes_alone():
    files = {"rows.parquet": {"bytes": 1, "sha256": "a"}}
    one = Lineage.model_validate({**PLAIN.model_dump(), "files": files})

    same = Lineage.model_validate({**one.model_dump(), "seconds": 9.0, "fingerprint": "g"})
    other = Lineage.model_validate(
        {**one.model_dump(), "files": {"rows.parquet": {"bytes": 1, "sha256": "b"}}}
    )

    assert one.content_sha256() == same.content_sha256()
    assert one.content_sha256() != other.content_sha256()


def test_code_packages_and_host_are_recorded():
    assert code().version
    assert packages()["polars"]
    assert host().cpus >= 1
