"""What confines a process on Linux: namespaces, an empty root, Landlock, limits, a seccomp filter.

All through the C library, without privileges. The fork server of a worker imports it inside the
sandbox, so it imports the standard library alone.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_C = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    """Call a function of the C library; OSError with its name if it returns -1."""
    found = int(getattr(_C, name)(*arguments))
    if found == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return found


def _system_call(name: str, number: int, *arguments: object) -> int:
    _C.syscall.restype = ctypes.c_long
    try:
        return _call("syscall", ctypes.c_long(number), *arguments)
    except OSError as error:
        raise OSError(error.errno, f"{name}: {os.strerror(error.errno or 0)}") from None


# Namespaces

_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USERS, NEW_PIDS, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_ALL_NEW = _NEW_USERS | _NEW_MOUNTS | NEW_PIDS | _NEW_NETWORK | _NEW_IPC | _NEW_HOST_NAME
INSIDE_ID = 1
"""User and group of everything inside."""
_SETUP_ID = 0
"""The user that sets up, where the one outside can be mapped to two."""
_NOBODY = 65534


def leave_namespaces() -> None:
    """Leave the namespaces of the parent for new ones; the next child is in the new pid namespace.

    Raises:
        OSError: The kernel or its policy forbids it.
    """
    _call("unshare", _ALL_NEW)


def map_users(pid: int, *, as_nobody: bool) -> None:
    """Map users and groups of a child that has left the namespaces of this process.

    Args:
        pid: The child.
        as_nobody: Whether this process is root, and its child shall be nobody outside.
    """
    own = Path(f"/proc/{pid}")
    # a kernel without this file has no rule about it
    with suppress(FileNotFoundError):
        (own / "setgroups").write_text("deny", encoding="ascii")
    for name, outside in (("uid_map", os.geteuid()), ("gid_map", os.getegid())):
        line = f"{INSIDE_ID} {outside} 1\n"
        if as_nobody:
            line = f"{_SETUP_ID} {outside} 1\n{INSIDE_ID} {_NOBODY} 1\n"
        (own / name).write_text(line, encoding="ascii")


def new_pids() -> None:
    """Let the next child be the first of a new pid namespace."""
    _call("unshare", NEW_PIDS)


def same_pids(namespace: int) -> None:
    """Let further children be in the pid namespace of this process, which the file leads to."""
    _call("setns", namespace, NEW_PIDS)


# An empty root

_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 32, 4096, 16384, 1 << 18
_FLAGS = {
    os.ST_RDONLY if hasattr(os, "ST_RDONLY") else 1: _READ_ONLY,
    2: _NO_SETUID,
    4: _NO_DEVICES,
    8: _NO_EXECUTION,
    1024: 1024,  # no access times
    2048: 2048,  # nor of folders
    4096: 1 << 21,  # relative access times
}
_DETACH = 2
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    try:
        _call("mount", *texts, ctypes.c_ulong(flags), data and os.fsencode(data))
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (`{source}` at `{target}`)") from None


def enter_empty_root(readable: Sequence[str], hidden: Sequence[str], shown: Sequence[str]) -> None:
    """Make a root that holds some folders and files of the old one, all of it read-only.

    Args:
        readable: Files and folders that it holds, at their own paths, with what is mounted below.
        hidden: Folders below them that are empty inside.
        shown: Files and folders that it holds although they may be below those.

    Raises:
        OSError: A mount fails.
    """
    root = _root_outside([*readable, *shown])
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SETUID | _NO_DEVICES, "mode=0755,size=1m,nr_inodes=4096")
    # binds come from here: the new root may hide a part of the old one
    old = f"{root}/.old"
    Path(old).mkdir()
    _mount("/", old, None, _BIND | _RECURSIVE)
    for path in _in_order(readable):
        _place(old + path, root, path)
    for path in hidden:
        if Path(root + path).is_dir():
            _mount("tmpfs", root + path, "tmpfs", _NO_SETUID | _NO_DEVICES, "mode=0755,size=64k")
    for path in _in_order(shown):
        _place(old + path, root, path)
    _call("umount2", os.fsencode(old), _DETACH)
    Path(old).rmdir()
    for path in (root, *_mounts_below(root)):
        has_device = path.removeprefix(root) in DEVICES
        _make_read_only(path, keeps_devices=has_device)
    os.chdir(root)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _DETACH)
    os.chdir("/")


def _root_outside(paths: Iterable[str]) -> str:
    """A folder for the new root, which hides what is below it: none of the paths is."""
    needed = [f"{os.path.realpath(path)}/" for path in paths]
    for folder in ("/tmp", "/mnt", "/media", "/srv", "/opt", "/home"):
        if os.path.isdir(folder) and not any(path.startswith(f"{folder}/") for path in needed):
            return folder
    raise OSError(errno.ENOENT, "no folder such as `/mnt` is free for an empty root")


def _place(source: str, root: str, path: str) -> None:
    """Bind a file or folder at its path below the new root, as a link if it is one."""
    target = Path(root + path)
    if os.path.islink(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            target.symlink_to(os.readlink(source))
        return
    if not os.path.exists(source) or os.path.lexists(target):  # the latter: a parent was bound
        return
    if os.path.isdir(source):
        target.mkdir(parents=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(source, str(target), None, _BIND | _RECURSIVE)


def _in_order(paths: Iterable[str]) -> list[str]:
    """Parents before what is below them, each once."""
    return sorted({os.path.normpath(path) for path in paths})


def _mounts_below(root: str) -> Iterator[str]:
    """Mount points below the last mount at a folder; those that it hides are not."""
    inside: set[str] = set()
    with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as lines:
        # a mount comes behind the one that it is on
        for line in lines:
            number, parent, _, _, raw, *_ = line.split(" ")
            path = raw.encode(errors="surrogateescape").decode("unicode_escape")
            if path == root:
                inside = {number}
            elif parent in inside:
                inside.add(number)
                yield path.encode("latin-1").decode(errors="surrogateescape")


def _make_read_only(path: str, *, keeps_devices: bool) -> None:
    # flags that the mount already has may not be taken away
    held = os.statvfs(path).f_flag
    flags = sum(flag for bit, flag in _FLAGS.items() if held & bit)
    flags |= _READ_ONLY | _NO_SETUID | (0 if keeps_devices else _NO_DEVICES)
    _mount("none", path, None, _REMOUNT | _BIND | flags)


# Capabilities and privileges

_KEEP_CAPABILITIES, _NO_NEW_PRIVILEGES, _DUMPABLE, _DIE_WITH_PARENT = 8, 38, 4, 1
_ADOPT_ORPHANS = 36
_CAPABILITIES = 0x20080522
"""Version 3 of the structure."""


def become(user: int) -> None:
    """Become a user and group of this namespace, with all capabilities in it."""
    _call("prctl", _KEEP_CAPABILITIES, 1, 0, 0, 0)
    if os.getresgid() != (user,) * 3:
        os.setresgid(user, user, user)
    if os.getresuid() != (user,) * 3:
        os.setresuid(user, user, user)
    _set_capabilities(2**64 - 1)


def drop_privileges() -> None:
    """Give up all capabilities for good, cores, and what a set-user-id program would give."""
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("prctl", _DUMPABLE, 0, 0, 0, 0)
    _set_capabilities(0)


def adopt_orphans() -> None:
    """Become the parent of processes below this one whose parent ends."""
    _call("prctl", _ADOPT_ORPHANS, 1, 0, 0, 0)


def die_with_parent() -> None:
    """End this process when its parent ends."""
    _call("prctl", _DIE_WITH_PARENT, 9, 0, 0, 0)


def _set_capabilities(wanted: int) -> None:
    header = struct.pack("=Ii", _CAPABILITIES, 0)
    data = ctypes.create_string_buffer(struct.pack("=6I", *(0,) * 6))
    _call("capget", header, data)
    words = struct.unpack("=6I", data.raw[:24])
    permitted = (words[1] | words[4] << 32) & wanted
    low, high = permitted & 0xFFFFFFFF, permitted >> 32
    _call("capset", header, struct.pack("=6I", low, low, 0, high, high, 0))


# Landlock

_CREATE_RULES, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_READ_FILE, _READ_FOLDER, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_ALL_FILES = {1: 13, 2: 14, 3: 15, 4: 15}
"""Version of the interface to its number of rights on files."""
_MOST_FILE_RIGHTS = 16
_OLDEST_LANDLOCK = 1


def landlock_version() -> int:
    """Version of Landlock; 0 where there is none."""
    with suppress(OSError):
        return _system_call("landlock", _CREATE_RULES, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return 0


def allow_only(readable: Iterable[str]) -> None:
    """Forbid this process all files but some, which it can read, and all TCP.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = landlock_version()
    if version < _OLDEST_LANDLOCK:
        raise OSError("the kernel has no Landlock")
    handled = (1 << _ALL_FILES.get(version, _MOST_FILE_RIGHTS)) - 1
    network = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0
    attribute = struct.pack("=QQQ", handled, network, scoped)[
        : 8 if version < 4 else 16 if version < 6 else 24
    ]
    rules = _system_call(
        "landlock_create_ruleset",
        _CREATE_RULES,
        attribute,
        ctypes.c_size_t(len(attribute)),
        ctypes.c_uint(0),
    )
    try:
        for path in readable:
            with suppress(FileNotFoundError):
                _allow(rules, path)
        _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _system_call(
            "landlock_restrict_self", _RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0)
        )
    finally:
        os.close(rules)


