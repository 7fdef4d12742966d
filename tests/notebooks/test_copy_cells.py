"""The cells to take home stand alone: in a file of their own, in an empty folder, without this package."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import lessons
import pytest

CELLS = [
    pytest.param(name, cell.source, id=f"{name}-{cell.id}")
    for name in lessons.NAMES
    for cell in lessons.lesson(name).tagged("copy")
]
MACHINES = {
    "with the device at hand": {},
    "without any accelerator": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
}


@pytest.mark.parametrize(("name", "source"), CELLS)
def test_it_names_nothing_of_ours(name, source):
    tree = ast.parse(source)
    imported = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    imported |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not [module for module in imported if module.split(".")[0] == "neuron_lab"]
    assert "lab" not in lessons.names_read(source), "it uses `lab`, which a reader's file does not have"
    assert isinstance(tree.body[0], ast.Import | ast.ImportFrom), "begin with the imports"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("name", "source"), CELLS)
def test_it_runs_alone(name, source, machine, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(source)
    empty = tmp_path / "empty"
    empty.mkdir()
    answer = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=empty,
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ | MACHINES[machine],
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip(), "say what came out"
    assert not list(empty.iterdir()), "it leaves files behind"
