"""The faces of a counter: a table of fixed width, and the same in HTML."""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from neuron_lab.recompiles import events as kinds
from neuron_lab.recompiles.events import CompileEvent, GraphBreak

if TYPE_CHECKING:
    from neuron_lab.recompiles.counter import Recompiles

__all__ = ["html_report", "summary", "text_report"]

WIDTH = 100
_COLUMNS = (("#", 3), ("what", 14), ("function", 16), ("where", 22), ("seconds", 7), ("why", 33))


def summary(seen: Recompiles) -> str:
    """The counts in one line."""
    compiles, recompiles = len(seen.compiles), len(seen.recompiles)
    parts = [_count(compiles, "compile"), _count(recompiles, "recompile"), _count(seen.graphs, "graph")]
    for number, word in (
        (len(seen.graph_breaks), "graph break"),
        (len(seen.cache_hits), "loaded from cache"),
        (len(seen.failures), "failed"),
    ):
        if number:
            parts.append(_count(number, word) if word == "graph break" else f"{number} {word}")
    if seen.fell_back_to_eager:
        parts.append(f"{_count(len(_names(seen.fell_back_to_eager)), 'function')} now EAGER (limit reached)")
    if seen.skips:
        parts.append("compiling was switched off")
    return ", ".join(parts)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _names(events: list[CompileEvent]) -> set[tuple[str, str, int]]:
    return {(event.function, event.file, event.line) for event in events}


def _why(event: CompileEvent) -> str:
    if event.kind == kinds.LIMIT:
        return f"runs eagerly from here; {event.cause}" if event.cause else "runs eagerly from here"
    if event.detail:
        return event.detail
    if event.cause is not None:
        return str(event.cause)
    return "loaded from cache" if event.from_cache else ""


def _rows(seen: Recompiles) -> list[tuple[str, ...]]:
    return [
        (
            str(event.number),
            event.kind,
            event.function,
            event.where if event.file else "",
            f"{event.seconds.total:.2f}",
            "; ".join(filter(None, (_why(event), event.origin and f"by {event.origin}", event.phase))),
        )
        for event in seen.events
    ]


def _remedies(seen: Recompiles) -> list[str]:
    """Each remedy once, with the events that it is for."""
    numbers: dict[str, list[int]] = {}
    for event in seen.events:
        if event.cause is not None and event.cause.remedy:
            numbers.setdefault(event.cause.remedy, []).append(event.number)
    lines = [f"{_list(found)}: {remedy}" for remedy, found in numbers.items()]
    again = [event.number for event in seen.events if event.kind == kinds.DEFINED_AGAIN]
    if again:
        lines.append(
            f"{_list(again)}: The same source was compiled before; its graphs are lost when it is defined again."
        )
    if seen.fell_back_to_eager:
        lines.append(
            "EAGER: PyTorch stops compiling a function after torch._dynamo.config.recompile_limit compilations. Find "
            "the cause above; a higher limit only hides it."
        )
    return lines


def _list(numbers: list[int]) -> str:
    shown = ", ".join(f"#{number}" for number in numbers[:4])
    return shown + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")


def _breaks(seen: Recompiles) -> list[tuple[GraphBreak, int]]:
    """Each place once, with how often."""
    often = Counter((found.file, found.line) for found in seen.graph_breaks)
    first = {(found.file, found.line): found for found in reversed(seen.graph_breaks)}
    return [(first[place], often[place]) for place in often]


def _notes(seen: Recompiles) -> list[str]:
    """What stands below the table: graph breaks, then remedies."""
    notes = []
    for found, often in _breaks(seen):
        times = f" ({often} times)" if often > 1 else ""
        notes.append(f"graph break at {found.where}{times}: {found.reason}. {found.remedy}")
    return notes + _remedies(seen)


def _fit(text: str, width: int, *, keep_end: bool = False) -> str:
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    return "…" + text[-(width - 1) :] if keep_end else text[: width - 1] + "…"


def text_report(seen: Recompiles) -> str:
    """The counter as a table of at most 100 columns."""
    title = f"{seen.label}: " if seen.label else ""
    lines = textwrap.wrap(f"{title}{summary(seen)}", WIDTH)
    rows = _rows(seen)
    if rows:
        lines.append(" ".join(f"{name:<{width}}" for name, width in _COLUMNS).rstrip())
        for row in rows:
            *head, why = row
            cells = [
                f"{_fit(text, width, keep_end=name == 'where'):<{width}}"
                for text, (name, width) in zip(head, _COLUMNS, strict=False)
            ]
            lines.append(" ".join([*cells, _fit(why, _COLUMNS[-1][1], keep_end=" -> " in why)]).rstrip())
    for note in _notes(seen):
        lines.extend(textwrap.wrap(note, WIDTH, subsequent_indent="    "))
    return "\n".join(lines)


def html_report(seen: Recompiles) -> str:
    """The counter as an HTML table."""
    escape = html.escape
    title = f"<strong>{escape(seen.label)}</strong>: " if seen.label else ""
    head = "".join(f'<th scope="col" style="text-align: left;">{escape(name)}</th>' for name, _ in _COLUMNS)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align: left;">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in _rows(seen)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
    listed = "".join(f"<li>{escape(note)}</li>" for note in _notes(seen))
    return f'<div class="neuron-lab-recompiles"><p>{title}{escape(summary(seen))}</p>{table}' + (
        f"<ul>{listed}</ul></div>" if listed else "</div>"
    )
