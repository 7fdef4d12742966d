"""Counting: integer histc exists on accelerators and not on the CPU, and mixture-of-experts code relies on it."""

from __future__ import annotations

import pytest
import torch

from .helpers import DEVICE, assert_agrees


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_integer_histc_counts_as_bincount_does(dtype):
    experts = 16
    chosen = torch.randint(0, experts, (500,))
    counts = torch.histc(chosen.to(DEVICE, dtype), bins=experts, min=0, max=experts - 1)
    assert counts.device.type == DEVICE and counts.dtype == dtype
    expected = torch.bincount(chosen, minlength=experts)
    assert counts.long().cpu().tolist() == expected.tolist()


def test_values_outside_are_left_out():
    x = torch.tensor([-3, 0, 1, 1, 2, 3, 9], device=DEVICE)
    assert torch.histc(x, bins=4, min=0, max=3).tolist() == [1, 2, 1, 1]


def test_without_limits_the_data_decide():
    x = torch.tensor([2, 2, 4, 6], device=DEVICE)
    assert torch.histc(x, bins=3).tolist() == [2, 1, 1]


def test_large_counts_are_exact():
    x = torch.zeros(1 << 20, dtype=torch.int32, device=DEVICE)
    assert torch.histc(x, bins=2, min=0, max=1).tolist() == [1 << 20, 0]


def test_empty_and_constant_inputs():
    assert torch.histc(torch.empty(0, dtype=torch.int64, device=DEVICE), bins=3, min=0, max=2).tolist() == [0, 0, 0]
    assert sum(torch.histc(torch.full((5,), 7, device=DEVICE), bins=4).tolist()) == 5


def test_floats_are_the_cpus():
    assert_agrees(lambda x: torch.histc(x, bins=10, min=-2, max=2), torch.randn(1000))


def test_out_argument():
    x = torch.tensor([0, 1, 1], device=DEVICE)
    out = torch.empty(2, dtype=torch.int64, device=DEVICE)
    assert torch.histc(x, bins=2, min=0, max=1, out=out) is out and out.tolist() == [1, 2]


def test_routing_of_a_mixture_of_experts():
    """The shape of the code in transformers: sort tokens by expert, count, and multiply group by group."""

    def route(x, logits, weights):
        top = logits.topk(2, dim=-1).indices.flatten()
        order = top.argsort(stable=True)
        counts = (
            torch.bincount(top, minlength=4) if x.device.type == "cpu" else torch.histc(top.int(), bins=4, min=0, max=3)
        )
        ends = counts.long().cumsum(0).tolist()
        out, start = torch.zeros_like(x).repeat_interleave(2, 0), 0
        for expert, end in enumerate(ends):
            rows = order[start:end]
            out[rows] = x[rows // 2] @ weights[expert]
            start = end
        return out.view(-1, 2, x.shape[1]).sum(1)

    assert_agrees(route, torch.randn(12, 8), torch.randn(12, 4), torch.randn(4, 8, 8))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_bincount_unique_and_friends(dtype):
    x = torch.randint(0, 9, (100,)).to(dtype)
    assert_agrees(lambda x: torch.bincount(x, minlength=12), x)
    assert_agrees(lambda x: list(torch.unique(x, return_inverse=True, return_counts=True)), x)
    assert_agrees(lambda x: list(torch.unique_consecutive(x.sort().values, return_counts=True)), x)
    assert_agrees(lambda x: torch.nonzero(x > 4), x)
    assert_agrees(lambda x: torch.searchsorted(x.long().sort().values, torch.arange(9, device=x.device)), x)
    assert_agrees(lambda x: torch.nn.functional.one_hot(x.long(), 9), x)
