"""Checks for the exercises: a learner's function against a plain reference, rung by rung.

A check tries easy cases first. It stops at the first rung that fails and raises :class:`CheckFailed`, an
``AssertionError`` that names the rung and shows the values, so that a notebook run headlessly turns red. If all is
well it prints one line. Nothing here is random: a red check can be repeated.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CheckFailed", "Score", "check", "claims"]

_SHOWN = 6


class CheckFailed(AssertionError):
    """A rung of an exercise failed. ``rung`` is its name.

    IPython shows the message, and the traceback of the learner's function if it raised, but none of this module.
    """

    def __init__(self, message: str, rung: str) -> None:
        super().__init__(message)
        self.rung = rung

    def _render_traceback_(self) -> list[str]:
        cause = self.__cause__
        own = [] if cause is None else traceback.format_exception(type(cause), cause, cause.__traceback__.tb_next)
        return [*(line.rstrip("\n") for line in own), f"Not yet. {self}"]


def check(
    fn: Callable[..., Any],
    cases: Mapping[str, tuple[Any, ...] | Callable[[], tuple[Any, ...]]],
    reference: Callable[..., Any],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    same_device: bool = True,
    name: str | None = None,
) -> bool:
    """Compare a function with a reference on named cases, from easy to hard.

    Both get their own copies of the arguments, so neither sees what the other did to them. Tensors are compared on the
    CPU: dtype, shape, then values; and by device, where the learner is asked to stay on it.

    Parameters
    ----------
    fn : callable
        The learner's function.
    cases : mapping of str to tuple or callable
        Rung name to arguments, or to a function without arguments that makes them.
    reference : callable
        The plain function that says what is right.
    rtol, atol : float
        Tolerances for floating-point values: ``|got - want| <= atol + rtol * |want|``.
    same_device : bool, default True
        Whether a tensor on another device than the reference's is a failure.
    name : str, optional
        What to call the exercise; the function's name if not given.

    Returns
    -------
    bool
        True if every rung holds. False if nobody has begun: the function raises ``NotImplementedError`` or gives
        ``...``, as the lesson leaves it, so that an unsolved notebook still runs to its end.

    Raises
    ------
    CheckFailed
        A rung failed: the function raised, gave nothing, or gave something else than the reference.
    ValueError
        There are no cases: such a check would prove nothing.

    Examples
    --------
    >>> check(lambda x: 2 * x, {"one": (1,), "negative": (-3,)}, lambda x: x + x, name="double")
    double: all 2 rungs hold (one, negative)
    True
    """
    if not cases:
        raise ValueError("check() needs at least one case; a check without cases proves nothing")
    name = name or getattr(fn, "__name__", "your function")
    for number, (rung, case) in enumerate(cases.items(), start=1):
        where = f"{name}, rung {number} of {len(cases)} ({rung})"
        made = case() if callable(case) else case
        if not isinstance(made, tuple):
            raise TypeError(f"case {rung!r} must give a tuple of arguments, not {type(made).__name__}: write (x,)")
        want = reference(*copy.deepcopy(made))
        got = _call(fn, made, where, rung)
        if got is Ellipsis:
            print(f"{name}: still to do. Fill the gap and run this cell again.")
            return False
        difference = _difference(got, want, rtol, atol, same_device)
        if difference:
            raise CheckFailed(f"{where}: {difference}. The arguments were {_show_all(made)}", rung)
    print(f"{name}: all {len(cases)} rungs hold ({', '.join(cases)})")
    return True


def claims(name: str, rungs: Mapping[str, tuple[Any, Any]]) -> bool:
    """Check results that are not a function's: counts, sizes, flags.

    Parameters
    ----------
    name : str
        What to call the exercise.
    rungs : mapping of str to (got, want)
        Rung name to the value that is there and the one that is right. ``want`` may be a function that takes the value
        and answers True or False.

    Returns
    -------
    bool
        True if every rung holds; False if a value is still ``...``, as the lesson leaves it.

    Raises
    ------
    CheckFailed
        A rung does not hold.
    ValueError
        There are no rungs.

    Examples
    --------
    >>> claims("padding", {"graphs": (1, 1), "fits": (900, lambda size: size < 1000)})
    padding: all 2 rungs hold (graphs, fits)
    True
    """
    if not rungs:
        raise ValueError("claims() needs at least one rung; a check without rungs proves nothing")
    if any(got is Ellipsis for got, _ in rungs.values()):
        print(f"{name}: still to do. Fill the gap and run this cell again.")
        return False
    for number, (rung, (got, want)) in enumerate(rungs.items(), start=1):
        where = f"{name}, rung {number} of {len(rungs)} ({rung})"
        if callable(want):
            if not want(got):
                raise CheckFailed(f"{where}: {_show(got)} does not hold", rung)
            continue
        difference = _difference(got, want, 1e-5, 1e-6, same_device=False)
        if difference:
            raise CheckFailed(f"{where}: {difference}", rung)
    print(f"{name}: all {len(rungs)} rungs hold ({', '.join(rungs)})")
    return True


@dataclass(frozen=True)
class Score:
    """Counts as a small table, so that two solutions can be compared. Fewer is better.

    Attributes
    ----------
    counts : mapping of str to int
        What was counted.
    best : mapping of str to int
        The counts of a good solution, where known.
    title : str
        What was counted on.

    Examples
    --------
    >>> Score({"graphs": 3, "copies": 2}, best={"graphs": 1}, title="yours")
    yours   graphs  copies
    here         3       2
    good         1       -
    """

    counts: Mapping[str, int]
    best: Mapping[str, int] | None = None
    title: str = ""

    def _rows(self) -> list[list[str]]:
        rows = [[self.title, *self.counts], ["here", *map(str, self.counts.values())]]
        if self.best is not None:
            rows.append(["good", *(str(self.best.get(name, "-")) for name in self.counts)])
        return rows

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0] + 1), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )


def _call(fn: Callable[..., Any], arguments: tuple[Any, ...], where: str, rung: str) -> Any:
    try:
        got = fn(*copy.deepcopy(arguments))
    except NotImplementedError as error:
        if not str(error):  # the lesson's own mark; the device's refusals have a message
            return Ellipsis
        raise CheckFailed(f"{where}: raised NotImplementedError: {error}", rung) from error
    except Exception as error:
        shown = _show_all(arguments)
        message = f"{where}: raised {type(error).__name__}: {error}. The arguments were {shown}"
        raise CheckFailed(message, rung) from error
    if got is None:
        raise CheckFailed(f"{where}: gave None. A `return` is missing", rung)
    return got


def _difference(got: Any, want: Any, rtol: float, atol: float, same_device: bool, at: str = "") -> str:
    """In words, what differs; empty if nothing does. ``at`` is the way into nested results."""
    here = f" at {at}" if at else ""
    if _is_tensor(want) or _is_array(want):
        return _tensor_difference(got, want, rtol, atol, same_device, here)
    if isinstance(want, Mapping):
        if not isinstance(got, Mapping) or set(got) != set(want):
            return f"got {_show(got)}{here}, should be a mapping with the keys {sorted(map(str, want))}"
        pairs = [(got[key], want[key], f"{at}[{key!r}]") for key in want]
    elif isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return f"got {_show(got)}{here}, should be {len(want)} values: {_show(want)}"
        pairs = [(g, w, f"{at}[{i}]") for i, (g, w) in enumerate(zip(got, want, strict=True))]
    elif isinstance(want, float) and isinstance(got, (int, float)) and not isinstance(got, bool):
        close = got == want or (got != got and want != want) or abs(got - want) <= atol + rtol * abs(want)
        return "" if close else f"got {_show(got)}{here}, should be {_show(want)}"
    else:
        same = type(got) is type(want) and got == want
        return "" if same else f"got {_show(got)}{here}, should be {_show(want)}"
    return next((found for g, w, way in pairs if (found := _difference(g, w, rtol, atol, same_device, way))), "")


def _tensor_difference(got: Any, want: Any, rtol: float, atol: float, same_device: bool, here: str) -> str:
    import numpy as np

    kind = "tensor" if _is_tensor(want) else "array"
    if not (_is_tensor(got) if kind == "tensor" else _is_array(got)):
        return f"got {_show(got)}{here}, should be a {kind} of shape {tuple(want.shape)}"
    if tuple(got.shape) != tuple(want.shape):
        return f"got shape {tuple(got.shape)}{here}, should be {tuple(want.shape)}"
    if got.dtype != want.dtype:
        return f"got dtype {got.dtype}{here}, should be {want.dtype}"
    if kind == "tensor" and same_device and got.device != want.device:
        return f"got a tensor on {got.device}{here}, should be on {want.device}"
    got, want = _comparable(got), _comparable(want)
    inexact = want.dtype.kind in "fc"
    bad = ~np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True) if inexact else got != want
    if not bad.any():
        return ""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    place = f"{here or ' in the result'} at {list(index)}" if index else here
    first = f"got {got[index].item()!r}{place}, should be {want[index].item()!r}"
    return f"{first} ({int(bad.sum())} of {bad.size} values differ)"


def _comparable(value: Any) -> Any:
    """A NumPy array of the same values, in a type that NumPy compares: bfloat16 and the like become float64."""
    if not _is_tensor(value):
        return value.astype("float64") if value.dtype.kind == "V" else value
    import torch

    value = value.detach().cpu().resolve_conj().resolve_neg()
    return value.to(torch.float64).numpy() if value.is_floating_point() else value.numpy()


def _is_tensor(value: Any) -> bool:
    # By name, so that a check of plain numbers does not import torch.
    return any(c.__module__.startswith("torch") and c.__name__ == "Tensor" for c in type(value).__mro__)


def _is_array(value: Any) -> bool:
    return any(c.__module__ == "numpy" and c.__name__ == "ndarray" for c in type(value).__mro__)


def _show_all(values: tuple[Any, ...]) -> str:
    return f"({', '.join(map(_show, values))})"


def _show(value: Any) -> str:
    """A value in a few words: small things whole, large ones by shape."""
    if _is_tensor(value) or _is_array(value):
        kind, where = ("tensor", f" on {value.device}") if _is_tensor(value) else ("array", "")
        count = value.numel() if _is_tensor(value) else value.size
        whole = f" {value.tolist()}" if 0 < count <= _SHOWN else ""
        return f"{kind}{whole} of shape {tuple(value.shape)} {value.dtype}{where}"
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"
