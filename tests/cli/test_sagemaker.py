"""`mbt submit --sagemaker`: a study through a stand-in for SageMaker that runs its containers."""

import json
import sys

import pytest

from tests import object_store
from tests.unit.test_sagemaker import IMAGE, ROLE, stand_in

PRESET = """
role = "{role}"
image = "{image}"
mirror = "{mirror}"
python = {python}
poll_seconds = 0.5
[environment]
MBT_RUNS = {runs}
MBT_REUSE = "study"
[gpu_job]
instance = "ml.g5.xlarge"
gpus = 1
"""


@pytest.fixture(scope="module")
def aws():
    with object_store.running() as store:
        yield store


def test_a_study_runs_on_sagemaker_and_comes_back(mbt, workplace, aws, tmp_path_factory):
    bucket, place = aws.bucket(), tmp_path_factory.mktemp("sagemaker")
    folder = workplace / "presets" / "sagemaker"
    folder.mkdir(parents=True)
    told = {"role": ROLE, "image": IMAGE, "mirror": f"{bucket.url}/mbt"}
    inside = json.dumps(str(place / "runs"))
    text = PRESET.format(**told, python=json.dumps(sys.executable), runs=inside)
    (folder / "mine.toml").write_text(text)
    (workplace / "plan.json").write_text(mbt("plan", "study.toml", "--json").out)
    with stand_in(place, **aws.environment) as endpoint:
        environment = {**aws.environment, "AWS_ENDPOINT_URL_SAGEMAKER": endpoint}

        shown = mbt("submit", "plan.json", "--sagemaker", "mine", timeout=300, **environment)

        assert shown.code == 0, shown.err
        assert "5 jobs submitted" in shown.out
        assert not list((workplace / "runs" / "small").glob("**/lineage.json"))
        log = mbt("status", "small", "--log").out.splitlines()
        names = [line.split(" | ")[0].removeprefix("| ") for line in log[2:]]
        assert all(name.startswith("adhoc-2") for name in names)
        waited = mbt("status", "small", "--watch", timeout=300, **environment)
        assert "fetch it with `mbt pull small`" in " ".join(waited.out.split()), (
            waited.out + waited.err
        )
        assert "2 cells run" in mbt("logs", names[-2], **environment).out

        one = mbt("pull", "small", "--job", names[-2], **environment)
        assert one.code == 0, one.err
        cells = {line.partition("/")[0] for line in one.out.splitlines()}
        assert cells == {"scores"}
        assert mbt("pull", "small", **environment).code == 0
        (workplace / "plan.json").write_text(mbt("plan", "study.toml", "--json").out)
        again = mbt("submit", "plan.json", "--sagemaker", "mine", **environment)

    assert "nothing to submit: every cell is done" in again.out, again.out + again.err
    status = json.loads(mbt("status", "small", "--json").out)
    assert {cell["doing"] for cell in status["cells"]} == {"done"}
    assert "Oslo" in mbt("view", "runs/small", "--terminal").out
    nothing = mbt("pull", "small", "--job", "adhoc-1*", **environment)
    assert nothing.code == 2
    assert "no job of `small` fits `adhoc-1*`" in nothing.err


def test_a_study_without_a_mirror_is_refused(mbt, workplace):
    (workplace / "plan.json").write_text(mbt("plan", "study.toml", "--json").out)
    folder = workplace / "presets" / "sagemaker"
    folder.mkdir(parents=True)
    own = f'role = "{ROLE}"\nimage = "{IMAGE}"\n[gpu_job]\ninstance = "ml.g5.xlarge"\n'
    (folder / "mine.toml").write_text(own)

    shown = mbt("submit", "plan.json", "--sagemaker", "mine", "--dry-run")

    assert shown.code == 2
    assert "these jobs give results back by a mirror" in shown.err
    shown = mbt("submit", "plan.json", "--slurm", "--preset", "one-gpu", "--dry-run", "--here")
    assert shown.code == 2
    assert "`--here` runs containers of a launcher that has them" in shown.err


def test_the_rights_that_it_needs_are_printed(mbt):
    shown = mbt("doctor", "--launcher", "sagemaker")

    assert shown.code == 0, shown.err
    policies = json.loads(shown.out)
    assert len(policies) == 2
    assert "boto3" in shown.err
    assert mbt("doctor", "--launcher", "sagemakr").code == 2
