"""Figures of the lessons: few kinds, each labelled with its source and described in words.

Every figure carries ``emulated on CPU`` or ``measured on <instance>`` in the picture, and an alternative text that says
what one sees. A notebook's output format has no place for such a text, and nbconvert's page leaves it out; so the
figure also gives itself as HTML with an ``alt``, which JupyterLab and nbconvert prefer to the bare picture.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart. Lines also differ by dashes and markers,
and bars by hatching, so that a grey print is legible. Figures are drawn without pyplot: nothing global changes, and
nothing needs a display.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuron_lab.recompiles import CompileEvent, Recompiles

__all__ = ["bars", "curves", "timeline"]

# Okabe and Ito, "Color Universal Design", 2008; ordered so that neighbours also differ in lightness.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#000000", "#d55e00", "#56b4e9", "#cc79a7")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")
_SIZE_INCHES = (7.0, 3.6)
_DPI = 110
_MARKED_POINTS = 12
_WIDENED = 3  # up to so many lines, the ones below are drawn wider
_LEGEND_INSIDE = 4  # above so many names, the legend goes beside the axes


def curves(
    series: Mapping[str, Sequence[float] | tuple[Sequence[float], Sequence[float]]],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    alt: str,
    label: str | None = None,
    logy: bool = False,
) -> Any:
    """Draw lines.

    Parameters
    ----------
    series : mapping of str to values, or to (x, y)
        Name to the values of y, drawn over 0, 1, 2, ..., or to a pair. At most seven.
    xlabel, ylabel : str
        What the axes show, with the unit: ``"step"``, ``"loss (nats)"``, ``"time (ms)"``.
    title : str
        The finding, in a few words.
    alt : str
        The alternative text: what one sees, for a reader who does not.
    label : str, optional
        The source of the numbers; that of the device at hand (``DeviceInfo.label``) if not given.
    logy : bool, default False
        A logarithmic y axis.

    Returns
    -------
    matplotlib.figure.Figure
        Shows itself as a cell's value. Its attribute ``alt`` is the alternative text.

    Raises
    ------
    ValueError
        Something is missing, or too much: the message says what.

    Examples
    --------
    >>> figure = curves(
    ...     {"neuron": [3.0, 2.0, 1.5], "CPU": [3.0, 2.0, 1.5]},
    ...     xlabel="step",
    ...     ylabel="loss (nats)",
    ...     title="The two losses are the same",
    ...     alt="Two falling lines on top of each other, from 3.0 to 1.5 in three steps.",
    ...     label="emulated on CPU",
    ... )
    >>> figure.alt
    'Two falling lines on top of each other, from 3.0 to 1.5 in three steps.'
    """
    figure, axes = _figure(series, xlabel, ylabel, title, alt, label)
    for number, (name, values) in enumerate(series.items()):
        x, y = _points(name, values)
        below = len(series) - 1 - number if len(series) <= _WIDENED else 0
        axes.plot(
            x,
            y,
            label=name,
            color=_COLOURS[number],
            linestyle=_DASHES[number],
            marker=_MARKERS[number],
            markevery=max(1, len(y) // _MARKED_POINTS),
            # Lines on top of each other stay visible: the one below is wider, with the larger, open marker.
            markersize=4 + 3 * below,
            markerfacecolor="none" if below else _COLOURS[number],
            linewidth=1.6 + 1.4 * below,
        )
    if logy:
        axes.set_yscale("log")
    _legend(figure, axes, len(series))
    return figure


def bars(
    series: Mapping[str, float] | Mapping[str, Mapping[str, float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    alt: str,
    label: str | None = None,
) -> Any:
    """Draw bars, each with its value written above it.

    Parameters
    ----------
    series : mapping of str to float, or of str to mapping
        Bar name to value; or group name to such a mapping, for bars side by side.
    xlabel, ylabel, title, alt, label
        As for :func:`curves`.

    Returns
    -------
    matplotlib.figure.Figure
        Shows itself as a cell's value. Its attribute ``alt`` is the alternative text.

    Examples
    --------
    >>> figure = bars(
    ...     {"growing cache": 20, "fixed cache": 2},
    ...     xlabel="cache",
    ...     ylabel="compiled graphs (count)",
    ...     title="A fixed cache compiles twice",
    ...     alt="Two bars: 20 graphs with a growing cache, 2 with a fixed one.",
    ...     label="emulated on CPU",
    ... )
    """
    groups = series if all(isinstance(v, Mapping) for v in series.values()) else {"": series}
    figure, axes = _figure(groups, xlabel, ylabel, title, alt, label)
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / len(groups)
    for number, (group, values) in enumerate(groups.items()):
        places = [i + (number - (len(groups) - 1) / 2) * width for i, name in enumerate(names) if name in values]
        drawn = axes.bar(
            places,
            [values[name] for name in names if name in values],
            width=width * 0.92,
            label=group,
            color=_COLOURS[number],
            hatch=_HATCHES[number],
            edgecolor="white",
        )
        axes.bar_label(drawn, fmt="{:,.4g}", padding=2, fontsize=9)
    axes.set_xticks(range(len(names)), names)
    axes.margins(y=0.12)
    axes.grid(False, axis="x")
    if all(float(value).is_integer() for group in groups.values() for value in group.values()):
        axes.yaxis.get_major_locator().set_params(integer=True)
    _legend(figure, axes, len(groups))
    return figure


def timeline(seen: Recompiles, *, title: str = "", alt: str = "", label: str | None = None) -> Any:
    """Draw when functions were compiled: one row per function, one bar per compilation.

    Of more than seven functions, the seven that were compiled most often are drawn, and the alternative text says so.

    Parameters
    ----------
    seen : Recompiles
        A counter with at least one compilation.
    title, alt : str
        As for :func:`curves`; made from the counts if not given.
    label : str, optional
        As for :func:`curves`.

    Returns
    -------
    matplotlib.figure.Figure
        Shows itself as a cell's value. Its attribute ``alt`` is the alternative text.

    Raises
    ------
    ValueError
        Nothing was compiled while the counter was open.
    """
    events = [event for event in seen.compiles if event.start > 0]
    if not events:
        raise ValueError("nothing was compiled while the counter was open, so there is nothing to draw")
    rows: dict[str, list[CompileEvent]] = {}
    for event in events:
        rows.setdefault(f"{event.function}\n{event.where}", []).append(event)
    shown = dict(sorted(rows.items(), key=lambda row: -len(row[1]))[: len(_COLOURS)])
    first = min(event.start for event in events)
    total = sum(event.seconds.total for event in events)
    described = alt or (
        f"{len(events)} compilations of {len(rows)} functions, {total:.2f} seconds in all, as bars over time; "
        f"{sum(event.recompiled for event in events)} of them are recompiles."
        + (f" Drawn are the {len(shown)} functions that were compiled most often." if len(shown) < len(rows) else "")
    )
    title = title or f"{len(events)} compilations, {sum(event.recompiled for event in events)} of them again"
    figure, axes = _figure(
        dict(enumerate(shown)), "time since the first compilation (s)", "function", title, described, label
    )
    kinds = (("first", _COLOURS[0], _HATCHES[0]), ("again", _COLOURS[1], _HATCHES[1]))
    for number, of_one in enumerate(shown.values()):
        for again, (_, colour, hatch) in enumerate(kinds):
            spans = [(event.start - first, event.seconds.total) for event in of_one if event.recompiled == bool(again)]
            axes.broken_barh(spans, (number - 0.35, 0.7), facecolors=colour, hatch=hatch, edgecolor="white")
    axes.set_yticks(range(len(shown)), list(shown), fontsize=8)
    axes.invert_yaxis()
    axes.set_ylabel("")
    axes.grid(False, axis="y")
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name) for name, colour, hatch in kinds]
    figure.legend(handles=handles, frameon=False, fontsize=8, loc="outside right upper")
    return figure


def _figure(series: Mapping[str, Any], xlabel: str, ylabel: str, title: str, alt: str, label: str | None) -> Any:
    for name, value in {"xlabel": xlabel, "ylabel": ylabel, "title": title, "alt": alt}.items():
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name} is {value!r}; a figure needs a text there")
    if not 1 <= len(series) <= len(_COLOURS):
        raise ValueError(f"{len(series)} series; a figure shows 1 to {len(_COLOURS)}, or they cannot be told apart")
    figure = _figure_class()(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    figure.alt = " ".join(alt.split())
    figure.source_label = _source(label)
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(True, color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(figure.source_label, x=0.99, ha="right", fontsize=8, color="#444444")
    return figure, axes


def _legend(figure: Any, axes: Any, count: int) -> None:
    if 1 < count <= _LEGEND_INSIDE:
        axes.legend(frameon=False)
    elif count > _LEGEND_INSIDE:
        figure.legend(frameon=False, loc="outside right upper")


def _source(label: str | None) -> str:
    if label is None:
        from neuron_lab.device import current

        label = current().label
    if not label.startswith(("emulated on ", "measured on ")):
        raise ValueError(f"label is {label!r}; give DeviceInfo.label: 'emulated on CPU' or 'measured on <instance>'")
    return label


def _points(name: str, values: Any) -> tuple[list[float], list[float]]:
    is_pair = isinstance(values, tuple) and len(values) == 2 and all(hasattr(v, "__len__") for v in values)
    y = [float(v) for v in (values[1] if is_pair else values)]
    x = [float(v) for v in values[0]] if is_pair else list(range(len(y)))
    if not y:
        raise ValueError(f"series {name!r} has no values")
    if len(x) != len(y):
        raise ValueError(f"series {name!r} has {len(x)} values of x and {len(y)} of y; they must be as many")
    return x, y


@cache
def _figure_class() -> type:
    """The class of our figures. Made when first needed, so that importing this module does not import matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class DescribedFigure(Figure):
        """A figure that knows its alternative text and shows itself with it."""

        alt: str = ""
        source_label: str = ""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            FigureCanvasAgg(self)

        def _png(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", metadata={"Description": self.alt, "Source": self.source_label})
            return file.getvalue()

        def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
            picture = base64.b64encode(self._png()).decode("ascii")
            described = f"{self.alt} ({self.source_label})"
            page = (
                f'<img src="data:image/png;base64,{picture}" alt="{html.escape(described)}" '
                'style="max-width: 100%; height: auto; background: white">'
            )
            data = {"image/png": picture, "text/html": page, "text/plain": f"Figure: {described}"}
            return data, {"image/png": {"alt": described}}

    return DescribedFigure
