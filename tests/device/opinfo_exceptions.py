"""What the operator sweep is told beforehand: the one table of exceptions, and three kinds of convention."""

from __future__ import annotations

_SPARSE = "the device holds dense tensors only; sparse ones are refused in words (tests/device/test_refusals.py)"

#: Operators that work on the CPU and not on the device, by (operator, dtype or "*"), with the reason. The sweep
#: fails for a failure that is not here, and for an entry here that does not fail.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("to_sparse", "*"): _SPARSE,
    ("sparse.mm.reduce", "*"): _SPARSE,
    ("sparse.sampled_addmm", "*"): _SPARSE,
}

#: torch/nn/modules/linear_cross_entropy_options.py: it accumulates bfloat16 in float32 on the CPU and CUDA only.
_COARSE = (0.02, 0.05)

#: (relative, absolute) tolerance where PyTorch itself computes in another way by device type.
TOLERANCES: dict[tuple[str, str], tuple[float, float]] = {
    ("nn.functional.linear_cross_entropy.chunked", "bfloat16"): _COARSE,
    ("nn.functional.linear_cross_entropy.chunked_none", "bfloat16"): _COARSE,
}

#: Arguments that are CPU tensors by convention, whatever the device: the sweep leaves them there.
CPU_ARGUMENTS: dict[str, str] = {
    "tensor_split": "tensor_indices_or_sections must be on the CPU on every device",
}

#: Results of these are memory that nobody has written to yet: shape, dtype and device are compared.
UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}


def exception_for(name: str, dtype: str) -> str | None:
    """The reason why this pair may fail, if it may."""
    return EXCEPTIONS.get((name, dtype)) or EXCEPTIONS.get((name, "*"))
