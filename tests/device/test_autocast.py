"""torch.autocast("neuron"): PyTorch's standard lists, as the backend documents them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from .helpers import DEVICE, assert_same

LOWER = {
    "mm": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x, x[0]),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "mv": lambda x: x.mv(x[0]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], x[None, None]),
    "sdpa": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x, x]),
    "rnn_cell": lambda x: nn.functional.linear(x, x) + 0,
}
FULL = {
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "pow": lambda x: x**2,
    "rsqrt": lambda x: x.abs().rsqrt(),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "sum": torch.sum,
    "sum_dim": lambda x: x.sum(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "prod": torch.prod,
    "norm": torch.norm,
    "vector_norm": torch.linalg.vector_norm,
    "mse_loss": lambda x: F.mse_loss(x, x * 0),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(8, device=x.device)),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(1)),
    "cdist": lambda x: torch.cdist(x, x * 2),
    "softplus": F.softplus,
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "logsumexp": lambda x: x.logsumexp(-1),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 0),
}
UNCHANGED = {"add": lambda x: x + x, "relu": torch.relu, "cat": lambda x: torch.cat([x, x]), "max": torch.max}
TYPES = [torch.bfloat16, torch.float16]


def square(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)


class TestLists:
    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    @pytest.mark.parametrize("name", LOWER)
    def test_matrix_products_run_in_the_lower_precision(self, name, dtype):
        x = square()
        with torch.autocast(DEVICE, dtype=dtype):
            result = LOWER[name](x)
        assert result.dtype == dtype and result.device.type == DEVICE
        assert_same(result, LOWER[name](x.to(dtype)).cpu())
        assert LOWER[name](x).dtype == torch.float32

    @pytest.mark.parametrize("dtype", TYPES, ids=str)
    @pytest.mark.parametrize("name", FULL)
    def test_range_and_precision_run_in_float32(self, name, dtype):
        low = square(dtype)
        with torch.autocast(DEVICE, dtype=dtype):
            result = FULL[name](low)
        assert result.dtype == torch.float32
        # These two ask for an intermediate value in the dtype of their input, on every device.
        tolerance = {"rtol": 0.01, "atol": 0.01} if name in ("cross_entropy", "bce_with_logits") else {}
        assert_same(result, FULL[name](low.float()).cpu(), **tolerance)

    @pytest.mark.parametrize("name", UNCHANGED)
    def test_the_rest_follows_its_inputs(self, name):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert UNCHANGED[name](square()).dtype == torch.float32
            assert UNCHANGED[name](square(torch.bfloat16)).dtype == torch.bfloat16

    def test_mixed_inputs_are_promoted_to_the_widest(self):
        x, low = square(), square(torch.bfloat16)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert torch.addcmul(x, low, low).dtype == torch.float32
            assert torch.cat([x, low]).dtype == torch.float32
            assert torch.cross(x[:, :3], low[:, :3], dim=1).dtype == torch.float32
            x.index_put((torch.tensor([0], device=DEVICE),), low[:1].float())
            assert (
                torch.scatter_add(low, 0, torch.zeros(8, 8, dtype=torch.long, device=DEVICE), x).dtype == torch.float32
            )

    def test_integers_and_float64_stay(self):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert (
                torch.ones(2, 2, dtype=torch.int64, device=DEVICE) @ torch.ones(2, 2, dtype=torch.int64, device=DEVICE)
            ).dtype == torch.int64
            assert torch.ones(2, dtype=torch.float64, device=DEVICE).exp().dtype == torch.float64

    def test_an_explicit_dtype_wins(self):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert square().softmax(-1, dtype=torch.bfloat16).dtype == torch.bfloat16
            assert square().sum(dtype=torch.bfloat16).dtype == torch.bfloat16

    def test_a_loss_that_underflows_is_refused(self):
        x = square().sigmoid()
        with torch.autocast(DEVICE, dtype=torch.bfloat16), pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, x)
        assert F.binary_cross_entropy(x, x).dtype == torch.float32


class TestContext:
    def test_on_off_and_nested(self):
        x = square()
        assert not torch.is_autocast_enabled(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert torch.is_autocast_enabled(DEVICE) and torch.get_autocast_dtype(DEVICE) == torch.bfloat16
            assert (x @ x).dtype == torch.bfloat16
            with torch.autocast(DEVICE, enabled=False):
                assert (x @ x).dtype == torch.float32
                with torch.autocast(DEVICE, dtype=torch.float16):
                    assert (x @ x).dtype == torch.float16
            assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).dtype == torch.float32

    def test_an_error_inside_ends_it(self):
        with pytest.raises(ValueError, match="inside"), torch.autocast(DEVICE, dtype=torch.bfloat16):
            raise ValueError("inside")
        assert not torch.is_autocast_enabled(DEVICE)

    def test_as_a_decorator(self):
        @torch.autocast(DEVICE, dtype=torch.bfloat16)
        def product(x):
            return x @ x

        assert product(square()).dtype == torch.bfloat16

    def test_the_cpus_autocast_is_another(self):
        x = torch.randn(4, 4)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (square() @ square()).dtype == torch.float32 and (x @ x).dtype == torch.bfloat16

    def test_casts_of_weights_are_cached_inside_only(self):
        weight = torch.randn(64, 64, device=DEVICE, requires_grad=True)
        x = torch.randn(64, 64, device=DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            torch.mm(x, weight)
            inside = torch.accelerator.memory_allocated()
            torch.mm(x, weight)
            assert torch.accelerator.memory_allocated() == inside
        weight.data.fill_(0)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert torch.mm(x, weight).abs().sum().item() == 0  # not the cast of before
        with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
            torch.mm(x, weight)
            weight.data.fill_(1)
            assert torch.mm(x, weight).abs().sum().item() > 0

    def test_gradients_come_back_in_the_weights_dtype(self):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            out = model(square())
            loss = F.cross_entropy(out, torch.arange(8, device=DEVICE) % 4)
        assert out.dtype == torch.bfloat16 and loss.dtype == torch.float32
        loss.backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())

    def test_a_dtype_that_makes_no_sense_is_turned_down_in_words(self):
        with pytest.warns(UserWarning, match="bfloat16"), torch.autocast(DEVICE, dtype=torch.int64):
            assert (square() @ square()).dtype == torch.float32


class TestTraining:
    def run(self, device: str, dtype: torch.dtype, scale: bool) -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=scale)
        x, y = square().to(device), torch.arange(8, device=device) % 4
        losses = []
        for _ in range(5):
            with torch.autocast(device, dtype=dtype):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses

    def test_bfloat16_trains_as_on_the_cpu(self):
        losses = self.run(DEVICE, torch.bfloat16, scale=False)
        assert losses[-1] < losses[0] * 0.8
        assert_same(losses, self.run("cpu", torch.bfloat16, scale=False), rtol=0.02, atol=0.02)

    def test_float16_trains_with_a_scaler(self):
        losses = self.run(DEVICE, torch.float16, scale=True)
        assert losses[-1] < losses[0] * 0.8

    def test_the_scaler_skips_a_step_with_infinities(self):
        weight = nn.Parameter(torch.ones(2, device=DEVICE))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)
        scaler.scale((weight * torch.tensor([1.0, float("inf")], device=DEVICE)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == [1, 1] and scaler.get_scale() == 2.0
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        assert weight.grad.tolist() == [1, 1]
        scaler.step(optimizer)
        assert weight.tolist() == [0, 0]
