"""Folders that can be written: the output folder, and stand-ins for the home folder's where that cannot."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neuron_lab.runner.errors import UsageError

__all__ = ["make_writable", "scratch_for_unwritable_home", "write_atomically"]


def make_writable(folder: Path) -> None:
    """Make a folder and prove that a file can be written there.

    Raises
    ------
    UsageError
        It cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}. Choose another with --out") from None


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, whole, whatever happens meanwhile."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def scratch_for_unwritable_home() -> Iterator[None]:
    """Point Jupyter and the libraries at a temporary folder where their own in the home folder cannot be written.

    A variable that the user has set is left alone, and so is everything if the home folder is in order.
    """
    missing = {
        name: subfolder
        for name, (default, subfolder) in _home_folders().items()
        if name not in os.environ and not _can_make(default)
    }
    if not missing:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="neuron-lab-", ignore_cleanup_errors=True) as scratch:
        for name, subfolder in missing.items():
            os.environ[name] = os.path.join(scratch, subfolder)
            os.makedirs(os.environ[name])
        try:
            yield
        finally:
            for name in missing:
                os.environ.pop(name, None)


def _home_folders() -> dict[str, tuple[Path, str]]:
    """Variable -> its default folder, and the name of its stand-in."""
    from jupyter_core.paths import jupyter_runtime_dir

    home = Path(os.path.expanduser("~"))
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return {
        "JUPYTER_RUNTIME_DIR": (Path(jupyter_runtime_dir()), "runtime"),
        "IPYTHONDIR": (home / ".ipython", "ipython"),
        "MPLCONFIGDIR": (config / "matplotlib", "matplotlib"),
        "HF_HOME": (cache / "huggingface", "huggingface"),
    }


def _can_make(folder: Path) -> bool:
    existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
