"""Where a compilation comes from: the calls that led to it, the notebook cell, the function inside a decorator."""

from __future__ import annotations

import inspect
import sys
from typing import Any

__all__ = ["calling_frames", "cell_of", "origin_of", "outermost_cell", "shell", "wrapped_function"]

_WRAPPED_NAMES = ("fn", "func", "f", "function", "method", "wrapped")  # what decorators call what they wrap

# Names of functions and files on the way to a compiled call that say what the call was for.
_ORIGINS = (
    ("saving", ("save_model", "save_pretrained", "_save_checkpoint", "_save", "save_checkpoint", "save_state")),
    ("evaluation", ("evaluate", "evaluation_loop", "prediction_step", "validation_step", "validate", "evaluation")),
    ("logging", ("log_metrics", "on_log", "log_images", "log_predictions")),
)


def shell() -> Any:
    """The running IPython, if there is one."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def cell_of(file: str) -> int | None:
    """Number of the notebook cell that a file name stands for."""
    return getattr(getattr(shell(), "compile", None), "_filename_map", {}).get(file)


def wrapped_function() -> tuple[str, str, int] | None:
    """Name, file and line of the function that a wrapper is around, if a wrapper is what is being compiled.

    Decorators leave PyTorch with ``wrapper`` or ``inner`` as the function's name. The frame that it compiles is a local
    of its own functions, and has the wrapper's closure.
    """
    frame = sys._getframe(1)
    while frame is not None:
        compiled = frame.f_locals.get("frame") if frame.f_code.co_name == "_compile" else None
        if compiled is not None:
            break
        frame = frame.f_back
    else:
        return None
    code = getattr(compiled, "f_code", None)
    takes_anything = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    if code is None or code.co_flags & takes_anything != takes_anything:
        return None  # not a wrapper: a function of the reader's may well have another one in its closure
    names = [name for name in getattr(code, "co_freevars", ()) if name in _WRAPPED_NAMES]
    values = getattr(compiled, "f_locals", {})
    function = next((values[name] for name in names if callable(values.get(name))), None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    bound = getattr(function, "__self__", None)
    if bound is None and hasattr(function, "forward"):  # a module
        bound, function = function, function.forward
    inner = getattr(function, "__code__", None) or getattr(getattr(function, "__func__", None), "__code__", None)
    if inner is None:
        return None
    name = (
        f"{type(bound).__name__}.{inner.co_name}"
        if bound is not None
        else str(getattr(function, "__qualname__", inner.co_name)).split("<locals>.")[-1]
    )
    return name, inner.co_filename, inner.co_firstlineno


def outermost_cell(frames: list[tuple[int, str, str]]) -> int | None:
    """Number of the cell that is running."""
    cells = [cell_of(file) for _, _, file in frames]
    return next((cell for cell in reversed(cells) if cell is not None), None)


def calling_frames() -> list[tuple[int, str, str]]:
    """(line, function, file) of the calls that lead to this compilation, innermost first, PyTorch's left out."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        ours = module.startswith("neuron_lab.recompiles") or module == "logging"
        if not ours and not module.startswith(("torch._dynamo", "torch._logging", "torch.nn.modules.module")):
            found.append((frame.f_lineno, frame.f_code.co_name, frame.f_code.co_filename))
        frame = frame.f_back
    return found


def origin_of(file: str, function: str, frames: list[tuple[int, str, str]]) -> str:
    """What a compilation was for, if not the model's own work; empty else."""
    if "/torch/optim/" in file.replace("\\", "/"):
        return "optimizer"
    names = {name for _, name, _ in frames} | {function}
    return next((origin for origin, known in _ORIGINS if names & set(known)), "")
