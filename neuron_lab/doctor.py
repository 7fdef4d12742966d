"""``neuron-lab doctor``: what this machine needs for the workbook, one line each, with the mend.

Each check is a small function that returns a :class:`Finding`. What needs ``import torch`` happens in a child process
(:mod:`neuron_lab._probe`), so that a broken device or a crash is a line of the report and not its end. Requirements of
versions are read from the installed package's own metadata: there is no second list.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Finding", "examine", "main"]

AWS_INDEX = "https://pip.repos.neuron.amazonaws.com"
_GIB = 1 << 30
_NEEDED_DISK = _GIB  # a build of the device, compiled graphs and the executed notebooks stay well below
_PROBE_SECONDS = 600

# Names that AWS's index and the Python Package Index share. Below the bound, it is the placeholder from the latter.
_PLACEHOLDERS = {"torch-neuronx": "2", "neuronx-cc": "2", "nki": "0.1"}
_XLA_PACKAGE_ENDED = "2.10"  # the retired package of the same name went up to 2.9.0.2


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    name : str
        What was looked at.
    status : {"OK", "NOTE", "FAIL"}
        A NOTE does not change the exit status.
    found : str
        What is there.
    mend : str
        What to do about it; empty if there is nothing to do.
    """

    name: str
    status: Literal["OK", "NOTE", "FAIL"]
    found: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{self.status:<4}  {self.name}: {self.found}"
        return f"{line}\n      mend: {self.mend}" if self.mend else line


def examine() -> list[Finding]:
    """Run every check, in the order of the report.

    Examples
    --------
    >>> from neuron_lab import doctor
    >>> findings = doctor.examine()  # doctest: +SKIP
    >>> [f.name for f in findings if f.status == "FAIL"]  # doctest: +SKIP
    []
    """
    findings = [*_quick_checks()]
    findings += _device_checks(_probe())
    return findings


def main(*, as_json: bool = False) -> int:
    """Print the report; 0 if nothing failed, 1 otherwise."""
    findings = examine()
    failed = sum(f.status == "FAIL" for f in findings)
    if as_json:
        print(json.dumps({"ok": not failed, "findings": [asdict(f) for f in findings]}, indent=2))
        return 1 if failed else 0
    for finding in findings:
        print(finding)
    print()
    print(f"{failed} to mend" if failed else "nothing to mend")
    return 1 if failed else 0


def _quick_checks() -> Iterator[Finding]:
    """Everything that needs no ``import torch``."""
    yield _python(sys.version_info)
    yield from _requirements()
    yield _compiler()
    yield _python_headers()
    yield _ninja()
    yield from _neuron_packages()
    yield _kernel()


# --- Python and its packages ---------------------------------------------------------------------------------------


def _python(version: tuple[Any, ...]) -> Finding:
    found = f"{'.'.join(map(str, version[:3]))} at {sys.executable}"
    if version < (3, 11):
        return Finding("Python", "FAIL", found, "install Python 3.11 or newer and make a virtual environment with it")
    return Finding("Python", "OK", found)


def _requirements() -> Iterator[Finding]:
    """The core's requirements, then those of the extra ``workbook``, as the package declares them."""
    try:
        declared = importlib.metadata.requires("neuron-lab") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            "neuron-lab",
            "FAIL",
            "imported from a folder, not installed",
            "pip install -e '.[workbook]' in the checkout",
        )
        return
    from packaging.requirements import Requirement

    core, workbook = [], []
    for text in declared:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            core.append(requirement)
        elif requirement.marker.evaluate({"extra": "workbook"}):
            workbook.append(requirement)
    for requirement in core:
        found, fits = _installed(requirement)
        mend = "" if fits else f"pip install '{requirement.name}{requirement.specifier}'"
        yield Finding(requirement.name, "OK" if fits else "FAIL", found, mend)
    yield _workbook(workbook)


