"""Every module of PyTorch's module database: outputs and gradients are the CPU's, in training and in evaluation."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from .helpers import DEVICE
from .opinfo_inputs import place, tensors

#: At most so many inputs per module and mode, evenly out of all (some modules have hundreds).
SAMPLES = 8

database = pytest.importorskip("torch.testing._internal.common_modules")


def there(value: object, device: str) -> object:
    return torch.utils._pytree.tree_map(lambda leaf: place(leaf, device, grad=True), value)


def run(info, made, training: bool, device: str) -> list[torch.Tensor] | Exception:
    torch.manual_seed(2)
    args = made.constructor_input
    try:
        module = info.module_cls(*copy.deepcopy(args.args), **copy.deepcopy(args.kwargs)).train(training)
        module = module.to(device)
        inputs = made.forward_input
        args, kwargs = there(copy.deepcopy((inputs.args, inputs.kwargs)), device)
        results = tensors(module(*args, **kwargs))
        for result in results:
            assert result.device.type == device
        differentiable = [r for r in results if r.requires_grad]
        leaves = [t for t in [*tensors((args, kwargs)), *module.parameters()] if t.requires_grad and t.is_leaf]
        grads = ()
        if differentiable and leaves:
            generator = torch.Generator().manual_seed(3)
            seeds = [torch.randn(r.shape, dtype=r.dtype, generator=generator).to(device) for r in differentiable]
            grads = torch.autograd.grad(differentiable, leaves, seeds, allow_unused=True)
    except Exception as error:
        return error.with_traceback(None)
    return [t if t is None else t.detach().cpu() for t in (*results, *grads, *module.buffers())]


@pytest.mark.parametrize("info", database.module_db, ids=lambda info: info.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_module(info, dtype):
    compared = 0
    # torch/nn/modules/linear_cross_entropy_options.py accumulates bfloat16 in float32 on the CPU and CUDA only.
    coarse = info.name == "nn.LinearCrossEntropyLoss" and dtype == torch.bfloat16
    tolerance = {"rtol": 0.05, "atol": 0.05} if coarse else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for training in (True, False):
            torch.manual_seed(1)
            samples = [
                made for made in info.module_inputs_func(info, "cpu", dtype, True, training) if made.forward_input
            ]
            for made in samples[:: -(-len(samples) // SAMPLES) or 1]:
                actual, expected = (run(info, made, training, device) for device in (DEVICE, "cpu"))
                if isinstance(expected, Exception):
                    continue
                assert not isinstance(actual, Exception), f"{made.desc} training={training}: {actual!r}"
                torch.testing.assert_close(
                    actual, expected, equal_nan=True, **tolerance, msg=lambda m, d=made.desc: f"{d}: {m}"
                )
                compared += 1
    if not compared:
        pytest.skip("the CPU cannot do it in this dtype")
