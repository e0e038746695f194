"""What the C library does with freed memory, where it lets itself be told."""

import contextlib
import ctypes

# names of mallopt(3) in glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def return_freed_memory() -> None:
    """Give freed memory back to the operating system; what follows then has room.

    The C library keeps what thousands of buffers in flight have freed, some 70 MiB after 2,048
    of them. Does nothing where the C library has no such call.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Keep freed memory for what is allocated next, until it is given back by hand.

    Does nothing where the C library has no such call.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)
