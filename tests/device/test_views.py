"""Views share memory, whatever made them, and writing through one is seen by all."""

from __future__ import annotations

import pytest
import torch

from .helpers import DEVICE, assert_agrees

VIEWS = {
    "view": lambda x: x.view(3, 8),
    "reshape": lambda x: x.reshape(2, 12),
    "flatten": lambda x: x.flatten(),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[:, 1:, ::2],
    "select": lambda x: x[1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "expand": lambda x: x[:, :1].expand(2, 3, 4),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 5),
    "movedim": lambda x: x.movedim(0, -1),
    "chunk": lambda x: x.chunk(2, -1)[1],
    "split": lambda x: x.split([1, 2], 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "tensor_split": lambda x: x.tensor_split(3, 2)[1],
    "view_dtype": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach(),
    "alias": lambda x: torch.ops.aten.alias(x),
    "T": lambda x: x[0].T,
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "view_as": lambda x: x.view_as(torch.empty(4, 6, device=x.device)),
    "hsplit": lambda x: torch.hsplit(x, 3)[1],
    "real_of_complex": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)).real,
}


def base(device: str) -> torch.Tensor:
    return torch.arange(24.0, device=device).view(2, 3, 4)


@pytest.mark.parametrize("name", VIEWS)
class TestEveryView:
    def test_shares_memory_and_geometry(self, name):
        x, here = base(DEVICE), base("cpu")
        y, expected = VIEWS[name](x), VIEWS[name](here)
        assert y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert y.stride() == expected.stride() and y.storage_offset() == expected.storage_offset()
        assert y._is_view() == expected._is_view() and y.is_contiguous() == expected.is_contiguous()
        assert torch.equal(y.cpu(), expected)

    def test_writing_through_it_changes_the_base(self, name):
        x, here = base(DEVICE), base("cpu")
        for t in (x, here):
            view = VIEWS[name](t)
            if 0 not in view.stride():
                view.mul_(3)
                view.add_(1)
            t[0, 0, 0] = 100
        assert torch.equal(x.cpu(), here)
        assert torch.equal(VIEWS[name](x).cpu(), VIEWS[name](here))

    def test_in_inference_mode(self, name):
        with torch.inference_mode():
            x = base(DEVICE)
            y = VIEWS[name](x)
            assert y.is_inference()
            assert torch.equal(y.cpu(), VIEWS[name](base("cpu")))
        normal = base(DEVICE)
        with torch.inference_mode():
            assert torch.equal(VIEWS[name](normal).cpu(), VIEWS[name](base("cpu")))

    def test_gradients_flow_through_it(self, name):
        if name in ("view_dtype", "detach"):
            pytest.skip("not differentiable")

        def through(x):
            view = VIEWS[name](x * 2)
            return (view * torch.arange(view.numel(), device=x.device).view(view.shape)).sum()

        assert_agrees(through, base("cpu").requires_grad_())


class TestPartialViews:
    def test_as_strided_of_a_view_starts_where_the_view_does(self):
        x = torch.arange(12.0, device=DEVICE)
        part = x[4:]
        assert part.as_strided((2, 2), (4, 1)).tolist() == [[4, 5], [8, 9]]
        assert part.as_strided((2,), (1,), 1).tolist() == [1, 2]
        assert torch.as_strided(part, (3,), (2,)).storage_offset() == 4

    def test_views_of_views(self):
        assert_agrees(lambda x: x.t()[1:].unfold(1, 2, 2).flatten(1)[:, ::3].diagonal(), torch.arange(48.0).view(6, 8))

    def test_data_pointers_say_where_a_view_starts(self):
        x = torch.zeros(8, device=DEVICE)
        assert x[3:].data_ptr() == x.data_ptr() + 3 * 4

    def test_copies_are_contiguous_and_separate(self):
        x = torch.arange(6.0, device=DEVICE).view(2, 3)
        y = x.t().contiguous()
        assert y.is_contiguous() and y.data_ptr() != x.data_ptr() and y.tolist() == x.t().tolist()
        assert x.contiguous() is x

    def test_overlapping_writes_are_refused_as_on_the_cpu(self):
        x = torch.zeros(1, device=DEVICE).expand(3)
        with pytest.raises(RuntimeError, match="single memory location"):
            x.add_(1)
        y = torch.zeros(4, device=DEVICE)
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.add(y[:3], 1, out=y[1:])

    def test_view_of_an_incompatible_size_is_refused(self):
        with pytest.raises(RuntimeError, match=r"view size is not compatible|is invalid for input"):
            torch.zeros(2, 3, device=DEVICE).t().view(6)


