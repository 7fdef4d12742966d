"""The plugin in somebody else's suite, run as one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest
import torch

ones = torch.ones


def compiled(**options):
    return torch.compile(lambda x: x + 1, **{"backend": "eager", "dynamic": False, **options})


@pytest.mark.compiles(at_most=2)
def test_within():
    step = compiled()
    step(ones(2)), step(ones(3))


@pytest.mark.compiles(at_most=1)
def test_beyond():
    step = compiled()
    step(ones(2)), step(ones(3))


@pytest.mark.compiles(1)
def test_limit():
    step = compiled(recompile_limit=1)
    step(ones(2)), step(ones(3))


@pytest.mark.compiles(0)
def test_own_failure_comes_first():
    compiled()(ones(2))
    assert 1 == 2


def test_fixture(recompiles):
    step = compiled()
    with recompiles(label="steady") as seen:
        step(ones(2))
    seen.expect(compiles=1)
"""


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess:
    (folder / "test_theirs.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_limits_a_test_and_shows_the_table(tmp_path):
    done = run(tmp_path, SUITE)
    assert done.returncode == 1 and "3 failed, 2 passed" in done.stdout, done.stdout
    assert "2 compiles, at most 1 allowed" in done.stdout and "x.size(0): 2 -> 3" in done.stdout
    assert "1 compiles, at most 1 allowed; a function reached the recompile limit" in done.stdout
    assert "assert 1 == 2" in done.stdout and "at most 0 allowed" not in done.stdout


@pytest.mark.parametrize("mark", ["at_most=-1", "at_most=True", "most=1", "'2'", "1, 2", ""])
def test_a_mark_that_makes_no_sense(tmp_path, mark):
    done = run(tmp_path, f"import pytest\n@pytest.mark.compiles({mark})\ndef test_one(): pass\n")
    assert done.returncode != 0 and "takes one count, at_most=0 or more" in done.stdout + done.stderr


def test_is_not_noticed_where_it_is_not_used(tmp_path):
    done = run(tmp_path, "import sys\ndef test_one(): assert 'torch' not in sys.modules\n")
    assert done.returncode == 0, done.stdout
    assert "compiles(at_most)" in run(tmp_path, "", "--markers").stdout
