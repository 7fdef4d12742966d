"""The backend that ``torch.compile`` takes when none is named.

The real backend is selected by itself on a Neuron device. PyTorch asks for its
default before it knows the device, so the choice is made per graph: a graph
with a tensor of the device goes to ``neuron``, any other to Inductor as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def _touches_neuron(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    for node in gm.graph.nodes:
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor):
            tensors.append(example)
    tensors.extend(gm.parameters())
    tensors.extend(gm.buffers())
    return any(tensor.device.type == "neuron" for tensor in tensors)


def neuron_or_inductor(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile for the device that the graph works on."""
    if _touches_neuron(gm, example_inputs):
        from .compiler import neuron

        return neuron(gm, example_inputs, mode=mode, options=options)
    return torch._TorchCompileInductorWrapper(mode, options, None)(gm, example_inputs)