def _allow(rules: int, path: str) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rights = _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else 0)
        rights |= _WRITE_FILE if path in DEVICES else 0
        rule = struct.pack("=Qi", rights, place)
        _system_call(
            "landlock_add_rule",
            _ADD_RULE,
            ctypes.c_int(rules),
            ctypes.c_int(_PATH_BENEATH),
            rule,
            ctypes.c_uint(0),
        )
    finally:
        os.close(place)


# Limits

_STACK_BYTES = 64 << 20
_THREADS = 64
_OPEN_FILES = 64
_USERS_COUNT_APART = (5, 14)
"""Kernel from which on the processes of a user are counted in each namespace by themselves."""


def limit_resources(*, cpu_seconds: int, memory_bytes: int, has_own_users: bool) -> None:
    """Limit this process for good.

    Args:
        cpu_seconds: Processor time, of all threads together; then the kernel kills it.
        memory_bytes: Address space.
        has_own_users: Whether it is in a user namespace of its own.
    """
    limits = {
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_DATA: memory_bytes,
        resource.RLIMIT_STACK: _STACK_BYTES,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if sys.platform == "linux":
        limits |= {resource.RLIMIT_MSGQUEUE: 0, resource.RLIMIT_SIGPENDING: _THREADS}
        if has_own_users and _kernel() >= _USERS_COUNT_APART:
            limits[resource.RLIMIT_NPROC] = _THREADS
    for limit, most in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):  # macOS has no limit of memory
            resource.setrlimit(limit, (value, value))


