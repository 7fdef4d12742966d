"""Tensor-parallel generation with transformers, eager and compiled, against one process. Run by torchrun on 2 ranks.

Usage: plain_tp_generate.py FOLDER (where rank 0 puts the model)
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from plain_tiny import SENTENCES, make_model, make_tokenizer
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, CompileConfig, DistributedConfig

PADDED = 96
folder = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group(backend="neuron")
rank, size = dist.get_rank(), dist.get_world_size()
alone = make_model()
if rank == 0:
    alone.save_pretrained(folder)
dist.barrier()

model = AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32, distributed_config=DistributedConfig(tp_size=size)
)
query = model.model.layers[0].self_attn.q_proj.weight
assert isinstance(query, DTensor) and query.device_mesh.device_type == "neuron"
assert query.to_local().shape == (64 // size, 64) and query.to_local().device.index == rank

tokenizer = make_tokenizer()
compiled = CompileConfig(backend="neuron", mode="default", fullgraph=False, dynamic=False)
static = {
    "cache_implementation": "static",
    "max_cache_len": 128,
    "prefill_chunk_size": PADDED,
    "compile_config": compiled,
}
tokens = []
for text in SENTENCES[:2]:
    batch = dict(tokenizer(text, return_tensors="pt", padding="max_length", max_length=PADDED))
    common = {"do_sample": False, "max_new_tokens": 8, "min_new_tokens": 8}
    expected = alone.generate(**batch, **common)
    assert model.generate(**batch, **common).cpu().equal(expected), "eager"
    found = model.generate(**batch, **common, **static)
    assert found.cpu().equal(expected), f"compiled {found[0, PADDED:].tolist()} for {expected[0, PADDED:].tolist()}"
    tokens.append(expected[0, PADDED:].tolist())

graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
dist.barrier()
dist.destroy_process_group()
if rank == 0:
    print(json.dumps({"ranks": size, "tokens": tokens, "graphs": graphs}))