class TestConjugateAndNegative:
    def test_conj_is_a_view_with_a_bit(self):
        x = torch.tensor([1 + 2j, 3 - 1j], device=DEVICE)
        y = x.conj()
        assert y.is_conj() and y.data_ptr() == x.data_ptr()
        assert y.tolist() == [1 - 2j, 3 + 1j]
        x[0] = 5j
        assert y[0].item() == -5j
        y[1] = 1 + 1j
        assert x[1].item() == 1 - 1j

    def test_imag_of_conj_is_a_negative_view(self):
        x = torch.tensor([1 + 2j, 3 - 1j], device=DEVICE)
        y = x.conj().imag
        assert y.is_neg() and y.tolist() == [-2, 1]
        assert (y + 1).tolist() == [-1, 2]
        y.mul_(2)
        assert x.tolist() == [1 + 4j, 3 - 2j]
        assert y.resolve_neg().is_neg() is False and y.cpu().tolist() == [-4, 2]

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x.conj() @ x.mH,
            lambda x: torch.mm(x.conj(), x.T),
            lambda x: x.conj().sum(0),
            lambda x: torch.fft.ifft(x.conj()),
            lambda x: x.conj().resolve_conj(),
            lambda x: torch.vdot(x[0].conj(), x[1]),
            lambda x: x.conj().clone(),
            lambda x: torch.cat([x.conj(), x]),
            lambda x: x.conj().imag.neg().exp(),
            lambda x: torch.linalg.svdvals(x.mH),
            lambda x: x.conj().mul_(2j),
            lambda x: torch.empty_like(x).copy_(x.conj()),
            lambda x: torch.view_as_real(x.conj().resolve_conj()),
            lambda x: torch.fft.hfft(x.conj()),
        ],
    )
    def test_operators_see_the_conjugate(self, function):
        assert_agrees(function, torch.randn(3, 3, dtype=torch.complex64))

    def test_moving_keeps_the_numbers(self):
        x = torch.randn(4, dtype=torch.complex64)
        assert torch.equal(x.conj().to(DEVICE).cpu().resolve_conj(), x.conj().resolve_conj())
        assert torch.equal(x.to(DEVICE).conj().cpu().resolve_conj(), x.conj().resolve_conj())
        assert torch.equal(x.to(DEVICE).conj().imag.cpu().resolve_neg(), -x.imag)

    def test_view_as_real_and_back(self):
        x = torch.randn(3, 2, device=DEVICE)
        z = torch.view_as_complex(x)
        assert z.data_ptr() == x.data_ptr()
        z.mul_(2j)
        assert torch.equal(torch.view_as_real(z), x)
        with pytest.raises(RuntimeError, match="conj"):
            torch.view_as_real(z.conj())