def _kernel() -> tuple[int, ...]:
    numbers = platform.release().split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


# Seccomp

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "arm64": (0xC00000B7, 1)}
"""Its number in a filter, and the column of the table below."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NOT_PERMITTED, _NOT_THERE = 1, 38
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_OTHER_ABI = 0x40000000
_THREAD = 0x00010000
_SET_FILTER, _FILTER = 22, 2

_DENIED: dict[str, tuple[tuple[int, int | None], ...]] = {
    "programs and processes": (
        (57, None), (58, None), (59, 221), (322, 281),  # fork vfork execve execveat
    ),
    "other processes": (
        (101, 117), (310, 270), (311, 271), (312, 272),  # ptrace process_vm_* kcmp
        (200, 130), (129, 138), (297, 240), (222, 107),  # tkill rt_*sigqueueinfo timer_create
        (424, 424), (434, 434), (438, 438), (440, 440), (448, 448),  # pidfd_* process_*
        (141, 140), (142, 118), (144, 119), (203, 122), (251, 30), (314, 274),  # priorities
    ),
    "namespaces and mounts": (
        (155, 41), (161, 51), (165, 40), (166, 39), (272, 97), (308, 268),
        (303, 264), (304, 265), (428, 428), (429, 429), (430, 430), (431, 431), (432, 432),
        (433, 433), (442, 442),
    ),
    "network": (
        (41, 198), (42, 203), (43, 202), (49, 200), (50, 201), (288, 242),
    ),
    "users and capabilities": (
        (105, 146), (106, 144), (113, 145), (114, 143), (116, 159), (117, 147), (119, 149),
        (122, 151), (123, 152), (126, 91), (317, 277),
    ),
    "the kernel": (
        (103, 116), (135, 92), (153, 58), (154, None), (159, 171), (163, 89), (164, 170),
        (167, 224), (168, 225), (169, 142), (170, 161), (171, 162), (172, None), (173, None),
        (175, 105), (176, 106), (179, 60), (227, 112), (246, 104), (248, 217), (249, 218),
        (250, 219), (294, None), (298, 241), (300, 262), (305, 266), (313, 273), (320, 294),
        (321, 280), (323, 282), (425, 425), (426, 426), (427, 427),
        (237, 235), (238, 237), (256, 238), (279, 239),
    ),
    "memory that no limit counts": (
        (29, 194), (30, 196), (31, 195), (64, 190), (68, 186), (240, 180), (319, 279), (447, 447),
    ),
    "files": (
        (76, 45), (77, 46), (82, None), (83, None), (84, None), (85, None), (86, None), (87, None),
        (88, None), (90, None), (91, 52), (92, None), (93, 55), (94, None), (132, None),
        (133, None), (188, 5), (189, 6), (190, 7), (197, 14), (198, 15), (199, 16), (235, None),
        (258, 34), (259, 33), (260, 54), (261, None), (263, 35), (264, 38), (265, 37), (266, 36),
        (268, 53), (280, 88), (285, 47), (316, 276), (452, 452),
    ),
}  # fmt: skip
"""System calls that fail, with their numbers on x86-64 and on 64-bit ARM."""

_CLONE, _CLONE3 = (56, 220), (435, 435)
_OPEN, _OPEN_AT, _OPEN_AT2 = (2, None), (257, 56), (437, 437)
_WRITES = 0o3 | 0o100 | 0o1000 | 0o2000  # write-only, read-write, create, truncate, append
_OWN_PROCESS = {(62, 129): 1, (234, 131): 2}
"""`kill` and `tgkill`, and the place of the signal among their arguments."""
_OWN_LIMITS, _SET_LIMIT = (302, 261), (160, 164)
_CPU_LIMIT = 0
_FCNTL, _IOCTL, _PRCTL = (72, 25), (16, 29), (157, 167)
_SIGNALS_OTHERS = {_FCNTL: (8, 10, 15), _IOCTL: (0x8901, 0x8902)}
_OWN_SETTINGS = (_DIE_WITH_PARENT, _DUMPABLE, _SET_FILTER, 35)


def has_filters() -> bool:
    """Whether the kernel filters system calls, on a processor whose numbers are known here."""
    if platform.machine() not in _ARCHITECTURES or sys.platform != "linux":
        return False
    try:
        _call("prctl", _SET_FILTER, _FILTER, None, 0, 0)
    except OSError as error:
        return error.errno == errno.EFAULT  # it would have read the filter
    return False


class Filter:
    """A seccomp filter, ready to be installed in a process.

    It lets a process compute, read, and write to what it has open. New processes and programs,
    network, signals to others, mounts, settings of the kernel and files that are not open fail
    with EPERM; threads are allowed. A system call of another architecture ends the process.

    Args:
        keeps_files: Whether files cannot be opened for writing anyway.
    """

    def __init__(self, *, keeps_files: bool) -> None:
        self._number, self._column = _ARCHITECTURES[platform.machine()]
        self._keeps_files = keeps_files
        first, second = (b"".join(self._program(own)) for own in (1, 2))
        self._code = bytearray(first)
        self._own = [n for n in range(0, len(first), 4) if first[n : n + 4] != second[n : n + 4]]

    def install(self) -> None:
        """Filter the system calls of this process from now on; it cannot be undone.

        Raises:
            OSError: The kernel has no filters.
        """
        for place in self._own:
            struct.pack_into("=I", self._code, place, os.getpid())
        held = (ctypes.c_char * len(self._code)).from_buffer(self._code)
        program = struct.pack("@H6xP", len(self._code) // 8, ctypes.addressof(held))
        _call("prctl", _SET_FILTER, _FILTER, program, 0, 0)

    def _program(self, own: int) -> Iterator[bytes]:
        yield _step(_LOAD, _ARCHITECTURE_AT)
        yield _step(_EQUAL, self._number, 1, 0)
        yield _step(_RETURN, _KILL)
        yield _step(_LOAD, _NUMBER_AT)
        if not self._column:
            yield _step(_AT_LEAST, _OTHER_ABI, 0, 1)
            yield _step(_RETURN, _KILL)
        for calls in _DENIED.values():
            for numbers in calls:
                yield from self._on(numbers, [_step(_RETURN, _ERROR | _NOT_PERMITTED)])
        # the C library falls back to `clone`, whose flags a filter can read
        for numbers in (_CLONE3, _OPEN_AT2):
            yield from self._on(numbers, [_step(_RETURN, _ERROR | _NOT_THERE)])
        yield from self._on(_CLONE, _unless_any_bit(0, _THREAD))
        # only others can kill a process for good, so that its end by SIGKILL says something
        for numbers, place in _OWN_PROCESS.items():
            steps = [*_unless_one_of(0, (own,))[:-1], *_if_one_of(place, (signal.SIGKILL,))]
            yield from self._on(numbers, steps)
        steps = [*_unless_one_of(0, (0, own))[:-1], *_if_one_of(1, (_CPU_LIMIT,))]
        yield from self._on(_OWN_LIMITS, steps)
        yield from self._on(_SET_LIMIT, _if_one_of(0, (_CPU_LIMIT,)))
        for numbers, commands in _SIGNALS_OTHERS.items():
            yield from self._on(numbers, _if_one_of(1, commands))
        yield from self._on(_PRCTL, _if_one_of(0, _OWN_SETTINGS))
        if not self._keeps_files:
            yield from self._on(_OPEN, _if_any_bit(1, _WRITES))
            yield from self._on(_OPEN_AT, _if_any_bit(2, _WRITES))
        yield _step(_RETURN, _ALLOW)

    def _on(self, numbers: tuple[int, int | None], steps: Sequence[bytes]) -> Iterator[bytes]:
        number = numbers[self._column]
        if number is not None:
            yield _step(_EQUAL, number, 0, len(steps))
            yield from steps


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFFFFFF)


def _refused_or(*test: bytes) -> list[bytes]:
    """Steps that end a branch: refuse where the test falls through, else allow."""
    return [*test, _step(_RETURN, _ERROR | _NOT_PERMITTED), _step(_RETURN, _ALLOW)]


def _argument(place: int) -> bytes:
    return _step(_LOAD, _ARGUMENTS_AT + 8 * place)  # the low half, on little-endian processors


def _unless_any_bit(place: int, bits: int) -> list[bytes]:
    return _refused_or(_argument(place), _step(_ANY_BIT, bits, 1, 0))


def _if_any_bit(place: int, bits: int) -> list[bytes]:
    return _refused_or(_argument(place), _step(_ANY_BIT, bits, 0, 1))


def _unless_one_of(place: int, values: Sequence[int]) -> list[bytes]:
    tests = [_step(_EQUAL, value, len(values) - n, 0) for n, value in enumerate(values)]
    return _refused_or(_argument(place), *tests)


def _if_one_of(place: int, values: Sequence[int]) -> list[bytes]:
    last = len(values) - 1
    tests = [
        _step(_EQUAL, value, last - n, 1 if n == last else 0) for n, value in enumerate(values)
    ]
    return _refused_or(_argument(place), *tests)
