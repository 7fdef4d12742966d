"""What a compiled graph leaves behind: random streams, memory counters, threads, and after an error."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

needs_two_cores = pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two cores")


def ones(*size: int, device: str = "neuron", **options) -> torch.Tensor:
    return torch.ones(*size, device=device, **options)


def allocated() -> int:
    gc.collect()
    return torch.accelerator.memory_allocated()


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(6, device=x.device),
    "randint": lambda x: torch.randint(0, 100, (6,), device=x.device),
    "randperm": lambda x: torch.randperm(6, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(x / 2),
    "multinomial": lambda x: torch.multinomial(x, 3),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_ and exponential_": lambda x: torch.empty_like(x).normal_() + torch.empty_like(x).exponential_(),
    "rrelu": lambda x: F.rrelu(-x, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 3, 2)] * 3, dropout_p=0.5),
    "inside cond": lambda x: torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5), lambda x: x - 1, (x,)),
}


class TestRandomNumbers:
    @pytest.mark.parametrize("name", RANDOM)
    def test_are_those_of_eager_mode_and_go_on_alike(self, compiled, name):
        x = ones(6)
        torch.manual_seed(3)
        want = [RANDOM[name](x) for _ in range(2)]
        state = torch.neuron.get_rng_state()
        f = compiled(RANDOM[name])
        f(x)  # compiling draws nothing, running does
        torch.manual_seed(3)
        for wanted in want:
            torch.testing.assert_close(f(x), wanted)
        assert torch.equal(torch.neuron.get_rng_state(), state)
        assert not torch.equal(want[0].float(), want[1].float())

    def test_leave_the_cpus_stream_alone(self, compiled):
        f = compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
        f(ones(6))
        torch.manual_seed(0)
        want = torch.rand(3)
        torch.manual_seed(0)
        f(ones(6))
        assert torch.equal(torch.rand(3), want)

    def test_of_the_cpu_inside_a_graph_come_from_the_cpus_stream(self, compiled):
        f = compiled(lambda x: (x.cpu() + torch.rand(3), torch.rand_like(x)))
        f(ones(3))
        torch.manual_seed(5)
        want = torch.rand(3) + 1, torch.rand(3, device="neuron"), torch.rand(3), torch.rand(3, device="neuron")
        torch.manual_seed(5)
        got = *f(ones(3)), torch.rand(3), torch.rand(3, device="neuron")
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other)

    @needs_two_cores
    def test_belong_to_the_core_that_is_named(self, compiled):
        f = compiled(lambda x: (torch.rand(3, device="neuron:1"), torch.rand_like(x)))
        f(ones(3))
        torch.manual_seed(5)
        want = torch.rand(3, device="neuron:1"), torch.rand(3, device="neuron:0")
        states = torch.neuron.get_rng_state_all()
        torch.manual_seed(5)
        got = f(ones(3))
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
        assert all(map(torch.equal, torch.neuron.get_rng_state_all(), states))

    @needs_two_cores
    def test_of_a_graph_on_the_second_core(self, compiled):
        f, x = compiled(torch.rand_like), ones(3, device="neuron:1")
        f(x)
        torch.manual_seed(5)
        want = torch.rand_like(x)
        torch.manual_seed(5)
        assert torch.equal(f(x), want)

    def test_of_another_thread_are_not_touched(self, compiled):
        """A worker thread may draw on the CPU while a graph with dropout runs."""
        f, x = compiled(lambda x: F.dropout(x, 0.5) @ F.dropout(x, 0.5)), ones(200, 200)
        f(x)
        torch.manual_seed(0)
        want = [torch.rand(10) for _ in range(300)]
        torch.manual_seed(0)
        running, stop = threading.Event(), threading.Event()

        def work():
            while not stop.is_set():
                f(x)
                running.set()

        thread = threading.Thread(target=work)
        thread.start()
        running.wait()
        got = []
        try:
            for _ in range(300):
                got.append(torch.rand(10))
                time.sleep(0.0005)
        finally:
            stop.set()
            thread.join()
        assert sum(not torch.equal(one, other) for one, other in zip(got, want, strict=True)) == 0


class TestCheckpoint:
    """Recomputation in the backward must see the mask of the forward."""

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_eager(self, reentrant):
        w, x, block = self.parts()
        want, state = self.gradient(w, lambda: block(x))
        got, after = self.gradient(w, lambda: checkpoint(block, x, use_reentrant=reentrant))
        torch.testing.assert_close(got, want)
        assert torch.equal(state, after)

    def test_compiled(self, compiled):
        w, x, block = self.parts()
        want, state = self.gradient(w, lambda: block(x))
        plain = compiled(block)
        recomputed = compiled(lambda x: checkpoint(block, x, use_reentrant=False))
        for f in (plain, recomputed):
            got, after = self.gradient(w, lambda f=f: f(x))
            torch.testing.assert_close(got, want)
            assert torch.equal(state, after)

    def test_compiled_attention_without_dropout(self, compiled):
        """PyTorch calls it random, and saves the generator's state for it."""
        x = torch.randn(1, 2, 16, 8).to("neuron").requires_grad_()

        def block(x):
            return F.scaled_dot_product_attention(x.sin(), x, x, is_causal=True)

        want, state = self.gradient(x, lambda: block(x))
        recomputed = compiled(lambda x: checkpoint(block, x, use_reentrant=False))
        got, after = self.gradient(x, lambda: recomputed(x))
        torch.testing.assert_close(got, want)
        assert torch.equal(state, after)

    def parts(self):
        torch.manual_seed(7)
        w = torch.randn(8, 8).to("neuron").requires_grad_()
        x = torch.randn(4, 8).to("neuron").requires_grad_()
        return w, x, lambda x: F.dropout((x @ w).sin(), 0.5).cos()

    def gradient(self, w, run):
        w.grad = None
        torch.manual_seed(1)
        run().sum().backward()
        return w.grad.clone(), torch.neuron.get_rng_state()


