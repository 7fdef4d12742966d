"""Listens to what PyTorch itself records of every compilation, while somebody wants to know.

The source is PyTorch's structured trace (the logger behind ``TORCH_TRACE`` and ``tlparse``): a handler on it costs
nothing where nothing compiles. It is put there with the first counter that opens and taken away with the last, and
PyTorch is left as it was found. Events are put together here and handed to every open counter.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from neuron_lab.recompiles import events as kinds
from neuron_lab.recompiles.causes import clean, explain, remedy_for_break
from neuron_lab.recompiles.events import CompileEvent, GraphBreak, Seconds
from neuron_lab.recompiles.frames import calling_frames, cell_of, origin_of, outermost_cell, wrapped_function

__all__ = ["LISTENER", "Listener", "Receiver"]

_GRAPHS = ("aot_forward_graph", "aot_backward_graph", "aot_inference_graph")
_HITS = ("fx_graph_cache_hit", "aotautograd_cache_hit", "neuron_graph_cache_hit")
_MISSES = ("fx_graph_cache_miss", "aotautograd_cache_miss", "neuron_graph_cache_miss")
_COMPILING_STANCES = ("default", "fail_on_recompile", "eager_then_compile", "aot_eager_then_compile")
_RESUME = "torch_dynamo_resume_in_"


class Receiver(Protocol):
    """Who wants to know."""

    label: str

    def receive(self, found: CompileEvent | GraphBreak) -> None:
        """Take one event; called from the thread that compiled."""


@dataclass
class _Pending:
    """What is known of a compilation that has not ended."""

    reasons: list[str] = field(default_factory=list)
    guards: str = ""
    graphs: int = 0
    hits: int = 0
    misses: int = 0
    frames: list[tuple[int, str, str]] = field(default_factory=list)
    wrapped: tuple[str, str, int] | None = None


class _Handler(logging.Handler):
    def __init__(self, take: Callable[[dict[str, Any], Any], None]) -> None:
        super().__init__(level=logging.DEBUG)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        metadata = getattr(record, "metadata", None)
        if not isinstance(metadata, dict):
            return
        try:
            self._take(metadata, getattr(record, "payload", None))
        except Exception:  # a compilation must not fail because somebody counts
            logging.getLogger(__name__).exception("neuron-lab could not read an event of PyTorch's trace")


class Listener:
    """The one listener of a process, shared by all counters."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._receivers: list[Receiver] = []
        self._handler = _Handler(self._take)
        self._found: list[logging.Handler] = []
        self._original_stance: Callable[..., Any] | None = None
        self._pending: dict[tuple[int, str], _Pending] = {}
        self._frames: dict[str, tuple[str, str, int]] = {}  # frame id -> function, file, line
        self._names: dict[str, tuple[str, str, int]] = {}  # the same, of what a wrapper is around
        self._defined: dict[tuple[str, str, int], set[str]] = {}  # source of a function -> its frame ids

    def add(self, receiver: Receiver) -> None:
        """Begin to tell a receiver."""
        self._tell_switches(receiver)
        with self._lock:
            if not self._receivers:
                self._attach()
            self._receivers.append(receiver)

    def remove(self, receiver: Receiver) -> None:
        """Tell it no more."""
        with self._lock:
            if receiver in self._receivers:
                self._receivers.remove(receiver)
                if not self._receivers:
                    self._detach()

    def _attach(self) -> None:
        import torch._dynamo.decorators as decorators
        import torch._dynamo.utils

        log = logging.getLogger("torch.__trace")
        self._found = list(log.handlers)
        log.addHandler(self._handler)
        self._pending.clear()
        self._frames.clear()
        self._names.clear()
        for known in torch._dynamo.utils.get_compilation_metrics():  # what was compiled before anybody counted
            if known.co_name is not None and known.compile_id is not None:
                self._remember(str(known.compile_id), known.co_name, known.co_filename, known.co_firstlineno or 0)
        self._original_stance = getattr(decorators, "_set_stance", None)
        if self._original_stance is not None:
            decorators._set_stance = self._set_stance

    def _detach(self) -> None:
        import torch._dynamo.decorators as decorators

        log = logging.getLogger("torch.__trace")
        log.removeHandler(self._handler)
        for handler in self._found:  # PyTorch's own goes by itself when it has no folder to write to
            if handler not in log.handlers:
                log.addHandler(handler)
        if self._original_stance is not None:
            decorators._set_stance = self._original_stance
        self._found, self._original_stance = [], None

    def _tell(self, found: CompileEvent | GraphBreak) -> None:
        with self._lock:
            receivers = list(self._receivers)
        labels = [receiver.label for receiver in receivers]
        for position, receiver in enumerate(receivers):
            phase = " / ".join(label for label in labels[position + 1 :] if label)
            receiver.receive(replace(found, phase=phase))

    # Switches: nothing compiles, and nothing is recorded either.

    def _set_stance(self, stance: Any) -> Any:
        prior = self._original_stance(stance)  # type: ignore[misc]
        name = getattr(stance, "stance", "default")
        if name not in _COMPILING_STANCES and name != getattr(prior, "stance", None):
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("torch."):
                frame = frame.f_back
            self._tell(self._skipped(f"stance '{name}'", frame.f_code.co_filename, frame.f_lineno))
        return prior

    _set_stance._dynamo_forbidden = True  # type: ignore[attr-defined]

    @staticmethod
    def _skipped(detail: str, file: str = "", line: int = 0) -> CompileEvent:
        return CompileEvent(0, kinds.SKIPPED, "(everything)", file, line, "", cell=cell_of(file), detail=detail)

    def _tell_switches(self, receiver: Receiver) -> None:
        import torch._dynamo

        stance = getattr(getattr(torch._dynamo.eval_frame, "_stance", None), "stance", "default")
        found = [] if stance in _COMPILING_STANCES else [f"stance '{stance}', set before"]
        if getattr(torch._dynamo.config, "disable", False):
            found.append("torch._dynamo.config.disable (TORCHDYNAMO_DISABLE=1)")
        for detail in found:
            receiver.receive(self._skipped(detail))

    # The trace.

    def _take(self, metadata: dict[str, Any], payload: Any) -> None:
        if "frame_id" not in metadata:
            return
        compile_id = f"{metadata['frame_id']}/{metadata.get('frame_compile_id', 0)}"
        key = (threading.get_ident(), compile_id)
        if "dynamo_start" in metadata:
            self._of(key).frames = calling_frames()
            self._of(key).wrapped = wrapped_function()
        elif "artifact" in metadata:
            self._take_artifact(key, metadata["artifact"].get("name", ""), payload)
        elif "dynamo_cpp_guards_str" in metadata:
            self._of(key).guards = str(payload or "")
        elif "compilation_metrics" in metadata:
            self._take_metrics(key, metadata["compilation_metrics"])
        elif any(name in metadata for name in _GRAPHS):
            self._of(key).graphs += 1

    def _of(self, key: tuple[int, str]) -> _Pending:
        return self._pending.setdefault(key, _Pending())

    def _take_artifact(self, key: tuple[int, str], name: str, payload: Any) -> None:
        if name == "recompile_reasons":
            text = str(payload or "")
            reasons = json.loads(text) if text.lstrip().startswith("[") else [text]
            self._of(key).reasons = [reason for reason in reasons if reason]
            self._of(key).frames = calling_frames()  # at a limit, nothing is started any more
        elif name == "dynamo_graph_break_reason":
            self._take_break(str(payload or ""))
        elif name in _HITS:
            self._of(key).hits += 1
        elif name in _MISSES:
            self._of(key).misses += 1

    def _take_break(self, text: str) -> None:
        if "recompile limit exceeded" in text.lower():
            return  # told as an event of its own
        file, line = _place_of_break(text)
        reason = _reason_of_break(text)
        self._tell(GraphBreak(reason, file, line, cell_of(file), remedy=remedy_for_break(text)))

    @staticmethod
    def _name_wrapped(found: tuple[str, str, int], caller: tuple[int, str, str] | None) -> tuple[str, str, int]:
        name, file, line = found
        if "/torch/nn/" in file.replace("\\", "/") and caller:  # not the reader's: the call says more
            return name, caller[2], caller[0]
        return name, file, line

    def _remember(self, compile_id: str, function: str, file: str | None, line: int) -> bool:
        """Note a function; True if the same source was compiled before as another function."""
        frame = compile_id.partition("/")[0]
        source = (function, file or "", line)
        with self._lock:
            self._frames[frame] = source
            seen = self._defined.setdefault(source, set())
            again = bool(seen) and compile_id.endswith("/0")
            seen.add(frame)
        return again

    def _take_metrics(self, key: tuple[int, str], metrics: dict[str, Any]) -> None:
        pending = self._pending.pop(key, _Pending())
        compile_id = str(metrics.get("compile_id") or key[1])
        self._tell(self._event(compile_id, metrics, pending))

    def _event(self, compile_id: str, metrics: dict[str, Any], pending: _Pending) -> CompileEvent:
        failure = str(metrics.get("fail_reason") or "")
        frame_id = compile_id.partition("/")[0]
        limit = "recompile limit" in failure.lower() or metrics.get("fail_type") == "FailOnRecompileLimitHit"
        if metrics.get("co_name"):
            function, file, line = metrics["co_name"], metrics.get("co_filename") or "", metrics["co_firstlineno"] or 0
            again = self._remember(compile_id, function, file, line)
        else:
            function, file, line = self._frames.get(frame_id, ("?", "", 0))
            again = False
        calls = [call for call in pending.frames if call[1:] != (function, file) and "<eval_with_key>" not in call[2]]
        caller = next((call for call in calls if not call[1].startswith(_RESUME)), None)
        # One reason per graph that the function has, the latest first, which is the one that PyTorch logs too. Another
        # backend is a reason of its own, whatever else may differ.
        reasons = sorted(pending.reasons, key=lambda reason: "BACKEND_MATCH" not in reason)
        cause = explain(reasons[0], pending.guards) if reasons else None
        graphs = pending.graphs or int(bool(metrics.get("graph_op_count")))
        total = float(metrics.get("entire_frame_compile_time_s") or 0.0)
        backend = min(float(metrics.get("backend_compile_time_s") or 0.0), total)
        name = function.removeprefix(_RESUME)
        if name != function:
            name = f"{name.rpartition('_at_')[0]} (rest)"
        elif pending.wrapped is not None:
            name, file, line = self._names.setdefault(frame_id, self._name_wrapped(pending.wrapped, caller))
        elif frame_id in self._names:  # at a limit, nothing is started any more
            name, file, line = self._names[frame_id]
        return CompileEvent(
            number=0,
            kind=_kind(metrics, cause, function, limit=limit, again=again),
            function=name,
            file=file,
            line=line,
            cell=cell_of(file),
            executing=outermost_cell(pending.frames),
            compile_id=compile_id,
            called_from=f"{caller[2]}:{caller[0]}" if caller else "",
            cause=cause,
            graphs=graphs,
            from_cache=pending.hits > 0 and pending.misses == 0,
            seconds=Seconds(total - backend, backend),
            start=float(metrics.get("start_time") or 0.0),
            origin=origin_of(file, function, calls),
            detail="" if limit else " ".join(failure.split())[:300] or ("interrupted" if _interrupted(metrics) else ""),
            guards=tuple(clean(reason) for reason in reasons),
        )


