"""What every folder of tests may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Python


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Runs code in fresh interpreters."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    return Python(folder)
