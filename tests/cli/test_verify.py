"""`mbt show --verify`: a table is verified with everything that it was made from."""

import json


def test_a_table_is_verified_back_to_the_questions(mbt, workplace):
    assert mbt("run", "study.toml").code == 0

    good = mbt("show", "runs/small/tables", "--verify")
    rows = next((workplace / "runs/small/base").rglob("rows.parquet"))
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(content)
    bad = mbt("show", "runs/small/tables", "--verify")
    as_json = mbt("show", "runs/small/tables", "--verify", "--json")

    assert good.code == 0, good.err
    assert "verified: read 8 cells with" in good.out
    assert (bad.code, as_json.code) == (1, 1)
    assert "read 8 cells with" in bad.out
    assert "verified" not in bad.out
    assert f"{rows.relative_to(workplace)}` differs from its lineage (sha256)" in bad.err
    assert "mbt run MANIFEST --replace --only CELL" in " ".join(bad.err.split())
    assert json.loads(as_json.out)["cells"] == 8
    assert len(json.loads(as_json.out)["problems"]) == 1


def test_a_manifest_is_not_verified_but_its_folder_is_named(mbt):
    refused = mbt("show", "study.toml", "--verify")

    assert refused.code == 2
    assert "hint: mbt show runs/small --verify" in refused.err
