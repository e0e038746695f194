"""Scripts that launchers write: complete, readable, and safe against any value."""

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pydantic import ValidationError

from mbt_cli.core.jobs import Job, JobContext, JobId
from mbt_cli.engine.runner import current_job, is_gone
from mbt_cli.engine.submit import load_launcher
from mbt_cli.errors import ManifestError, MbtError, UsageError
from mbt_cli.launchers.local import LocalLauncher
from mbt_cli.launchers.slurm import SlurmLauncher
from mbt_cli.launchers.ssh import SshLauncher
from mbt_cli.manifest.presets import PresetFolders
from tests.conftest import REPOSITORY

GOLDENS = Path(__file__).parent / "goldens_slurm"
STOPPED = "trap : USR1; kill -USR1 $PPID; sleep 0.3; exit 75"
NASTY = ["a b", "x; touch pwned", "$(touch pwned)", "`touch pwned`", "it's\nnew", '"quoted"']


def job(
    folder=Path("/data/runs/s/submissions/t"),
    *,
    gpus=1,
    shards=1,
    argv=None,
    trains=False,
    fills=False,
    nodes=None,
    **context,
):
    places = JobContext(
        study="paper",
        workdir=Path("/data"),
        record=folder,
        cache=Path("/data/cache"),
        folders=(Path("/data/runs/paper/base/model=m"),),
        environment={"HF_HOME": "/data/hf", "MBT_RUNS": "/data/runs"},
        label="mbt:paper:0123456789ab",
        mbt=("/opt/venv/bin/mbt",),
    )
    command = argv or ("mbt", "run", f"{folder}/manifest.toml", "--only", "base/model=m")
    return Job(
        "base-1",
        command,
        ("base/model=m",),
        gpus=gpus,
        shards=shards,
        context=replace(places, **context),
        trains=trains,
        fills=fills,
        nodes=nodes,
    )


@pytest.fixture
def preset(presets):
    def found(name: str) -> SlurmLauncher:
        return load_launcher("slurm", name, presets, {})

    return found


@pytest.fixture
def own(tmp_path):
    """A preset with this text."""

    def made(text: str) -> SlurmLauncher:
        folder = tmp_path / "presets" / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "own.toml").write_text(text)
        return load_launcher("slurm", "own", PresetFolders((tmp_path / "presets",)), {})

    return made


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("one-gpu", 1),
        ("paper", 4),
        ("eight-gpus", 8),
        ("two-nodes", 16),
        ("container", 4),
        ("pyxis", 4),
    ],
)
def test_a_preset_gives_its_golden_script(preset, name, gpus):
    check_golden(f"{name}.sh", preset(name).render(job(gpus=gpus, shards=8)))


def check_golden(name: str, script: str) -> None:
    golden = GOLDENS / name
    if os.environ.get("MBT_WRITE_GOLDENS"):
        golden.write_text(script)
    assert script == golden.read_text()


def test_a_training_over_two_nodes_gives_its_golden_script(preset):
    check_golden("training/two-nodes.sh", preset("two-nodes").render(job(trains=True, fills=True)))


def test_a_training_gets_the_resources_of_its_own_table(own):
    launcher = own(
        "[job]\npartition = 'gpu'\n[gpu_job]\ngpus = 4\ntime = '1:00:00'\n[small_job]\n"
        "[train_job]\nnodes = 2\ngpus = 8\n"
    )

    served, trained = launcher.render(job(gpus=4)), launcher.render(job(trains=True, fills=True))

    assert "--nodes=1" in served
    assert "MBT_PROCESSES" not in served
    for line in ("partition=gpu", "nodes=2", "time=1:00:00", "gpus-per-node=8"):
        assert f"#SBATCH --{line}\n" in trained
    assert "export MBT_PROCESSES=$((SLURM_JOB_NUM_NODES * 8))\n" in trained
    with pytest.raises(MbtError, match="needs 9 GPUs and the preset gives 8") as too_many:
        launcher.render(job(gpus=9, trains=True))
    assert too_many.value.hint == (
        "raise `[train_job] gpus` or `nodes`, or lower the model's `launch.processes`"
    )


NODE = "[gpu_job]\ngpus = 8\ncpus = 96\nmem = '960G'\nnodes = 2\n{}[small_job]\n"