class TestStorages:
    def test_resize_grows_and_keeps(self):
        x = torch.tensor([1.0, 2.0], device=DEVICE)
        x.resize_(2, 3)
        assert x.shape == (2, 3) and x.flatten()[:2].tolist() == [1, 2]
        x.resize_(1)
        assert x.tolist() == [1] and x.untyped_storage().nbytes() == 24

    def test_set_makes_two_tensors_one(self):
        x, y = torch.zeros(4, device=DEVICE), torch.arange(6.0, device=DEVICE)
        x.set_(y)
        x[5] = 50
        assert y[5].item() == 50
        x.set_(y.untyped_storage(), 2, (2, 2), (2, 1))
        assert x.tolist() == [[2, 3], [4, 50]]
        x.set_()
        assert x.shape == (0,) and y.numel() == 6

    def test_set_of_a_storage_elsewhere_is_refused(self):
        with pytest.raises(RuntimeError):
            torch.zeros(2, device=DEVICE).set_(torch.zeros(2))

    def test_storage_reads_copies_and_resizes(self):
        x = torch.arange(4, dtype=torch.uint8, device=DEVICE)
        storage = x.untyped_storage()
        assert storage.device.type == DEVICE and storage.nbytes() == 4
        assert storage.cpu().tolist() == [0, 1, 2, 3]
        storage.resize_(8)
        assert storage.nbytes() == 8 and x.tolist() == [0, 1, 2, 3]
        storage.resize_(0)
        assert storage.nbytes() == 0
        storage.resize_(4)
        storage.copy_(torch.tensor([9, 8, 7, 6], dtype=torch.uint8).untyped_storage())
        assert x.tolist() == [9, 8, 7, 6]

    def test_data_of_a_tensor_may_be_replaced(self):
        x = torch.zeros(2, device=DEVICE)
        x.data = torch.ones(3, device=DEVICE)
        assert x.tolist() == [1, 1, 1]
        parameter = torch.nn.Parameter(torch.zeros(2))
        parameter.data = torch.ones(2, device=DEVICE)
        assert parameter.device.type == DEVICE and parameter.is_leaf

    def test_out_arguments(self):
        a, out = torch.arange(4.0, device=DEVICE), torch.zeros(8, device=DEVICE)
        assert torch.mul(a, 2, out=out[::2]).tolist() == [0, 2, 4, 6]
        assert out.tolist() == [0, 0, 2, 0, 4, 0, 6, 0]
        grown = torch.empty(0, device=DEVICE)
        view = grown[:]
        assert torch.add(a, 1, out=grown) is grown and grown.tolist() == [1, 2, 3, 4]
        assert view.shape == (0,)
        with pytest.raises(RuntimeError, match=r"result type|can't be cast"):
            torch.add(a, 1.5, out=torch.empty(4, dtype=torch.int64, device=DEVICE))

    def test_version_counters_catch_a_write_before_backward(self):
        x = torch.ones(3, device=DEVICE, requires_grad=True)
        y = x.exp()
        y[0].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    def test_versions_count_like_the_cpus(self):
        def version(device):
            x = torch.zeros(4, device=device)
            x[1:].add_(1)
            x.copy_(torch.ones(4))
            torch.add(x, 1, out=x)
            x.t_() if x.dim() == 2 else x.unsqueeze_(0)
            return x._version

        assert version(DEVICE) == version("cpu")


class TestInferenceMode:
    def test_results_stay_inference_tensors(self):
        with torch.inference_mode():
            x = torch.ones(2, 2, device=DEVICE)
            y = x @ x
            y[0].add_(1)
            x.copy_(torch.zeros(2, 2))
        assert x.is_inference() and y.is_inference()
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            torch.ones(2, 2, device=DEVICE, requires_grad=True) * y

    def test_normal_tensors_stay_normal(self):
        x = torch.ones(2, device=DEVICE, requires_grad=True)
        with torch.inference_mode():
            view = x[:1]
            copied = x.to(DEVICE, torch.bfloat16)
        assert not x.is_inference() and not view.is_inference() and copied.is_inference()
        (x * 2).sum().backward()
        assert x.grad.tolist() == [2, 2]

    def test_moving_in_and_out(self):
        with torch.inference_mode():
            there = torch.ones(3).to(DEVICE)
        assert there.is_inference() and there.cpu().tolist() == [1, 1, 1]
        clone = there.clone()
        assert not clone.is_inference()
        clone.requires_grad_().sum().backward()
