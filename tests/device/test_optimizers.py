"""Optimizers: in every implementation that they offer, the steps are the CPU's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from .helpers import DEVICE, assert_same

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
}
IMPLEMENTATIONS = [{}, {"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}]
OTHERS = {
    "Adagrad": {},
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.5},
    "Rprop": {},
    "ASGD": {},
    "LBFGS": {"max_iter": 3},
    "Muon": {},
}


def model() -> nn.Sequential:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def steps(net: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5) -> list[float]:
    device = next(net.parameters()).device
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1)).to(device)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(count):
        losses.append(float(optimizer.step(closure)))
    return losses


def trained(device: str, name: str, options: dict) -> tuple[list[float], dict, dict]:
    net = model().to(device)
    parameters = [p for p in net.parameters() if p.dim() == 2] if name == "Muon" else net.parameters()
    optimizer = getattr(torch.optim, name)(parameters, **options)
    losses = steps(net, optimizer)
    return losses, dict(net.state_dict()), optimizer.state_dict()["state"]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda o: next(iter(o), "default"))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_implementation_steps_as_the_cpu_does(name, implementation):
    if name == "SGD" and "capturable" in implementation:
        pytest.skip("SGD has no such option")
    losses, weights, state = trained(DEVICE, name, OPTIMIZERS[name] | implementation)
    expected = trained("cpu", name, OPTIMIZERS[name] | {"foreach": False})
    assert losses[-1] < losses[0]
    assert_same(losses, expected[0], rtol=1e-4, atol=1e-5)
    assert_same(weights, expected[1], rtol=1e-4, atol=1e-5)
    assert all(
        t.device.type == DEVICE for s in state.values() for n, t in s.items() if n not in ("step",) and t is not None
    )


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_optimizers(name):
    losses, weights, _ = trained(DEVICE, name, OTHERS[name])
    expected = trained("cpu", name, OTHERS[name])
    assert losses[-1] < losses[0]
    assert_same(losses, expected[0], rtol=1e-4, atol=1e-5)
    assert_same(weights, expected[1], rtol=1e-3, atol=1e-5)


def test_a_state_made_on_the_cpu_goes_on_on_the_device():
    here = model()
    optimizer = torch.optim.AdamW(here.parameters(), lr=0.01)
    steps(here, optimizer)
    there = copy.deepcopy(here).to(DEVICE)
    moved = torch.optim.AdamW(there.parameters(), lr=0.01)
    moved.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(s["exp_avg"].device.type == DEVICE for s in moved.state.values())
    assert_same(steps(there, moved), steps(here, optimizer), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("foreach", [False, True])
def test_clipping_gradients(foreach):
    norms = {}
    for device in (DEVICE, "cpu"):
        net = model().to(device)
        net(torch.ones(3, 4, device=device)).sum().mul(100).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=foreach)
        after = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in net.parameters()]))
        norms[device] = [norm.cpu(), after.cpu()]
    assert norms["cpu"][0] > 10
    assert_same(norms[DEVICE], norms["cpu"])
    assert abs(norms[DEVICE][1].item() - 1) < 1e-4


def test_lr_schedulers_with_a_rate_on_the_device():
    net = model().to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1, device=DEVICE), capturable=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    steps(net, optimizer, 1)
    scheduler.step()
    assert abs(float(optimizer.param_groups[0]["lr"]) - 0.05) < 1e-7


def test_averaged_models():
    net = model().to(DEVICE)
    averaged = torch.optim.swa_utils.AveragedModel(net, device=DEVICE)
    before = net[0].weight.detach().clone()
    averaged.update_parameters(net)
    net[0].weight.data.add_(2)
    averaged.update_parameters(net)
    assert_same(averaged.module[0].weight, (before + 1).cpu())


def test_gradient_accumulation_is_one_large_batch():
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    whole, parts = model().to(DEVICE), model().to(DEVICE)
    whole(x).mean().backward()
    for part in x.chunk(4):
        (parts(part).mean() / 4).backward()
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert_same(a.grad, b.grad.cpu(), rtol=1e-5, atol=1e-6)