def _workbook(requirements: list[Any]) -> Finding:
    """All libraries of the notebooks in one line. None of them there is a choice: a core installation."""
    results = {r: _installed(r) for r in requirements}
    present = [r for r in results if _version(r.name) is not None]
    wrong = [f"{r.name} {found} (needs {r.specifier})" for r, (found, fits) in results.items() if not fits]
    if not present:
        return Finding(
            "workbook libraries",
            "NOTE",
            "not installed: this is the core, without the notebooks",
            "pip install 'neuron-lab[workbook]' if you want them",
        )
    if wrong:
        return Finding("workbook libraries", "FAIL", "; ".join(wrong), "pip install 'neuron-lab[workbook]'")
    lead = ", ".join(f"{r.name} {results[r][0]}" for r in present if r.name in ("transformers", "trl", "diffusers"))
    return Finding("workbook libraries", "OK", f"all {len(results)} in range ({lead})")


def _installed(requirement: Any) -> tuple[str, bool]:
    version = _version(requirement.name)
    if version is None:
        return "not installed", False
    fits = requirement.specifier.contains(version, prereleases=True)
    return (version if fits else f"{version}, needs {requirement.specifier}"), fits


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _neuron_packages() -> Iterator[Finding]:
    """Whether AWS's names are taken by placeholders, by the retired XLA package, or by the real thing."""
    from packaging.version import Version

    for name, bound in _PLACEHOLDERS.items():
        version = _version(name)
        if version is None:
            continue
        if Version(version) < Version(bound):
            yield Finding(
                name,
                "FAIL",
                f"{version}, an empty placeholder from the Python Package Index",
                f"pip uninstall {name}; the real one comes from AWS's index, on a Trainium instance: "
                f"pip install '.[trn]' --extra-index-url {AWS_INDEX}",
            )
        elif name == "torch-neuronx" and Version(version) < Version(_XLA_PACKAGE_ENDED):
            yield Finding(
                name,
                "FAIL",
                f"{version}, the retired XLA package of the same name",
                "make a fresh virtual environment: the two cannot share one",
            )
        else:
            yield Finding(name, "OK", f"{version}, the real one")


# --- The tools that build the device -------------------------------------------------------------------------------


