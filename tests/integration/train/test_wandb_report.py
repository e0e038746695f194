"""A report as an offline run of Weights & Biases, read back from the run's own file."""

import os
import subprocess
import sys

from tests.cli.test_data_export import CELL, REPORT


def test_a_report_is_one_run_with_its_numbers_tables_and_files(tmp_path):
    def mbt(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "mbt_cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "WANDB_MODE": "offline", "NO_COLOR": "1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=True,
        )

    (tmp_path / "told.toml").write_text(REPORT)
    mbt("run", "told.toml", "-q")

    logged = mbt("export", CELL, "--to", "wandb:demo", "--write")

    assert "logged: wandb sync" in logged.stdout
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = path.read_bytes()
    for words in (
        b"demo",
        b"report",
        b"told",
        b"score/tiny-validation-teacher-question/exact_match",
        b"tables/main_results",
        b"figures/accuracy_tokens",
        b"told-report",
        b"main_results.tex",
    ):
        assert words in content
