"""The foreach operators (many tensors in one call) of PyTorch's operator database: what optimizers are made of."""

from __future__ import annotations

import warnings
from itertools import islice

import pytest
import torch

from .helpers import DEVICE
from .opinfo_inputs import place

database = pytest.importorskip("torch.testing._internal.common_methods_invocations")
OPERATORS = [
    *database.foreach_unary_op_db,
    *database.foreach_binary_op_db,
    *database.foreach_pointwise_op_db,
    *database.foreach_reduce_op_db,
    *database.foreach_other_op_db,
]


def moved(value: object, device: str) -> object:
    if isinstance(value, (list, tuple)):
        return type(value)(moved(v, device) for v in value)
    if isinstance(value, dict):
        return {name: moved(v, device) for name, v in value.items()}
    return place(value, device)


def run(function, sample, device: str) -> tuple[object, list[torch.Tensor]] | None:
    tensors, args, kwargs = (moved(part, device) for part in (sample.input, sample.args, sample.kwargs))
    try:
        result = function(tensors, *args, **kwargs)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if device == DEVICE:
            return error
        return None
    return [result, tensors]


def cpu(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [cpu(v) for v in value]
    return value.cpu() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_lists_of_tensors(op):
    checked = 0
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        if dtype not in op.dtypes:
            continue
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(islice(op.sample_inputs_func(op, "cpu", dtype, False), 8))
            for sample in samples:
                for function in filter(None, (op.method_variant, op.inplace_variant)):
                    actual, expected = run(function, sample, DEVICE), run(function, sample, "cpu")
                    if expected is None:
                        continue
                    assert not isinstance(actual, Exception), f"{dtype}: {actual}"
                    torch.testing.assert_close(cpu(actual), expected, equal_nan=True)
                    checked += 1
    assert checked
