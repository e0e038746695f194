"""On which file systems flock excludes the processes of one machine only."""

import pytest

from mbt_cli.cli import file_systems
from mbt_cli.cli.file_systems import file_system_of, one_machine_locks

ROOT = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw"


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """A folder that the list of mounts says is on this file system."""

    def mount(about, options="rw,relatime", folder="data"):
        place = tmp_path / folder
        place.mkdir()
        listed = str(place).replace(" ", "\\040")
        mounts = tmp_path / "mountinfo"
        mounts.write_text(f"{ROOT}\n42 21 0:39 / {listed} {options} master:2 - {about}\n{ROOT}\n")
        monkeypatch.setattr(file_systems, "_MOUNTS", mounts)
        return place

    return mount


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ("nfs server:/x rw,vers=3,nolock", "nfs is mounted with `nolock`"),
        ("nfs server:/x rw,vers=3,local_lock=none", None),
        ("nfs4 server:/x rw,local_lock=flock", "nfs4 is mounted with `local_lock=flock`"),
        ("nfs4 server:/x rw,vers=4.2", None),
        ("lustre 10.0.0.1@tcp:/x rw,lazystatfs", "lustre is mounted without `flock`"),
        ("lustre 10.0.0.1@tcp:/x rw,localflock", "lustre is mounted with `localflock`"),
        ("lustre 10.0.0.1@tcp:/x rw,flock,lazystatfs", None),
        ("cifs //server/x rw,nobrl", "cifs is mounted with `nobrl`"),
        ("fuse.sshfs host:/x rw,user_id=0", "fuse.sshfs keeps flock on each machine"),
        ("beegfs beegfs_nodev rw", "beegfs keeps flock on each machine"),
        ("ext4 /dev/sdb rw", None),
        ("overlay overlay rw,lowerdir=/a,upperdir=/b", None),
        ("gpfs fs1 rw", None),
    ],
)
def test_type_and_options_say_where_flock_holds(mounted, about, why):
    found = one_machine_locks(mounted(about) / "runs")

    assert found is None if why is None else str(found).startswith(why)


def test_the_deepest_mount_counts_and_a_later_one_covers_it(mounted, tmp_path):
    place = mounted("nfs4 server:/x rw,vers=4.2", folder="my data")

    assert file_system_of(place / "a/b")[0] == "nfs4"
    assert file_system_of(tmp_path)[0] == "ext4"
    assert file_system_of(tmp_path / "my data2")[0] == "ext4"


def test_a_system_without_a_list_of_mounts_says_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(file_systems, "_MOUNTS", tmp_path / "none")

    assert file_system_of(tmp_path) == ("", frozenset())
    assert one_machine_locks(tmp_path) is None
