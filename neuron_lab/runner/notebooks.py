"""Finding the notebooks of a run, and reading them. Knows paths and the notebook format, and runs nothing."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import neuron_lab
from neuron_lab.runner.errors import UsageError

__all__ = ["Source", "Target", "find", "read", "targets", "workbook"]


@dataclass(frozen=True)
class Source:
    """A notebook as it lies on disk."""

    path: Path
    node: Any  # nbformat.NotebookNode

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Target:
    """Where the results of one notebook go."""

    notebook: Path
    html: Path


def workbook() -> list[Path]:
    """The notebooks of the checkout that this package is installed from, or of the working directory's."""
    for folder in (Path(neuron_lab.__file__).parent.parent / "notebooks", Path("notebooks")):
        found = sorted(folder.glob("*.ipynb"))
        if found:
            return found
    return []


def find(arguments: Sequence[str | Path]) -> list[Source]:
    """Read the notebooks that the command names; folders stand for the notebooks in them.

    Raises
    ------
    UsageError
        A path does not exist, is no notebook, or is named twice.
    """
    if arguments:
        paths = [path for argument in arguments for path in _expand(Path(argument))]
    else:
        paths = workbook()
        if not paths:
            raise UsageError(
                "no notebook is named, and there is no folder `notebooks` beside the package or in the working "
                "directory. Name the notebooks, or run this in the checkout"
            )
    twice = [str(path) for path, count in Counter(path.resolve() for path in paths).items() if count > 1]
    if twice:
        raise UsageError(f"named twice: {', '.join(twice)}")
    return [read(path) for path in paths]


def read(path: Path) -> Source:
    """Read one notebook.

    Raises
    ------
    UsageError
        The file cannot be read, or is not a notebook of format 4.
    """
    import nbformat

    try:
        node = nbformat.read(path, as_version=4)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        raise UsageError(f"{path} is not a Jupyter notebook: {type(error).__name__}: {error}") from None
    return Source(path, node)


def targets(sources: Sequence[Source], out: Path) -> list[Target]:
    """Choose the output files, so that no two notebooks share one and no source is overwritten.

    Raises
    ------
    UsageError
        The output folder is where a source lies.
    """
    names = Counter(source.name for source in sources)
    chosen = []
    for source in sources:
        name = source.name if names[source.name] == 1 else f"{source.path.resolve().parent.name}_{source.name}"
        chosen.append(Target(out / f"{name}.ipynb", out / f"{name}.html"))
    originals = {source.path.resolve() for source in sources}
    for target in chosen:
        if target.notebook.resolve() in originals:
            raise UsageError(f"--out {out} would overwrite {target.notebook}. Choose another folder")
    if len({target.notebook for target in chosen}) < len(chosen):
        raise UsageError("two notebooks have the same name and the same folder name. Run them one at a time")
    return chosen


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(path.glob("*.ipynb"))
        if not inside:
            raise UsageError(f"there is no notebook in the folder {path}")
        return inside
    if not path.exists():
        raise UsageError(_missing(path))
    return [path]


def _missing(path: Path) -> str:
    there = sorted(path.parent.glob("*.ipynb")) if path.parent.is_dir() else []
    there = there or workbook()
    if not there:
        return f"{path} does not exist"
    close = difflib.get_close_matches(path.name, [p.name for p in there], n=1)
    guess = f" Did you mean {next(p for p in there if p.name == close[0])}?" if close else ""
    return f"{path} does not exist.{guess} These exist: {', '.join(str(p) for p in there)}"
