"""What a compiled graph takes and gives: aliases, mutations, constants, tensors of several devices."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._dynamo.exc import TorchRuntimeError

needs_two_cores = pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two cores")


def ones(*size: int, device: str = "neuron", **options) -> torch.Tensor:
    return torch.ones(*size, device=device, **options)


class TestAliases:
    def test_of_inputs(self, compiled):
        x = ones(2, 3)
        turned, same, fresh, row = compiled(lambda x: (x.t(), x, x * 2, x[0]))(x)
        x[0, 0] = 9
        assert same is x
        assert turned[0, 0].item() == 9 and row[0].item() == 9 and fresh[0, 0].item() == 2
        assert turned.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()

    def test_of_each_other(self, compiled):
        def f(x):
            y = x * 2
            return y, y.t(), y[0], y.view(-1)

        whole, turned, row, flat = compiled(f)(ones(2, 3))
        whole[0, 1] = 9
        assert turned[1, 0].item() == 9 and row[1].item() == 9 and flat[1].item() == 9

    def test_the_same_result_twice(self, compiled):
        def f(x):
            y = x * 2
            return y, y

        one, two = compiled(f)(ones(2))
        one[0] = 9
        assert two[0].item() == 9

    def test_results_of_two_runs_are_strangers(self, compiled):
        f = compiled(lambda x: (x * 2, torch.zeros(2, device="neuron")))
        first, second = f(ones(2)), f(ones(2))
        first[0].fill_(7)
        first[1].fill_(7)
        assert second[0].tolist() == [2, 2] and second[1].tolist() == [0, 0]
        assert f(ones(2))[1].tolist() == [0, 0]

    def test_a_constant_of_the_graph_is_not_given_away(self, compiled):
        table = torch.arange(3.0, device="neuron")
        f = compiled(lambda x: (x + table, torch.tensor([1.0, 2.0], device="neuron")))
        for _ in range(2):
            added, constant = f(ones(3))
            assert added.tolist() == [1, 2, 3] and constant.tolist() == [1, 2]
            constant.zero_()
        assert table.tolist() == [0, 1, 2]

    def test_memory_lives_as_long_as_a_view_of_it(self, compiled):
        row = compiled(lambda x: (x * 2)[0])(ones(100, 100))
        junk = [torch.full((100, 100), 5.0, device="neuron") for _ in range(20)]
        assert row.tolist() == [2.0] * 100
        del junk

    def test_gradients_through_a_view(self, compiled):
        x = ones(4, 3).requires_grad_()
        view, other = compiled(lambda x: (x.t()[1:], x.sin()))(x)
        (view.sum() + other.sum()).backward()
        want = torch.ones(4, 3, requires_grad=True)
        (want.t()[1:].sum() + want.sin().sum()).backward()
        torch.testing.assert_close(x.grad.cpu(), want.grad)


class TestMutation:
    def test_of_an_input(self, compiled):
        x, f = ones(3), compiled(lambda x, y: x.add_(y).mul_(2))
        assert f(x, ones(3)) is x
        f(x, ones(3))
        assert x.tolist() == [10, 10, 10]

    def test_of_a_view(self, compiled):
        x = ones(4)
        compiled(lambda x, y: x.add_(y))(x[1:3], ones(2))
        assert x.tolist() == [1, 2, 2, 1]

    def test_of_inputs_that_overlap(self, compiled):
        def f(a, b):
            a.add_(1)
            b.mul_(2)

        x, want = ones(4), torch.ones(4)
        compiled(f)(x[:3], x[1:])
        f(want[:3], want[1:])
        assert x.tolist() == want.tolist() == [2, 4, 4, 2]

    def test_of_one_tensor_given_twice(self, compiled):
        f = compiled(lambda a, b: a.add_(b))
        x = ones(2)
        f(x, x)
        assert x.tolist() == [2, 2]
        y = ones(2)
        f(y, ones(2) * 5)
        assert y.tolist() == [6, 6]

    def test_static_cache(self, compiled):
        """What generation with a static cache does: a buffer filled place by place by one graph."""
        cache = torch.zeros(4, 2, device="neuron")

        def step(cache, position, value):
            cache.index_copy_(0, position, value)
            return cache.sum()

        f, address = compiled(step), cache.data_ptr()
        sums = [f(cache, torch.tensor([i], device="neuron"), ones(1, 2) * i).item() for i in range(4)]
        assert sums == [0, 2, 6, 12] and cache[:, 0].tolist() == [0, 1, 2, 3] and cache.data_ptr() == address

    def test_of_buffers(self, compiled):
        torch.manual_seed(0)
        here, there, x = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3).to("neuron"), torch.randn(5, 3)
        f = compiled(there)
        for _ in range(3):
            here(x).sum().backward()
            f(x.to("neuron")).sum().backward()
        torch.testing.assert_close(there.running_var.cpu(), here.running_var)
        assert there.num_batches_tracked.item() == 3 and there.running_mean.device.type == "neuron"


class TestResultsThatAreNoTensors:
    def test_keep_their_place(self, compiled):
        def f(x):
            return x + 1, 3, None, "s", torch.ones(2, device="neuron"), torch.ones(2), (1, {"a": x * 2}), 2.5, True

        out = compiled(f)(ones(2))
        assert (out[1], out[2], out[3], out[7], out[8]) == (3, None, "s", 2.5, True)
        assert (out[4].device.type, out[5].device.type) == ("neuron", "cpu")
        assert out[0].tolist() == [2, 2] and out[6][0] == 1 and out[6][1]["a"].tolist() == [2, 2]

    def test_gradients_that_are_none(self, compiled):
        x, y = ones(2).requires_grad_(), ones(2).requires_grad_()
        compiled(lambda x, y: (x * 2 + y.detach()).sum())(x, y).backward()
        assert x.grad.tolist() == [2, 2] and y.grad is None

    def test_a_graph_without_inputs(self, compiled):
        out = compiled(lambda: torch.arange(3, device="neuron") + 1)()
        assert out.tolist() == [1, 2, 3] and out.device.type == "neuron"

    def test_empty_tensors(self, compiled):
        out = compiled(lambda x: (x * 2, x.sum(0), torch.cat([x, x])))(torch.empty(0, 3, device="neuron"))
        assert [tuple(t.shape) for t in out] == [(0, 3), (3,), (0, 3)] and out[1].tolist() == [0, 0, 0]


# What eager mode refuses a graph refuses as well, at the latest when it is run.
MIXED = {
    "product": lambda x, c: x * c,
    "where": lambda x, c: torch.where(c > 0, x, x),
    "cat": lambda x, c: torch.cat([x, c]),
    "index_select": lambda x, c: x.index_select(0, c.long()),
    "gather": lambda x, c: x.gather(0, c.long()),
    "index_put": lambda x, c: x.clone().index_put((torch.arange(2, device="neuron"),), c),
    "masked_fill": lambda x, c: x.masked_fill(c > 0, 0),
    "linear": lambda x, c: torch.nn.functional.linear(x, c.expand(2, 2)),
    "layer_norm": lambda x, c: torch.nn.functional.layer_norm(x, (2,), c),
    "embedding": lambda x, c: torch.nn.functional.embedding(c.long(), x.expand(2, 2)),
    "loss": lambda x, c: torch.nn.functional.mse_loss(x, c),
    "attention mask": lambda x, c: torch.nn.functional.scaled_dot_product_attention(
        x.view(1, 1, 2, 1), x.view(1, 1, 2, 1), x.view(1, 1, 2, 1), attn_mask=c.view(2, 1) > 0
    ),
}


class TestTensorsOfTheCpu:
    @pytest.mark.parametrize("name", MIXED)
    def test_are_refused_beside_those_of_the_device(self, compiled, name):
        with pytest.raises(RuntimeError, match="device"):
            MIXED[name](ones(2), torch.ones(2))
        with pytest.raises(TorchRuntimeError, match="device"):
            compiled(MIXED[name])(ones(2), torch.ones(2))

    def test_as_scalars_are_welcome(self, compiled):
        f = compiled(lambda x, c: x * c + torch.tensor(1.0))
        out = f(ones(2), torch.tensor(3.0))
        assert out.tolist() == [4, 4] and out.device.type == "neuron"
        assert f(ones(2), torch.tensor(5.0)).tolist() == [6, 6]  # read anew, not a constant

    def test_as_an_index_are_welcome(self, compiled):
        assert compiled(lambda x, i: x[i])(torch.arange(3, device="neuron"), torch.tensor([2, 0])).tolist() == [2, 0]

    def test_beside_them_stay_on_the_cpu(self, compiled):
        c = torch.ones(2, 2)
        view, device, mutated = compiled(lambda c, x: (c.t(), x * 2, c.add_(1)))(c, ones(1))
        assert mutated is c and c.tolist() == [[2, 2], [2, 2]]
        assert (view.device.type, device.device.type) == ("cpu", "neuron")
        view[0, 1] = 7
        assert c[1, 0].item() == 7

    def test_alone_may_use_this_backend_too(self, compiled):
        before = torch.accelerator.memory_allocated()
        out = compiled(lambda x: x + 1)(torch.ones(2))
        assert out.device.type == "cpu" and out.tolist() == [2, 2]
        assert torch.accelerator.memory_allocated() == before


class TestMoves:
    def test_to_the_cpu_is_a_copy(self, compiled):
        x = ones(2)
        added, copy, here = compiled(lambda x: (x.cpu() + 1, x.cpu(), x + 1))(x)
        copy[0] = 5
        assert (added.device.type, copy.device.type, here.device.type) == ("cpu", "cpu", "neuron")
        assert x.tolist() == [1, 1] and added.tolist() == [2, 2]

    def test_to_the_device_is_a_copy(self, compiled):
        c = torch.ones(2)
        added, copy = compiled(lambda c: (c.to("neuron") + 1, c.to("neuron")))(c)
        copy[0] = 5
        assert copy.device.type == "neuron" and c.tolist() == [1, 1] and added.tolist() == [2, 2]

    @needs_two_cores
    def test_to_another_core(self, compiled):
        moved, kept, made = compiled(lambda x: (x.to("neuron:1") * 2, x * 3, torch.ones(2, device="neuron:1")))(ones(2))
        assert (moved.device.index, kept.device.index, made.device.index) == (1, 0, 1)
        assert (moved + made).tolist() == [3, 3]

    @needs_two_cores
    def test_two_cores_in_one_operator_are_refused(self, compiled):
        with pytest.raises(TorchRuntimeError, match="neuron:0 and neuron:1"):
            compiled(lambda x, y: x + y)(ones(2), ones(2, device="neuron:1"))

    @needs_two_cores
    def test_a_graph_of_the_second_core(self, compiled):
        layer = torch.nn.Linear(2, 2).to("neuron:1")
        gc.collect()
        before = torch.accelerator.memory_allocated(0), torch.accelerator.memory_allocated(1)
        out = compiled(layer)(ones(3, 2, device="neuron:1"))
        assert out.device == torch.device("neuron:1")
        out.sum().backward()
        assert layer.weight.grad.device.index == 1 and torch.accelerator.current_device_index() == 0
        assert torch.accelerator.memory_allocated(0) == before[0]
        assert torch.accelerator.memory_allocated(1) > before[1]


class TestLayouts:
    def test_strides_of_results(self, compiled):
        x = ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
        out = compiled(lambda x: (x * 2, x.permute(1, 0, 2, 3).sin()))(x)
        want = (x.cpu() * 2, x.cpu().permute(1, 0, 2, 3).sin())
        assert [t.stride() for t in out] == [t.stride() for t in want]

    def test_complex_and_conjugate(self, compiled):
        x = torch.tensor([1 + 2j, 3 - 1j], device="neuron")
        lazy, real, imaginary = compiled(lambda x: (x.conj(), x.conj() * 2, x.imag))(x)
        assert lazy.is_conj() and lazy.resolve_conj().tolist() == [1 - 2j, 3 + 1j]
        assert real.tolist() == [2 - 4j, 6 + 2j] and imaginary.tolist() == [2, -1]
