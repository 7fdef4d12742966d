"""Reports how long the lessons took. Not asserted: a loaded machine is not a defect."""

from __future__ import annotations

import pytest

_SECONDS = pytest.StashKey[dict[str, float]]()
BUDGET_SECONDS = 120


def pytest_configure(config):
    config.stash[_SECONDS] = {}


@pytest.fixture(scope="session")
def took(pytestconfig):
    """Call it with words and seconds; they appear in the summary."""
    return pytestconfig.stash[_SECONDS].__setitem__


def pytest_terminal_summary(terminalreporter, config):
    seconds = config.stash[_SECONDS]
    if not seconds:
        return
    terminalreporter.section("lessons")
    for what, value in seconds.items():
        over = f", over the budget of {BUDGET_SECONDS} s" if value > BUDGET_SECONDS else ""
        terminalreporter.write_line(f"{value:7.1f} s  {what}{over}")
