"""A live face of the recompile counter, for notebooks: :class:`RecompileMonitor`.

It reads the plain results of :mod:`neuron_lab.recompiles` and counts nothing itself. Without a browser, under papermill
for example, what is left in the executed notebook is the same report as text, current at the end of the run.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from neuron_lab.recompiles import CompileEvent, GraphBreak, Recompiles
from neuron_lab.recompiles import events as kinds
from neuron_lab.recompiles.frames import shell

__all__ = ["FunctionRow", "RecompileMonitor", "rows_of"]

_BAR_PIXELS = 160
_CELL = "text-align:left;vertical-align:top;line-height:1.4;padding:0.1em 1em 0.1em 0"


@dataclass(frozen=True)
class FunctionRow:
    """One function of the report.

    Attributes
    ----------
    name, where
        The function and its place.
    compiles, recompiles, breaks
        How often.
    state
        ``compiled``, or ``EAGER`` once it reached the recompile limit.
    cause, remedy
        Of its latest recompile.
    """

    name: str
    where: str
    compiles: int
    recompiles: int
    breaks: int
    state: str
    cause: str
    remedy: str

    def matches(self, text: str) -> bool:
        """Whether every word of a filter is in it."""
        mine = f"{self.name} {self.where} {self.state} {self.cause} {self.remedy}".lower()
        return all(word in mine for word in text.lower().split())


def rows_of(seen: Recompiles) -> list[FunctionRow]:
    """One row per function, in the order of their first events.

    Parameters
    ----------
    seen
        A counter, open or closed.
    """
    by_function: dict[tuple[str, str], list[CompileEvent]] = {}
    for event in seen.events:
        if event.compiled or event.kind in (kinds.LIMIT, kinds.FAILED):
            by_function.setdefault((event.function, event.where), []).append(event)
    breaks = _breaks_by_function(by_function, seen.graph_breaks)
    rows = []
    for (name, where), events in by_function.items():
        causes = [event for event in events if event.cause is not None]
        failed = events[-1].kind == kinds.FAILED
        eager = any(event.kind == kinds.LIMIT for event in events)
        rows.append(
            FunctionRow(
                name=name,
                where=where,
                compiles=sum(event.compiled for event in events),
                recompiles=sum(event.recompiled for event in events),
                breaks=breaks.get((name, where), 0),
                state="EAGER" if eager else "failed" if failed else "compiled",
                cause=events[-1].detail if failed else str(causes[-1].cause) if causes else "",
                remedy=causes[-1].cause.remedy if causes else "",  # type: ignore[union-attr]
            )
        )
    return rows


def _breaks_by_function(
    functions: dict[tuple[str, str], list[CompileEvent]], breaks: Iterable[GraphBreak]
) -> dict[tuple[str, str], int]:
    """Give each break to the function of the same file that begins last before it."""
    found: dict[tuple[str, str], int] = {}
    for one in breaks:
        before = [
            (events[0].line, key)
            for key, events in functions.items()
            if events[0].file == one.file and events[0].line <= one.line and not key[0].endswith("(rest)")
        ]
        if before:
            key = max(before)[1]
            found[key] = found.get(key, 0) + 1
    return found


class RecompileMonitor:
    """Watch the kernel from now on: a row per function, a bar per cell, updated in place.

    Parameters
    ----------
    label : str
        Name of the report.

    Attributes
    ----------
    seen : Recompiles
        The counter; its report, JSON and ``expect`` are all there.

    Notes
    -----
    Show it as the last value of a cell. It needs ipywidgets (the extra ``workbook``); without a browser it leaves its
    text. :meth:`close` ends the watching; so do a newer monitor, whose numbers begin anew, and the end of the kernel.

    Examples
    --------
    >>> monitor = RecompileMonitor()  # doctest: +SKIP
    >>> monitor  # doctest: +SKIP
    """

    _open: ClassVar[RecompileMonitor | None] = None

    def __init__(self, label: str = "this notebook") -> None:
        import ipywidgets

        self.seen = Recompiles(label)
        self._shown_events = -1
        self._main = threading.get_ident()
        self._handles: list[Any] = []
        self.table = ipywidgets.HTML()
        self.cells = ipywidgets.HTML()
        self.filter = ipywidgets.Text(
            description="Show only", placeholder="function, file or cause", continuous_update=True
        )
        self.reset = ipywidgets.Button(description="Reset", tooltip="Forget what was counted so far", icon="refresh")
        self.copy = ipywidgets.HTML()
        self.filter.observe(lambda _: self.update(force=True), names="value")
        self.reset.on_click(lambda _: self.clear())
        self.view = ipywidgets.VBox(
            [ipywidgets.HBox([self.filter, self.reset, self.copy]), self.table, self.cells],
        )
        if RecompileMonitor._open is not None:  # the cell was run again: one monitor watches, the old display stays
            RecompileMonitor._open.close()
        RecompileMonitor._open = self
        self.seen.watch(self._after_event)
        self._watch_cells(True)
        self.seen.start()
        self.update(force=True)

    def close(self) -> None:
        """Stop watching. What was counted stays."""
        self.seen.stop()
        self.seen.watch(None)
        self._watch_cells(False)
        if RecompileMonitor._open is self:
            RecompileMonitor._open = None
        self.update(force=True)

    def clear(self) -> None:
        """Forget what was counted so far, and go on watching."""
        self.seen.clear()
        self.update(force=True)

    def _watch_cells(self, on: bool) -> None:
        running = shell()
        if running is None:
            return
        if on:
            running.events.register("post_run_cell", self._after_cell)
        elif self._after_cell in running.events.callbacks.get("post_run_cell", []):
            running.events.unregister("post_run_cell", self._after_cell)

    def _after_cell(self, *_: object) -> None:
        self.update()

    def _after_event(self) -> None:
        if threading.get_ident() == self._main:  # widgets are not for other threads; the end of the cell shows theirs
            self.update()

    def update(self, *, force: bool = False) -> None:
        """Bring the display up to date; nothing is sent if nothing happened."""
        count = len(self.seen.events) + len(self.seen.graph_breaks)
        if count == self._shown_events and not force:
            return
        self._shown_events = count
        self.table.value = self._table_html()
        self.cells.value = self._cells_html()
        self.copy.value = self._copy_html()
        for handle in self._handles:
            handle.update(self._bundle(), raw=True)

    # Faces.

    def __repr__(self) -> str:
        return repr(self.seen)

    def _table_html(self) -> str:
        rows = [row for row in rows_of(self.seen) if row.matches(self.filter.value)]
        if not self.seen.events:
            return "<p>Nothing has been compiled yet.</p>"
        if not rows:
            return f"<p>No function matches “{html.escape(self.filter.value)}”.</p>"
        names = ("function", "where", "compiles", "recompiles", "breaks", "state", "last cause", "what to do")
        head = "".join(f'<th scope="col" style="{_CELL}">{name}</th>' for name in names)
        body = ""
        for row in rows:
            values = (row.name, row.where, row.compiles, row.recompiles, row.breaks, row.state, row.cause, row.remedy)
            cells = "".join(f'<td style="{_CELL}">{html.escape(str(value))}</td>' for value in values)
            body += f'<tr class="neuron-lab-{row.state.lower()}">{cells}</tr>'
        return f'<table class="neuron-lab-monitor"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def _cells_html(self) -> str:
        counts: dict[str, int] = {}
        for event in self.seen.compiles:
            name = "outside cells" if event.executing is None else f"cell {event.executing}"
            counts[name] = counts.get(name, 0) + 1
        if not counts:
            return ""
        widest = max(counts.values())
        bars = "".join(
            f'<tr><td>{name}</td><td><div style="background:#0072b2;height:0.8em;'
            f'width:{max(2, round(_BAR_PIXELS * count / widest))}px"></div></td><td>{count}</td></tr>'
            for name, count in counts.items()
        )
        return f"<table class='neuron-lab-cells'><caption>compiles per cell</caption><tbody>{bars}</tbody></table>"

    def _copy_html(self) -> str:
        report = html.escape(repr(self.seen), quote=True)
        return (
            f'<button class="jupyter-button" data-report="{report}" '
            "onclick=\"navigator.clipboard.writeText(this.dataset.report);this.textContent='Copied'\">"
            "Copy report</button>"
        )

    def _bundle(self) -> dict[str, Any]:
        bundle = dict(self.view._repr_mimebundle_() or {})
        bundle["text/plain"] = repr(self.seen)
        return bundle

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self._handles.append(display(self._bundle(), raw=True, display_id=True))
