"""The lessons run to their end, unsolved and headlessly.

Each is executed three times in all: as it is by plain papermill, by ``neuron-lab run`` with one core and a home folder
that cannot be written, and with the parameters for real hardware.
"""

from __future__ import annotations

import html.parser
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import lessons
import nbformat
import pytest

import neuron_lab as lab
from neuron_lab import emulator

TIMEOUT_SECONDS = 600
PAPERMILL = [sys.executable, "-m", "papermill"]
NEURON_LAB = [sys.executable, "-m", "neuron_lab.cli", "run"]
HOME_FOLDERS = ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR", "HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


def library():
    """Where the emulated device was built, if that is the one at work."""
    lab.setup(quiet=True)
    path = emulator.status().library
    return path and Path(path)


def execute(command, cwd, **changes):
    environment = {name: value for name, value in (os.environ | changes).items() if value is not None}
    answer = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert answer.returncode == 0, f"{' '.join(map(str, command))}\n{answer.stdout[-6000:]}\n{answer.stderr[-6000:]}"
    return answer


@pytest.fixture(scope="module")
def as_it_is(tmp_path_factory, took):
    """Executed by plain papermill, from a folder that is not the notebook's: one per lesson, when first asked for."""
    executed = {}

    def get(name):
        if name not in executed:
            folder = tmp_path_factory.mktemp(name)
            out = folder / "out.ipynb"
            started = time.monotonic()
            execute([*PAPERMILL, str(lessons.lesson(name).path), str(out), "-k", "python3"], folder)
            took(f"{name}, papermill", time.monotonic() - started)
            assert [p.name for p in folder.iterdir()] == ["out.ipynb"], "the lesson leaves files behind"
            executed[name] = nbformat.read(out, as_version=4)
        return executed[name]

    return get


@pytest.fixture(scope="module")
def in_one_go(tmp_path_factory, took):
    """All lessons by ``neuron-lab run``, with one core and a home folder that cannot be written."""
    folder = tmp_path_factory.mktemp("one_core")
    changes = dict.fromkeys(HOME_FOLDERS)
    changes |= {"HOME": "/dev/null", "NEURON_RT_NUM_CORES": "1"}
    if library():
        changes["NEURON_LAB_CACHE"] = str(library().parents[1])  # or the device would be built once more
    started = time.monotonic()
    answer = execute([*NEURON_LAB, *map(str, lessons.PATHS), "--out", "build"], folder, **changes)
    took("all lessons, neuron-lab run, one core, no home", time.monotonic() - started)
    return folder / "build", answer.stdout


def outputs(node, kind=None):
    for cell in node.cells:
        for output in cell.get("outputs", []):
            if kind is None or output.output_type == kind:
                yield cell, output


def check_the_run(node):
    """What holds for each executed lesson."""
    not_run = [cell.id for cell in node.cells if cell.cell_type == "code" and cell.execution_count is None]
    assert not not_run, f"cells that did not run: {not_run}"
    assert not list(outputs(node, "error"))
    streams = [(cell.id, output.name, output.text) for cell, output in outputs(node, "stream")]
    noisy = [(cell, text) for cell, name, text in streams if name == "stderr"]
    assert not noisy, f"the page shows warnings: {noisy}"
    bars = [cell for cell, _, text in streams if "\r" in text or re.search(r"\d%\||it/s\b", text)]
    assert not bars, f"a progress bar, in {bars}"


def test_the_emulated_device_says_so(in_one_go):
    if not library():
        pytest.skip("this machine has a real one")
    build, _ = in_one_go
    for name in lessons.NAMES:
        node = nbformat.read(build / f"{name}.ipynb", as_version=4)
        (setup,) = [cell for cell in node.cells if "setup" in lessons.tags(cell)]
        shown = "".join(output.data["text/plain"] for output in setup.outputs if output.output_type == "execute_result")
        assert shown.startswith("EMULATED: "), shown
        assert "1 core at" in shown


@pytest.mark.parametrize("name", lessons.NAMES)
class TestAsItIs:
    def test_it_runs_cleanly_to_its_end(self, as_it_is, name):
        check_the_run(as_it_is(name))

    def test_what_is_not_solved_is_still_to_do(self, as_it_is, name):
        said = "".join(output.text for _, output in outputs(as_it_is(name), "stream"))
        for exercise in lessons.lesson(name).exercises():
            assert f"{exercise}: still to do" in said

    def test_every_picture_has_its_words_and_its_label(self, as_it_is, name):
        label = lab.setup(quiet=True).label
        pictures = [output for _, output in outputs(as_it_is(name)) if "image/png" in output.get("data", {})]
        assert pictures, "a lesson shows something"
        for output in pictures:
            assert re.search(r'<img [^>]*alt="[^"]{20,}"', output.data["text/html"])
            assert f"({label})" in output.data["text/plain"]

    def test_no_path_of_this_machine_is_shown(self, as_it_is, name):
        shown = [str(output) for _, output in outputs(as_it_is(name))]
        paths = [str(lessons.ROOT), *([str(library())] if library() else [])]
        assert not [text for text in shown if any(path in text for path in paths)]


class _Images(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.alts = []

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.alts.append(dict(attributes).get("alt", ""))


@pytest.mark.parametrize("name", lessons.NAMES)
class TestOneCoreAndNoHome:
    def test_it_runs_cleanly_to_its_end(self, in_one_go, name):
        build, printed = in_one_go
        check_the_run(nbformat.read(build / f"{name}.ipynb", as_version=4))
        assert re.search(rf"{name}\s+passed", printed)

    def test_the_page_describes_its_pictures(self, in_one_go, name):
        build, _ = in_one_go
        images = _Images()
        images.feed((build / f"{name}.html").read_text())
        assert images.alts and all(len(alt) >= 20 for alt in images.alts)


def test_the_parameters_for_hardware_run_here_as_well(tmp_path, took):
    started = time.monotonic()
    shutil.copy(lessons.FOLDER / "trn2.yaml", tmp_path)
    execute([*NEURON_LAB, *map(str, lessons.PATHS), "-f", "trn2.yaml", "--out", "build"], tmp_path)
    took("all lessons, neuron-lab run -f trn2.yaml", time.monotonic() - started)
    injected = set()
    for name in lessons.NAMES:
        node = nbformat.read(tmp_path / "build" / f"{name}.ipynb", as_version=4)
        injected |= set(node.metadata.papermill.parameters)
    assert injected, "no lesson took a parameter"
