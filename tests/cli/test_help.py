"""Help is quick to come and complete."""

import subprocess
import sys

import pytest

HEAVY = ("pydantic", "polars", "pyarrow", "numpy", "aiohttp", "openai", "huggingface_hub", "torch")


@pytest.mark.parametrize(
    "verb", ["", "check", "run", "rollout", "judge", "score", "report", "show"]
)
def test_every_verb_has_help(mbt, verb):
    ran = mbt(*([verb] if verb else []), "--help")

    assert ran.code == 0
    assert "Usage" in ran.out


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "sys.argv = ['mbt', '--help']\n"
        "from mbt_cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "sys.stderr.write(' '.join(heavy))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == ""


def test_an_unknown_verb_is_a_usage_error(mbt):
    assert mbt("rolout", "x.toml").code == 2
