"""Running one notebook: a kernel of this Python, papermill, and a result that says what became of it.

papermill's exit is trusted for errors of cells only. A kernel that died, a notebook that stopped early, a signal: each
is found out here and put into words (`Failure.error`). Whatever happens, the executed copy is written, whole.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nbformat
import zmq
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, NoSuchKernel
from nbclient.exceptions import DeadKernelError
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError, strip_color
from papermill.execute import execute_notebook

from neuron_lab.runner.notebooks import Source, Target
from neuron_lab.runner.places import write_atomically
from neuron_lab.runner.progress import Progress

__all__ = ["Failure", "Job", "Result"]

_ENGINE = "neuron-lab"
_KERNEL = "python3"
_KERNEL_START_SECONDS = 120
_SAVE_EVERY = 10.0
_LAST_WORDS = 4000  # bytes

Status = Literal["passed", "failed", "interrupted", "not run"]


@dataclass(frozen=True)
class Failure:
    """What went wrong, and in which cell.

    Attributes
    ----------
    error : str
        One line.
    cell : int or None
        Number of the code cell, as in ``In [n]``. None if it was none of them.
    source, traceback : str
        The cell's source, and the traceback without colours; empty if there is none.
    """

    error: str
    cell: int | None = None
    source: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class Result:
    """What became of one notebook."""

    path: Path
    status: Status
    cells: int = 0
    done: int = 0
    seconds: float = 0.0
    failure: Failure | None = None
    executed: Path | None = None
    html: Path | None = None

    @property
    def name(self) -> str:
        return self.path.stem

    @classmethod
    def not_run(cls, path: Path) -> Result:
        return cls(path, "not run")


class Job:
    """One notebook, to be run once.

    Parameters
    ----------
    source : Source
        The notebook.
    target : Target
        Where its executed copy and its HTML go.
    parameters : dict
        Values to inject, already checked.
    progress : Progress
        Told of each cell.
    """

    def __init__(self, source: Source, target: Target, parameters: dict[str, Any], progress: Progress) -> None:
        self.source = source
        self.target = target
        self.parameters = parameters
        self.progress = progress
        self.kernel_group: int | None = None
        self.kernel_status: int | None = None
        self.kernel_log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by run(); what the kernel says outside of any cell
        self._node: Any = None
        self._cell = 0
        self._index: int | None = None
        self._saved = 0.0

    def run(self) -> Result:
        """Run the notebook. Never raises for what the notebook does."""
        logging.getLogger("papermill").setLevel(logging.CRITICAL)  # the result says it in words
        self.progress.start(self.source.name, cells=_count_code(self.source.node) + bool(self.parameters))
        began = time.monotonic()
        status: Status = "failed"
        try:
            failure = self._execute()
            status = "failed" if failure else "passed"
        except KeyboardInterrupt:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # of the task that was cut short, nobody asks
            status, failure = "interrupted", Failure("interrupted", self._cell or None, self._cell_source())
            self._note("KeyboardInterrupt", "stopped from outside by a signal")
        finally:
            self.kill_kernel()
            self.kernel_log.close()
        seconds = time.monotonic() - began
        executed, html, trouble = self._write()
        if trouble and status == "passed":
            status, failure = "failed", Failure(trouble)
        self.progress.end(status)
        cells = _count_code(self._node) if self._node else _count_code(self.source.node)
        done = self._cell if status == "passed" else max(self._cell - 1, 0)
        return Result(self.source.path, status, cells, done, seconds, failure, executed, html)

    def kill_kernel(self) -> None:
        """Kill what is left of the kernel and of the processes that it started. Harmless if nothing is."""
        if self.kernel_group is None or not hasattr(os, "killpg"):
            return
        try:
            os.killpg(self.kernel_group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    # --- called back while the notebook runs

    def kernel_started(self, manager: Any) -> None:
        self.kernel_group = getattr(manager.provisioner, "pgid", None)

    def kernel_ending(self, manager: Any) -> None:
        process = getattr(manager.provisioner, "process", None)
        if process is not None and process.poll() is not None:
            self.kernel_status = process.returncode

    def notebook_ready(self, node: Any) -> None:
        self._node = node

    def cell_starts(self, cell: Any, cell_index: int) -> None:
        self._index = cell_index
        self._cell += 1
        self.progress.cell(self._cell)
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self._saved = time.monotonic()
            write_atomically(self.target.notebook, nbformat.writes(self._node))

    # --- the rest is private

    def _execute(self) -> Failure | None:
        manager = type("ThisPython", (_ThisPython,), {"job": self})
        try:
            execute_notebook(
                str(self.source.path),
                None,
                parameters=self.parameters,
                engine_name=_ENGINE,
                progress_bar=False,
                start_timeout=_KERNEL_START_SECONDS,
                job=self,
                kernel_manager_class=manager,
                on_cell_execute=self.cell_starts,
            )
        except PapermillExecutionError as error:
            summary = f"{error.ename}: {strip_color(error.evalue)}".splitlines()[0]
            traceback = strip_color("\n".join(error.traceback))
            return Failure(summary, self._cell, error.source, traceback)
        except DeadKernelError:
            words = f"the kernel died, {_cause_of_death(self.kernel_status)}"
            self._note("DeadKernelError", words)
            return Failure(words, self._cell or None, self._cell_source(), self._last_words())
        except NoSuchKernel as error:
            return Failure(f"there is no kernel {error.name!r}. The workbook's notebooks ask for {_KERNEL!r}")
        except Exception as error:
            if self._cell:
                return Failure(f"{type(error).__name__}: {error}", self._cell, self._cell_source())
            return Failure(f"the kernel did not start: {type(error).__name__}: {error}", traceback=self._last_words())
        return self._stopped_early()

    def _stopped_early(self) -> Failure | None:
        """A notebook that ends by ``exit`` looks successful to papermill; count the cells that did not run."""
        left = [cell for cell in self._node.cells if _runs(cell) and cell.execution_count is None]
        if not left:
            return None
        words = f"the notebook stopped early: {len(left)} of {_count_code(self._node)} cells did not run"
        return Failure(words, self._cell, self._cell_source())

    def _last_words(self) -> str:
        """The end of what the kernel wrote past its cells: a crash's traceback, if there was one."""
        self.kernel_log.seek(0, os.SEEK_END)
        self.kernel_log.seek(max(0, self.kernel_log.tell() - _LAST_WORDS))
        return strip_color(self.kernel_log.read().decode("utf-8", errors="replace")).strip()

    def _cell_source(self) -> str:
        return self._node.cells[self._index].source if self._node and self._index is not None else ""

    def _note(self, name: str, words: str) -> None:
        """Leave the reason in the cell, for the reader of the executed copy."""
        if self._node is None or self._index is None:
            return
        output = nbformat.v4.new_output("error", ename=name, evalue=words, traceback=[f"{name}: {words}"])
        self._node.cells[self._index].outputs.append(output)

    def _write(self) -> tuple[Path | None, Path | None, str]:
        if self._node is None:
            return None, None, ""
        self._node.metadata.papermill["output_path"] = str(self.target.notebook)
        try:
            write_atomically(self.target.notebook, nbformat.writes(self._node))
        except OSError as error:
            return None, None, f"cannot write {self.target.notebook}: {error.strerror or error}"
        try:
            write_atomically(self.target.html, _html(self._node, self.source))
        except Exception as error:  # a fault of the page must not lose the result of the run
            self.target.html.unlink(missing_ok=True)  # that of an earlier run would not fit the notebook
            return self.target.notebook, None, f"cannot make {self.target.html}: {type(error).__name__}: {error}"
        return self.target.notebook, self.target.html, ""


