"""Parts of PyTorch inside a compiled graph: autocast, torch.func, control flow, export, own operators, ranks."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch_neuronx
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics


def ones(*size: int, **options) -> torch.Tensor:
    return torch.ones(*size, device="neuron", **options)


class TestAutocast:
    @pytest.mark.parametrize("inside", [True, False])
    def test_gives_what_eager_mode_gives(self, compiled, inside):
        torch.manual_seed(0)
        layer, x = torch.nn.Linear(8, 8).to("neuron"), torch.randn(2, 8).to("neuron")

        def function(x):
            with torch.autocast("neuron", dtype=torch.bfloat16):
                return layer(x)

        want = function(x)
        if inside:
            got = compiled(function)(x)
        else:
            with torch.autocast("neuron", dtype=torch.bfloat16):
                got = compiled(layer)(x)
        assert got.dtype == torch.bfloat16 and torch.equal(got, want)
        got.float().pow(2).sum().backward()
        assert layer.weight.grad.dtype == torch.float32

    def test_is_part_of_the_guards(self, compiled):
        f = compiled(torch.nn.Linear(8, 8).to("neuron"))
        with torch.autocast("neuron", dtype=torch.bfloat16):
            assert f(ones(2, 8)).dtype == torch.bfloat16
        assert f(ones(2, 8)).dtype == torch.float32


class TestFunc:
    @pytest.mark.parametrize(
        "transform",
        [
            torch.func.grad(lambda x: (x.sin() * x).sum()),
            torch.func.vmap(lambda x: x * x.sum()),
            torch.func.jacrev(lambda x: x.sin().sum(0)),
            torch.func.jacfwd(lambda x: x.sin().sum(0)),
            torch.func.hessian(lambda x: x.sin().sum()),
            lambda x: torch.func.jvp(torch.cos, (x,), (torch.ones_like(x),))[1],
            lambda x: torch.func.vjp(torch.cos, x)[1](torch.ones_like(x))[0],
        ],
        ids=["grad", "vmap", "jacrev", "jacfwd", "hessian", "jvp", "vjp"],
    )
    def test_transforms(self, compiled, transform):
        x = torch.linspace(0, 1, 6).view(2, 3)
        got = compiled(transform)(x.to("neuron"))
        assert got.device.type == "neuron"
        torch.testing.assert_close(got.cpu(), transform(x))


class TestControlFlow:
    def test_cond(self, compiled):
        f = compiled(lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)))
        assert f(ones(2)).tolist() == [2, 2] and f(-ones(2)).tolist() == [-2, -2]
        assert len(get_dynamo_metrics()["graphs"]) == 1

    def test_while_loop(self, compiled):
        from torch._higher_order_ops import while_loop

        start = torch.tensor(0, device="neuron")
        f = compiled(lambda i, x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (i, x)))
        count, x = f(start, ones(2))
        assert count.item() == 3 and x.tolist() == [8, 8] and start.item() == 0

    def test_scan(self, compiled):
        from torch._higher_order_ops import scan

        f = compiled(lambda x: scan(lambda c, a: (c + a, c + a), torch.zeros(2, device="neuron"), x))
        last, steps = f(ones(3, 2))
        assert last.tolist() == [3, 3] and steps[:, 0].tolist() == [1, 2, 3] and steps.device.type == "neuron"

    def test_a_break_makes_two_graphs(self, compiled):
        def function(x):
            x = x * 2
            torch._dynamo.graph_break()
            return x + 1

        assert compiled(function, fullgraph=False)(ones(2)).tolist() == [3, 3]
        assert len(get_dynamo_metrics()["graphs"]) == 2


class TestTraining:
    def test_a_whole_step_with_its_optimizer(self, compiled):
        def losses(device, wrap):
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 4).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

            def step(x):
                optimizer.zero_grad()
                loss = model(x).pow(2).sum()
                loss.backward()
                optimizer.step()
                return loss

            step = wrap(step)
            return [step(torch.ones(2, 4, device=device)).item() for _ in range(5)]

        want = losses("cpu", lambda step: step)
        got = losses("neuron", lambda step: compiled(step, fullgraph=False))
        assert got == pytest.approx(want, rel=1e-4) and got[-1] < got[0]

    def test_compiled_autograd(self, compiled):
        layer = torch.nn.Linear(4, 4).to("neuron")
        with torch._dynamo.config.patch(compiled_autograd=True):
            compiled(lambda x: layer(x).sum())(ones(2, 4)).backward()
        assert layer.weight.grad.tolist() == [[2.0] * 4] * 4


class TestExport:
    def test_and_compile_what_was_exported(self, compiled):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to("neuron").eval()
        x = torch.linspace(0, 1, 6).view(2, 3).to("neuron")
        program = torch.export.export(model, (x,))
        torch.testing.assert_close(program.module()(x), model(x))
        torch.testing.assert_close(compiled(program.module(), fullgraph=False)(x), model(x))


@pytest.fixture(scope="module")
def double():
    @torch_neuronx.nki_op("neuron_lab_tests::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        assert x.device.type == "neuron"
        out = torch.empty(x.shape, dtype=x.dtype, device="neuron")
        out.copy_(x)
        return out * 2

    double.register_autograd(lambda ctx, gradient: gradient * 2)
    return double


class TestOwnOperators:
    """``nki_op``: device tensors in the body, eager and in a graph."""

    def test_eager_and_compiled(self, compiled, double):
        assert double(ones(2)).tolist() == [2, 2]
        f = compiled(lambda x: double(x.sin() * 0 + x) + 1)
        assert f(ones(2)).tolist() == [3, 3]
        (graph,) = get_dynamo_metrics()["graphs"]  # one node of one graph, no break
        assert graph["nodes"] >= 2

    def test_gradients(self, compiled, double):
        x = ones(3).requires_grad_()
        compiled(lambda x: double(x).sum())(x).backward()
        assert x.grad.tolist() == [2, 2, 2]

    def test_passes_pytorchs_own_check(self, double):
        found = torch.library.opcheck(double, (ones(2),))
        assert set(found.values()) == {"SUCCESS"}

    def test_that_change_their_arguments(self, compiled):
        @torch_neuronx.nki_op("neuron_lab_tests::increment", mutates_args={"x"})
        def increment(x: torch.Tensor) -> None:
            x.add_(1)

        def function(x):
            increment(x)
            return x * 2

        x = ones(2)
        assert compiled(function)(x).tolist() == [4, 4] and x.tolist() == [2, 2]
        increment(x)
        assert x.tolist() == [3, 3]

    def test_with_several_results_and_arguments_that_are_no_tensors(self, compiled):
        @torch_neuronx.nki_op("neuron_lab_tests::split", mutates_args=())
        def split(x: torch.Tensor, parts: list[torch.Tensor], at: int, scale: float = 2.0) -> list[torch.Tensor]:
            return [x[:at] * scale, x[at:] * scale, parts[0] + parts[1]]

        f = compiled(lambda x, y: split(x, [y, y], 1))
        one, two, three = f(ones(3), ones(2))
        assert (one.tolist(), two.tolist(), three.tolist()) == ([2], [2, 2], [2, 2])
        assert three.device.type == "neuron"

    def test_memory_is_counted(self, compiled, double):
        import gc

        f, x = compiled(lambda x: double(x) + 1), ones(256, 256)
        f(x)
        gc.collect()
        before = torch.accelerator.memory_allocated()
        kept = f(x)
        assert torch.accelerator.memory_allocated() == before + kept.nbytes
        del kept
        assert torch.accelerator.memory_allocated() == before


RANKS = """
import os
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("neuron")
rank = dist.get_rank()
import torch.distributed._functional_collectives as funcol
group = dist.group.WORLD

