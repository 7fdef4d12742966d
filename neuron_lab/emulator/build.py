"""Builds the C++ part of the emulated device, once per machine and version.

The library lies in the user's cache folder under a key of everything that it
depends on. One process builds and the others wait for its lock; the result
appears by a rename, so that a killed build leaves nothing half-made behind.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

NAME = "_neuron"
CSRC = Path(__file__).parent / "csrc"
_FLAGS = ["-O1", "-fvisibility=hidden", "-DAT_PER_OPERATOR_HEADERS"]
_NEEDED_BYTES = 200 << 20


class BuildError(RuntimeError):
    """The emulated device could not be built; the message says what to do."""


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def cache_dir() -> Path:
    """Folder that keeps built libraries and the record of compiled graphs.

    Returns
    -------
    pathlib.Path
        ``$NEURON_LAB_CACHE``, else ``$XDG_CACHE_HOME/neuron-lab`` or
        ``~/.cache/neuron-lab``; where that cannot be written, a folder of this
        user in the system's temporary directory.

    Raises
    ------
    BuildError
        If ``NEURON_LAB_CACHE`` names a folder that cannot be written, or none can.
    """
    chosen = os.environ.get("NEURON_LAB_CACHE")
    if chosen:
        if _writable(Path(chosen)):
            return Path(chosen)
        raise BuildError(
            f"NEURON_LAB_CACHE={chosen!r} cannot be written. Name a folder that you may write to, or unset the "
            "variable."
        )
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    usual = Path(base) / "neuron-lab"
    if usual.is_absolute() and _writable(usual):
        return usual
    user = os.getuid() if hasattr(os, "getuid") else "user"
    private = Path(tempfile.gettempdir()) / f"neuron-lab-{user}"
    if _writable(private) and (not hasattr(os, "getuid") or private.stat().st_uid == os.getuid()):
        private.chmod(0o700)
        return private
    raise BuildError(
        f"Neither {usual} nor {private} can be written, and the emulated device has to be kept somewhere. "
        "Set NEURON_LAB_CACHE to a folder that you may write to."
    )


def sources() -> list[Path]:
    """The C++ files, in a fixed order."""
    return sorted(CSRC.glob("*.cpp"))


def _with_gloo() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_gloo_available()


def key() -> str:
    """Name of this build: torch, its ABI, Python, platform, flags and sources."""
    digest = hashlib.sha256()
    for path in [*sources(), *sorted(CSRC.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    parts = [
        torch.__version__,
        str(torch.version.git_version),
        str(torch._C._GLIBCXX_USE_CXX11_ABI),
        str(sysconfig.get_config_var("EXT_SUFFIX")),
        platform.machine(),
        *_FLAGS,
        str(_with_gloo()),
    ]
    digest.update("\0".join(parts).encode())
    return f"torch-{torch.__version__.split('+')[0]}-{digest.hexdigest()[:16]}"


def _library(folder: Path) -> Path:
    return folder / f"{NAME}.so"


def _is_whole(home: Path) -> bool:
    """Whether a library is there, and of the length that it had when it was built.

    Loading one that was cut short (a full disk, a copy that broke off) would
    end the process without a word.
    """
    try:
        return _library(home).stat().st_size == int((home / "bytes").read_text())
    except (OSError, ValueError):
        return False


def _seal(folder: Path) -> None:
    """Leave the library in its folder, on the disk and with its length beside it, and nothing else."""
    for path in folder.iterdir():
        if path != _library(folder):
            path.unlink()
    with open(_library(folder), "rb") as file:
        os.fsync(file.fileno())
    (folder / "bytes").write_text(str(_library(folder).stat().st_size))


def _import(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _compiler() -> str:
    command = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "c++")
    if shutil.which(command) is None and len(command.split()) > 1:
        raise BuildError(
            f"CXX={command!r} has arguments, and PyTorch's builder takes the name of one program. Set CXX to the "
            "compiler alone, or to a script that calls it with the arguments."
        )
    if shutil.which(command) is None:
        mend = {
            "darwin": "xcode-select --install",
            "linux": "apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, Amazon Linux), "
            "or conda install -c conda-forge cxx-compiler",
        }.get(sys.platform, "use WSL on Windows, and a C++ compiler in it")
        raise BuildError(
            f"No C++ compiler: {command!r} is not on PATH, and the emulated neuron device is built from C++ on first "
            "use. "
            f"Install one: {mend}. Then import torch again."
        )
    return command


@contextlib.contextmanager
def _ninja_on_path() -> Iterator[None]:
    """Make pip's ninja findable where the environment's scripts are not on PATH."""
    before = os.environ.get("PATH", "")
    if shutil.which("ninja") is None:
        try:
            import ninja

            os.environ["PATH"] = ninja.BIN_DIR + os.pathsep + before
        except ImportError:
            pass
        if shutil.which("ninja") is None:
            os.environ["PATH"] = before
            raise BuildError(
                "No ninja: the emulated neuron device is built with it on first use. Install it with: pip install ninja"
            )
    try:
        yield
    finally:
        os.environ["PATH"] = before


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One builder at a time. The system drops the lock of a process that dies."""
    import fcntl

    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _say("another process is building the emulated neuron device; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(f"neuron-lab: {text}", file=sys.stderr, flush=True)


def _explain(error: BaseException, folder: Path) -> str:
    text = str(error)
    free = shutil.disk_usage(folder).free
    if "No space left" in text or getattr(error, "errno", None) == errno.ENOSPC or free < (10 << 20):
        return (
            f"The disk of {folder} is full ({free >> 20} MiB free; the build needs about {_NEEDED_BYTES >> 20}). "
            "Free some, "
            "or set NEURON_LAB_CACHE to a folder on another disk."
        )
    if "Python.h" in text:
        return (
            "Python's C headers are missing (Python.h). Install them: apt-get install python3-dev, or use a Python "
            "from "
            f"conda-forge or python.org.\n{text[-2000:]}"
        )
    if re.search(r"Killed|terminated by signal|signal terminated program", text):
        return f"The compiler was killed, most likely for want of memory. Set MAX_JOBS=1 and try again.\n{text[-2000:]}"
    return (
        "The C++ compiler failed. A compiler with C++20 is needed (g++ 11 or clang 14, or newer). Its last lines:\n"
        f"{text[-3000:]}"
    )


def _units(folder: Path) -> list[str]:
    """Write the two files that are compiled; each includes some of the sources.

    Most of the time goes into PyTorch's headers, which every file would read
    again. Two units keep two processors busy: what needs Python's headers, and
    all the rest.
    """
    units: dict[str, list[str]] = {"device": [], "python": []}
    for path in sources():
        unit = "python" if "torch/csrc/" in path.read_text() else "device"
        units[unit].append(f'#include "{path}"\n')
    for name, lines in units.items():
        (folder / f"{name}.cpp").write_text("".join(lines))
    return [str(folder / f"{name}.cpp") for name in units]


def _compile(folder: Path) -> ModuleType:
    from torch.utils import cpp_extension

    flags = list(_FLAGS) + (["-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"] if _with_gloo() else [])
    # No path of this machine in warnings.
    flags.append(shlex.quote(f"-ffile-prefix-map={CSRC}=neuron_lab/emulator/csrc"))
    if not os.environ.get("CXX"):
        os.environ.pop("CXX", None)  # set and empty: PyTorch would run the empty command
    with _ninja_on_path():
        return cpp_extension.load(
            name=NAME,
            sources=_units(folder),
            extra_cflags=flags,
            build_directory=str(folder),
            with_cuda=False,
            verbose=False,
        )


def load() -> tuple[ModuleType, Path, float | None]:
    """Import the C++ part, building it first where that has not been done.

    Returns
    -------
    module, path, seconds
        The extension module, where it lies, and how long the build took
        (``None`` if it was there already).

    Raises
    ------
    BuildError
        With what to install or change; nothing half-built stays behind.
    """
    root = cache_dir()
    home = root / key()
    if _is_whole(home):
        return _import(_library(home)), _library(home), None
    _compiler()
    with _lock(root / f"{home.name}.lock"):
        if _is_whole(home):  # built while this process waited
            return _import(_library(home)), _library(home), None
        for left in root.glob(f"{home.name}.building-*"):
            shutil.rmtree(left, ignore_errors=True)  # of a build that was killed
        _say("building the emulated neuron device, once for this version of torch (about half a minute)")
        folder = Path(tempfile.mkdtemp(prefix=f"{home.name}.building-", dir=root))
        start = time.perf_counter()
        try:
            module = _compile(folder)
            _seal(folder)
            shutil.rmtree(home, ignore_errors=True)
            os.replace(folder, home)
        except BuildError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except Exception as error:
            message = _explain(error, root)
            shutil.rmtree(folder, ignore_errors=True)
            raise BuildError(f"The emulated neuron device could not be built. {message}") from error
        except BaseException:  # an interrupt
            shutil.rmtree(folder, ignore_errors=True)
            raise
        seconds = time.perf_counter() - start
        _say(f"built in {seconds:.0f} s, kept in {home}")
        return module, _library(home), seconds
