"""Integration tests use real parts; with MBT_NO_SKIPS=1 a skipped one is a failure.

Those marked `long` are further cases of what others show, and run with MBT_LONG=1 alone.
"""

import os

import pytest

from tests.conftest import NO_SAMPLES


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("MBT_LONG", "0") in ("", "0"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter is not None else []
    skipped = [r for r in reports if NO_SAMPLES not in str(r.longrepr)]
    if skipped and os.environ.get("MBT_NO_SKIPS", "0") not in ("", "0"):
        for report in skipped:
            reporter.write_line(f"skipped although its parts were installed: {report.longrepr}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
