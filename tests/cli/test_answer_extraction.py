"""A benchmark decides how answers are found in replies."""

import polars as pl

PLUGIN = '''
"""Questions whose answers are written in capitals."""

from typing import Literal

from mbt_cli.benchmarks.tinyhop.benchmark import TinyHop


class Shouted(TinyHop):
    """tinyhop with another rule of extraction."""

    kind: Literal["shouted"] = "shouted"

    def extract_answer(self, reply: str) -> str:
        return next((word for word in reply.split() if word.isupper()), "")
'''
STUDY = """
[study]
name = "shouted"
seed = 1
max_failed_share = 0
plugins = ["./shouted.py"]

[sampling.plain]
temperature = 0
max_tokens = 8

[models.parrot]
backend = { kind = "canned", replies = ["it is OSLO indeed"] }
sampling = "plain"

[benchmarks.mine]
kind = "shouted"
limit = 2

[[stage]]
kind = "rollout"
name = "base"
matrix = { benchmark = "mine", split = "validation", model = "parrot", prompt = "question" }
samples = 1
"""


def test_the_answer_of_a_rollout_is_what_the_benchmark_extracts(mbt, workplace):
    (workplace / "shouted.py").write_text(PLUGIN)
    (workplace / "shouted.toml").write_text(STUDY)

    ran = mbt("run", "shouted.toml")

    assert ran.code == 0, ran.err
    folder = workplace / "runs/shouted/base"
    assert pl.read_parquet(f"{folder}/**/rows.parquet")["answer"].to_list() == ["OSLO", "OSLO"]
