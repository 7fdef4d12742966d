"""Bad input: the error that the CPU gives, of the same type, and the device goes on working.

The bad inputs are those of PyTorch's operator database.
"""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch.utils._pytree import tree_map

from .helpers import DEVICE, is_emulated

pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")


def there(value: object, device: str) -> object:
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else value.detach().clone().to(device).requires_grad_(value.requires_grad)
    if value == "cpu" or value == torch.device("cpu"):
        return device
    return value


def error_of(op, sample, device: str) -> Exception | None:
    value, args, kwargs = (
        tree_map(lambda v: there(v, device), part) for part in (sample.input, sample.args, sample.kwargs)
    )
    try:
        op(value, *args, **kwargs)
    except Exception as error:
        return error.with_traceback(None)
    return None


def test_every_bad_input_gives_the_same_kind_of_error():
    from torch.testing._internal.common_methods_invocations import op_db

    gc.collect()  # what earlier tests left
    before = torch.accelerator.memory_allocated()
    different, checked = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if op.error_inputs_func is None or "sparse" in op.name:
                continue
            for bad in op.error_inputs_func(op, "cpu"):
                error, expected = (error_of(op, bad.sample_input, device) for device in (DEVICE, "cpu"))
                checked += 1
                same_type = type(error) is type(expected) or _refused_before(error)
                if not same_type or "INTERNAL ASSERT" in str(error):
                    different.append(f"{op.full_name}: {error!r:.200} instead of {expected!r:.200}")
    assert checked > 500
    assert not different, "\n".join(different)
    assert torch.ones(2, device=DEVICE).add(1).tolist() == [2, 2]
    gc.collect()
    if is_emulated():
        assert torch.accelerator.memory_allocated() == before


def _refused_before(error: Exception | None) -> bool:
    """Some of the inputs are float64, which the device may refuse before it looks for the fault."""
    return error is not None and "64-bit floating point" in str(error)


@pytest.mark.parametrize(
    ("attempt", "kind", "words"),
    [
        (lambda x: x @ torch.ones(5, 5, device=x.device), RuntimeError, "cannot be multiplied"),
        (lambda x: x + torch.ones(7, device=x.device), RuntimeError, "must match the size"),
        (lambda x: x[99], IndexError, "out of bounds"),
        (lambda x: x.view(5), RuntimeError, "is invalid for input of size"),
        (lambda x: x.sum(dim=9), IndexError, "Dimension out of range"),
        (lambda x: torch.linalg.cholesky(-x @ x.T), torch.linalg.LinAlgError, "positive-definite"),
        (lambda x: torch.linalg.inv(x * 0 + 1), torch.linalg.LinAlgError, "singular"),
        (lambda x: x.long() // 0, RuntimeError, "ZeroDivisionError"),
        (lambda x: torch.nn.functional.embedding(torch.tensor([9], device=x.device), x), IndexError, "out of range"),
        (
            lambda x: torch.nn.functional.nll_loss(x, torch.tensor([0, 9, 0], device=x.device)),
            IndexError,
            "out of bounds",
        ),
        (lambda x: x.gather(1, torch.full((3, 1), 9, device=x.device)), RuntimeError, "out of bounds"),
        (lambda x: x.scatter_(1, torch.full((3, 1), 9, device=x.device), 1.0), RuntimeError, "out of bounds"),
        (lambda x: torch.multinomial(-x.abs(), 1), RuntimeError, "probability"),
        (lambda x: x.requires_grad_().add_(1), RuntimeError, "leaf Variable that requires grad"),
    ],
)
def test_common_mistakes_are_named(attempt, kind, words):
    with pytest.raises(kind, match=words):
        attempt(torch.randn(3, 3, device=DEVICE)).cpu()
    assert torch.ones(2, device=DEVICE).sum().item() == 2
