"""Making tensors, moving them, reading them, and what is said when devices are mixed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .helpers import DEVICE, assert_agrees

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
    torch.complex64,
]
MIXED = "Expected all tensors to be on the same device, but found at least two devices, neuron:0 and cpu!"


class TestMaking:
    def test_repr_names_the_core(self):
        assert repr(torch.tensor([1.0, 2.0], device=DEVICE)) == "tensor([1., 2.], device='neuron:0')"
        assert (
            repr(torch.ones((), dtype=torch.bfloat16, device=DEVICE))
            == "tensor(1., device='neuron:0', dtype=torch.bfloat16)"
        )
        assert "device='neuron:0', size=(0, 3)" in repr(torch.empty(0, 3, device=DEVICE))

    def test_the_bare_device_has_no_index_and_its_tensors_have_one(self):
        assert torch.device(DEVICE).index is None
        assert torch.empty(1, device=DEVICE).device == torch.device(DEVICE, torch.accelerator.current_device_index())

    @pytest.mark.parametrize(
        "make",
        [
            lambda **k: torch.zeros(3, **k),
            lambda **k: torch.full((2, 2), 7, **k),
            lambda **k: torch.arange(5, **k),
            lambda **k: torch.linspace(0, 1, 5, **k),
            lambda **k: torch.eye(3, **k),
            lambda **k: torch.tensor([[1, 2], [3, 4]], **k),
            lambda **k: torch.as_tensor([1.5, 2.5], **k),
            lambda **k: torch.asarray(np.arange(4), **k),
            lambda **k: torch.tril_indices(3, 3, **k),
            lambda **k: torch.ones(2, **k).new_full((2,), 5),
            lambda **k: torch.zeros_like(torch.empty(2, 3), **k),
            lambda **k: torch.scalar_tensor(3, **k),
            lambda **k: torch.hann_window(6, **k),
        ],
    )
    def test_factories_make_what_the_cpu_makes(self, make):
        made = make(device=DEVICE)
        assert made.device.type == DEVICE
        assert torch.equal(made.cpu(), make(device="cpu"))

    def test_default_device_and_device_context(self):
        with torch.device(DEVICE):
            assert torch.zeros(2).device.type == DEVICE
            assert torch.nn.Linear(2, 2).weight.device.type == DEVICE
        assert torch.zeros(2).device.type == "cpu"
        torch.set_default_device(DEVICE)
        try:
            assert torch.arange(3).device.type == DEVICE
        finally:
            torch.set_default_device(None)

    def test_methods_named_after_the_device(self):
        x = torch.ones(2)
        assert not x.is_neuron and x.neuron().is_neuron
        assert x.neuron().device.type == DEVICE
        assert torch.nn.Linear(2, 2).neuron().weight.is_neuron
        assert x.neuron().untyped_storage().is_neuron

    def test_empty_tensors(self):
        x = torch.empty(0, 4, device=DEVICE)
        assert (x @ torch.ones(4, 2, device=DEVICE)).shape == (0, 2)
        assert x.sum().item() == 0
        assert torch.cat([x, torch.ones(1, 4, device=DEVICE)]).shape == (1, 4)


class TestMoving:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_bit_survives_a_round_trip(self, dtype):
        width = torch.empty(0, dtype=dtype).element_size()
        bits = torch.randint(0, 2 if dtype == torch.bool else 256, (24 * width,), dtype=torch.uint8)
        x = bits.view(dtype).reshape(4, 6)
        there = x.to(DEVICE)
        assert there.dtype == dtype and there.shape == x.shape
        assert torch.equal(there.cpu().view(torch.uint8), x.view(torch.uint8))

    def test_a_copy_is_a_copy(self):
        x = torch.zeros(3)
        there = x.to(DEVICE)
        x.fill_(1)
        there.add_(5)
        assert x.tolist() == [1, 1, 1] and there.tolist() == [5, 5, 5]
        back = there.cpu()
        there.zero_()
        assert back.tolist() == [5, 5, 5]

    def test_what_is_there_already_is_not_copied(self):
        x = torch.ones(2, device=DEVICE)
        assert x.to(DEVICE) is x
        assert x.to(DEVICE, copy=True).data_ptr() != x.data_ptr()

    def test_moving_and_casting_in_one_call(self):
        x = torch.randn(3, 4)
        assert torch.equal(x.to(DEVICE, torch.bfloat16, non_blocking=True).cpu(), x.bfloat16())
        assert torch.equal(x.t().to(DEVICE).cpu(), x.t())
        assert torch.equal(x[:, ::2].to(DEVICE).cpu(), x[:, ::2])
        assert torch.equal(torch.ones(3).expand(2, 3).to(DEVICE).cpu(), torch.ones(2, 3))

    def test_copy_between_devices_casts_and_broadcasts(self):
        there = torch.zeros(2, 3, device=DEVICE)
        there.copy_(torch.tensor([1, 2, 3]))
        assert there.tolist() == [[1, 2, 3], [1, 2, 3]]
        there[:, 1].copy_(torch.tensor([8.0, 9.0]))
        here = torch.zeros(3, 2, dtype=torch.int32)
        here.t().copy_(there)
        assert here.tolist() == [[1, 1], [8, 9], [3, 3]]

    def test_between_cores(self, second_core):
        x = torch.arange(6.0, device=DEVICE).view(2, 3)
        other = x.t().to(second_core)
        assert str(other.device) == second_core and other.tolist() == x.t().tolist()
        with pytest.raises(RuntimeError, match=r"neuron:0 and neuron:1|neuron:1 and neuron:0"):
            x + other.t()


class TestReading:
    def test_values(self):
        x = torch.tensor([1.5, -2.0], device=DEVICE)
        assert x.tolist() == [1.5, -2.0] and x[0].item() == 1.5 and float(x[1]) == -2.0
        assert int(torch.tensor(7, device=DEVICE)) == 7 and bool(torch.tensor(True, device=DEVICE))
        assert f"{x[0]:.2f}" == "1.50"
        assert list(range(5))[torch.tensor(3, device=DEVICE)] == 3
        assert torch.tensor(1 + 2j, device=DEVICE).item() == 1 + 2j

    def test_reading_several_numbers_as_one_is_refused(self):
        x = torch.ones(2, device=DEVICE)
        with pytest.raises(RuntimeError, match="2 elements cannot be converted to Scalar"):
            x.item()
        with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
            bool(x)

    @pytest.mark.parametrize("read", [torch.Tensor.numpy, np.asarray, np.array], ids=["numpy", "asarray", "array"])
    def test_numpy_needs_a_copy_to_the_cpu_and_says_so(self, read):
        with pytest.raises(TypeError, match=r"can't convert neuron:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
            read(torch.ones(2, device=DEVICE))

    def test_comparison_and_membership(self):
        x = torch.arange(3, device=DEVICE)
        assert torch.equal(x, torch.tensor([0, 1, 2], device=DEVICE)) and not torch.equal(x, x + 1)
        assert torch.allclose(x.float(), x.float() + 1e-9)
        assert 2 in x and 5 not in x
        assert len(x) == 3 and [int(i) for i in x] == [0, 1, 2]


class TestMixing:
    @pytest.mark.parametrize(
        "mix",
        [
            lambda a, b: a + b,
            lambda a, b: b + a,
            lambda a, b: a @ b,
            lambda a, b: torch.cat([a, b]),
            lambda a, b: torch.stack([b, a]),
            lambda a, b: torch.where(a > 0, a, b),
            lambda a, b: a.add_(b),
            lambda a, b: b.mul_(a),
            lambda a, b: torch.nn.functional.linear(a, b),
            lambda a, b: torch.add(a, a, out=b),
            lambda a, b: torch._foreach_add([a], [b]),
            lambda a, b: torch.addmm(a, b, a),
            lambda a, b: torch.nn.functional.mse_loss(a, b),
            lambda a, b: a.index_select(0, torch.tensor([0])),
            lambda a, b: a.gather(0, torch.zeros(1, 2, dtype=torch.long)),
            lambda a, b: a.masked_fill(b > 0, 0.0),
            lambda a, b: torch.equal(a, b),
        ],
    )
    def test_two_devices_in_one_operator_are_refused_with_both_named(self, mix):
        a, b = torch.ones(2, 2, device=DEVICE), torch.ones(2, 2)
        with pytest.raises(RuntimeError, match="same device") as caught:
            mix(a, b)
        assert "neuron:0" in str(caught.value) and "cpu" in str(caught.value)
        assert torch.equal(a.cpu(), torch.ones(2, 2)) and torch.equal(b, torch.ones(2, 2))

    def test_the_words_are_pytorchs_own(self):
        with pytest.raises(RuntimeError) as caught:
            torch.ones(2, device=DEVICE) + torch.ones(2)
        assert MIXED in str(caught.value)

    def test_a_number_in_a_cpu_tensor_is_a_number(self):
        x = torch.tensor([1.0, 2.0], device=DEVICE)
        assert (x * torch.tensor(3.0)).tolist() == [3, 6]
        assert (torch.tensor(3.0) - x).tolist() == [2, 1]
        assert torch.where(x > 1, x, torch.tensor(0.0)).tolist() == [0, 2]
        x.clamp_(max=torch.tensor(1.5))
        assert x.tolist() == [1.0, 1.5]

    def test_a_number_on_the_device_is_not_free_for_the_cpu(self):
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(2) + torch.tensor([3.0], device=DEVICE)

    def test_dtype_promotion_is_the_cpus(self):
        for other in (torch.tensor(2), torch.tensor(2.5), 2, 2.5, True):
            for dtype in (torch.int32, torch.bfloat16, torch.bool):
                expected = (torch.ones(2, dtype=dtype) * other).dtype
                assert (torch.ones(2, dtype=dtype, device=DEVICE) * other).dtype == expected


class TestIndexing:
    def test_reading(self):
        x = torch.arange(24.0).view(2, 3, 4)
        i, mask = torch.tensor([2, 0]), torch.arange(24).view(2, 3, 4) % 5 == 0
        assert_agrees(lambda x: x[1, ..., ::2], x)
        assert_agrees(lambda x, i: x[:, i], x, i)
        assert_agrees(lambda x, i: x[:, i, i.flip(0)], x, i)
        assert_agrees(lambda x, m: x[m], x, mask)
        assert_agrees(lambda x, i: x[None, 0, i, None], x, i)

    def test_writing(self):
        x, i = torch.zeros(3, 4), torch.tensor([2, 0])

        def write(x, i):
            x[i] = 1
            x[:, i] += torch.full((3, 2), 2.0, device=x.device)
            x[x > 2] = -1.0
            x[1, 1:3] = torch.tensor([5.0, 6.0], device=x.device)
            x.index_put_((i, i), torch.full((2,), 9.0, device=x.device), accumulate=True)
            return x

        assert_agrees(write, x, i)

    def test_cpu_indices_serve_a_device_tensor_and_not_the_other_way_round(self):
        x = torch.arange(4.0, device=DEVICE)
        assert x[torch.tensor([3, 1])].tolist() == [3, 1]
        assert x[torch.tensor([True, False, False, True])].tolist() == [0, 3]
        x[torch.tensor([0])] = 7.0
        assert x[0].item() == 7
        with pytest.raises(RuntimeError, match="same device"):
            torch.arange(4)[torch.tensor([1], device=DEVICE)]

    def test_out_of_range_is_an_index_error(self):
        x = torch.zeros(3, device=DEVICE)
        with pytest.raises(IndexError):
            x[3]
        with pytest.raises(IndexError):
            x[torch.tensor([5], device=DEVICE)].cpu()


class TestCores:
    def test_a_core_that_does_not_exist(self):
        count = torch.accelerator.device_count()
        for make in (
            lambda d: torch.ones(1, device=d),
            lambda d: torch.ones(1).to(d),
            lambda d: torch.nn.Linear(1, 1).to(d),
        ):
            with pytest.raises(RuntimeError) as caught:
                make("neuron:99")
            assert "neuron:99" in str(caught.value)
            assert (f"neuron:{count - 1}" if count > 1 else "neuron:0") in str(caught.value)
        assert torch.ones(1, device=DEVICE).item() == 1  # nothing left behind

    def test_negative_and_malformed_names(self):
        for name in ("neuron:-1", "neuron:x", "neuron:", "neuron:1:2"):
            with pytest.raises(RuntimeError):
                torch.device(name)