class TestMemory:
    def test_returns_to_what_it_was(self, compiled):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 64)).to(
            "neuron"
        )
        f, x = compiled(model), ones(8, 64)

        def step():
            f(x).sum().backward()
            model.zero_grad()

        step()
        before = allocated()
        for _ in range(5):
            step()
        assert allocated() == before

    def test_what_the_backward_needs_is_counted_until_it_ran(self, compiled):
        x = ones(256, 256).requires_grad_()
        f = compiled(lambda x: x.sin().sum())
        f(x).backward()
        x.grad = None
        before = allocated()
        loss = f(x)
        # The loss (one block of 256 B); the input is saved, not copied.
        assert allocated() == before + 256
        loss.backward()
        del loss
        assert allocated() == before + 256 * 256 * 4  # the gradient

    def test_a_limit_is_kept_in_a_graph_and_nowhere_else(self, python):
        """The CPU's own memory is watched while a graph runs, and no longer, however the graph ends."""
        python(
            """
            import gc, torch
            import torch.nn.functional as F
            def allocated():
                gc.collect()
                return torch.accelerator.memory_allocated()
            def ones(*size):
                return torch.ones(*size, device="neuron")
            many = torch.compile(lambda x: (x.expand(1 << 13, 1 << 12) * 2).sum(), backend="neuron", dynamic=False)
            pick = torch.compile(lambda x, i: F.dropout(x, 0.5)[i], backend="neuron", dynamic=False)
            pick(ones(3), torch.tensor([1], device="neuron"))
            before = allocated()
            for fails, error in (
                (lambda: many(ones(1)), torch.OutOfMemoryError),  # 128 MiB of 64
                (lambda: pick(ones(3), torch.tensor([7], device="neuron")), IndexError),
            ):
                try:
                    fails()
                except error as told:
                    assert error is IndexError or "Neuron OOM: requested_size=134217728" in str(told), told
                else:
                    raise AssertionError(error)
                assert torch.empty(1 << 25).nbytes == 1 << 27  # beyond the device's limit, and on the CPU
                assert allocated() == before
                assert (ones(2) + 1).sum().item() == 4
            """,
            {"NEURON_LAB_HBM_GB": "0.0625"},
        )


class TestErrorsInside:
    def test_leave_generators_as_they_were(self, compiled):
        f = compiled(lambda x, i: F.dropout(x, 0.5)[i])
        good, bad = torch.tensor([1], device="neuron"), torch.tensor([7], device="neuron")
        f(ones(3), good)
        torch.manual_seed(2)
        cpu = torch.get_rng_state()
        with pytest.raises(IndexError, match="out of bounds"):
            f(ones(3), bad)
        assert torch.equal(torch.get_rng_state(), cpu)
        assert f(ones(3), good).shape == (1,)

    def test_in_the_backward(self, compiled):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, gradient):
                raise ValueError("no gradient today")

        inner = compiled(lambda x: F.dropout(x, 0.5).sin())
        x, cpu = ones(3).requires_grad_(), torch.get_rng_state()
        with pytest.raises(ValueError, match="no gradient today"):
            inner(Fails.apply(inner(x))).sum().backward()
        assert torch.equal(torch.get_rng_state(), cpu)
        inner(x).sum().backward()
        assert x.grad is not None


class TestThreads:
    def test_run_one_graph(self, compiled):
        layer, x = torch.nn.Linear(32, 32).to("neuron"), ones(4, 32)
        f, want = compiled(layer), layer(x)
        f(x)
        assert not self.together(lambda k: torch.testing.assert_close(f(x), want), times=50)

    def test_run_graphs_that_draw(self, compiled):
        f, x = compiled(lambda x: F.dropout(x, 0.5)), ones(1000)
        f(x)
        assert not self.together(lambda k: self.check_dropout(f(x)), times=50)

    def test_compile_at_once(self, compiled):
        def work(k):
            def function(x):
                return x * (k + 2) + k

            assert torch.equal(compiled(function)(ones(3)), function(ones(3)))

        assert not self.together(work, times=1)

    @needs_two_cores
    def test_each_on_its_core(self, compiled):
        count = min(torch.accelerator.device_count(), 4)
        f = compiled(lambda x: (x @ x).relu())
        for core in range(count):
            f(ones(8, 8, device=f"neuron:{core}"))

        def work(k):
            torch.accelerator.set_device_index(k % count)
            x = ones(8, 8)
            assert f(x).device.index == k % count
            x.requires_grad_()
            f(x).sum().backward()
            assert x.grad.device.index == k % count

        assert not self.together(work, times=20)
        assert torch.accelerator.current_device_index() == 0

    def check_dropout(self, out):
        assert set(out.unique().tolist()) <= {0.0, 2.0} and 300 < (out > 0).sum().item() < 700

    def together(self, work, times: int) -> list[BaseException]:
        errors: list[BaseException] = []
        count = torch.get_num_threads()

        def run(k):
            try:
                torch.set_num_threads(count)  # Dynamo guards on it, and what a new thread has is not always the same
                for _ in range(times):
                    work(k)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
        return errors


class TestRefused:
    def test_a_generators_state_while_a_graph_is_traced(self):
        """What a random operator on a DTensor asks for there."""
        with (
            torch._subclasses.FakeTensorMode(),
            pytest.raises(NotImplementedError, match=r"DTensor .* cannot be compiled"),
        ):
            torch.neuron.get_rng_state()
