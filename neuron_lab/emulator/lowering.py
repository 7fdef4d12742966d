"""Turns a graph of the device into a callable that runs on the CPU in one go.

The inputs become CPU tensors over the same bytes, the graph's operators run as
CPU operators without passing through the device one by one, and what comes out
is handed to the device without a copy. Collectives are the exception: they get
tensors of the device, since their process group knows no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_aggregate

from . import device_module
from .random_numbers import redirect

_COLLECTIVES = ("_c10d_functional", "c10d", "_dtensor", "symm_mem")
#: Namespaces of operators that run as CPU operators inside a graph.
_PYTORCH = ("aten", "prims", "prim", "rngprims", "inductor", "higher_order", "profiler", "quantized_decomposed")


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "neuron":
        return torch.device("cpu")
    return value


def _wants_device(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in _PYTORCH


class _OnDevice:
    """An operator that gets tensors of the device also inside a graph.

    A collective, whose process group knows no others, or somebody's own
    operator (``torch.library``, ``nki_op``), which works on the device.
    """

    def __init__(self, target: Any, core: int) -> None:
        self.target = target
        self.core = core
        self.collective = target.namespace in _COLLECTIVES
        self.__name__ = str(target).replace(".", "_")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        extension = device_module.extension()

        def to_device(value: Any) -> Any:
            return extension.on_device(value, self.core) if isinstance(value, torch.Tensor) else value

        def to_cpu(value: Any) -> Any:
            return extension.aliases([value])[0] if isinstance(value, torch.Tensor) else value

        # Waited for on the spot: the compiled graph holds CPU tensors, for which no work is registered.
        with extension.OutsideGraph():
            result = self.target(*map_aggregate(args, to_device), **map_aggregate(kwargs, to_device))
            if self.collective and self.target._opname != "wait_tensor":
                result = map_aggregate(
                    result,
                    lambda value: (
                        torch.ops._c10d_functional.wait_tensor(value) if isinstance(value, torch.Tensor) else value
                    ),
                )
        return map_aggregate(result, to_cpu)


def _lower_module(gm: torch.fx.GraphModule, core: int, seen: set[int]) -> None:
    """Rewrite a graph for the CPU, in place."""
    if id(gm) in seen:
        return
    seen.add(id(gm))
    extension = device_module.extension()
    for name, value in list(gm.__dict__.items()) + list(gm._parameters.items()) + list(gm._buffers.items()):
        if isinstance(value, torch.Tensor) and value.device.type == "neuron":
            gm._parameters.pop(name, None)
            gm._buffers.pop(name, None)
            gm.__dict__[name] = extension.aliases([value])[0]  # no operator: fake tensors are about
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            child = getattr(gm, node.target, None) if "." not in node.target else gm.get_submodule(node.target)
            if isinstance(child, torch.fx.GraphModule):
                _lower_module(child, core, seen)
        if node.op != "call_function":
            continue
        node.args = map_aggregate(node.args, _on_cpu)
        node.kwargs = map_aggregate(node.kwargs, _on_cpu)
        redirect(node, core)
        if _wants_device(node):
            node.target = _OnDevice(node.target, core)
    gm.recompile()


def _core_of(value: Any, default: int) -> int:
    """Core that a result belongs to; -1 for the CPU."""
    if not isinstance(value, torch.Tensor):
        return -1
    if value.device.type != "neuron":
        return -1
    return default if value.device.index is None else value.device.index


def _core_of_graph(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> int:
    for value in example_inputs:
        if isinstance(value, torch.Tensor) and value.device.type == "neuron" and value.device.index is not None:
            return value.device.index
    return device_module.current_device()


def lower(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[[list[Any]], Any]:
    """Make the boxed callable of one graph.

    Parameters
    ----------
    gm
        A graph of ATen operators, as AOT Autograd makes it. It is changed.
    example_inputs
        Fake tensors of the inputs.

    Returns
    -------
    callable
        Takes one list of inputs, which it empties (so that memory can be freed
        early), and returns the graph's results.
    """
    from torch.fx.graph import _BoxedCodeGen

    extension = device_module.extension()
    core = _core_of_graph(gm, example_inputs)
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    results = output.args[0]
    single = not isinstance(results, (list, tuple))
    cores = [
        _core_of(node.meta.get("val"), core) if isinstance(node, torch.fx.Node) else -1
        for node in ([results] if single else results)
    ]
    gm.graph.set_codegen(_BoxedCodeGen())
    _lower_module(gm, core, set())
    forward = gm.forward

    on_cpu = [
        position
        for position, value in enumerate(example_inputs)
        if isinstance(value, torch.Tensor) and value.device.type == "cpu"
    ]

    def run(args: list[Any]) -> Any:
        lent = extension.aliases(args)
        cpu_inputs = [lent[position] for position in on_cpu]
        args.clear()
        with extension.GraphScope(core):
            made = forward(lent)  # empties the list: what was saved for the backward is freed once it is used
        made = extension.hand_over([made] if single else list(made), cpu_inputs, cores)
        return made[0] if single else made

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
