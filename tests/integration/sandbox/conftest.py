"""Workers of each level that works on this machine."""

import pytest

from mbt_cli.sandbox import pool
from mbt_cli.sandbox.pool import Unavailable, Worker


@pytest.fixture(scope="module", params=["namespaces", "bubblewrap", "landlock"])
def worker(request):
    """A worker of each level, used by all tests of a file."""
    try:
        one = Worker(request.param, {})
    except Unavailable as error:
        pytest.skip(f"{request.param}: {error}")
    yield one
    one.end()


@pytest.fixture(autouse=True)
def _choice():
    yield
    pool.configure()
    pool.close()
