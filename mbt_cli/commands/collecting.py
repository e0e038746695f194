"""How seldom a command looks for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS_A_COLLECTION = 50_000


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """What imports make is no garbage, and rows hold no cycles: looking costs every request."""
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