def _kind(metrics: dict[str, Any], cause: Any, function: str, *, limit: bool, again: bool) -> str:
    if limit:
        return kinds.LIMIT
    if metrics.get("fail_type") or _interrupted(metrics):
        return kinds.FAILED
    if not metrics.get("graph_op_count"):
        return kinds.NO_GRAPH
    if function.startswith(_RESUME):
        return kinds.AFTER_BREAK
    if cause is not None:
        return kinds.OTHER_OPTIONS if cause.kind == "backend" else kinds.RECOMPILE
    return kinds.DEFINED_AGAIN if again else kinds.FIRST


def _interrupted(metrics: dict[str, Any]) -> bool:
    """Whether an interrupt ends this compilation, which PyTorch does not write down as a failure."""
    error = sys.exc_info()[1]
    return not metrics.get("has_guarded_code") and error is not None and not isinstance(error, Exception)


def _place_of_break(text: str) -> tuple[str, int]:
    """File and line of a graph break, from PyTorch's text about it."""
    first = text.splitlines()[0] if text else ""
    if first.startswith("Graph break in user code at "):
        file, _, line = first.removeprefix("Graph break in user code at ").rpartition(":")
        if line.isdigit():
            return file, int(line)
    places = [line.strip() for line in text.splitlines() if line.strip().startswith('File "') and ", line " in line]
    if not places:
        return "", 0
    # The reader's code comes before PyTorch's own traceback.
    file, _, rest = places[0].removeprefix('File "').partition('", line ')
    number = rest.partition(",")[0]
    return file, int(number) if number.isdigit() else 0


def _reason_of_break(text: str) -> str:
    """The line that says why."""
    for line in text.splitlines():
        if line.strip() and not line.startswith(("Graph break in", "Graph Break Reason: Encountered graph break")):
            return line.removeprefix("Graph Break Reason: ").strip()
    return "unknown"


LISTENER = Listener()