@pytest.mark.parametrize(
    ("needs", "lines"),
    [
        ({"gpus": 1}, ["nodes=1", "cpus-per-task=12", "gpus-per-node=1", "mem=120G"]),
        ({"gpus": 4}, ["nodes=1", "cpus-per-task=48", "gpus-per-node=4", "mem=480G"]),
        ({"gpus": 8}, ["nodes=1", "cpus-per-task=96", "gpus-per-node=8", "mem=960G"]),
        ({"gpus": 16}, ["nodes=2", "cpus-per-task=96", "gpus-per-node=8", "mem=960G"]),
        ({"gpus": 12}, ["nodes=2", "cpus-per-task=72", "gpus-per-node=6", "mem=720G"]),
        ({"gpus": 4, "trains": True}, ["nodes=1", "cpus-per-task=48", "gpus-per-node=4"]),
        ({"gpus": 4, "trains": True, "nodes": 2}, ["nodes=2", "gpus-per-node=2", "mem=240G"]),
        ({"gpus": 1, "trains": True, "fills": True}, ["nodes=2", "gpus-per-node=8", "mem=960G"]),
    ],
)
def test_a_job_books_the_share_of_a_node_that_it_uses(own, needs, lines):
    script = own(NODE.format("")).render(job(**needs))

    for line in lines:
        assert f"#SBATCH --{line}\n" in script


