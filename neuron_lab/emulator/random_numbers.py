"""Random operators of a compiled graph, which draw from the generator of the core that they name.

A graph runs as CPU operators; left alone, they would draw from PyTorch's one
CPU generator, which belongs to the CPU's own random numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

from . import device_module

#: Names of overloads with a generator, where it is not the overload's own name.
_WITH_GENERATOR = {
    "default": "generator",
    "low": "low_generator",
    "Tensor": "Tensor_generator",
    "low_dtype": "low_generator_dtype",
}


@cache
def _with_generator(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The same operator in the overload that takes a generator, if there is one."""
    if any(argument.name == "generator" for argument in target._schema.arguments):
        return target
    name = _WITH_GENERATOR.get(target._overloadname, "")
    packet = target.overloadpacket
    return getattr(packet, name) if name in packet.overloads() else None


def _draw(target: torch._ops.OpOverload, generator: torch.Generator, args: tuple[Any, ...], kwargs: dict) -> Any:
    if target is torch.ops.aten.native_dropout.default:
        return device_module.extension().dropout(*args, generator=generator, **kwargs)
    overload = _with_generator(target)
    if overload is None:  # flash attention, which PyTorch calls random and whose CPU kernel takes no dropout
        return target(*args, **kwargs)
    return overload(*args, **{**kwargs, "generator": generator})


class Draw:
    """A random operator with its core's generator."""

    def __init__(self, target: torch._ops.OpOverload, core: int) -> None:
        self.target = target
        self.core = core
        self.__name__ = str(target).replace(".", "_")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _draw(self.target, device_module.extension().cpu_generator_of(self.core), args, kwargs)


class DrawAndSave:
    """A random operator of a checkpointed part: the generator's state before it is kept for the backward."""

    __name__ = "run_and_save_rng_state"

    def __init__(self, core: int) -> None:
        self.core = core

    def __call__(self, target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        generator = device_module.extension().cpu_generator_of(self.core)
        return generator.get_state(), _draw(target, generator, args, kwargs)


def _draw_again(state: torch.Tensor, target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The same operator in the backward; the core's own generator does not move."""
    generator = torch.Generator()
    generator.set_state(state)
    return _draw(target, generator, args, kwargs)


def _core_that_draws(node: torch.fx.Node, default: int) -> int:
    """Core of a node's result; -1 for the CPU."""
    value = node.meta.get("val")
    found = [v for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, torch.Tensor)]
    if node.target is run_and_save_rng_state:
        found = found[1:]  # the first is the state, on the CPU
    if not found:
        return default
    device = found[0].device
    if device.type != "neuron":
        return -1
    return default if device.index is None else device.index


def redirect(node: torch.fx.Node, default: int) -> None:
    """Make a node draw from the generator of its core, if it draws at all and not on the CPU.

    Parameters
    ----------
    node
        A call of a function, with its example value in ``node.meta["val"]``.
    default
        Core of the graph, for a node without an example value.
    """
    target = node.target
    if target is run_with_rng_state:
        node.target = _draw_again
        return
    saves = target is run_and_save_rng_state
    draws = (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in target.tags
        and (target is torch.ops.aten.native_dropout.default or _with_generator(target) is not None)
    )
    if not saves and not draws:
        return
    core = _core_that_draws(node, default)
    if core >= 0:
        node.target = DrawAndSave(core) if saves else Draw(target, core)
