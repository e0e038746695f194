"""Score cells hold the value of every sample, from which the value of a question follows."""

import re

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mbt_cli.api import scan
from mbt_cli.core import rows
from mbt_cli.core.judge_scales import BELIEF, LIKELIHOOD, POINTS, UPLIFT
from mbt_cli.registry import SCORES
from tests.conftest import REPOSITORY, SMALL_STUDY

HELP = (REPOSITORY / "mbt_cli/help/metrics.md").read_text(encoding="utf-8")
LINES = re.findall(r"^(?:samples|means) = .*\n", HELP, re.MULTILINE)

JUDGES = """
[models.hits]
backend = { kind = "canned", replies = ["YES", "NO", "perhaps"] }
sampling = "plain"

[models.phases]
backend = { kind = "canned", replies = ["L_OBS: 3\\nPHASES: 1, 2\\nCONFIDENCE: 90%", "L_OBS: 5\\nPHASES: 1, 2, 3, 4, 5\\nCONFIDENCE: 40%", "none"] }
sampling = "plain"

[models.marks]
backend = { kind = "canned", replies = ["ANSWER_PARAGRAPH_MARKER: [[M_END]]\\nREDUNDANT_PARAGRAPH_MARKERS: NONE\\nCONFIDENCE: 0.9", "ANSWER_PARAGRAPH_MARKER: [[M01]]\\nREDUNDANT_PARAGRAPH_MARKERS: [[M_END]]\\nCONFIDENCE: 0.5"] }
sampling = "plain"
"""  # noqa: E501  TOML keeps an inline table on one line

STAGES = "".join(
    f"""
[[stage]]
kind = "judge"
name = "{judge}"
rollouts = "base"
matrix = {{ judge = ["{judge}"] }}
judge_model = "{model}"
votes = 2
"""
    for judge, model in (("answer_hit", "hits"), ("phases", "phases"), ("redundancy", "marks"))
)

OF_SEVERAL_MEANS = {"aes", "tokens_per_correct", "mqi_of_means", "mqi_gamma"}


def needs_first(score):
    """The quantity without which a score has no numbers; none if it needs no judge."""
    return list(SCORES.make({"kind": score.model_fields["kind"].default}).needs())[:1]


@pytest.fixture
def scored(mbt, workplace):
    """A study in which every metric is computed, replies are empty and verdicts fail."""
    study = SMALL_STUDY.replace("max_failed_share = 0", "max_failed_share = 1")
    study = study.replace('"no idea"]', '"", "First.\\n\\nNow <answer>Oslo</answer>", "9"]')
    study = study.replace("samples = 2", "samples = 3")
    study = study.replace('name = "answers"', 'name = "answers"\nvotes = 2')
    study = study.replace(
        'verdicts = "answers"',
        'verdicts = ["answers", "answer_hit", "phases", "redundancy", "rule"]',
    )
    # points, beliefs and likelihoods need judges and questions of their own, which their tests have
    others = {POINTS, BELIEF, LIKELIHOOD, UPLIFT}
    kinds = [k for k, score in SCORES.kinds().items() if not others & {*needs_first(score)}]
    metrics = ", ".join(f'"{kind}"' for kind in kinds)
    study = re.sub("metrics = .*", f"metrics = [{metrics}]", study)
    rule = '\n[[stage]]\nkind = "judge"\nname = "rule"\nrollouts = "base"\n'
    rule += 'matrix = { judge = ["verifier"] }\n'
    judges, score = STAGES + rule, '[[stage]]\nkind = "score"'
    study = study.replace(score, judges + score)
    (workplace / "study.toml").write_text(study + JUDGES)
    ran = mbt("run", "study.toml", "-q")
    assert ran.code == 0, ran.err
    return workplace / "runs/small"


def test_the_means_over_samples_that_the_help_shows_are_the_values_of_questions(
    scored, monkeypatch
):
    monkeypatch.chdir(scored.parents[1])

    found = {"pl": pl, "scan": scan}
    exec("".join(LINES), found)

    keys = ["address", "question_id", "metric"]
    means = found["means"].collect().cast({"metric": pl.String})
    stored = scan(scored, "scores").select(*keys, "value").collect()
    inside = stored.join(means.select("address", "metric").unique(), on=["address", "metric"])
    assert_frame_equal(
        means.sort(keys), inside.select(means.columns).sort(keys), abs_tol=1e-12, rel_tol=1e-12
    )
    missing = set(stored["metric"]) - set(means["metric"])
    assert {name for name in missing if "@" not in name} == {
        *OF_SEVERAL_MEANS,
        *(
            name
            for name in missing
            if re.search("_of_errors|_of_means|^judge_(vote_)?(kappa|same)", name)
        ),
    }
    assert means["metric"].n_unique() > 40


def test_each_sample_has_one_row_a_metric_and_an_empty_reply_is_wrong(scored):
    (cell,) = scored.glob("scores/**/prompt=metacognitive")
    values = pl.read_parquet(cell / "files/samples.parquet")
    (base,) = scored.glob("base/**/prompt=metacognitive")
    rollouts = pl.read_parquet(base / "rows.parquet")

    assert values.schema == rows.SAMPLES
    counts = values.group_by("metric").agg(pl.struct("question_id", "sample").n_unique())
    assert set(counts["question_id"]) == {rollouts.height}
    assert values.height == rollouts.height * counts.height
    empty = rollouts.filter(pl.col("failure") == "empty")
    of_empty = values.join(empty, on=["question_id", "sample"], how="semi")
    assert of_empty.filter(metric="exact_match")["value"].to_list() == [0] * empty.height
    assert empty.height
    given = (
        values.filter(metric="exact_match")
        .drop_nulls()
        .join(rollouts, on=["question_id", "sample"])
    )
    assert given.filter(pl.col("value") == 1).select(pl.col("answer") == "Oslo")["answer"].all()


def test_the_values_of_cells_with_other_metrics_are_read_together(scored):
    paths = [str(path) for path in scored.rglob("samples.parquet")]
    assert len(paths) == 2

    together = pl.scan_parquet(paths).group_by("metric").len().collect()

    assert {"exact_match", "rrp_arrival_length_aware"} <= set(together["metric"])