@pytest.mark.parametrize("container", [[], ["env", "IN_CONTAINER=1"]])
def test_a_server_over_two_nodes_is_joined_by_mbt_on_the_other_one(own, tmp_path, container):
    launcher = own(f"container = {container}\nmbt = ['mbt']\n{NODE.format('')}")
    environment = {**stand_in(tmp_path), "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    tools = tmp_path / "bin"
    tools.joinpath("scontrol").write_text("#!/bin/bash\nprintf 'n1\\nn2\\n'\n")
    tools.joinpath("srun").write_text(
        '#!/bin/bash\necho "srun $*" > joined.txt\nwhile [[ $1 = -* || $1 = n1 ]]; do shift; done\n'
        '"$@"\n'
    )
    tools.joinpath("mbt").write_text(
        '#!/bin/bash\necho "$1 ${IN_CONTAINER:-} $MBT_NODES $MBT_NODES_ADDRESS $MBT_NODES_KEY"'
        ' > "$1.txt"\n[ "$1" != run ] || sleep 0.5\n'
    )
    for name in ("srun", "mbt"):
        (tools / name).chmod(0o755)
    context = {"workdir": tmp_path, "record": tmp_path, "cache": tmp_path, "folders": (tmp_path,)}
    text = launcher.render(job(gpus=16, argv=("mbt", "run"), **context))

    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert " -x n1 " in (tmp_path / "joined.txt").read_text()
    first, other = ((tmp_path / f"{name}.txt").read_text().split() for name in ("run", "node"))
    assert first[1:] == other[1:]
    assert first[-3:-1] == ["2", "n1:20007"]
    assert len(first[-1]) == 64
    assert ("1" in first[1:-3]) == bool(container)


def test_on_ray_no_process_of_mbt_joins(own):
    script = own(f"multi_node = 'ray'\n{NODE.format('')}").render(job(gpus=16))

    assert "ray start --head" in script
    assert "MBT_NODES_KEY" not in script


def test_an_exclusive_node_is_booked_as_a_whole_and_said(own):
    launcher = own(NODE.format("directives = ['--exclusive']\n"))

    assert "gpus-per-node=8" in launcher.render(job(gpus=4))
    (note,) = launcher.notes([job(gpus=4), job(gpus=8), job(gpus=0)])
    assert "1 of 3 jobs use fewer GPUs than they book" in note
    assert "`base-1` uses 4 of 8" in note
    assert "because of `--exclusive`" in note


def test_whole_nodes_without_a_request_for_gpus_are_said_too(own):
    launcher = own(NODE.format("gres = 'none'\n"))

    script = launcher.render(job(gpus=4))
    assert "--gres" not in script
    assert "--gpus-per-node" not in script
    assert "#SBATCH --cpus-per-task=96\n" in script
    (note,) = launcher.notes([job(gpus=4), job(gpus=8), job(gpus=0)])
    assert 'because of `gres = "none"`' in note


def test_all_memory_of_a_node_cannot_be_shared(own):
    launcher = own("[gpu_job]\ngpus = 8\nmem = '0'\n[small_job]\n")

    assert "#SBATCH --mem=0\n" in launcher.render(job(gpus=8))
    assert "--mem" not in launcher.render(job(gpus=2))
    (note,) = launcher.notes([job(gpus=2), job(gpus=8)])
    assert "1 of 2 jobs" in note
    assert "cluster's default memory" in note


def test_gpus_of_a_kind_are_shared_like_others(own):
    launcher = own("[gpu_job]\ngpus = 8\ngres = 'gpu:h100:8,nvme:100'\n[small_job]\n")

    assert "#SBATCH --gres=gpu:h100:2,nvme:100\n" in launcher.render(job(gpus=2))


@pytest.mark.parametrize("gres", ["gpu:3g.40gb", "gpu:2080ti", "gpu", "gpu:a100(S:0),nvme:300"])
def test_one_gpu_of_a_kind_needs_no_number(own, gres):
    launcher = own(f"[gpu_job]\ngpus = 1\ngres = '{gres}'\n[small_job]\n")

    assert f"#SBATCH --gres={gres}\n" in launcher.render(job(gpus=1))


def test_a_training_over_several_nodes_is_not_started_from_inside_a_container(own):
    with pytest.raises(ManifestError, match="use one node, or no container"):
        own("container = ['podman']\n[gpu_job]\n[small_job]\n[train_job]\nnodes = 2\n")

    serves = own("container = ['podman']\n[gpu_job]\ngpus = 8\nnodes = 2\n[small_job]\n")
    with pytest.raises(MbtError, match="trains on 2 nodes") as raised:
        serves.render(job(gpus=8, trains=True, fills=True))
    assert "[train_job] nodes = 1" in raised.value.hint


def test_a_job_without_gpus_requests_none(preset):
    script = preset("paper").render(job(gpus=0))

    assert "--gpus" not in script
    assert "#SBATCH --cpus-per-task=8" in script


def test_a_job_that_wants_more_gpus_than_the_preset_gives_is_refused(preset):
    with pytest.raises(MbtError, match="needs 4 GPUs and the preset gives 1"):
        preset("one-gpu").render(job(gpus=4))


JOB = str(os.getpid())
"""Tests that run at the same time share no folder below /tmp."""


def stand_in(tmp_path: Path) -> dict[str, str]:
    """An environment in which the script's Slurm commands are stand-ins."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("scontrol", "module"):
        (tools / name).write_text('#!/bin/bash\necho "$0 $*" >> calls.txt\n')
        (tools / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        (None, "2:00:00"),
        (3_000, "1:00:00"),  # up to the next quarter of an hour
        (5_400, "1:30:00"),
        (30, "0:15:00"),
        (90_000, "2:00:00"),  # never above the preset's
    ],
)
def test_a_job_asks_for_its_own_time_limit(own, seconds, line):
    launcher = own("[job]\ntime = '2:00:00'\n[gpu_job]\ngpus = 1\n[small_job]\n")

    script = launcher.render(replace(job(), limit_seconds=seconds))

    assert f"#SBATCH --time={line}\n" in script
    assert script.count("--time=") == 1


@pytest.mark.parametrize("nasty", NASTY)
def test_no_value_can_run_anything(own, tmp_path, nasty):
    word = json.dumps(nasty)
    launcher = own(
        f"modules = [{word}]\nenvironment = {{ NASTY = {word} }}\n"
        f"container = ['env', {word[:1]}A={word[1:]}]\n"
        "mbt = ['bash', '-c', 'printf %s \"$NASTY\" > seen.txt', 'mbt']\n"
        "[gpu_job]\n[small_job]\n"
    )
    workdir = tmp_path / nasty.replace("/", "")
    workdir.mkdir()
    context = {
        "workdir": workdir,
        "record": workdir / "record",
        "cache": workdir / "cache",
        "folders": (workdir,),
        "environment": {"NASTY": nasty},
    }
    wanted = job(gpus=0, argv=("mbt", "run", nasty, "--only", nasty), **context)
    text = _without_directives(launcher, wanted)

    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env=stand_in(tmp_path), capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert (workdir / "seen.txt").read_text() == nasty
    assert not list(tmp_path.rglob("pwned"))


def _without_directives(launcher: SlurmLauncher, wanted: Job) -> str:
    """The script of a job whose record cannot stand in a directive, for bash alone."""
    record = Path("/data/record")
    script = launcher.render(replace(wanted, context=replace(wanted.context, record=record)))
    return script.replace(
        f"record={record}\n", f"record={shlex.quote(str(wanted.context.record))}\n"
    )


def test_a_job_with_many_needs_waits_for_joining_jobs(own, tmp_path, monkeypatch):
    launcher = own("max_dependencies = 2\n[gpu_job]\ngpus = 1\n[small_job]\n")
    environment = stand_in(tmp_path)
    sbatch = 'echo "$*" >> sent.txt; wc -l < sent.txt'
    (tmp_path / "bin" / "sbatch").write_text(f"#!/bin/bash\n{sbatch}\n")
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", environment["PATH"])
    monkeypatch.chdir(tmp_path)

    launcher.submit(job(), tmp_path / "base-1.sh", after=["7", "8", "9"])

    # the first two are joined; the job waits for the joining job and the third
    first, second = (tmp_path / "sent.txt").read_text().splitlines()
    assert "afterany:7:8 " in first
    assert "--export=ALL" in first  # a cluster may set SBATCH_EXPORT=NONE for everyone
    assert first.endswith("base-1-wait-1.sh")
    assert "command=(\n  true\n)" in (tmp_path / "base-1-wait-1.sh").read_text()
    assert "afterany:9:1 " in second


def test_a_record_whose_path_no_directive_can_contain_is_refused(preset):
    with pytest.raises(MbtError, match="contains a space"):
        preset("one-gpu").render(job(Path("/data/my runs/s")))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('partition = ""', "partition`: is left blank"),
        ('partition = "a b"', "partition`: `a b`"),
        ('partition = "x\\n#SBATCH --wrap=id"', "partition`:"),
        ('partition = "a b"', "write one word without spaces or quotes"),
        ('time = "soon"', "time`: `soon`: is not a time limit: write `HH:MM:SS` or `D-HH:MM:SS`"),
        ('directives = ["rm -rf"]', "directives"),
        ('directives = ["--requeue"]', "`--requeue` is set by mbt"),
        ('directives = ["--mem=4G"]', "`--mem` has its own key: write `mem = ...`"),
        ('directives = ["--clusters=wice"]', "set SLURM_CLUSTERS in the shell that submits"),
        ('directives = ["--export=NONE"]', "mbt says `--export=ALL`: remove `--export`"),
        ('directives = ["--gpus-per-node=1"]', "has its own key: write `gpus = ...`"),
        ('directives = ["--gpus=1"]', "has its own key: write `gpus = ...`"),
        ('directives = ["--wait"]', "`--wait` is set by mbt"),
        ('gpus = 4\ngres = "gpu:h100:8"', "`gres` requests 8 GPUs and `gpus` says 4"),
        ('gpus = 4\ngres = "gpu:h100"', "requests one GPU and `gpus` says 4: write `gpu:h100:4`"),
        ('gpus = 4\ngres = "nvme:300"', "`gres` requests no GPU and `gpus` says 4: add `gpu:4`"),
        ("gpuz = 1", "unknown key; did you mean `gpus`?"),
    ],
)
def test_a_mistake_in_a_preset_is_one_problem(own, line, words):
    with pytest.raises(ManifestError, match=r"own\.toml") as raised:
        own(f"[gpu_job]\n{line}\n[small_job]\n")

    assert words in raised.value.message
    assert len(raised.value.problems) == 1


def test_an_unknown_preset_names_the_nearest(preset):
    with pytest.raises(UsageError, match="no preset `papper` in presets/slurm/") as raised:
        preset("papper")

    assert raised.value.hint == "did you mean `paper`?"


def test_a_secret_in_a_preset_is_refused():
    with pytest.raises(ValidationError, match="looks like a secret"):
        SlurmLauncher(gpu_job={}, small_job={}, environment={"HF_TOKEN": "x"})


@pytest.mark.parametrize(
    ("name", "trains"),
    [("one-gpu", False), ("two-nodes", False), ("two-nodes", True), ("container", False)],
)
def test_scripts_are_clean_by_shellcheck(preset, name, trains, tmp_path):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    script = tmp_path / "job.sh"
    script.write_text(preset(name).render(job(gpus=1, shards=3, trains=trains)))

    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)

    assert done.stdout == ""


@pytest.mark.parametrize(
    ("squeue", "gone"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", False),
        ("echo PENDING", False),
        ("echo COMPLETED", True),
    ],
)
def test_the_launcher_of_a_lock_knows_whether_its_job_is_gone(tmp_path, monkeypatch, squeue, gone):
    monkeypatch.setenv("PATH", stand_in(tmp_path)["PATH"])
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/bash\n{squeue}\n")
    (tmp_path / "bin" / "squeue").chmod(0o755)

    own = current_job({"SLURM_JOB_ID": "7"})

    assert own == JobId("slurm", "7")
    assert is_gone(own) is gone


@pytest.mark.parametrize("nasty", NASTY)
def test_a_local_script_runs_the_command_and_nothing_else(tmp_path, nasty):
    wanted = job(
        argv=("printf", "%s", nasty), workdir=tmp_path, environment={"NASTY": nasty}, gpus=0
    )

    done = subprocess.run(
        ["bash", "-c", LocalLauncher().render(wanted)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == nasty
    assert not list(tmp_path.rglob("pwned"))


def ran(launcher: SlurmLauncher, folder: Path, environment: dict[str, str]):
    """Run a job's script without Slurm: its exit code, and what it said in its events."""
    wanted = job(folder / "record", gpus=0, workdir=folder, cache=folder / "cache")
    script = ["bash", "-c", launcher.render(wanted)]
    done = subprocess.run(script, cwd=folder, env=environment, capture_output=True, check=False)
    lines = (folder / "record" / "events" / "base-1.log").read_text().splitlines()
    return done.returncode, [line.partition("\t")[2] for line in lines]


@pytest.mark.parametrize(
    ("code", "last"),
    [
        pytest.param(0, "done", id="success"),
        pytest.param(3, "failed with exit code 3", id="failure"),
        pytest.param(127, "failed with exit code 127", id="command not found"),
        pytest.param(75, "stopped from outside with everything kept", id="cancelled"),
        pytest.param(
            STOPPED,
            "stopped by a signal with everything kept; requeued",
            id="time limit",
        ),
        pytest.param(137, "killed, most likely for memory; requeued", id="out of memory"),
    ],
)
def test_a_job_reports_how_it_ended(own, tmp_path, code, last):
    command = code if isinstance(code, str) else f"exit {code}"
    launcher = own(f'mbt = ["bash", "-c", "{command}"]\n[gpu_job]\n[small_job]\n')

    returned, events = ran(launcher, tmp_path, stand_in(tmp_path))

    assert events[-1] == last
    assert returned == (0 if "requeued" in last else code)
    assert (tmp_path / "calls.txt").exists() == ("requeued" in last)


ENVIRONMENT = """mbt = ["bash", "-c", "env > environment.txt; test -d $TMPDIR", "mbt"]
environment = { %s }
[gpu_job]
cpus = 32
gpus = 4
[small_job]
"""


@pytest.fixture
def node():
    """A folder with a short path, as local disks of nodes have; those of tests are too long."""
    with TemporaryDirectory(prefix="n", dir="/tmp") as folder:
        yield Path(folder)


def environment_of(launcher, folder, environment, **wanted):
    """The environment in which a job's script starts its command."""
    wanted = job(folder / "record", workdir=folder, cache=folder / "cache", **wanted)
    script = ["bash", "-c", launcher.render(wanted)]
    environment = {**environment, "SLURM_JOB_ID": JOB}
    subprocess.run(script, cwd=folder, env=environment, capture_output=True, check=True)
    lines = (folder / "environment.txt").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_temporary_files_are_on_the_node_and_nothing_of_them_is_left(own, tmp_path, node):
    own_folder = node / f"mbt-{os.getuid()}"
    for name in ("5", "6"):  # of a job that was killed, and of one that runs
        (own_folder / name / "tmp").mkdir(parents=True)
        (own_folder / f"{name}.lock").touch()
    environment = {**stand_in(tmp_path), "SLURM_TMPDIR": str(node), "HOSTNAME": "gpu7.cluster"}

    with (own_folder / "6.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = environment_of(own(ENVIRONMENT % ""), tmp_path, environment)

    assert found["TMPDIR"] == f"{own_folder}/{JOB}/tmp"
    assert found["TRITON_CACHE_DIR"].startswith(f"{tmp_path}/cache/compiled/gpu7/")
    assert "OMP_NUM_THREADS" not in found.keys() - os.environ.keys()
    assert sorted(path.name for path in own_folder.iterdir()) == ["6", "6.lock"]


def test_the_folder_of_a_preset_is_taken_and_a_long_path_is_not(own, tmp_path, node):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    environment = {**stand_in(tmp_path), "SLURM_TMPDIR": str(long), "TMPDIR": str(long)}

    usual = environment_of(own(ENVIRONMENT % ""), tmp_path, environment)
    said = environment_of(own(ENVIRONMENT % f"TMPDIR = '{node}'"), tmp_path, environment)

    assert usual["TMPDIR"] == f"/tmp/mbt-{os.getuid()}/{JOB}/tmp"
    assert said["TMPDIR"] == f"{node}/mbt-{os.getuid()}/{JOB}/tmp"


def test_the_nodes_of_a_job_share_no_compiled_kernels(own, tmp_path, node):
    environment = {**stand_in(tmp_path), "SLURM_TMPDIR": str(node), "SLURM_JOB_NUM_NODES": "2"}

    found = environment_of(own(ENVIRONMENT % ""), tmp_path, environment)

    assert found["TRITON_CACHE_DIR"] == f"{found['TMPDIR']}/compiled/triton"


def test_compiled_kernels_are_kept_by_the_versions_of_an_mbt_on_the_search_path(own, tmp_path):
    environment = {**stand_in(tmp_path), "HOSTNAME": "gpu7.cluster"}
    for name, does in (("mbt", "env > environment.txt"), ("python", "echo vllm0.33.0-torch2.13.0")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    found = environment_of(
        own("mbt = ['mbt']\n[gpu_job]\ngpus = 1\n[small_job]\n"), tmp_path, environment
    )

    kept = tmp_path / "cache/compiled/gpu7/vllm0.33.0-torch2.13.0"
    assert found["VLLM_CACHE_ROOT"] == f"{kept}/vllm"


def test_the_processes_of_a_training_share_the_processors(own, tmp_path):
    environment = {**stand_in(tmp_path), "SLURM_CPUS_PER_TASK": "32", "OMP_NUM_THREADS": "1"}

    shared = environment_of(own(ENVIRONMENT % ""), tmp_path, environment, gpus=4, trains=True)
    preset = own(ENVIRONMENT % "OMP_NUM_THREADS = '3'")
    said = environment_of(preset, tmp_path, environment, gpus=4, trains=True)

    assert shared["OMP_NUM_THREADS"] == "8"
    assert said["OMP_NUM_THREADS"] == "3"


SITE = """mbt = ["bash", "-c", "env > environment.txt", "mbt"]
%s
[gpu_job]
gpus = 1
[small_job]
"""


def test_a_shell_that_is_not_bash_needs_no_setup_for_modules(own, tmp_path):
    init = tmp_path / "modules" / "init" / "bash"
    init.parent.mkdir(parents=True)
    init.write_text('module() { export LOADED="$UNSET_$*"; }\n')
    environment = {**stand_in(tmp_path), "MODULESHOME": str(tmp_path / "modules")}
    (tmp_path / "bin" / "module").unlink()  # zsh and tcsh export no function that bash reads

    listed = environment_of(own(SITE % 'modules = ["cuda/12.8"]'), tmp_path, environment)
    said = environment_of(own(SITE % 'setup = [["module", "load", "a"]]'), tmp_path, environment)

    assert listed["LOADED"] == "load cuda/12.8"
    assert said["LOADED"] == "load a"


def test_a_command_of_a_preset_that_fails_is_named(own, tmp_path):
    launcher = own(SITE % 'setup = [["test", "-e", "an env"]]')

    returned, events = ran(launcher, tmp_path, stand_in(tmp_path))

    assert returned == 1
    assert events == ["a command of the preset failed: test -e 'an env'"]


def test_a_command_of_a_preset_may_fail_within(own, tmp_path):
    (tmp_path / "profile.sh").write_text('[ -n "$NOT_SET" ] && true\nfalse\nexport MADE=yes\n')

    found = environment_of(
        own(SITE % 'setup = [["source", "profile.sh"]]'), tmp_path, stand_in(tmp_path)
    )

    assert found["MADE"] == "yes"


def test_a_cache_that_nodes_cannot_write_to_stops_no_job(own, tmp_path, node):
    home = tmp_path / "home"
    home.write_text("no folder here: the nodes cannot make one")
    environment = {**stand_in(tmp_path), "SLURM_TMPDIR": str(node)}
    wanted = job(tmp_path / "record", workdir=tmp_path, cache=home / "cache")
    script = ["bash", "-c", own(SITE % "").render(wanted)]

    subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, check=True)

    found = (tmp_path / "environment.txt").read_text()
    for name in ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "FLASHINFER_WORKSPACE_BASE"):
        assert f"\n{name}={node}/" in found


@pytest.mark.parametrize(("given", "step"), [({"SLURM_CPUS_PER_TASK": "8"}, "8"), ({}, None)])
def test_a_step_has_the_processors_of_its_job(own, tmp_path, given, step):
    launcher = own(
        'container = ["srun"]\nmbt = ["mbt"]\n[gpu_job]\ngpus = 4\n'
        'directives = ["--cpus-per-gpu=2"]\n[small_job]\n'
    )
    environment = {**stand_in(tmp_path), **given}
    (tmp_path / "bin" / "srun").write_text("#!/bin/bash\nenv > environment.txt\n")
    (tmp_path / "bin" / "srun").chmod(0o755)

    found = environment_of(launcher, tmp_path, environment, gpus=4)

    assert found.get("SRUN_CPUS_PER_TASK") == step


def sent(tmp_path, monkeypatch, answer="echo 41", **environment):
    """Stand-in for `sbatch` that writes down its words and its environment."""
    folder = stand_in(tmp_path)["PATH"]
    record = f'printf "%s\\n" "$@" > {tmp_path}/words.txt; env > {tmp_path}/environment.txt'
    (tmp_path / "bin" / "sbatch").write_text(f"#!/bin/bash\n{record}\n{answer}\n")
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", folder)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_variables_of_sbatch_do_not_override_a_preset(own, tmp_path, monkeypatch):
    preset = "[job]\naccount = 'lab'\n[gpu_job]\ngpus = 1\ndirectives = ['--comment2=a#b']\n"
    sent(tmp_path, monkeypatch)

    own(f"{preset}[small_job]\n").submit(job(), tmp_path / "base-1.sh", after=())

    words = (tmp_path / "words.txt").read_text().splitlines()
    assert {"--account=lab", "--gpus-per-node=1", "--requeue", "--comment2=a#b"} < {*words}
    assert words[-1] == f"{tmp_path}/base-1.sh"


def test_a_job_inherits_nothing_of_the_job_around_the_submission(own, tmp_path, monkeypatch):
    of_the_job = ("SLURM_ARRAY_TASK_ID", "SLURM_TMPDIR", "CUDA_VISIBLE_DEVICES", "SRUN_DEBUG")
    stays = ("SLURM_CONF", "HF_TOKEN", "SLURM_CLUSTERS")
    variables = dict.fromkeys((*of_the_job, *stays), "3")
    launcher = own("[gpu_job]\ngpus = 1\n[small_job]\n")
    sent(tmp_path, monkeypatch, **variables)

    inherited = []
    for around in ({"SLURM_JOB_ID": "7"}, {}):
        for name, value in around.items():
            monkeypatch.setenv(name, value)
        launcher.submit(job(), tmp_path / "base-1.sh", after=())
        lines = (tmp_path / "environment.txt").read_text().splitlines()
        inherited.append({line.partition("=")[0] for line in lines} & {*variables})
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    assert inherited == [{*stays}, {*variables}]


@pytest.mark.parametrize(
    "answer", ["echo 41", "echo '41;wice'", "echo '--> Verifying queue 9...OK'; echo; echo 41"]
)
def test_the_job_is_found_in_what_sbatch_says(own, tmp_path, monkeypatch, answer):
    launcher = own("[gpu_job]\ngpus = 1\n[small_job]\n")
    sent(tmp_path, monkeypatch, answer)

    assert launcher.submit(job(), tmp_path / "base-1.sh", after=()) == "41"


def test_an_sbatch_that_names_no_job_is_an_error(own, tmp_path, monkeypatch):
    launcher = own("[gpu_job]\ngpus = 1\n[small_job]\n")
    sent(tmp_path, monkeypatch, "echo 'filed for later'")

    with pytest.raises(MbtError, match="named no job: filed for later"):
        launcher.submit(job(), tmp_path / "base-1.sh", after=())


@pytest.mark.parametrize(
    ("reason", "is_stuck"),
    [
        ("Priority", False),
        ("Resources", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpGRES", False),
        ("JobHeldUser", True),
        ("launch failed requeued held", True),
        ("DependencyNeverSatisfied", True),
        ("PartitionTimeLimit", True),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("AssocMaxCpuPerJobLimit", True),
        ("QOSMaxGRESPerJob", True),
        ("BadConstraints", True),
    ],
)
def test_a_job_that_can_never_start_is_stuck(slurm, reason, is_stuck):
    slurm.answers(squeue=f"7\t7\tPENDING\t{reason}\tmbt\tbase-1.sh\n")

    (queued,) = SlurmLauncher.queued("", ["7"])

    assert queued.is_stuck == is_stuck


def test_a_number_sign_begins_no_comment_in_a_directive(own):
    image = "--container-image=nvcr.io#nvidia/vllm:26.09"
    launcher = own(f'[gpu_job]\ngpus = 1\ndirectives = ["{image}"]\n[small_job]\n')

    script = launcher.render(job())

    assert r"#SBATCH --container-image=nvcr.io\#nvidia/vllm:26.09" in script


def test_a_container_of_pyxis_is_started_by_the_one_srun_of_each_node(own, tmp_path):
    image = "--container-image=nvcr.io#nvidia/vllm:26.09"
    launcher = own(
        f'container = ["srun", "{image}"]\nmbt = ["mbt"]\n'
        "[gpu_job]\ngpus = 4\nnodes = 2\n[small_job]\n"
    )

    script = launcher.render(job(gpus=8, nodes=2))

    command, node = (
        re.search(rf"^{name}=\(\n(.*?)\n\)", script, re.MULTILINE | re.DOTALL)[1].split()
        for name in ("command", "node")
    )
    assert command[:3] == ["srun", "--overlap", "--nodes=1"]
    assert f"'{image}'" in command
    assert node == [f"'{image}'", "mbt", "node"]


@pytest.mark.parametrize(
    ("signal", "code", "last"),
    [
        ("USR1", 0, "stopped by a signal before it began; requeued"),
        ("TERM", 75, "stopped from outside before it began"),
    ],
)
def test_a_signal_before_the_command_starts_loses_no_job(own, tmp_path, signal, code, last):
    setup = f'["bash", "-c", "kill -{signal} $PPID; sleep 0.3"]'
    launcher = own(f'mbt = ["touch", "ran.txt"]\nsetup = [{setup}]\n[gpu_job]\n[small_job]\n')

    returned, events = ran(launcher, tmp_path, stand_in(tmp_path))

    assert events[-1] == last
    assert returned == code
    assert not (tmp_path / "ran.txt").exists()


def test_a_job_that_makes_no_progress_is_given_up(own, tmp_path):
    words = f'["bash", "-c", "{STOPPED}"]'
    launcher = own(f"max_idle_requeues = 1\nmbt = {words}\n[gpu_job]\n[small_job]\n")
    environment = stand_in(tmp_path)

    first, _ = ran(launcher, tmp_path, environment)
    second, events = ran(launcher, tmp_path, environment)

    # the first time there is nothing to compare with; the second has made nothing since
    assert [first, second] == [0, 75]
    assert "requeued 1 times without progress, so it is given up" in "\n".join(events)


def test_every_shipped_preset_has_a_golden_script():
    shipped = {path.stem for path in (REPOSITORY / "presets" / "slurm").glob("*.toml")}

    assert shipped == {path.stem for path in GOLDENS.glob("*.sh")} | {"one-node"}


@pytest.mark.parametrize("nasty", NASTY)
def test_a_script_for_a_host_runs_the_command_and_nothing_else(tmp_path, nasty):
    launcher = SshLauncher(hosts={"gpu-a": 1}, environment={"OWN": nasty})
    wanted = job(argv=("printf", "%s", nasty), workdir=tmp_path, environment={"NASTY": nasty})

    done = subprocess.run(
        ["bash", "-c", launcher.render(wanted)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == nasty
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"-oProxyCommand=id" = 8', "is not a host for ssh"),
        ('"gpu-a; id" = 8', "is not a host for ssh"),
        ("gpu-a = [0, 0]", "the list of their indices"),
        ("gpu-a = -1", "write the number of GPUs"),
        ("", "hosts`"),
    ],
)
def test_a_mistake_in_the_hosts_is_a_problem(tmp_path, line, words):
    folder = tmp_path / "ssh"
    folder.mkdir()
    (folder / "own.toml").write_text(f"[hosts]\n{line}\n")

    with pytest.raises(ManifestError, match=r"own\.toml") as raised:
        load_launcher("ssh", "own", PresetFolders((tmp_path,)), {})

    assert words in raised.value.message


def test_a_job_that_no_host_can_hold_is_refused(presets):
    launcher = load_launcher("ssh", "two-boxes", presets, {})

    assert 'exec "${command[@]}"' in launcher.render(job(gpus=8))
    with pytest.raises(MbtError, match="needs 16 GPUs and no host of the preset has more than 8"):
        launcher.render(job(gpus=16))


def test_models_are_placed_on_the_host_with_the_most_gpus():
    launcher = SshLauncher(hosts={"gpu-a": [2, 3], "gpu-b": 8, "cpu": 0}, gpu_memory_gb=100)
    found = launcher.gpus()

    assert (found.count, found.memory_gib, found.nodes) == (8, 99.0, 1)
    assert SshLauncher(hosts={"cpu": 0}).gpus() is None
    (note,) = launcher.notes([job(gpus=8), job(gpus=1)])
    assert "use up to 8 GPUs" in note
    assert "fewer: gpu-a (2);" in note
    assert launcher.notes([job(gpus=0)]) == ()


def test_the_queue_of_hosts_is_read_once_for_all_its_jobs(tmp_path, monkeypatch):
    launcher, read = SshLauncher(hosts={"gpu-a": 8}), []
    (tmp_path / "logs").mkdir()
    ids = [
        launcher.submit(replace(job(tmp_path), id=f"base-{n}"), tmp_path / "job.sh", after=())
        for n in range(3)
    ]
    for number, state in enumerate(("completed", "failed")):
        done = tmp_path / "ssh/state" / f"base-{number}@0.ended"
        done.write_text(json.dumps({"state": state, "why": "with exit code 0 on gpu-a"}))
    (tmp_path / "ssh/state/host-0.beat").touch()
    original = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda *a, **k: read.append(a[0]) or original(*a, **k))

    ended = SshLauncher.ended_jobs(ids)

    assert {Path(one).name: end.outcome for one, end in ended.items()} == {
        "base-0": "completed",
        "base-1": "failed",
    }
    # the head, three jobs and two ends
    assert len(read) == 6


def test_a_host_without_gpus_runs_only_jobs_without(tmp_path):
    launcher = SshLauncher(hosts={"gpu-a": 0})

    assert launcher.render(job(gpus=0))
    with pytest.raises(MbtError, match="needs 1 GPUs"):
        launcher.render(job(gpus=1))


def test_a_secret_in_a_preset_of_hosts_is_refused():
    with pytest.raises(ValidationError, match="looks like a secret"):
        SshLauncher(hosts={"gpu-a": 1}, environment={"HF_TOKEN": "x"})
