"""Gradients on the device are the CPU's, in every mode that PyTorch has for them."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.utils import checkpoint

from .helpers import DEVICE, assert_agrees, assert_same, on


def mlp() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3))


def training(device: str, steps: int = 5, **options) -> tuple[list[float], dict]:
    """Losses and weights of a few steps; the same on every device."""
    model = mlp().to(device)
    x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(2)).to(device), torch.arange(8).to(device) % 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(**options)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


class TestBackward:
    def test_a_training_loop_is_the_cpus(self):
        losses, weights = training(DEVICE)
        expected, expected_weights = training("cpu")
        assert losses[-1] < losses[0]
        assert_same(losses, expected)
        assert_same(weights, expected_weights)

    def test_gradients_live_with_their_leaves(self):
        x = torch.randn(3, device=DEVICE, requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.device == x.device and x.grad.dtype == x.dtype
        assert torch.equal(x.grad, 2 * x.detach())
        (x * 3).sum().backward()
        assert torch.equal(x.grad, 2 * x.detach() + 3)

    def test_a_graph_over_two_devices(self):
        x = torch.randn(4, requires_grad=True)
        y = (x.to(DEVICE) * 2).sigmoid().cpu() * x
        y.sum().backward()
        z = x.detach().requires_grad_()
        ((z * 2).sigmoid() * z).sum().backward()
        assert x.grad.device.type == "cpu"
        assert_same(x.grad, z.grad)

    def test_between_cores(self, second_core):
        x = torch.randn(4, device=DEVICE, requires_grad=True)
        y = (x * 2).to(second_core).exp().to(f"{DEVICE}:0") + x
        y.sum().backward()
        assert x.grad.device == x.device
        assert_same(x.grad, 2 * (2 * x.detach()).exp().cpu() + 1)

    def test_on_a_core_that_is_not_the_current_one(self, second_core):
        model = mlp().to(second_core)
        model(torch.randn(2, 6, device=second_core)).sum().backward()
        assert all(str(p.grad.device) == second_core for p in model.parameters())
        assert torch.accelerator.current_device_index() == 0

    def test_double_backward(self):
        def penalty(x):
            (grad,) = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
            return grad.pow(2).sum()

        assert_agrees(penalty, torch.randn(5, requires_grad=True))

    def test_errors_reach_the_caller(self):
        x = torch.ones(2, device=DEVICE, requires_grad=True)
        y = x.exp().sum()
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1, device=DEVICE).backward()

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                raise ValueError("from backward")

        with pytest.raises(ValueError, match="from backward"):
            Fails.apply(x).sum().backward()

    def test_anomaly_mode_finds_the_nan(self):
        x = torch.zeros(2, device=DEVICE, requires_grad=True)
        with (
            pytest.warns(UserWarning),
            torch.autograd.detect_anomaly(),
            pytest.raises(RuntimeError, match="SqrtBackward0"),
        ):
            (x.sqrt() * 0).sum().backward()

    def test_gradcheck_in_float64(self):
        if not _computes_in_float64():
            pytest.skip("no 64-bit floating point on this device")
        x = torch.randn(3, dtype=torch.float64, device=DEVICE, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: (x.sin() * x.exp()).cumsum(0), (x,))

    def test_from_several_threads(self):
        grads = {}

        def work(k: int) -> None:
            x = torch.full((4,), float(k), device=DEVICE, requires_grad=True)
            for _ in range(20):
                x.grad = None
                (x * x).sum().backward()
            grads[k] = x.grad.tolist()

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        [t.start() for t in threads]
        [t.join(60) for t in threads]
        assert grads == {k: [2.0 * k] * 4 for k in range(4)}


def _computes_in_float64() -> bool:
    try:
        x = torch.full((1,), 1 + 2.0**-40, dtype=torch.float64, device=DEVICE)
        return (x - 1).item() == 2.0**-40
    except (RuntimeError, TypeError):
        return False


class TestHooks:
    def test_tensor_hooks(self):
        x = torch.ones(2, device=DEVICE, requires_grad=True)
        seen = []
        y = x * 2
        y.register_hook(lambda g: g * 10)
        x.register_hook(lambda g: seen.append(g.device.type))
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
        y.sum().backward()
        assert seen == [DEVICE, [20.0, 20.0]]

    def test_module_hooks(self):
        model, seen = mlp().to(DEVICE), []
        model[1].register_forward_pre_hook(lambda m, a: seen.append(("pre", a[0].device.type)))
        model[1].register_forward_hook(lambda m, a, r: r * 0)
        model[0].register_full_backward_hook(lambda m, gi, go: seen.append(("backward", go[0].abs().sum().item())))
        out = model(torch.randn(2, 6, device=DEVICE))
        assert torch.equal(out[0], out[1])
        out.sum().backward()
        assert seen == [("pre", DEVICE), ("backward", 0.0)]

    def test_saved_tensor_hooks(self):
        x = torch.randn(4, device=DEVICE, requires_grad=True)
        packed = []

        def pack(t):
            packed.append(t.device.type)
            return t.cpu()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(DEVICE)):
            y = x.exp().sum()
        y.backward()
        assert packed == [DEVICE]
        assert_same(x.grad, x.detach().exp().cpu())

    def test_saving_on_the_cpu(self):
        x = torch.randn(4, device=DEVICE, requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            y = (x.exp() * x).sum()
        y.backward()
        assert_same(x.grad, (x.detach().exp() * (1 + x.detach())).cpu())


class TestCheckpoint:
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_gradients_and_random_numbers_are_repeated(self, reentrant):
        def run(device: str, recompute: bool) -> list[torch.Tensor]:
            model = torch.nn.Sequential(mlp(), torch.nn.Dropout(0.5)).to(device)
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(3)).to(device).requires_grad_()
            torch.manual_seed(11)
            out = checkpoint.checkpoint(model, x, use_reentrant=reentrant) if recompute else model(x)
            out.square().sum().backward()
            return [x.grad.cpu(), *(p.grad.cpu() for p in model.parameters())]

        plain = run(DEVICE, False)
        assert_same(run(DEVICE, True), plain)
        assert plain[0].abs().sum() > 0

    def test_selective(self):
        def policy(ctx, op, *args, **kwargs):
            keep = op == torch.ops.aten.mm.default or op == torch.ops.aten.addmm.default
            return checkpoint.CheckpointPolicy.MUST_SAVE if keep else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

        model = mlp()

        def run(x):
            return checkpoint.checkpoint(
                model.to(x.device),
                x,
                use_reentrant=False,
                context_fn=lambda: checkpoint.create_selective_checkpoint_contexts(policy),
            )

        assert_agrees(run, torch.randn(4, 6, requires_grad=True))


class TestFunctional:
    def test_grad_and_value(self):
        assert_agrees(lambda x: list(func.grad_and_value(lambda v: (v.sin() * v).sum())(x)), torch.randn(4))
        assert_agrees(func.grad(func.grad(lambda v: v**3)), torch.tensor(2.0))

    def test_jacobians_and_hessian(self):
        f = lambda v: torch.stack([v.prod(), v.sin().sum(), v[0] * v[1]])  # noqa: E731
        x = torch.randn(3)
        assert_agrees(func.jacrev(f), x)
        assert_agrees(func.jacfwd(f), x)
        assert_agrees(func.hessian(lambda v: v.exp().prod()), x)
        assert_agrees(lambda v: torch.autograd.functional.jacobian(f, v), x)

    def test_jvp_and_vjp(self):
        x, t = torch.randn(4), torch.randn(4)
        assert_agrees(lambda x, t: list(func.jvp(lambda v: v.tanh() * v, (x,), (t,))), x, t)
        assert_agrees(lambda x, t: func.vjp(lambda v: v.tanh() * v, x)[1](t)[0], x, t)
        assert_agrees(lambda x, t: func.linearize(lambda v: v.tanh(), x)[1](t), x, t)

    def test_forward_mode(self):
        def dual(x, t):
            with forward_ad.dual_level():
                y = torch.nn.functional.gelu(forward_ad.make_dual(x, t) @ x.mT).softmax(-1)
                return list(forward_ad.unpack_dual(y))

        assert_agrees(dual, torch.randn(3, 4), torch.randn(3, 4))

    def test_vmap(self):
        x, y = torch.randn(3, 4, 5), torch.randn(3, 5)
        assert_agrees(func.vmap(torch.mv), x, y)
        assert_agrees(func.vmap(lambda a: a.sort().values.cumsum(0), in_dims=1, out_dims=1), torch.randn(6, 3))
        assert_agrees(func.vmap(func.vmap(torch.dot)), x, x.flip(0))
        assert_agrees(lambda x: func.vmap(lambda r: r[r.argmax()] + r.norm())(x), torch.randn(4, 3))
        assert_agrees(
            func.vmap(lambda m: torch.linalg.solve(m @ m.mT + torch.eye(4, device=m.device), m)), torch.randn(2, 4, 4)
        )

    def test_vmap_with_random_numbers(self):
        x = torch.zeros(4, 3, device=DEVICE)
        different = func.vmap(lambda v: v + torch.rand_like(v), randomness="different")(x)
        same = func.vmap(lambda v: v + torch.rand_like(v), randomness="same")(x)
        assert len({tuple(row) for row in different.tolist()}) == 4
        assert len({tuple(row) for row in same.tolist()}) == 1

    def test_per_sample_gradients_of_a_module(self):
        def per_sample(x, y):
            model = mlp().to(x.device)
            parameters = {k: v.detach() for k, v in model.named_parameters()}

            def loss(p, x, y):
                return torch.nn.functional.cross_entropy(func.functional_call(model, p, (x[None],)), y[None])

            return func.vmap(func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)

        x, y = torch.randn(5, 6), torch.arange(5) % 3
        assert_same(per_sample(x.to(DEVICE), y.to(DEVICE)), per_sample(x, y))

    def test_functionalize(self):
        def write(x):
            y = x.clone()
            y[0].mul_(3)
            y.t_()
            return y

        assert_agrees(func.functionalize(write), torch.randn(2, 3))


class TestCustomFunctions:
    def test_forward_backward_and_jvp(self):
        class Cube(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x):
                return x**3

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)
                ctx.save_for_forward(*inputs)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 3 * x**2

            @staticmethod
            def jvp(ctx, tangent):
                (x,) = ctx.saved_tensors
                return tangent * 3 * x**2

        x = torch.randn(4)
        assert_agrees(Cube.apply, x.clone().requires_grad_())
        assert_agrees(lambda x: func.vmap(func.grad(Cube.apply))(x), x)
        assert_agrees(lambda x: list(func.jvp(Cube.apply, (x,), (torch.ones_like(x),))), x)

    def test_custom_operators(self):
        @torch.library.custom_op("conformance::scaled", mutates_args=())
        def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
            return x * by

        scaled.register_autograd(
            lambda ctx, grad: (grad * ctx.by, None),
            setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
        )

        @torch.library.custom_op("conformance::fill", mutates_args={"x"})
        def fill(x: torch.Tensor, value: float) -> None:
            x.fill_(value)

        assert_agrees(lambda x: scaled(x, 2.5), torch.randn(3, requires_grad=True))
        x = torch.zeros(3, device=DEVICE)
        before = x._version
        fill(x[1:], 4.0)
        assert x.tolist() == [0, 4, 4] and x._version > before

    def test_an_operator_with_a_cpu_kernel_only_falls_back(self):
        library = torch.library.Library("conformance_cpu", "DEF")
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x + x, "CPU")
        doubled = torch.ops.conformance_cpu.double(torch.ones(2, device=DEVICE))
        assert doubled.device.type == DEVICE and doubled.tolist() == [2, 2]


def test_leaves_are_moved_as_leaves():
    """The helper of these tests keeps its promise."""
    x = torch.randn(2, requires_grad=True)
    assert on(DEVICE, x).is_leaf and on(DEVICE, x).requires_grad
