"""One operator, one dtype: the device against the CPU, in many ways of calling it.

Public torch and PyTorch's own operator database, nothing else. The device runs
first, and the CPU only when the device has done every operator of the process:
a CPU run before it may warm caches that hide a failure. What the CPU cannot do
is not asked of the device.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from opinfo_exceptions import CPU_ARGUMENTS, TOLERANCES, UNINITIALISED
from opinfo_inputs import DEVICE, Sample, conjugated, negated, samples_of, tensors, with_gaps
from torch.autograd import forward_ad
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

Run = Callable[[Sample, str], Any]


@dataclass
class Report:
    """Number of comparisons made, and what went wrong as (variant, sample, message)."""

    compared: int = 0
    failures: list[tuple[str, int, str]] = field(default_factory=list)


def first_lines(error: BaseException) -> str:
    """The error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def memory(tensor: torch.Tensor) -> int:
    """Identity of the memory behind a tensor."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def sharing(results: Any, inputs: Any) -> list[list[int]]:
    """For each result, the inputs that it shares memory with."""
    owners = [memory(t) for t in tensors(inputs)]
    return [[k for k, owner in enumerate(owners) if owner == memory(t)] for t in tensors(results)]


def seeds_for(results: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """The same random tensors shaped like ``results``, on ``device``."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(t.shape, dtype=t.dtype, generator=generator).to(device) for t in results]


def without_history(value: Any) -> Any:
    """Results to keep until they are compared: no autograd graph behind them."""
    return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, value)


