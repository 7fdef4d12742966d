"""What the counter tells of one compilation: plain values, no behaviour beyond words.

The words are PyTorch's: a *compile* is one code object captured and handed to a backend, a *recompile* is a compile of
a code object that has one already, a *guard* is a condition under which a graph is used again, a *graph break* is a
place where capture stops and goes on in a graph of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Cause", "CompileEvent", "GraphBreak", "Seconds"]

# The kinds of event. The first six hand a graph to the compiler.
FIRST = "first compile"
RECOMPILE = "recompile"
AFTER_BREAK = "after a break"  # the rest of a function behind a graph break, compiled on its own
DEFINED_AGAIN = "defined again"  # the same source, a new function: a re-run cell, a reset, a wrapper made anew
OTHER_OPTIONS = "other options"  # the same function under another backend or other options
NO_GRAPH = "no graph"  # looked at, and nothing in it to compile
FAILED = "failed"  # capture or the backend raised
LIMIT = "limit reached"  # from here on this function runs eagerly
SKIPPED = "skipped"  # a stance or a switch says: do not compile

#: Kinds that made a compiler work (or load its result).
COMPILES = (FIRST, RECOMPILE, AFTER_BREAK, DEFINED_AGAIN, OTHER_OPTIONS)


@dataclass(frozen=True)
class Cause:
    """Why a graph could not be used again.

    Attributes
    ----------
    kind
        One word for the sort of guard: ``size``, ``value``, ``dtype``, ... or
        ``unknown`` for a guard that is shown as PyTorch wrote it.
    what
        What the guard looks at, in the source's own terms: ``x.size(0)``.
    before, after
        What it was and what it is now, as text; None where PyTorch does not
        tell.
    remedy
        What to do about it, one sentence; empty where nothing is known.
    guard
        The guard as PyTorch wrote it.
    """

    kind: str
    what: str
    before: str | None
    after: str | None
    remedy: str
    guard: str

    def __str__(self) -> str:
        if self.before is None and self.after is None:
            return self.what
        return f"{self.what}: {self.before or '?'} -> {self.after or '?'}"


@dataclass(frozen=True)
class Seconds:
    """Wall time of one compilation on this machine, in seconds.

    Attributes
    ----------
    tracing
        In Dynamo: capture, guards, bytecode.
    backend
        In the backend, AOT Autograd included. Of an emulated run it says
        nothing about ``neuronx-cc``.
    """

    tracing: float = 0.0
    backend: float = 0.0

    @property
    def total(self) -> float:
        """Both together."""
        return self.tracing + self.backend


@dataclass(frozen=True)
class CompileEvent:
    """One compilation, or a reason why there was none.

    Attributes
    ----------
    number
        Position in the report, from 1.
    kind
        One of the constants of this module.
    function, file, line
        The function that was compiled.
    cell
        Number of the notebook cell that the function is in, or None.
    executing
        Number of the notebook cell that was running, or None.
    called_from
        ``file:line`` of the call, where PyTorch tells.
    compile_id
        PyTorch's own, ``frame/compile``.
    cause
        Of a recompile and of a limit; None else.
    graphs
        How many graphs went to the compiler: with autograd, forward and
        backward are one each.
    from_cache
        Whether the backend found all of them compiled on disk.
    seconds
        Where the time went.
    start
        When it began, seconds since the epoch; 0 for a skip.
    phase
        Labels of the counters inside the one that tells it, outermost first.
    origin
        What called it, if not the model's own work: ``optimizer``,
        ``evaluation``, ``saving``, ``logging``.
    detail
        A failure's message, or the stance.
    guards
        Why each graph that the function has could not be used, latest first,
        as PyTorch wrote it.
    """

    number: int
    kind: str
    function: str
    file: str
    line: int
    compile_id: str
    cell: int | None = None
    executing: int | None = None
    called_from: str = ""
    cause: Cause | None = None
    graphs: int = 0
    from_cache: bool = False
    seconds: Seconds = field(default_factory=Seconds)
    start: float = 0.0
    phase: str = ""
    origin: str = ""
    detail: str = ""
    guards: tuple[str, ...] = ()

    @property
    def compiled(self) -> bool:
        """Whether a graph was compiled, or loaded from a cache."""
        return self.kind in COMPILES

    @property
    def recompiled(self) -> bool:
        """Whether the function had a graph already that could not be used."""
        return self.kind in (RECOMPILE, OTHER_OPTIONS) or (self.kind == AFTER_BREAK and self.cause is not None)

    @property
    def where(self) -> str:
        """``cell 3, line 2`` in a notebook, else ``file.py:12``."""
        return place(self.file, self.line, self.cell)


@dataclass(frozen=True)
class GraphBreak:
    """A place where capture stopped.

    Attributes
    ----------
    reason
        PyTorch's first line about it.
    file, line, cell
        The statement that could not be captured.
    phase
        Labels of the counters inside the one that tells it.
    remedy
        What to do about it, one sentence.
    """

    reason: str
    file: str
    line: int
    cell: int | None = None
    phase: str = ""
    remedy: str = ""

    @property
    def where(self) -> str:
        """``cell 3, line 2`` in a notebook, else ``file.py:12``."""
        return place(self.file, self.line, self.cell)


def place(file: str, line: int, cell: int | None) -> str:
    """Name a line of source in the fewest words that find it."""
    if cell is not None:
        return f"cell {cell}, line {line}"
    parts = [part for part in file.replace("\\", "/").split("/") if part]
    return f"{'/'.join(parts[-2:]) or '?'}:{line}"
