"""Inputs of the operator sweep: a sample of the database, laid out the same on the CPU and on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "neuron"
SAMPLES = 4


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest of containers, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def place(value: Any, device: str, grad: bool = False) -> Any:
    """Same bytes, strides, offset and bits, on ``device``; what is no tensor stays as it is."""
    if isinstance(value, torch.device):
        return torch.device(device)
    if isinstance(value, str) and value == "cpu":
        return device
    if isinstance(value, torch.Generator):
        return copy.deepcopy(value)
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.detach()
    with torch.no_grad():
        if plain.layout != torch.strided or plain.is_quantized:
            placed = plain.to(device)
        elif plain.is_conj():
            placed = place(plain.conj(), device).conj()
        elif plain.is_neg():
            placed = torch._neg_view(place(torch._neg_view(plain), device))
        else:
            items = plain.untyped_storage().nbytes() // plain.element_size()
            flat = plain.as_strided((items,), (1,), 0).clone().to(device)
            placed = flat.as_strided(plain.size(), plain.stride(), plain.storage_offset())
    return placed.detach().requires_grad_(grad and value.requires_grad)


@dataclass(frozen=True)
class Sample:
    """One input of the database.

    Attributes
    ----------
    index
        Its place among the samples of its operator.
    values
        (input, args, kwargs), on the CPU.
    process
        What the database does with a result before it is differentiated.
    broadcasts
        Whether the result is larger than the input, so that there is no in-place form.
    keep_arguments
        Whether ``args`` stay on the CPU, by the operator's convention.
    """

    index: int
    values: tuple[Any, tuple, dict]
    process: Callable[[Any], Any]
    broadcasts: bool
    keep_arguments: bool = False

    def on(self, device: str, *, grad: bool = False) -> tuple[Any, tuple, dict]:
        """(input, args, kwargs) on ``device``: fresh copies every time."""
        value, args, kwargs = self.values
        there = lambda one: place(one, device, grad)  # noqa: E731
        if self.keep_arguments:
            return tree_map(there, value), args, tree_map(there, kwargs)
        return tree_map(there, value), tree_map(there, args), tree_map(there, kwargs)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        """The same sample with every tensor changed, for example into a view with gaps."""

        def each(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                return value
            return change(value.detach()).requires_grad_(value.requires_grad)

        return replace(self, values=tree_map(each, self.values))


def samples_of(op: Any, dtype: torch.dtype, *, grad: bool, keep_arguments: bool = False) -> Iterator[Sample]:
    """The first few samples of an operator: the same ones in every run."""
    torch.manual_seed(20)  # the database draws its samples from the default generator
    # Not op.sample_inputs(): it looks through the whole call stack for every sample.
    made = list(islice(op.sample_inputs_func(op, "cpu", dtype, grad), SAMPLES))
    for index, sample in enumerate(made):
        values = (sample.input, sample.args, sample.kwargs)
        yield Sample(index, values, sample.output_process_fn_grad, bool(sample.broadcasts_input), keep_arguments)


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Every second element of a tensor twice as large, starting behind the first."""
    return torch.stack([tensor, tensor], dim=-1)[..., 1] if tensor.dim() else tensor


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as a conjugate view (complex), other tensors as they are."""
    return tensor.conj().resolve_conj().conj() if tensor.is_complex() else tensor


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as a negative view."""
    if tensor.dtype == torch.bool or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return torch._neg_view(torch._neg_view(tensor).resolve_neg())
