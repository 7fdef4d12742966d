"""``torch.compile(backend="neuron")``: Dynamo, AOT Autograd, one graph per direction.

The emulated compiler generates no code. It takes what the real one documents to
take and refuses what it refuses (symbolic shapes), says which of "compiled",
"loaded" and "reused" each graph was, and runs the graph on the CPU.
"""

from __future__ import annotations

import logging
import operator
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import device_module
from .environment import flag

log = logging.getLogger(__name__)

#: Options that are read. There is no documented public list; these two are known.
_OPTIONS = {"fallback_execution", "model_name"}


class DynamicShapeError(RuntimeError):
    """A graph with symbolic shapes reached the compiler, which builds for fixed shapes only."""


def _symbols(values: Sequence[Any]) -> str | None:
    """The first symbolic input in words, or None."""
    for position, value in enumerate(values):
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return f"instruction 'parameter' has the symbolic size '{value}' (input {position})"
        if isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            shape = ",".join("?" if isinstance(size, torch.SymInt) else str(size) for size in value.shape)
            dtype = str(value.dtype).removeprefix("torch.")
            return f"instruction 'parameter' has shape '{dtype}[{shape}]' (input {position})"
    return None


def _refuse_symbols(values: Sequence[Any]) -> None:
    found = _symbols(values)
    if found is not None:
        raise DynamicShapeError(
            f"[NCC_EMOD025] Dynamic shape is not supported: {found}. [emulated] The neuron backend builds one graph "
            "per set of "
            "shapes. Either dynamic=True was asked for, or Dynamo made a size symbolic when it changed for the first "
            "time. "
            "Compile with dynamic=False (or set torch._dynamo.config.automatic_dynamic_shapes = False), and pad or "
            "bucket the "
            "inputs so that few shapes occur."
        )


def _check_mode(mode: str | None) -> None:
    if mode not in (None, "default"):
        warnings.warn(
            f"torch.compile(mode={mode!r}) has no effect on the neuron backend, which knows mode='default' only and "
            "uses it. "
            "Leave mode out, or write mode='default'.",
            UserWarning,
            stacklevel=2,
        )


def _check_options(options: dict[str, Any] | None) -> dict[str, Any]:
    options = dict(options or {})
    if not isinstance(options.get("fallback_execution", False), bool):
        raise ValueError(f"The option fallback_execution is True or False, got {options['fallback_execution']!r}.")
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        log.warning("neuron: options %s are not read; known are %s", unknown, sorted(_OPTIONS))
    return options


def _warn_eager(error: DynamicShapeError) -> None:
    warnings.warn(f"neuron: the graph runs eagerly, since it cannot be compiled. {error}", UserWarning, stacklevel=3)


def _may_fall_back(options: dict[str, Any]) -> bool:
    """Whether a graph that cannot be compiled runs eagerly instead; the option wins over the variable."""
    if "fallback_execution" in options:
        return options["fallback_execution"]
    return not flag(os.environ, "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", True)


def _without_rng_states(gm: torch.fx.GraphModule, values: list[Any]) -> list[Any]:
    """Leave out the generator states that a checkpointed graph hands to its backward.

    PyTorch gives their length a symbol, though it never changes.
    """
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    return [value for name, value in zip(names, values, strict=False) if not name.startswith("rng_state_output")]


def _is_rng_state(node: torch.fx.Node) -> bool:
    """Whether a node saves a generator's state; its length has a symbol, and never changes."""
    if node.target is operator.getitem:
        node = node.args[0]
    return isinstance(node.target, torch._ops.HigherOrderOperator) and "rng_state" in node.target.name()


def _check_operators(gm: torch.fx.GraphModule) -> None:
    """Note and refuse in a graph what eager mode notes and refuses, and sizes that depend on data."""
    # Bodies of cond, while_loop and checkpoint are modules of their own.
    graphs = [module.graph for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        if node.op != "call_function" or _is_rng_state(node):
            continue
        found = _symbols([node.meta.get("val")])
        if found is not None:
            raise DynamicShapeError(
                f"[NCC_EMOD025] Dynamic shape is not supported: the result of {node.target} has a size that depends on "
                "data. [emulated] Keep this operator outside the compiled function, or compute with a fixed size: "
                "torch.where or a mask instead of nonzero and boolean indexing, top-k instead of a threshold."
            )
        if isinstance(node.target, torch._ops.OpOverload):
            values = [argument.meta.get("val") for argument in node.all_input_nodes]
            wide = any(isinstance(v, torch.Tensor) and v.dtype in (torch.float64, torch.complex128) for v in values)
            device_module.extension().note_operator(node.target._schema.name, node.target._schema.overload_name, wide)


def _graph_compiler(kind: str, options: dict[str, Any]) -> Callable[..., Any]:
    def compile_graph(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        from .lowering import lower
        from .records import record

        try:
            _refuse_symbols(_without_rng_states(gm, example_inputs))
            _check_operators(gm)
        except DynamicShapeError as error:
            if not _may_fall_back(options):
                raise
            _warn_eager(error)
        else:
            record(gm, example_inputs, kind, options, device_module._instance.lnc)
        return lower(gm, example_inputs)

    return compile_graph


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _backend_of_somebody_else() -> Callable[..., Any]:
    """The Dynamo backend ``neuron`` of another distribution: of two entry points PyTorch takes an arbitrary one."""
    from importlib.metadata import entry_points

    for point in entry_points(group="torch_dynamo_backends", name="neuron"):
        if point.dist is None or point.dist.name != "neuron-lab":
            return point.load()
    from . import status

    raise RuntimeError(f"There is no neuron device in this process to compile for. {status().reason}")


def neuron(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph for the device: the Dynamo backend ``neuron``, emulated.

    Parameters
    ----------
    gm
        The graph that Dynamo captured.
    example_inputs
        Its inputs.
    mode
        Only ``"default"`` has a meaning; any other value warns and is ignored.
    options
        ``fallback_execution`` (bool: run a graph eagerly that cannot be
        compiled) and ``model_name`` (str: name in the records).

    Raises
    ------
    DynamicShapeError
        For symbolic shapes, unless falling back is allowed (Dynamo wraps it in
        ``BackendCompilerFailed``).

    Examples
    --------
    >>> step = torch.compile(model, backend="neuron", fullgraph=True, dynamic=False)  # doctest: +SKIP
    """
    if device_module.extension() is None:  # the emulated device stands aside, and so does its compiler
        return _backend_of_somebody_else()(gm, example_inputs, **_given(mode=mode, options=options))

    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    from .records import set_model_name

    _check_mode(mode)
    options = _check_options(options)
    if "model_name" in options:
        set_model_name(options["model_name"])
    try:
        _refuse_symbols(example_inputs)
    except DynamicShapeError as error:
        if _may_fall_back(options):
            _warn_eager(error)
            return gm.forward
        raise
    compiler = aot_autograd(
        fw_compiler=_graph_compiler("forward", options),
        bw_compiler=_graph_compiler("backward", options),
        inference_compiler=_graph_compiler("inference", options),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return compiler(gm, example_inputs)
