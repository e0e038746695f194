"""How seldom a command looks for garbage."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS_A_COLLECTION = 50_000


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """What imports make is no garbage, and rows hold no cycles: looking costs every request.

    Nor is it looked for when the process ends: Python does so several times, which took a sixth
    of a second.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION, 10, 10)
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