class Check:
    """All variants of one (operator, dtype): first :meth:`run_device`, later :meth:`compare`."""

    def __init__(self, op: Any, dtype: torch.dtype, *, same_random_numbers: bool) -> None:
        self.op = op
        self.dtype = dtype
        self.same_random_numbers = same_random_numbers
        self.runs: list[tuple[str, Sample, Run, Any, Exception | None]] = []
        name = str(dtype).removeprefix("torch.")
        self.tolerance = TOLERANCES.get((op.full_name, name), (None, None))

    def variants(self, sample: Sample, differentiable: bool) -> list[tuple[str, Sample, Run]]:
        """The ways to call the operator with one sample."""
        op, chosen = self.op, [("forward", sample, self.forward)]
        if differentiable:
            chosen.append(("backward", sample, self.backward))
        if op.inplace_variant is not None and not sample.broadcasts:
            chosen.append(("in-place", sample, self.in_place))
        if op.supports_out:
            chosen += [("out", sample, self.out), ("out-resized", sample, self.out_resized)]
        if sample.index >= 2:
            return chosen
        chosen += [("inference", sample, self.inference), ("gaps", sample.changed(with_gaps), self.forward)]
        if self.dtype in (torch.float32, torch.complex64):
            chosen.append(("negative", sample, self.of_negative_views))
        if self.dtype == torch.complex64:
            chosen.append(("conjugate", sample, self.of_conjugate_views))
        if self.dtype == torch.float32 and op.supports_forward_ad:
            chosen.append(("forward-ad", sample, self.forward_ad))
        if self.dtype == torch.float32 and differentiable and op.supports_gradgrad:
            chosen.append(("double-backward", sample, self.double_backward))
        return chosen

    def run_device(self) -> None:
        """Run every variant on the device and keep what came out."""
        op = self.op
        differentiable = op.supports_autograd and self.dtype in op.supported_backward_dtypes("cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            keep = op.name in CPU_ARGUMENTS
            for sample in samples_of(op, self.dtype, grad=differentiable, keep_arguments=keep):
                for name, changed, run in self.variants(sample, differentiable):
                    actual, error = None, None
                    try:
                        torch.manual_seed(7)
                        actual = without_history(run(changed, DEVICE))
                    except Exception as caught:
                        error = caught.with_traceback(None)
                    self.runs.append((name, changed, run, actual, error))
        if any(error is not None for *_, error in self.runs):
            gc.collect()

    def compare(self) -> Report:
        """Run the same on the CPU, and compare."""
        report = Report()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, sample, run, actual, error in self.runs:
                try:
                    torch.manual_seed(7)
                    expected = run(sample, "cpu")
                except Exception:
                    continue
                report.compared += 1
                try:
                    if error is not None:
                        raise error
                    values = self.comparable(run, sample, expected)
                    try:
                        self.same(actual, expected, values=values)
                    except AssertionError:
                        if name not in ("negative", "conjugate"):
                            raise
                        # Some of the CPU's kernels miss these bits; what it says of plain numbers is as right.
                        self.same(actual, self.numbers(sample, "cpu"), values=values)
                except Exception as caught:
                    report.failures.append((name, sample.index, first_lines(caught)))
        self.runs.clear()
        return report

    def comparable(self, run: Run, sample: Sample, expected: Any) -> bool:
        """Whether the numbers are determined: by the inputs, or by a seed that both devices honour alike."""
        if self.op.name in UNINITIALISED:
            return False
        if self.same_random_numbers:
            return True
        torch.manual_seed(8)  # another seed, another result: the operator is random
        again = run(sample, "cpu")
        pairs = zip(tensors(again), tensors(expected), strict=True)
        return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)

    def same(self, actual: Any, expected: Any, *, values: bool) -> None:
        """Assert equal structure, dtypes, shapes, strides, bits and (if ``values``) numbers, on the device."""
        got, want = tree_leaves(actual), tree_leaves(expected)
        assert len(got) == len(want), f"{len(got)} results instead of {len(want)}"
        for one, other in zip(got, want, strict=True):
            if isinstance(other, torch.Tensor):
                self.same_tensor(one, other, values)
            elif values and not isinstance(other, (torch.device, torch.Generator)) and other != "cpu":
                assert one == other or one != one, f"{one!r} instead of {other!r}"

    def same_tensor(self, one: Any, other: torch.Tensor, values: bool) -> None:
        assert isinstance(one, torch.Tensor), f"{type(one).__name__} instead of a tensor"
        kept = self.op.name in CPU_ARGUMENTS and one.device.type == "cpu"
        assert one.device.type == DEVICE or kept, f"the result is on {one.device}"
        assert one.dtype == other.dtype, f"dtype {one.dtype} instead of {other.dtype}"
        assert one.shape == other.shape, f"shape {tuple(one.shape)} instead of {tuple(other.shape)}"
        assert one.is_conj() == other.is_conj(), "the conjugate bit differs"
        assert one.is_neg() == other.is_neg(), "the negative bit differs"
        if other.layout == torch.strided and other.numel() and self.same_random_numbers:
            assert one.stride() == other.stride(), f"strides {one.stride()} instead of {other.stride()}"
        if values:
            rtol, atol = self.tolerance
            assert_close(one.detach().cpu(), other.detach(), equal_nan=True, rtol=rtol, atol=atol)

    # ---- the variants: what runs, on the given device

    def forward(self, sample: Sample, device: str) -> Any:
        inputs = value, args, kwargs = sample.on(device)
        result = self.op(value, *args, **kwargs)
        return result, sharing(result, inputs), inputs

    def of_negative_views(self, sample: Sample, device: str) -> Any:
        """The numbers for views with the negative bit."""
        return self.numbers(sample.changed(negated), device)

    def of_conjugate_views(self, sample: Sample, device: str) -> Any:
        """The same for the conjugate bit."""
        return self.numbers(sample.changed(conjugated), device)

    def numbers(self, sample: Sample, device: str) -> list[torch.Tensor]:
        value, args, kwargs = sample.on(device)
        return [t.resolve_conj().resolve_neg().contiguous() for t in tensors(self.op(value, *args, **kwargs))]

    def inference(self, sample: Sample, device: str) -> Any:
        with torch.inference_mode():
            value, args, kwargs = sample.on(device)
            return self.op(value, *args, **kwargs)

    def differentiated(self, sample: Sample, device: str, *, again: bool) -> tuple[list, list, list]:
        value, args, kwargs = sample.on(device, grad=True)
        leaves = [t for t in tensors((value, args, kwargs)) if t.requires_grad]
        results = [t for t in tensors(sample.process(self.op(value, *args, **kwargs))) if t.requires_grad]
        if not leaves or not results:
            raise ValueError("nothing to differentiate")
        seeds = seeds_for(results, device)
        grads = torch.autograd.grad(results, leaves, seeds, allow_unused=True, create_graph=again)
        return leaves, results, list(grads)

    def backward(self, sample: Sample, device: str) -> Any:
        _, results, grads = self.differentiated(sample, device, again=False)
        return results, grads

    def double_backward(self, sample: Sample, device: str) -> Any:
        leaves, _, grads = self.differentiated(sample, device, again=True)
        grads = [g for g in grads if g is not None and g.requires_grad]
        if not grads:
            raise ValueError("nothing to differentiate twice")
        return list(torch.autograd.grad(grads, leaves, seeds_for(grads, device), allow_unused=True))

    def forward_ad(self, sample: Sample, device: str) -> Any:
        value, args, kwargs = sample.on(device)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            raise ValueError("nothing to differentiate")
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(value, seeds_for([value], device)[0])
            results = tensors(self.op(dual, *args, **kwargs))
            return [list(forward_ad.unpack_dual(t)) for t in results]

    def in_place(self, sample: Sample, device: str) -> Any:
        value, args, kwargs = sample.on(device)
        result = self.op.inplace_variant(value, *args, **kwargs)
        return result, value, sharing(result, value)

    def out(self, sample: Sample, device: str) -> Any:
        """``out=`` of the right shape with gaps: the result must land in it."""

        def spread(tensor: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*tensor.shape, 2, dtype=tensor.dtype, device=device)[..., 0]

        return self.call_with_out(sample, device, spread)

    def out_resized(self, sample: Sample, device: str) -> Any:
        """``out=`` without elements: the operator gives it memory."""
        return self.call_with_out(sample, device, lambda t: torch.empty(0, dtype=t.dtype, device=device))

    def call_with_out(self, sample: Sample, device: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        value, args, kwargs = sample.on(device)
        shaped = self.op(value, *args, **kwargs)
        out = make(shaped) if isinstance(shaped, torch.Tensor) else tuple(map(make, shaped))
        value, args, kwargs = sample.on(device)
        result = self.op(value, *args, out=out, **kwargs)
        return result, out, sharing(result, out)
