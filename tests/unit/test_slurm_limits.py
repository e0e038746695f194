"""The limits of a Slurm cluster: what is asked about them, and what a refusal means."""

import re
import subprocess

import pytest

from mbt_cli.core.jobs import Job, JobContext
from mbt_cli.errors import MbtError, QueueFullError
from mbt_cli.launchers import slurm as slurm_module
from mbt_cli.launchers.slurm import SlurmLauncher

CONFIG = "ClusterName             = one\nMaxArraySize            = {}\nMaxJobCount = {}\n"
TABLES = """case "$*" in
*assoc*) printf '{assoc}' ;;
*qos*) printf 'normal|{user}||\nother|1||\n' ;;
*user*) echo lab ;;
esac"""
REFUSED = "echo 'sbatch: error: {}' >&2; exit 1"


def launcher(**fields) -> SlurmLauncher:
    return SlurmLauncher(gpu_job={}, small_job={}, **fields)


@pytest.fixture
def job(tmp_path):
    def made(shards=1, part=None) -> Job:
        context = JobContext("s", tmp_path, tmp_path, tmp_path)
        return Job("base-1", ("mbt", "run"), (), context=context, shards=shards, part=part)

    return made


@pytest.fixture
def cluster(slurm):
    """A cluster with these limits, and jobs of the user in its queue."""

    def made(*, array=1001, jobs=10_000, user="", assoc="||normal||", queued=0):
        slurm.does("sacctmgr", TABLES.format(assoc=assoc, user=user))
        partition = "echo 'PartitionName=main Default=YES QoS=N/A'"
        config = CONFIG.format(array, jobs).replace("\n", "\\n")
        slurm.does(
            "scontrol", f'case "$*" in *partition*) {partition} ;; *) printf "{config}" ;; esac'
        )
        slurm.does("squeue", f"[ {queued} = 0 ] || seq {queued}")
        return slurm

    return made


def takes(launcher, job, script) -> int:
    with pytest.raises(QueueFullError) as raised:
        launcher.submit(job, script, after=())
    return raised.value.takes


@pytest.mark.parametrize(
    ("limits", "tasks", "room"),
    [
        pytest.param({"array": 501}, 1_000, 500, id="MaxArraySize"),
        pytest.param({"array": 1}, 12, 1, id="no arrays at all"),
        pytest.param({"user": "50", "queued": 10}, 100, 40, id="QOS"),
        pytest.param({"user": "50", "queued": 47}, 100, 0, id="too few to be worth a part"),
        pytest.param({"user": "4"}, 100, 4, id="a limit below those that run at once"),
        pytest.param({"user": "4", "queued": 4}, 100, 0, id="full"),
        pytest.param({"assoc": "||normal|30|"}, 100, 30, id="association"),
        pytest.param({"assoc": "||normal||20"}, 100, 20, id="group"),
        pytest.param({"assoc": "gpu||normal|30|"}, 100, 50, id="association of another partition"),
        pytest.param({"assoc": "||other|30|", "user": "9"}, 100, 1, id="the only QOS"),
        pytest.param({"jobs": 60, "queued": 20}, 100, 40, id="MaxJobCount"),
        pytest.param({"queued": 5}, 100, 50, id="unknown: half"),
        pytest.param({"queued": 5}, 15, 0, id="unknown, and others will leave"),
        pytest.param({}, 2, 1, id="unknown, and nothing will leave"),
    ],
)
def test_a_refused_array_is_cut_to_what_the_queue_takes(
    cluster, job, tmp_path, limits, tasks, room
):
    words = "Invalid job array specification" if "array" in limits else "QOSMaxSubmitJobPerUser"
    cluster(**limits).does("sbatch", REFUSED.format(f"{words}Limit"))

    assert takes(launcher(), job(tasks), tmp_path / "base-1.sh") == room


