"""Checkpoints, mixed precision, sequence parallelism, pipeline schedules, random numbers. Run by torchrun on 2 ranks.

Usage: plain_sharding.py FOLDER [random]
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as dtensor
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

warnings.filterwarnings("ignore", category=FutureWarning)
torch.set_num_threads(1)
folder = Path(sys.argv[1])
dist.init_process_group("neuron")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
HERE = torch.device("neuron", torch.accelerator.current_device_index())
mesh = init_device_mesh("neuron", (SIZE,))
done: list[str] = []


class Network(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.up, self.down, self.head = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(F.gelu(self.up(self.norm(x)))))


def check_checkpoint() -> None:
    """Saved in parts by all ranks, loaded into another sharded model, and gathered on the first rank."""
    saved, loaded = Network(seed=0).to(HERE), Network(seed=1).to(HERE)
    original = {name: weight.cpu() for name, weight in Network(seed=0).state_dict().items()}
    fully_shard(saved)
    fully_shard(loaded)
    dcp.save(saved.state_dict(), checkpoint_id=folder / "parts")
    state = loaded.state_dict()
    dcp.load(state, checkpoint_id=folder / "parts")
    loaded.load_state_dict(state)
    whole = get_model_state_dict(loaded, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert bool(whole) == (RANK == 0)
    for name, weight in whole.items():
        assert weight.device.type == "cpu" and weight.equal(original[name]), name
    done.append("distributed checkpoint")


def check_mixed_precision() -> None:
    """Weights gathered in bfloat16, gradients reduced in float32, the norm of all of them clipped."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = Network().to(HERE)
    fully_shard(model, mp_policy=policy)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(RANK))
    out = model(x.to(HERE))
    assert out.dtype == torch.bfloat16
    (out.float() ** 2).sum().backward()
    assert model.up.weight.grad.dtype == torch.float32
    alone = Network()
    for rank in range(SIZE):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
        ((alone(x) ** 2).sum() / SIZE).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5).full_tensor()
    expected = nn.utils.clip_grad_norm_(alone.parameters(), max_norm=0.5)
    torch.testing.assert_close(norm.cpu(), expected, rtol=5e-2, atol=0)
    torch.testing.assert_close(model.up.weight.grad.full_tensor().cpu(), alone.up.weight.grad, rtol=0.1, atol=5e-3)
    done.append("mixed precision")


def check_sequence_parallel() -> None:
    """Norms on parts of the sequence, the loss on parts of the vocabulary."""
    alone = Network()
    model = copy.deepcopy(alone).to(HERE)
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
        "head": ColwiseParallel(use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    torch.manual_seed(3)
    x, targets = torch.randn(2, 4, 8), torch.randint(10, (2, 4))
    expected = F.cross_entropy(alone(x).flatten(0, 1), targets.flatten())
    expected.backward()
    with loss_parallel():
        logits = model(x.chunk(SIZE, 1)[RANK].to(HERE))
        assert isinstance(logits, DTensor) and logits.to_local().shape == (2, 4, 10 // SIZE)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten().to(HERE))
        loss.backward()
    torch.testing.assert_close(loss.full_tensor().cpu(), expected, rtol=1e-4, atol=1e-5)
    for name in ("up", "down", "head"):
        found = getattr(model, name).weight.grad.full_tensor().cpu()
        torch.testing.assert_close(found, getattr(alone, name).weight.grad, rtol=1e-4, atol=1e-5)
    done.append("sequence parallel")


def check_pipeline_schedules() -> None:
    """PyTorch's own schedules: four microbatches through two stages."""
    for schedule in (ScheduleGPipe, Schedule1F1B):
        alone = Network()
        layers = nn.Sequential(alone.norm, alone.up, nn.GELU(), alone.down, alone.head)
        part = layers[:3] if RANK == 0 else layers[3:]
        mine = copy.deepcopy(part).to(HERE)
        torch.manual_seed(4)
        x, targets = torch.randn(8, 8), torch.randint(10, (8,))
        steps = schedule(PipelineStage(mine, RANK, SIZE, HERE), n_microbatches=4, loss_fn=F.cross_entropy)
        if RANK == 0:
            steps.step(x.to(HERE))
        else:
            steps.step(target=targets.to(HERE), losses=[])
        F.cross_entropy(alone(x), targets).backward()
        for found, expected in zip(mine.parameters(), part.parameters(), strict=True):
            torch.testing.assert_close(found.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)
    done.append("pipeline schedules")


def gathered(value: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(value) for _ in range(SIZE)]
    dist.all_gather(parts, value.contiguous())
    return [part.cpu() for part in parts]


def check_random_numbers() -> None:
    """Parts of one tensor differ from each other, copies do not, and a seed gives the same again."""

    def made() -> torch.Tensor:
        with torch.device("meta"):
            model = nn.Linear(8, 8)
        fully_shard(model)
        model.to_empty(device=HERE)
        torch.manual_seed(5)
        model.reset_parameters()
        return model.weight.full_tensor()

    whole = made()
    assert not whole[:4].equal(whole[4:]) and whole.abs().max() <= 8**-0.5 and made().equal(whole)
    for mine in gathered(whole):
        assert mine.equal(whole.cpu())
    torch.manual_seed(6)
    copies = gathered(dtensor.randn(4, 4, device_mesh=mesh, placements=[Replicate()]).to_local())
    assert copies[0].equal(copies[1])
    parts = gathered(F.dropout(dtensor.ones(64, 64, device_mesh=mesh, placements=[Shard(0)]), 0.5).to_local())
    assert not parts[0].equal(parts[1]) and all(0.3 < float((part == 0).float().mean()) < 0.7 for part in parts)
    done.append("random numbers")


if sys.argv[2:] == ["random"]:
    check_random_numbers()
else:
    check_checkpoint()
    check_mixed_precision()
    check_sequence_parallel()
    check_pipeline_schedules()
dist.barrier()
dist.destroy_process_group()
if RANK == 0:
    print(json.dumps({"ranks": SIZE, "done": done}))
