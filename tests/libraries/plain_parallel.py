"""Data, tensor and pipeline parallel training of a small network against one process. Run by torchrun on 2 ranks."""

from __future__ import annotations

import copy
import json
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore", category=FutureWarning)
torch.set_num_threads(1)
dist.init_process_group("neuron")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
HERE = torch.device("neuron", torch.accelerator.current_device_index())
BATCH, WIDTH, STEPS = 8, 16, 3
done: list[str] = []


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.head = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), nn.Linear(WIDTH, 4)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x + self.down(F.gelu(self.up(x)))))


torch.manual_seed(1)
INPUTS, TARGETS = torch.randn(STEPS, BATCH, WIDTH), torch.randint(4, (STEPS, BATCH))


def train(model: nn.Module, part: slice, device: torch.device, call=None, **settings) -> list[torch.Tensor]:
    """A few steps of AdamW on a part of every batch; the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **settings)
    call = model if call is None else call
    losses = []
    for inputs, targets in zip(INPUTS, TARGETS, strict=True):
        loss = F.cross_entropy(call(inputs[part].to(device)), targets[part].to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def mean_over_ranks(losses: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(losses)
    dist.all_reduce(stacked, dist.ReduceOp.AVG)
    return stacked.cpu()


def same(found: nn.Module, expected: nn.Module, what: str) -> None:
    reference = dict(expected.named_parameters())
    for name, weight in found.named_parameters():
        full = weight.full_tensor() if isinstance(weight, DTensor) else weight
        name = name.removeprefix("module.").removeprefix("_orig_mod.")
        torch.testing.assert_close(
            full.cpu(), reference[name], rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{what} {n}: {t}"
        )
    done.append(what)


ALONE = Network()
ALONE_LOSSES = torch.stack(train(ALONE, slice(None), torch.device("cpu")))
MINE = slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)
mesh = init_device_mesh("neuron", (SIZE,))
assert mesh.device_type == "neuron" and HERE.index == RANK


def check_ddp(compiled: bool) -> None:
    model = DistributedDataParallel(Network().to(HERE), device_ids=[HERE.index])
    call = torch.compile(model, backend="neuron", dynamic=False) if compiled else model
    losses = mean_over_ranks(train(model, MINE, HERE, call))
    what = "DDP compiled" if compiled else "DDP"
    torch.testing.assert_close(losses, ALONE_LOSSES, rtol=1e-4, atol=1e-5)
    same(model, ALONE, what)


def check_ddp_accumulation() -> None:
    """Two half batches, the first without communication: the sum is the whole."""
    model = DistributedDataParallel(Network().to(HERE))
    halves = INPUTS[0][MINE].chunk(2), TARGETS[0][MINE].chunk(2)
    with model.no_sync():
        (F.cross_entropy(model(halves[0][0].to(HERE)), halves[1][0].to(HERE)) / 2).backward()
    (F.cross_entropy(model(halves[0][1].to(HERE)), halves[1][1].to(HERE)) / 2).backward()
    alone = Network()
    F.cross_entropy(alone(INPUTS[0]), TARGETS[0]).backward()
    for found, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-6)
    done.append("DDP no_sync")


def check_fsdp2(compiled: bool) -> None:
    model = Network().to(HERE)
    for part in (model.up, model.down, model.head):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert isinstance(model.up.weight, DTensor) and model.up.weight.placements == (Shard(0),)
    assert model.up.weight.to_local().shape == (32 // SIZE, WIDTH)
    if compiled:
        model.up.compile(backend="neuron", dynamic=False)
        model.down.compile(backend="neuron", dynamic=False)
    losses = mean_over_ranks(train(model, MINE, HERE))
    torch.testing.assert_close(losses, ALONE_LOSSES, rtol=1e-4, atol=1e-5)
    same(model, ALONE, "FSDP2 compiled by block" if compiled else "FSDP2")


def check_tensor_parallel(compiled: bool) -> None:
    model = parallelize_module(Network().to(HERE), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    assert model.up.weight.to_local().shape == (32 // SIZE, WIDTH)
    assert model.down.weight.to_local().shape == (WIDTH, 32 // SIZE)
    call = torch.compile(model, backend="neuron", dynamic=False) if compiled else model
    # one weight at a time: plain tensors and DTensors in one list are refused by PyTorch, on any accelerator
    losses = torch.stack(train(model, slice(None), HERE, call, foreach=False)).cpu()
    torch.testing.assert_close(losses, ALONE_LOSSES, rtol=1e-4, atol=1e-5)
    same(model, ALONE, "DTensor TP compiled" if compiled else "DTensor TP")


def check_dtensor() -> None:
    torch.manual_seed(2)
    left, right = torch.randn(4, 6), torch.randn(6, 8)
    rows = distribute_tensor(left, mesh, [Shard(0)])
    columns = distribute_tensor(right, mesh, [Shard(1)])
    product = rows.redistribute(mesh, [Replicate()]) @ columns
    assert product.placements == (Shard(1),)
    torch.testing.assert_close(product.full_tensor().cpu(), left @ right)
    inner = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    torch.testing.assert_close(inner.full_tensor().cpu(), left @ right, rtol=1e-5, atol=1e-5)  # a partial sum, reduced
    torch.testing.assert_close(
        product.redistribute(mesh, [Shard(1)]).to_local().cpu(), (left @ right).chunk(SIZE, 1)[RANK]
    )
    done.append("DTensor")


def check_pipeline() -> None:
    """The first rank holds the first half; activations go forward and gradients back."""
    whole = copy.deepcopy(Network())
    x = INPUTS[0]
    expected = F.cross_entropy(whole(x), TARGETS[0])
    expected.backward()
    mine = Network().to(HERE)
    if RANK == 0:
        middle = x.to(HERE) + mine.down(F.gelu(mine.up(x.to(HERE))))
        dist.send(middle.detach(), 1)
        gradient = torch.empty_like(middle)
        dist.recv(gradient, 1)
        middle.backward(gradient)
        names = ("up", "down")
    else:
        middle = torch.empty(BATCH, WIDTH, device=HERE)
        dist.recv(middle, 0)
        middle.requires_grad_()
        loss = F.cross_entropy(mine.head(mine.norm(middle)), TARGETS[0].to(HERE))
        loss.backward()
        dist.send(middle.grad, 0)
        torch.testing.assert_close(loss.cpu(), expected)
        names = ("norm", "head")
    for name in names:
        for found, wanted in zip(getattr(mine, name).parameters(), getattr(whole, name).parameters(), strict=True):
            torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-6)
    done.append("pipeline")


def check_functional_collectives() -> None:
    """Collectives inside a compiled function, as the documentation asks for them."""
    group = list(range(SIZE))

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = functional.all_reduce(x * 2, "sum", group)
        gathered = functional.all_gather_tensor(x + 1, 0, group)
        part = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
        return total + 1, gathered * 3, part

    def by_hand(rank: int) -> torch.Tensor:
        return torch.arange(6.0).reshape(2, 3) + 10 * rank

    from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics

    before = len(get_dynamo_metrics()["graphs"])
    compiled = torch.compile(step, backend="neuron", fullgraph=True, dynamic=False)
    for _ in range(2):
        total, gathered, part = compiled(by_hand(RANK).to(HERE))
    assert len(get_dynamo_metrics()["graphs"]) == before + 1
    everybody = [by_hand(rank) for rank in range(SIZE)]
    torch.testing.assert_close(total.cpu(), 2 * sum(everybody) + 1)
    torch.testing.assert_close(gathered.cpu(), 3 * (torch.cat(everybody) + 1))
    torch.testing.assert_close(part.cpu(), SIZE * (by_hand(RANK) + 1))

    # the same in the backward: the gradient of a gathered tensor is reduced and scattered
    weight = (torch.ones(3) * (1 + RANK)).to(HERE).requires_grad_()
    loss = torch.compile(
        lambda w: (functional.all_gather_tensor_autograd(w * w, 0, group) * (RANK + 1)).sum(),
        backend="neuron", fullgraph=True, dynamic=False,
    )  # fmt: skip
    loss(weight).backward()
    torch.testing.assert_close(weight.grad.cpu(), torch.full((3,), 2.0 * (1 + RANK) * sum(range(1, SIZE + 1))))
    done.append("functional collectives compiled")


check_dtensor()
check_ddp(compiled=False)
check_ddp(compiled=True)
check_ddp_accumulation()
check_fsdp2(compiled=False)
check_fsdp2(compiled=True)
check_tensor_parallel(compiled=False)
check_tensor_parallel(compiled=True)
check_pipeline()
check_functional_collectives()
dist.barrier()
dist.destroy_process_group()
if RANK == 0:
    print(json.dumps({"ranks": SIZE, "done": done}))
