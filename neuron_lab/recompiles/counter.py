"""The object that counts, while it is open: a context manager, and a decorator."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, ParamSpec, TypeVar, overload

from neuron_lab.recompiles import events as kinds
from neuron_lab.recompiles.events import CompileEvent, GraphBreak
from neuron_lab.recompiles.listener import LISTENER
from neuron_lab.recompiles.report import html_report, text_report

__all__ = ["Recompiles", "count_recompiles"]

P = ParamSpec("P")
R = TypeVar("R")


class Recompiles:
    """What was compiled while this was open.

    Made by :func:`count_recompiles`. Open it with ``with``, more than once if
    you like: it goes on counting. Counters nest, each sees all that happens
    inside it, and the labels of the inner ones say in which phase.

    Attributes
    ----------
    label : str
        Name of this counter, and of its phase in the counters around it.
    events : list of CompileEvent
        Everything, in order.
    graph_breaks : list of GraphBreak
        Places where capture stopped, in order; one that is passed by several
        compilations is there several times.

    Examples
    --------
    >>> import torch
    >>> double = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)
    >>> with count_recompiles(label="three lengths") as seen:
    ...     for n in (3, 4, 5):
    ...         _ = double(torch.ones(n))
    >>> len(seen.compiles), len(seen.recompiles)
    (3, 2)
    >>> str(seen.recompiles[0].cause)
    'x.size(0): 3 -> 4'
    """

    def __init__(self, label: str = "") -> None:
        self.label = label
        self.events: list[CompileEvent] = []
        self.graph_breaks: list[GraphBreak] = []
        self._lock = threading.Lock()
        self._depth = 0
        self._watcher: Callable[[], None] | None = None

    # Counting.

    def __enter__(self) -> Recompiles:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to count, until :meth:`stop` was called as often."""
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
        LISTENER.add(self)

    def stop(self) -> None:
        """End counting; without a matching :meth:`start`, nothing happens."""
        with self._lock:
            if self._depth == 0:
                return
            self._depth -= 1
            if self._depth > 0:
                return
        LISTENER.remove(self)

    def receive(self, found: CompileEvent | GraphBreak) -> None:
        """Take an event; the listener calls it."""
        with self._lock:
            if isinstance(found, GraphBreak):
                self.graph_breaks.append(found)
            else:
                self.events.append(replace(found, number=len(self.events) + 1))
        if self._watcher is not None:
            self._watcher()

    def watch(self, callback: Callable[[], None] | None) -> None:
        """Call a function after every event, in the thread that compiled; None for no function any more."""
        self._watcher = callback

    def clear(self) -> None:
        """Forget what was counted so far; an open counter goes on counting."""
        with self._lock:
            self.events.clear()
            self.graph_breaks.clear()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Count during every call of a function; the counter is its attribute ``recompiles``."""

        @functools.wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        counted.recompiles = self  # type: ignore[attr-defined]
        return counted

    # What was counted.

    @property
    def compiles(self) -> list[CompileEvent]:
        """Every compilation: first ones, recompiles, and those behind a graph break."""
        return [event for event in self.events if event.compiled]

    @property
    def recompiles(self) -> list[CompileEvent]:
        """Compilations of a function that had a graph already, which could not be used again."""
        return [event for event in self.events if event.recompiled]

    @property
    def cache_hits(self) -> list[CompileEvent]:
        """Compilations whose graphs the backend had on disk: traced again, not compiled again."""
        return [event for event in self.compiles if event.from_cache]

    @property
    def fell_back_to_eager(self) -> list[CompileEvent]:
        """Functions that reached the recompile limit and run eagerly from there on."""
        return [event for event in self.events if event.kind == kinds.LIMIT]

    @property
    def failures(self) -> list[CompileEvent]:
        """Compilations that raised."""
        return [event for event in self.events if event.kind == kinds.FAILED]

    @property
    def skips(self) -> list[CompileEvent]:
        """Stances and switches that kept PyTorch from compiling."""
        return [event for event in self.events if event.kind == kinds.SKIPPED]

    @property
    def graphs(self) -> int:
        """Graphs that went to the compiler, forward and backward counted apart."""
        return sum(event.graphs for event in self.compiles)

    def expect(
        self, *, compiles: int | None = None, recompiles: int | None = None, graph_breaks: int | None = None
    ) -> None:
        """Assert how much was compiled.

        Parameters
        ----------
        compiles, recompiles, graph_breaks
            The exact numbers; what is left out is not looked at.
            ``expect(compiles=0)`` is the steady state.

        Raises
        ------
        AssertionError
            With the table, if a number is another one, or if a function fell
            back to eager mode, which would otherwise look like a steady state.
        ValueError
            If nothing was asked for.
        """
        wanted = {"compiles": compiles, "recompiles": recompiles, "graph_breaks": graph_breaks}
        wanted = {name: number for name, number in wanted.items() if number is not None}
        if not wanted:
            raise ValueError(
                "expect() was asked for nothing: give compiles=, recompiles= or graph_breaks=, "
                "for example expect(compiles=0) for the steady state."
            )
        found = {name: len(getattr(self, name)) for name in wanted}
        wrong = [f"{name} {found[name]}, expected {number}" for name, number in wanted.items() if found[name] != number]
        if self.fell_back_to_eager:
            wrong.append("a function reached the recompile limit and runs eagerly")
        if wrong:
            raise AssertionError(f"{'; '.join(wrong)}\n{self!r}")

    # Faces.

    def __repr__(self) -> str:
        return text_report(self)

    def _repr_html_(self) -> str:
        return html_report(self)

    def to_dict(self) -> dict[str, Any]:
        """The counts and all events, as values that JSON has."""
        counts = {
            name: len(getattr(self, name))
            for name in ("compiles", "recompiles", "graph_breaks", "cache_hits", "fell_back_to_eager", "failures")
        }
        with self._lock:
            events, breaks = list(self.events), list(self.graph_breaks)
        return {
            "label": self.label,
            "counts": {**counts, "graphs": self.graphs},
            "events": [asdict(event) for event in events],
            "graph_breaks": [asdict(found) for found in breaks],
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """:meth:`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)


@overload
def count_recompiles(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def count_recompiles(*, label: str = "") -> Recompiles: ...
def count_recompiles(function: Callable[..., Any] | None = None, /, *, label: str = "") -> Any:
    """Count what ``torch.compile`` does, around a cell, a trainer, a ``generate``.

    Parameters
    ----------
    function
        Given when used as a bare decorator. The counter is then the function's
        attribute ``recompiles`` and goes on counting over all calls.
    label
        Name in reports, and the phase of its events in counters around it.

    Returns
    -------
    Recompiles
        To be opened with ``with``; or the decorated function.

    Raises
    ------
    TypeError
        If what is given is not a function (a label is a keyword).

    Notes
    -----
    Counting is for the process: compilations of other threads are counted too.
    A call that uses a graph again leaves no trace and costs nothing; so calls
    after a limit, which run eagerly, are not counted one by one either.

    Examples
    --------
    >>> import torch
    >>> step = torch.compile(lambda x: x + 1, backend="eager")
    >>> with count_recompiles(label="warm-up") as seen:
    ...     _ = step(torch.ones(2))
    >>> with count_recompiles(label="steady") as seen:
    ...     _ = step(torch.ones(2))
    >>> seen.expect(compiles=0)
    """
    if function is None:
        return Recompiles(label)
    if not callable(function):
        raise TypeError(
            f"count_recompiles takes a function, got {function!r} of type {type(function).__name__}. "
            f"A label is a keyword: count_recompiles(label={str(function)!r})."
        )
    return Recompiles(label or getattr(function, "__name__", ""))(function)
