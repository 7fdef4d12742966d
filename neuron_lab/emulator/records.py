"""What the emulated compiler did: compiled, loaded from the cache, or reused.

On a Trainium the three cost minutes, seconds and nothing. Here none of them
costs much, so they are told apart by the same rule and written down: a graph's
key is looked up in this process (reused), then in the cache folder (loaded),
and only then counts as compiled. The form of these records is ours; that of the
real ``get_dynamo_metrics`` is not documented.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from .environment import flag

LABEL = "EMULATED by neuron-lab: no NEFF, no neuronx-cc"


@dataclass(frozen=True)
class GraphKey:
    """The parts that decide whether a compiled graph can be used again.

    Attributes
    ----------
    graph
        Hash of the graph's operators and constants.
    inputs
        Shape, dtype and stride of every input, as text.
    versions, lnc, options
        Version of torch, physical cores per logical core, compile options.
    """

    graph: str
    inputs: tuple[str, ...]
    versions: str
    lnc: int
    options: str

    def digest(self) -> str:
        """Name of the graph in the cache."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class CompileRecord:
    """One request to compile one graph.

    Attributes
    ----------
    event
        ``"compiled"``, ``"loaded"`` (found in the cache folder) or ``"reused"``
        (this process already had it).
    kind
        ``"forward"``, ``"backward"`` or ``"inference"``.
    name
        The model name set with ``set_model_name``, or ``"graph"``.
    key
        Name of the graph in the cache.
    nodes
        Number of operators.
    inputs
        Shapes, dtypes and strides of the inputs.
    seconds
        Time spent here, emulated on the CPU; never a Trainium's.
    """

    event: str
    kind: str
    name: str
    key: str
    nodes: int
    inputs: tuple[str, ...]
    seconds: float


@dataclass
class _State:
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: set[str] = field(default_factory=set)
    records: list[CompileRecord] = field(default_factory=list)
    name: str = "graph"
    warned: bool = False


_state = _State()


def set_model_name(name: str) -> None:
    """Give the graphs compiled from now on a name in the records and artefacts."""
    _state.name = str(name)


def get_dynamo_metrics() -> dict[str, Any]:
    """Say what was compiled since the last reset; emulated, and in a form of neuron-lab's own.

    Returns
    -------
    dict
        ``compiled``, ``loaded``, ``reused``: counts; ``graphs``: one dict per
        request, see :class:`CompileRecord`; ``label``: what this is.

    Examples
    --------
    >>> from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics  # doctest: +SKIP
    >>> get_dynamo_metrics()["compiled"]  # doctest: +SKIP
    2
    """
    with _state.lock:
        records = list(_state.records)
    counts = {event: sum(record.event == event for record in records) for event in ("compiled", "loaded", "reused")}
    return {**counts, "graphs": [asdict(record) for record in records], "label": LABEL}


def reset_dynamo_metrics() -> None:
    """Forget the records; what was compiled stays compiled."""
    with _state.lock:
        _state.records.clear()


def describe_inputs(example_inputs: list[Any]) -> tuple[str, ...]:
    """Shape, dtype and stride of each input, as the cache key has them."""
    words = []
    for value in example_inputs:
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            words.append(f"{dtype}{list(value.shape)}:{list(value.stride())}@{value.device.type}")
        else:
            words.append(f"{type(value).__name__}:{value}")
    return tuple(words)


def graph_key(gm: torch.fx.GraphModule, example_inputs: list[Any], options: dict[str, Any], lnc: int) -> GraphKey:
    """Make the key of a graph. Nothing volatile (addresses, names of files, times) goes in."""
    digest = hashlib.sha256(gm.code.encode())
    for name, value in sorted((name, value) for name, value in gm.__dict__.items() if isinstance(value, torch.Tensor)):
        digest.update(f"{name}:{describe_inputs([value])}".encode())
    return GraphKey(
        graph=digest.hexdigest()[:24],
        inputs=describe_inputs(example_inputs),
        versions=torch.__version__,
        lnc=lnc,
        options=json.dumps({key: str(value) for key, value in sorted(options.items())}),
    )


def neff_cache_dir() -> Path:
    """Folder of the compile cache: ``TORCH_NEURONX_NEFF_CACHE_DIR``, else one beside the built device."""
    chosen = os.environ.get("TORCH_NEURONX_NEFF_CACHE_DIR")
    if chosen:
        return Path(chosen)
    from .build import cache_dir

    return cache_dir() / "neff_cache"


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _warn_once(what: str, error: OSError) -> None:
    if not _state.warned:
        _state.warned = True
        warnings.warn(
            f"neuron-lab: {what} cannot be written ({error.strerror or error}); graphs are compiled anew in every "
            "process. "
            "Set TORCH_NEURONX_NEFF_CACHE_DIR to a folder that you may write to.",
            RuntimeWarning,
            stacklevel=3,
        )


def _look_up(key: GraphKey, digest: str) -> str:
    """Decide the event, and leave the graph in the cache for the next process."""
    if digest in _state.seen:
        return "reused"
    _state.seen.add(digest)
    entry = neff_cache_dir() / f"{digest}.json"
    try:
        found = json.loads(entry.read_text())
        if isinstance(found, dict) and found.get("key") == json.loads(json.dumps(asdict(key))):
            return "loaded"
    except (OSError, ValueError):
        pass  # not there, or not whole: compile and write it anew
    try:
        _write(entry, json.dumps({"label": LABEL, "key": asdict(key)}, indent=1))
    except OSError as error:
        _warn_once(f"the compile cache {entry.parent}", error)
    return "compiled"


def _keep_artefact(gm: torch.fx.GraphModule, kind: str, digest: str) -> None:
    folder = os.environ.get("TORCH_NEURONX_DEBUG_DIR")
    if not folder and not flag(os.environ, "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", False):
        return
    path = Path(folder or "/tmp/neuron_backend") / f"{_state.name}-{kind}-{digest}.fx.txt"
    head = f"# {LABEL}\n# The layout of the real debug directory is not documented."
    text = f"{head}\n{gm.print_readable(print_output=False)}\n"
    try:
        _write(path, text)
    except OSError as error:
        _warn_once(f"TORCH_NEURONX_DEBUG_DIR={folder!r}", error)


def record(
    gm: torch.fx.GraphModule, example_inputs: list[Any], kind: str, options: dict[str, Any], lnc: int
) -> CompileRecord:
    """Note that a graph was asked for, and which of the three events that was."""
    start = time.perf_counter()
    key = graph_key(gm, example_inputs, options, lnc)
    digest = key.digest()
    with _state.lock:
        event = _look_up(key, digest)
    # In PyTorch's own trace, as Inductor says it of its cache: tools that read the trace need not know this device.
    name = "neuron_graph_cache_miss" if event == "compiled" else "neuron_graph_cache_hit"
    torch._logging.trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "string"},
        payload_fn=lambda: f"{kind} {digest}: {event}",
        expect_trace_id=False,
    )
    _keep_artefact(gm, kind, digest)
    nodes = sum(node.op.startswith("call") for node in gm.graph.nodes)
    made = CompileRecord(event, kind, _state.name, digest, nodes, key.inputs, time.perf_counter() - start)
    with _state.lock:
        _state.records.append(made)
    return made
