"""``neuron-lab run``: execute notebooks headlessly, with papermill underneath.

- :mod:`.notebooks` finds and reads them,
- :mod:`.parameters` checks the parameters before anything runs,
- :mod:`.execute` runs one notebook and says what became of it,
- :mod:`.progress` shows where it is,
- :mod:`.places` finds writable folders when the home folder is not,
- this module puts them in order, prints the summary and chooses the exit status.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from neuron_lab.runner.errors import UsageError

__all__ = ["UsageError", "main"]


def main(
    notebooks: Sequence[str | Path] = (),
    *,
    parameters: Sequence[tuple[str, str]] = (),
    parameter_files: Sequence[str | Path] = (),
    out: str | Path = "build",
    stream: TextIO | None = None,
) -> int:
    """Execute notebooks and print a summary.

    Parameters
    ----------
    notebooks : sequence of path, optional
        Notebooks, or folders of notebooks. All of the workbook's if empty.
    parameters : sequence of (name, text), optional
        Values as given on the command line, read as ``papermill -p`` reads them.
    parameter_files : sequence of path, optional
        YAML files that map names to values. ``parameters`` beat them.
    out : path, default "build"
        Folder for the executed copies and the HTML.
    stream : text file, optional
        Where progress and summary go; standard output if not given.

    Returns
    -------
    int
        0 all passed, 1 one failed, 2 wrong usage (nothing was run), 130 or 143 interrupted.

    Examples
    --------
    >>> from neuron_lab import runner
    >>> runner.main(["notebooks/00_start_here.ipynb"])  # doctest: +SKIP
    0
    """
    stream = stream or sys.stdout
    try:
        return _run(notebooks, parameters, parameter_files, Path(out), stream)
    except UsageError as error:
        print(f"neuron-lab run: error: {error}", file=sys.stderr)
        return 2


def _run(
    notebooks: Sequence[str | Path],
    parameters: Sequence[tuple[str, str]],
    parameter_files: Sequence[str | Path],
    out: Path,
    stream: TextIO,
) -> int:
    try:
        import nbconvert  # noqa: F401
        import papermill  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed. pip install 'neuron-lab[workbook]' brings it") from None
    from neuron_lab.runner.execute import Job, Result
    from neuron_lab.runner.notebooks import find, targets
    from neuron_lab.runner.parameters import assign, gather
    from neuron_lab.runner.places import make_writable, scratch_for_unwritable_home
    from neuron_lab.runner.progress import Progress
    from neuron_lab.runner.summary import failures, table

    sources = find(notebooks)
    values = assign(sources, gather(parameters, parameter_files))
    outputs = targets(sources, out)
    make_writable(out)
    results: list[Result] = []
    with scratch_for_unwritable_home(), Progress(stream, total=len(sources)) as progress, _stopping() as stop:
        _wake_device()
        for source, target in zip(sources, outputs, strict=True):
            job = Job(source, target, values[source.path], progress)
            stop.job = job
            try:
                results.append(Result.not_run(source.path) if stop.signal else job.run())
            except KeyboardInterrupt:
                # Between two notebooks, or while one was being written.
                results.append(Result.not_run(source.path))
    print(table(results, out), file=stream)
    print(failures(results), end="", file=stream)
    stream.flush()
    if stop.signal:
        return 128 + stop.signal
    return 0 if all(result.status == "passed" for result in results) else 1


def _wake_device() -> None:
    """Import torch once, in a process whose words reach the terminal.

    The first import may build the emulated device, half a minute. In the kernel of the first notebook nobody would see
    the line that says so, nor a warning that there is no device.
    """
    with suppress(KeyboardInterrupt):  # remembered by the signal handler; the notebooks then are not run
        subprocess.run([sys.executable, "-c", "import torch"], stdin=subprocess.DEVNULL, check=False)


class _Stop:
    """What a signal does: the first one interrupts, the next one kills the kernel at once."""

    def __init__(self) -> None:
        self.signal = 0
        self.job = None

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.signal:
            if self.job is not None:
                self.job.kill_kernel()
            return
        self.signal = signum
        raise KeyboardInterrupt


@contextmanager
def _stopping() -> Iterator[_Stop]:
    stop = _Stop()
    before = {}
    try:
        for signum in (signal.SIGINT, signal.SIGTERM):
            before[signum] = signal.signal(signum, stop)
    except ValueError:
        pass  # not in the main thread, where Python delivers no signals
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