@torch.compile(backend="neuron", fullgraph=True, dynamic=False)
def step(x):
    total = funcol.all_reduce(x * 2, "sum", group)
    gathered = funcol.all_gather_tensor(x, 0, group)
    part = funcol.reduce_scatter_tensor(gathered, "sum", 0, group)
    return total, gathered, part + 1

for _ in range(2):
    total, gathered, part = step(torch.full((2,), float(rank + 1), device="neuron"))
assert total.tolist() == [6, 6] and gathered.tolist() == [1, 1, 2, 2], (total, gathered)
assert part.tolist() == [2 * (rank + 1) + 1] * 2, part
assert {t.device.index for t in (total, gathered, part)} == {rank}
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics
assert len(get_dynamo_metrics()["graphs"]) == 1

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False).to("neuron"))
torch.nn.init.ones_(model.module.weight)
torch.compile(model, backend="neuron", dynamic=False)(torch.full((1, 2), float(rank), device="neuron")).sum().backward()
assert model.module.weight.grad.tolist() == [[0.5, 0.5]], model.module.weight.grad  # the mean over the ranks
dist.destroy_process_group()
print("done", rank)
"""


@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two cores")
def test_collectives_in_a_graph_of_two_ranks(python):
    (script,) = [word for word in python.command(RANKS) if word.endswith(".py")]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = python(f"import subprocess, sys; sys.exit(subprocess.run({[*start, script]!r}).returncode)", timeout=300)
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("done")) == ["done 0", "done 1"]
    assert os.path.exists(script)
