"""How much memory and how many processors a process may take."""

import os

from mbt_cli.core.cpus import usable_cpus
from mbt_cli.core.memory import allowed_bytes, held_share

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def system(folder, *, group, limits, file="memory.max"):
    """A system's files on control groups: the process is in `group`."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(f"1:cpu:/other\n0::/{group}\n")
    for name, limit in limits.items():
        (folder / "sys/fs/cgroup" / name).mkdir(parents=True, exist_ok=True)
        (folder / "sys/fs/cgroup" / name / file).write_text(f"{limit}\n")
    return folder


def test_the_smallest_limit_of_the_group_and_those_above_it_holds(tmp_path):
    limits = {"job": 2_000_000, "job/step": "max", "job/step/task": 3_000_000}

    assert allowed_bytes(system(tmp_path, group="job/step/task", limits=limits)) == 2_000_000


def test_without_a_limit_it_is_the_machines_memory(tmp_path):
    assert allowed_bytes(system(tmp_path, group="", limits={"": "max"})) == PHYSICAL
    assert allowed_bytes(tmp_path / "nowhere") == PHYSICAL


def test_what_is_taken_is_counted():
    before = held_share()

    taken = bytearray(os.urandom(64 << 20))

    assert 0 < before < held_share() < 1
    assert len(taken) == 64 << 20


def test_processors_are_those_of_the_process_the_job_and_the_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    limits = {"pod": "550000 100000", "pod/task": "max 100000"}
    limited = system(tmp_path, group="pod/task", limits=limits, file="cpu.max")

    assert usable_cpus(tmp_path / "nowhere") == 12
    assert usable_cpus(limited) == 6
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    assert usable_cpus(limited) == 4
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "not set")
    assert usable_cpus(limited) == 6