class _ThisPython(AsyncKernelManager):
    """Starts ``python3`` as this very interpreter, whatever kernel specification the machine has under that name."""

    job: Job

    @property
    def kernel_spec(self) -> KernelSpec | None:
        if self._kernel_spec is None and self.kernel_name == _KERNEL:
            self._kernel_spec = KernelSpec(
                argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                display_name="Python 3 (ipykernel)",
                language="python",
                metadata={"supported_encryption": ["curve"]},
            )
        return super().kernel_spec

    async def _async_start_kernel(self, **kwargs: Any) -> None:
        if hasattr(self, "transport_encryption") and zmq.has("curve"):
            self.transport_encryption = "auto"  # or the kernel warns, on our terminal, that others may listen in
        # Past the cells, a kernel and its children write to our terminal, where nobody can tell whose words they are.
        log = self.job.kernel_log
        await super()._async_start_kernel(**{"stdout": log, "stderr": log, **kwargs})
        self.job.kernel_started(self)

    start_kernel = _async_start_kernel

    async def _async_cleanup_resources(self, restart: bool = False) -> None:
        self.job.kernel_ending(self)
        await super()._async_cleanup_resources(restart=restart)

    cleanup_resources = _async_cleanup_resources


class _Engine(NBClientEngine):
    """papermill's own engine, which also hands us the notebook that it is executing."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, *, job: Job, **kwargs: Any) -> Any:
        job.notebook_ready(nb_man.nb)
        return super().execute_managed_notebook(nb_man, kernel_name, **kwargs)


papermill_engines.register(_ENGINE, _Engine)


def _runs(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def _count_code(node: Any) -> int:
    return sum(_runs(cell) for cell in node.cells)


def _cause_of_death(status: int | None) -> str:
    if status is None:
        return "for an unknown reason"
    if status < 0:
        name = signal.Signals(-status).name
        memory = ": most often the machine ran out of memory" if -status == signal.SIGKILL else ""
        crash = ": a crash in native code" if -status in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT) else ""
        return f"killed by {name}{memory}{crash}"
    return f"its process ended with status {status}"


def _html(node: Any, source: Source) -> str:
    """The notebook as one HTML page, pictures inside."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="lab", embed_images=True)
    resources = {"metadata": {"name": source.name, "path": str(source.path.resolve().parent)}}
    body, _ = exporter.from_notebook_node(node, resources=resources)
    return body
