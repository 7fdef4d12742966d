"""The announced recipe: TRL on a grid of TP_SIZE x FSDP_SIZE ranks, the model sharded while it loads. Run by torchrun.

Usage: TP_SIZE=2 FSDP_SIZE=2 plain_sft_grid.py FOLDER (with the model in FOLDER/model)
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from plain_tiny import make_dataset
from torch.distributed.tensor import DTensor
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics
from transformers import AutoTokenizer, DistributedConfig
from trl import SFTConfig, SFTTrainer

torch._dynamo.config.automatic_dynamic_shapes = False
torch.set_num_threads(1)
folder = Path(sys.argv[1])
distributed = DistributedConfig(tp_size=int(os.environ["TP_SIZE"]), fsdp_size=int(os.environ["FSDP_SIZE"]))

args = SFTConfig(
    str(folder / "out"),
    # trl asks for device_map="auto" unless it is named, and transformers refuses that beside a grid
    model_init_kwargs={"dtype": "bfloat16", "distributed_config": distributed, "device_map": None},
    max_length=128,
    packing=True,
    packing_strategy="wrapped",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=4,
    learning_rate=5e-3,
    lr_scheduler_type="constant",
    logging_steps=1,
    save_only_model=True,
    torch_compile=True,
    report_to="none",
    disable_tqdm=True,
    seed=0,
)
trainer = SFTTrainer(
    model=str(folder / "model"),
    args=args,
    train_dataset=make_dataset(256),
    processing_class=AutoTokenizer.from_pretrained(folder / "model"),
)
query = trainer.model.model.layers[0].self_attn.q_proj.weight
assert isinstance(query, DTensor) and query.device_mesh.size() == int(os.environ["WORLD_SIZE"])
assert query.to_local().numel() * query.device_mesh.size() == query.numel()
assert query.to_local().device == torch.device("neuron", int(os.environ["LOCAL_RANK"]))
trainer.train()
trainer.save_model(str(folder / "out"))
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
torch.distributed.barrier()
if trainer.accelerator.is_main_process:
    graphs = len(get_dynamo_metrics()["graphs"])
    mesh = list(query.device_mesh.mesh_dim_names)
    print(json.dumps({"device": str(args.device), "losses": losses, "mesh": mesh, "graphs": graphs}))
torch.distributed.destroy_process_group()
