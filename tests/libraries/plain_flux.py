"""The FLUX transformer, small, tensor parallel, compiled by block, against one process. Run by torchrun on 2 ranks."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel, TensorParallelConfig
from torch.distributed.device_mesh import DeviceMesh
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics

torch.set_num_threads(1)
dist.init_process_group("neuron")  # before anything uses the device
rank, size = dist.get_rank(), dist.get_world_size()
here = torch.device("neuron", torch.neuron.current_device())


def make() -> FluxTransformer2DModel:
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=8,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    with torch.no_grad():  # some of its layers begin at zero and would hide everything before them
        for weight in model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return model.eval()


def inputs(step: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(10 + step)
    return {
        "hidden_states": torch.randn(1, 16, 8),
        "encoder_hidden_states": torch.randn(1, 6, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([1.0 - step / 4]),
        "img_ids": torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1)
        .reshape(16, 3),
        "txt_ids": torch.zeros(6, 3),
    }  # fmt: skip


@torch.no_grad()
def run(model: FluxTransformer2DModel, device: torch.device) -> torch.Tensor:
    outputs = []
    for step in range(3):
        moved = {name: value.to(device) for name, value in inputs(step).items()}
        outputs.append(model(**moved, return_dict=False)[0].cpu())
    return torch.stack(outputs)


expected = run(make(), torch.device("cpu"))
assert expected.std() > 0.1 and (expected[0] - expected[1]).abs().max() > 0.1

model = make()
whole = sum(weight.numel() for weight in model.parameters())
model.enable_parallelism(config=TensorParallelConfig(mesh=DeviceMesh("neuron", list(range(size)))))
model.to(here)
assert model.transformer_blocks[0].attn.to_q.weight.shape[0] in (64, 64 // size)
part = sum((w.to_local() if hasattr(w, "to_local") else w).numel() for w in model.parameters())
eager = float((run(model, here) - expected).abs().max())

model.compile_repeated_blocks(backend="neuron", fullgraph=True, dynamic=False)
compiled = float((run(model, here) - expected).abs().max())
metrics = get_dynamo_metrics()
everybody: list = [None] * size
dist.all_gather_object(everybody, {"eager": eager, "compiled": compiled})
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    print(json.dumps({"ranks": everybody, "graphs": len(metrics["graphs"]), "share": part / whole}))
