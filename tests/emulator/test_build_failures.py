"""Each way in which the build can fail: ``import torch`` goes on, and a sentence says what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_lab.emulator import build

from .test_build import LOAD, TINY

USE = """
import warnings
warnings.simplefilter("always")
import torch
assert torch.ones(2).sum() == 2
try:
    torch.ones(1, device="neuron")
except Exception as error:
    print(type(error).__name__)
else:
    print("there is a device")
from neuron_lab.emulator import status
print(status().active)
print(status().reason)
"""


def tools(folder: Path, *names: str) -> str:
    """A folder for PATH that holds these programs and no other."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"no {name} on this machine")
        (folder / name).symlink_to(found)
    return str(folder)


class TestMissing:
    """Nothing is compiled in these: the message comes first."""

    def check(self, done: subprocess.CompletedProcess, *words: str) -> None:
        refused, active, reason = done.stdout.split("\n", 2)
        assert refused != "there is a device" and active == "False"
        for word in words:
            assert word in reason, reason
            assert word in done.stderr, done.stderr
        assert "NEURON_LAB_EMULATOR=0 switches" in done.stderr
        assert "Traceback" not in done.stderr

    def test_compiler_that_cxx_names(self, tmp_path, python):
        done = python(USE, {"NEURON_LAB_CACHE": str(tmp_path / "cache"), "CXX": "nope"})
        self.check(done, "No C++ compiler: 'nope' is not on PATH", "import torch again")
        assert list((tmp_path / "cache").iterdir()) == []

    def test_compiler_with_arguments(self, monkeypatch):
        """PyTorch's builder quotes the whole; "c++ -O2" would be the name of a program."""
        monkeypatch.setenv("CXX", "c++ -O2")
        with pytest.raises(build.BuildError, match="CXX='c\\+\\+ -O2' has arguments"):
            build._compiler()

    def test_any_compiler(self, tmp_path, python):
        done = python(USE, {"NEURON_LAB_CACHE": str(tmp_path / "cache"), "PATH": tools(tmp_path / "bin", "ninja")})
        if sys.platform == "linux":
            self.check(done, "No C++ compiler", "apt-get install g++", "conda install -c conda-forge cxx-compiler")
        else:
            self.check(done, "No C++ compiler")

    def test_ninja(self, tmp_path, python):
        """Neither the program on PATH nor pip's package."""
        hidden = tmp_path / "hidden"
        hidden.mkdir()
        (hidden / "ninja.py").write_text("raise ImportError('not installed')")
        env = {
            "NEURON_LAB_CACHE": str(tmp_path / "cache"),
            "PATH": tools(tmp_path / "bin", "c++"),
            "CXX": None,
            "PYTHONPATH": str(hidden),
        }
        self.check(python(USE, env), "No ninja", "pip install ninja")
        assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]

    @pytest.mark.parametrize("cache", ["/proc/neuron-lab", "file"])
    def test_a_cache_that_can_be_written(self, tmp_path, python, cache):
        (tmp_path / "file").write_text("")
        chosen = cache if cache.startswith("/") else str(tmp_path / cache)
        self.check(python(USE, {"NEURON_LAB_CACHE": chosen}), f"NEURON_LAB_CACHE={chosen!r} cannot be written")

    def test_not_even_when_warnings_are_errors(self, tmp_path, python):
        env = {"NEURON_LAB_CACHE": str(tmp_path / "cache"), "CXX": "nope"}
        done = python("import torch; print(torch.ones(2).sum().item())", env, options=("-W", "error"))
        assert done.stdout.strip() == "2.0"
        assert "No C++ compiler" in done.stderr  # said, though not as a warning


def test_home_that_cannot_be_written_costs_nothing(tmp_path, python):
    """The device is kept in this user's folder in the temporary directory."""
    home = tmp_path / f"neuron-lab-{os.getuid()}"
    shutil.copytree(build.cache_dir() / build.key(), home / build.key())
    done = python(USE, {"HOME": "/dev/null", "XDG_CACHE_HOME": None, "NEURON_LAB_CACHE": None, "TMPDIR": str(tmp_path)})
    assert done.stdout.startswith("there is a device\nTrue\n") and done.stderr == ""
    assert [path.name for path in home.iterdir()] == [build.key()]


class TestCompilation:
    """A real compilation of a small source that fails."""

    @pytest.fixture
    def attempt(self, tmp_path, python):
        cache, csrc = tmp_path / "cache", tmp_path / "csrc"
        csrc.mkdir()

        def run(source: str, env=None, before: str = "") -> str:
            (csrc / "tiny.cpp").write_text(source)
            base = {"NEURON_LAB_CACHE": str(cache), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
            done = python(before + LOAD.format(csrc=str(csrc)), {**base, **(env or {})})
            left = sorted(path.suffix for path in cache.iterdir() if path.is_dir() or path.suffix != ".lock")
            assert left == [], left
            return json.loads(done.stdout.splitlines()[-1])["error"]

        return run

    def test_error_in_the_source(self, attempt):
        error = attempt(TINY + "int broken = no_such_name;\n")
        assert "The C++ compiler failed" in error and "C++20" in error
        assert "no_such_name" in error  # the compiler's own words
        assert len(error) < 4000

    def test_compiler_without_memory(self, attempt, tmp_path):
        """What g++ prints when the kernel kills its compiler proper."""
        compiler = tmp_path / "killed"
        compiler.write_text(
            "#!/bin/sh\n"
            'case " $* " in *" -c "*) '
            'echo "g++: fatal error: Killed signal terminated program cc1plus" >&2; exit 1;; esac\n'
            f'exec {shutil.which("c++")} "$@"\n'
        )
        compiler.chmod(0o755)
        assert "MAX_JOBS=1" in attempt(TINY, {"CXX": str(compiler)})

    def test_library_that_does_not_load(self, attempt):
        error = attempt(TINY + "extern int nowhere; int here() { return nowhere; }\nstatic int value = here();\n")
        assert "nowhere" in error


@pytest.mark.skipif(
    sys.platform != "linux", reason="needs a small file system of its own, which only Linux gives a test"
)
def test_full_disk(tmp_path, python):
    disk, csrc = tmp_path / "disk", tmp_path / "csrc"
    disk.mkdir()
    csrc.mkdir()
    # More bytes of data than the disk has.
    (csrc / "tiny.cpp").write_text(TINY + "__attribute__((used)) char filler[4 << 20] = {1};\n")
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', str(disk)]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    code = LOAD.format(csrc=str(csrc)) + "\nimport os; print(os.listdir(os.environ['NEURON_LAB_CACHE']))\n"
    env = python.environment({"NEURON_LAB_CACHE": str(disk), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    done = subprocess.run(
        [*mount, *python.command(code)], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    told, left = done.stdout.splitlines()[-2:]
    error = json.loads(told)["error"]
    assert f"The disk of {disk} is full" in error and "NEURON_LAB_CACHE" in error
    assert left.count("torch-") == 1 and ".lock" in left  # the lock alone
