"""What a run prints at its end: a table, and for each failure the cell and its error."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from neuron_lab.runner.execute import Result

__all__ = ["failures", "table"]

_SOURCE_LINES = 30
_TRACEBACK_LINES = 40


def table(results: Sequence[Result], out: Path) -> str:
    """The summary: one row per notebook, where the files are, and the count."""
    width = max([len("notebook"), *(len(result.name) for result in results)])
    lines = ["", f"{'notebook':<{width}}  {'result':<11}  {'cells':>9}  {'seconds':>7}"]
    for result in results:
        word = result.status.upper() if result.status == "failed" else result.status
        began = result.status != "not run"
        cells, seconds = (f"{result.done} of {result.cells}", f"{result.seconds:.1f}") if began else ("-", "-")
        lines.append(f"{result.name:<{width}}  {word:<11}  {cells:>9}  {seconds:>7}")
    if any(result.executed for result in results):
        lines += ["", f"executed notebooks and HTML: {out}"]
    counts = Counter(result.status for result in results)
    lines += ["", ", ".join([f"{counts.pop('passed', 0)} passed", f"{counts.pop('failed', 0)} failed"])]
    lines[-1] += "".join(f", {count} {status}" for status, count in counts.items())
    return "\n".join(lines)


def failures(results: Sequence[Result]) -> str:
    """For each failed notebook: which cell, its source, its error. Empty if there is none."""
    blocks = []
    for result in results:
        failure = result.failure
        if failure is None:
            continue
        where = f", cell {failure.cell} of {result.cells}" if failure.cell else ""
        block = [f"\n{result.path}{where}: {failure.error}"]
        if failure.source:
            block.append(textwrap.indent(_short(failure.source, _SOURCE_LINES), "    "))
        if failure.traceback:
            block.append(_short(failure.traceback, _TRACEBACK_LINES, tail=True))
        blocks.append("\n\n".join(block) + "\n")
    return "".join(blocks)


def _short(text: str, limit: int, *, tail: bool = False) -> str:
    lines = text.rstrip("\n").splitlines()
    if len(lines) <= limit:
        return "\n".join(lines)
    left_out = f"... ({len(lines) - limit} lines left out)"
    return "\n".join([left_out, *lines[-limit:]] if tail else [*lines[:limit], left_out])