def test_without_sacctmgr_and_answers_an_array_is_halved(slurm, job, tmp_path):
    for name in ("scontrol", "sacctmgr", "squeue"):
        slurm.does(name, "echo 'not for you' >&2; exit 1")
    slurm.does("sbatch", REFUSED.format("AssocGrpSubmitJobsLimit"))

    assert takes(launcher(), job(100), tmp_path / "base-1.sh") == 50


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("QOSMaxSubmitJobPerUserLimit", QueueFullError),
        ("AssocMaxSubmitJobLimit", QueueFullError),
        ("Slurm job queue full, sleeping and retrying", QueueFullError),
        ("Unable to contact slurm controller (connect failure)", QueueFullError),
        ("Socket timed out on send/recv operation", QueueFullError),
        ("Invalid account or account/partition combination specified", MbtError),
        ("Requested node configuration is not available", MbtError),
    ],
)
def test_a_refusal_at_a_limit_is_told_from_others(slurm, job, tmp_path, words, error):
    slurm.does("sbatch", REFUSED.format(words))

    with pytest.raises(MbtError, match=re.escape(words)) as raised:
        launcher().submit(job(), tmp_path / "base-1.sh", after=())

    assert type(raised.value) is error


def test_a_queue_that_lets_sbatch_sleep_is_full(slurm, job, tmp_path, monkeypatch):
    # `sbatch` waits for two minutes by itself, at MaxJobCount
    monkeypatch.setattr(slurm_module, "_SUBMIT_SECONDS", 1)
    said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    slurm.does("sbatch", f"echo '{said}' >&2; exec sleep 60")

    with pytest.raises(QueueFullError, match="temporarily unable to accept job"):
        launcher().submit(job(), tmp_path / "base-1.sh", after=())


@pytest.mark.parametrize("sbatch", ["exec sleep 60", REFUSED.format("Socket timed out")])
def test_a_job_that_a_slow_controller_has_taken_is_not_submitted_again(
    slurm, job, tmp_path, monkeypatch, sbatch
):
    monkeypatch.setattr(slurm_module, "_SUBMIT_SECONDS", 1)
    script = tmp_path / "base-1.sh"
    slurm.does("sbatch", sbatch)
    slurm.answers(squeue=f"41\t/elsewhere/base-1.sh\n42\t{script}\n")
    slurm.does("sbatch", sbatch)

    assert launcher().submit(job(), script, after=()) == "42"


def test_a_queue_that_is_tried_again_gets_no_second_joining_job(slurm, job, tmp_path):
    slurm.does(
        "sbatch",
        'case "$*" in *-wait-*) echo 70 ;; *) echo QOSMaxSubmitJobLimit >&2; exit 1 ;; esac',
    )
    own, script = launcher(max_dependencies=2), tmp_path / "base-1.sh"
    for _ in range(2):
        with pytest.raises(QueueFullError):
            own.submit(job(), script, after=["7", "8", "9"])
    slurm.does("sbatch", "echo 71")

    given = own.submit(job(), script, after=["8", "9"])  # 7 has ended meanwhile

    calls = [call for call in slurm.calls() if call.startswith("sbatch")]
    assert given == "71"
    assert sum("-wait-" in call for call in calls) == 1
    assert "--dependency=afterany:9:70 " in calls[-1]


def test_a_part_of_an_array_asks_its_own_shards(job, tmp_path, slurm):
    slurm.does("mbt", 'echo "$*" > asked.txt')
    shards = {}
    for part, task in ((range(6, 11), "3"), (range(12, 13), "")):
        script = launcher(mbt=["mbt"]).render(job(12, part))
        own = {"SLURM_ARRAY_TASK_ID": task} if task else {}
        environment = {**slurm_module.os.environ, "SLURM_JOB_ID": "7", **own}
        subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=True)
        shards[part] = (tmp_path / "asked.txt").read_text().split()[-1]
        array = re.findall(r"^#SBATCH --array=(.*)$", script, re.MULTILINE)
        assert array == (["1-5%8"] if task else [])
        assert f"#SBATCH --job-name=s/base-1-from-{part.start}\n" in script

    assert list(shards.values()) == ["8/12", "12/12"]
    assert (tmp_path / "events" / "base-1-from-6-3.log").exists()


def test_limits_are_said_before_anything_is_submitted(cluster, job):
    cluster(user="50", queued=10)

    (note,) = launcher().notes([job(100), job()])

    assert "these are 101 jobs, tasks of arrays counted" in note
    assert "takes 50 at a time (MaxSubmitJobsPerUser of the QOS normal)" in note
    assert launcher().notes([job(30)]) == []


def test_a_machine_without_slurm_has_no_limits(monkeypatch, tmp_path, job):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert launcher().notes([job(100)]) == []
