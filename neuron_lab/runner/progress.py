"""One line per notebook while it runs: name, cell n of m, seconds.

On a terminal the line is rewritten in place, once a second, so that a long compile does not look like a hang. In a log
there is one line when a notebook starts, one when it ends, and one each half minute between.
"""

from __future__ import annotations

import shutil
import threading
import time
from typing import Any, TextIO

__all__ = ["Progress"]

_LOG_EVERY = 30.0
_TICK = 1.0


class Progress:
    """The progress of a run, as a context manager.

    Parameters
    ----------
    stream : text file
        Where to write.
    total : int
        Number of notebooks.

    Examples
    --------
    >>> import io
    >>> log = io.StringIO()
    >>> with Progress(log, total=1) as progress:
    ...     progress.start("00_start_here", cells=2)
    ...     progress.cell(1)
    ...     progress.end("passed")
    >>> log.getvalue().splitlines()[0]
    '[1/1] 00_start_here: 2 cells'
    """

    def __init__(self, stream: TextIO, *, total: int) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._total = total
        self._number = 0
        self._name = ""
        self._cell = 0
        self._cells = 0
        self._began = 0.0
        self._logged = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="neuron-lab-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._over.set()
        self._thread.join()

    def start(self, name: str, *, cells: int) -> None:
        """A notebook with so many code cells starts."""
        with self._lock:
            self._number += 1
            self._name, self._cells, self._cell = name, cells, 0
            self._began = self._logged = time.monotonic()
            if not self._live:
                self._write(f"{self._title()}: {cells} cell{'s' * (cells != 1)}\n")
        self._show()

    def cell(self, number: int) -> None:
        """The code cell of this number starts; the first one is 1."""
        self._cell = number
        self._show()

    def end(self, words: str) -> None:
        """The notebook is over; ``words`` say how."""
        with self._lock:
            line = f"{self._title()}: {words}, cell {self._cell} of {self._cells}, {self._seconds():.0f} s"
            self._write(f"\r\x1b[K{line}\n" if self._live else f"{line}\n")
            self._name = ""

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            self._show()

    def _show(self) -> None:
        with self._lock:
            if not self._name:
                return
            line = f"{self._title()}: cell {self._cell} of {self._cells}, {self._seconds():.0f} s"
            now = time.monotonic()
            if self._live:
                self._write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
            elif now - self._logged >= _LOG_EVERY:
                self._logged = now
                self._write(f"{line}\n")

    def _title(self) -> str:
        return f"[{self._number}/{self._total}] {self._name}"

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
