import json

import pytest

from mbt_cli.engine.export_jsonl import scored_cells, write_results
from tests.bench.export_jsonl import SCORE, write_study


@pytest.mark.parametrize("prompts", [1, 7, 300])  # a slice begins with 100 rows
def test_verdicts_join_their_rollouts_by_key_whatever_the_order(tmp_path, prompts):
    write_study(tmp_path / "made", prompts, 3, latex=False)  # verdicts of the last prompt first
    (cell,) = scored_cells(tmp_path / "made", [tmp_path / "made" / SCORE])

    write_results(cell, tmp_path / "out")

    folder = tmp_path / "out" / SCORE
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    keys = [(row["question_id"], row["sample"]) for row in results]
    assert keys == [(f"q{q:06d}", s) for q in range(prompts) for s in range(3)]
    assert [row["verdicts"]["verifier"]["value"] for row in results] == [0.0, 1.0, 0.0] * prompts
    by_prompt = [
        json.loads(line)
        for line in (folder / "verification_results.jsonl").read_text().splitlines()
    ]
    assert len(by_prompt) == prompts
    assert by_prompt[-1]["scores"] == {"verifier": [0.0, 1.0, 0.0]}
    assert by_prompt[-1]["prompt"][0]["content"].startswith(f"q{prompts - 1:06d} ")
