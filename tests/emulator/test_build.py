"""Building the C++ part: its key, its folder, one builder at a time, and what a killed build leaves.

The processes here run the real build (torch's cpp_extension, ninja, the compiler)
on a source of ten lines, so that a build takes a second. One slow test builds the
device itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest
import torch

from neuron_lab.emulator import build

TINY = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_neuron", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__neuron() {
  auto* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "answer", 42);
  return module;
}
"""
LOAD = """
import json, sys
from pathlib import Path
from neuron_lab.emulator import build
build.CSRC = Path({csrc!r})
try:
    module, path, seconds = build.load()
except build.BuildError as error:
    print(json.dumps(dict(error=str(error))))
else:
    print(json.dumps(dict(answer=module.answer, path=str(path), built=seconds is not None)))
"""


class Workshop:
    """A cache folder, a small source, and a compiler that writes down each call."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "a cache"
        self.csrc = folder / "a folder" / "csrc"  # as below "My Projects"
        self.calls = folder / "calls"
        self.go = folder / "go"
        self.compiler = folder / "compiler"
        self.csrc.mkdir(parents=True)
        (self.csrc / "tiny.cpp").write_text(TINY)
        self.code = LOAD.format(csrc=str(self.csrc))

    @property
    def env(self) -> dict[str, str]:
        return {"NEURON_LAB_CACHE": str(self.cache), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CXX": str(self.compiler)}

    def waiting_compiler(self) -> None:
        """The machine's compiler, which begins to compile only when the file ``go`` is there."""
        self.compiler.write_text(
            "#!/bin/sh\n"
            f'case " $* " in *" -c "*) echo "$@" >> {self.calls}; '
            f"while [ ! -e {self.go} ]; do sleep 0.02; done;; esac\n"
            f'exec {shutil.which("c++")} "$@"\n'
        )
        self.compiler.chmod(0o755)

    def wait_for_call(self) -> None:
        for _ in range(3000):
            if self.calls.exists() and self.calls.read_text():
                return
            time.sleep(0.02)
        raise AssertionError("the compiler was never called")

    def left(self) -> list[str]:
        """What lies in the cache, but for the one finished build and its lock."""
        built = [path.parent.name for path in self.cache.glob("*/_neuron.so")]
        return sorted(
            path.name
            for path in self.cache.iterdir()
            if path.name not in built and path.name.removesuffix(".lock") not in built
        )


@pytest.fixture
def workshop(tmp_path):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler under the name c++")
    shop = Workshop(tmp_path)
    shop.waiting_compiler()
    yield shop
    shop.go.touch()  # ninja gives each compiler a process group of its own: one may still be waiting


class TestKey:
    @pytest.fixture(autouse=True)
    def sources(self, tmp_path, monkeypatch):
        self.folder = tmp_path / "csrc"
        shutil.copytree(build.CSRC, self.folder)
        before = build.key()
        monkeypatch.setattr(build, "CSRC", self.folder)
        assert build.key() == before, "the place of the sources is no part of the key"
        self.before = before

    @pytest.mark.parametrize("name", ["allocator.cpp", "allocator.h"])
    def test_a_changed_byte(self, name):
        with open(self.folder / name, "a") as file:
            file.write("\n")
        assert build.key() != self.before

    def test_a_renamed_a_new_and_a_missing_file(self):
        shutil.copy(self.folder / "hooks.cpp", self.folder / "hooks2.cpp")
        new = build.key()
        (self.folder / "hooks.cpp").unlink()
        renamed = build.key()
        (self.folder / "hooks2.cpp").unlink()
        assert len({self.before, new, renamed, build.key()}) == 4

    def test_flags(self, monkeypatch):
        monkeypatch.setattr(build, "_FLAGS", [*build._FLAGS, "-g"])
        assert build.key() != self.before

    def test_torch(self, monkeypatch):
        monkeypatch.setattr(torch, "__version__", "2.14.1+cpu")
        assert build.key().startswith("torch-2.14.1-") and build.key() != self.before

    def test_another_build_of_the_same_torch(self, monkeypatch):
        monkeypatch.setattr(torch.version, "git_version", "0" * 40)
        other = build.key()
        monkeypatch.setattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", not torch._C._GLIBCXX_USE_CXX11_ABI)
        assert len({self.before, other, build.key()}) == 3

    def test_a_torch_without_gloo(self, monkeypatch):
        monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
        assert build.key() != self.before