def _compiler() -> Finding:
    command = os.environ.get("CXX", "c++")
    path = shutil.which(command.split()[0]) if command.strip() else None
    if path is None:
        return Finding("C++ compiler", "FAIL", f"`{command}` is not on PATH", _compiler_mend())
    try:
        answer = subprocess.run(
            [path, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"],
            input="#include <vector>\nint main() { return std::vector<int>{0}[0]; }\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("C++ compiler", "FAIL", f"{path} does not run: {error}", _compiler_mend())
    if answer.returncode != 0:
        first = (answer.stderr.strip().splitlines() or ["no message"])[0]
        return Finding("C++ compiler", "FAIL", f"{path} cannot compile C++17: {first}", _compiler_mend())
    return Finding("C++ compiler", "OK", f"{path} ({(version.splitlines() or ['version unknown'])[0]})")


def _compiler_mend() -> str:
    if sys.platform == "darwin":
        return "xcode-select --install"
    return "apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, Amazon Linux), or conda's cxx-compiler"


def _python_headers() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.is_file():
        return Finding("Python headers", "OK", str(header.parent))
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Finding(
        "Python headers",
        "FAIL",
        f"{header} is missing",
        f"apt-get install python{minor}-dev (Debian, Ubuntu) or dnf install python{minor}-devel",
    )


def _ninja() -> Finding:
    beside = Path(sysconfig.get_path("scripts")) / "ninja"
    path = shutil.which("ninja") or (str(beside) if os.access(beside, os.X_OK) else None)
    if path is None:
        return Finding("ninja command", "FAIL", "neither on PATH nor beside this Python", "pip install ninja")
    return Finding("ninja command", "OK", path)


# --- Jupyter -------------------------------------------------------------------------------------------------------


def _kernel() -> Finding:
    """Whether the kernel that every notebook asks for, ``python3``, is this interpreter."""
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return Finding(
            "Jupyter kernel", "NOTE", "no Jupyter here", "pip install 'neuron-lab[workbook]' for the notebooks"
        )
    mend = f"{sys.executable} -m ipykernel install --sys-prefix"
    try:
        spec = KernelSpecManager().get_kernel_spec("python3")
    except NoSuchKernel:
        return Finding("Jupyter kernel", "FAIL", "there is no kernel called python3", mend)
    command = spec.argv[0] if spec.argv else ""
    if command in ("python", "python3", f"python3.{sys.version_info.minor}") or _same_python(command):
        return Finding("Jupyter kernel", "OK", "python3 is this Python")
    return Finding(
        "Jupyter kernel",
        "FAIL",
        f"python3 is another Python, {command}, by {spec.resource_dir}",
        f"jupyter kernelspec remove python3, then {mend} (`neuron-lab run` uses this Python either way)",
    )


def _same_python(command: str) -> bool:
    # Compared by folder: the executables of two virtual environments are links to the same file.
    there, here = Path(command), Path(sys.executable)
    return there.parent.exists() and there.parent.resolve() == here.parent.resolve()


# --- The device, by a child process --------------------------------------------------------------------------------


def _run_aloud(command: list[str], *, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a child and capture what it says; what the device says of its build is passed on at once."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out: list[str] = []
    err: list[str] = []

    def read() -> None:
        out.append(child.stdout.read())  # type: ignore[union-attr]

    def listen() -> None:
        for line in child.stderr:  # type: ignore[union-attr]
            err.append(line)
            if line.startswith("neuron-lab: "):
                print(line, end="", file=sys.stderr, flush=True)

    readers = [threading.Thread(target=read), threading.Thread(target=listen)]
    for reader in readers:
        reader.start()
    try:
        child.wait(timeout)
    finally:
        child.kill()  # after a time-out or an interrupt; nothing happens to one that has ended
        for reader in readers:
            reader.join()
        child.wait()
    return subprocess.CompletedProcess(command, child.returncode, "".join(out), "".join(err))


def _probe(run: Callable[..., Any] = _run_aloud) -> dict[str, Any]:
    """Ask a child process about the device; on failure the answer has only ``error``."""
    try:
        answer = run([sys.executable, "-m", "neuron_lab._probe"], timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"`import torch` did not end within {_PROBE_SECONDS} s"}
    for line in reversed(answer.stdout.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
    return {"error": f"`import torch` ended with status {answer.returncode}: {last}"}


def _device_checks(answer: dict[str, Any]) -> Iterator[Finding]:
    if "error" in answer:
        mend = "TORCH_DEVICE_BACKEND_AUTOLOAD=0 python -c 'import torch' tells PyTorch's own faults from the device's"
        yield Finding("device", "FAIL", answer["error"], mend)
        return
    cache = Path(answer["cache_dir"])
    yield _writable("cache folder", cache, "set XDG_CACHE_HOME to a folder that you may write to")
    yield _disk(cache)
    if answer["device_error"]:
        found, _, step = answer["device_error"].partition(" Next step: ")
        if not step or "neuron-lab doctor" in step:  # that is where the reader is
            step = "mend what is named here and above, then try again"
        yield Finding("device", "FAIL", found, step)
    else:
        yield Finding("device", "OK", answer["device"])
    if answer["cuda"]:
        yield Finding(
            "CUDA",
            "NOTE",
            "this PyTorch also sees a CUDA device, and some libraries prefer it",
            "set CUDA_VISIBLE_DEVICES='' before starting Python",
        )


def _writable(name: str, folder: Path, mend: str) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(name, "FAIL", f"cannot write to {folder}: {error.strerror or error}", mend)
    return Finding(name, "OK", str(folder))


def _disk(folder: Path, usage: Callable[[Any], Any] = shutil.disk_usage) -> Finding:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = usage(existing).free
    found = f"{free / _GIB:.1f} GiB free for {folder}"
    if free < _NEEDED_DISK:
        return Finding("disk", "FAIL", found, f"free at least {_NEEDED_DISK / _GIB:.0f} GiB there")
    return Finding("disk", "OK", found)