class TestFolder:
    @pytest.fixture(autouse=True)
    def places(self, tmp_path, monkeypatch):
        for name in ("NEURON_LAB_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        self.tmp = tmp_path

    def test_the_usual_one_is_private(self):
        assert build.cache_dir() == self.tmp / "home/.cache/neuron-lab"
        assert stat.S_IMODE(build.cache_dir().stat().st_mode) == 0o700

    def test_the_chosen_one_wins(self, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.tmp / "xdg"))
        assert build.cache_dir() == self.tmp / "xdg/neuron-lab"
        monkeypatch.setenv("NEURON_LAB_CACHE", str(self.tmp / "mine"))
        assert build.cache_dir() == self.tmp / "mine"

    @pytest.mark.parametrize("home", ["/dev/null", "/proc"])
    def test_without_a_home_it_is_this_users_in_tmp(self, monkeypatch, home):
        monkeypatch.setenv("HOME", home)
        folder = build.cache_dir()
        assert folder == self.tmp / f"neuron-lab-{os.getuid()}"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_an_open_folder_in_tmp_is_closed_before_use(self, monkeypatch):
        monkeypatch.setenv("HOME", "/dev/null")
        (self.tmp / f"neuron-lab-{os.getuid()}").mkdir(mode=0o777)
        assert stat.S_IMODE(build.cache_dir().stat().st_mode) == 0o700

    @pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder to somebody else")
    def test_somebody_elses_folder_in_tmp_is_not_trusted(self, monkeypatch):
        monkeypatch.setenv("HOME", "/dev/null")
        theirs = self.tmp / f"neuron-lab-{os.getuid()}"
        theirs.mkdir()
        os.chown(theirs, 65534, 65534)
        with pytest.raises(build.BuildError, match="Set NEURON_LAB_CACHE"):
            build.cache_dir()

    @pytest.mark.parametrize("chosen", ["/proc/nowhere", "/dev/null", "file", "file/below"])
    def test_a_chosen_one_that_cannot_be_written_is_an_error(self, monkeypatch, chosen):
        (self.tmp / "file").write_text("")
        chosen = str(self.tmp / chosen) if not chosen.startswith("/") else chosen
        monkeypatch.setenv("NEURON_LAB_CACHE", chosen)
        with pytest.raises(build.BuildError, match=r"NEURON_LAB_CACHE=.*Name a folder"):
            build.cache_dir()


def result(text: str) -> dict:
    return json.loads(text.splitlines()[-1])


class TestOneBuilder:
    def test_the_second_waits_and_takes_what_the_first_made(self, workshop, python):
        first = python.start(workshop.code, workshop.env)
        workshop.wait_for_call()
        second = python.start(workshop.code, workshop.env)
        assert "waiting for it" in second.stderr.readline()
        workshop.go.touch()
        out, err = first.communicate(timeout=120)
        assert result(out)["built"] is True and result(out)["answer"] == 42
        assert "building the emulated neuron device" in err and "kept in" in err
        assert result(second.communicate(timeout=120)[0]) == {**result(out), "built": False}
        compiled = workshop.calls.read_text().splitlines()
        assert len(compiled) == len(set(compiled)), "something was compiled twice"
        assert workshop.left() == []
        # And later ones find it: no compiler is looked for, nothing is said.
        without = {**workshop.env, "CXX": "/nowhere/c++", "PATH": ""}
        third = python(workshop.code, without)
        assert result(third.stdout)["built"] is False and third.stderr == ""
        self.cut_off(workshop, python, Path(result(third.stdout)["path"]))

    def cut_off(self, workshop, python, library):
        """A library that lost its end (a crash, a copy in progress) is made again, not loaded."""
        whole = library.stat().st_size
        for size in (0, 1000):
            os.truncate(library, size)
            again = python(workshop.code, workshop.env)
            assert result(again.stdout) == {"answer": 42, "path": str(library), "built": True}
            assert library.stat().st_size == whole and workshop.left() == []


class TestKilled:
    def test_in_the_middle(self, workshop, python):
        """The compiler goes on, as it does after ``kill -9`` of Python alone, and must harm nobody."""
        first = python.start(workshop.code, workshop.env)
        try:
            workshop.wait_for_call()
            first.kill()
            first.communicate(timeout=60)
            assert any(".building-" in name for name in workshop.left())
            workshop.go.touch()
            done = python(workshop.code, workshop.env)
            assert result(done.stdout)["built"] is True and result(done.stdout)["answer"] == 42
            assert "waiting" not in done.stderr  # the system dropped the dead one's lock
            assert workshop.left() == []
        finally:
            _end_group(first.pid)

    def test_by_an_interrupt(self, workshop, python):
        """Ctrl-C reaches the whole group; the folder is gone, and the interrupt is not swallowed."""
        first = python.start(workshop.code, workshop.env)
        try:
            workshop.wait_for_call()
            os.killpg(first.pid, signal.SIGINT)
            _, err = first.communicate(timeout=60)
            assert first.returncode != 0 and "KeyboardInterrupt" in err
            assert [name for name in workshop.left() if not name.endswith(".lock")] == []
            assert not list(workshop.cache.glob("*/_neuron.so"))
        finally:
            _end_group(first.pid)


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@pytest.mark.slow
def test_the_device_itself_is_built_again_after_a_kill(tmp_path, python):
    """The whole C++ part, about half a minute on two idle cores."""
    code = "import torch; print(torch.ones(2, device='neuron').sum().item())"
    env = {"NEURON_LAB_CACHE": str(tmp_path / "cache")}
    first = python.start(code, env)
    assert "building the emulated neuron device" in first.stderr.readline()
    time.sleep(5)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=60)
    done = python(code, env, timeout=550)
    assert done.stdout.strip() == "2.0" and "built in" in done.stderr
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [build.key(), f"{build.key()}.lock"]
    assert sorted(path.name for path in (tmp_path / "cache" / build.key()).iterdir()) == ["_neuron.so", "bytes"]
    again = python(code, {**env, "PATH": "", "CXX": "nope"})
    assert again.stdout.strip() == "2.0" and again.stderr == ""
