"""What a rank may do and what not: one core each, and the group before the device. Run by torchrun on 2 ranks.

Usage: plain_rules.py group-first|device-first
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

torch.set_num_threads(1)
local_rank = int(os.environ["LOCAL_RANK"])

if sys.argv[1] == "device-first":
    torch.ones(2, device="neuron")
    try:
        dist.init_process_group("neuron")
    except AssertionError as error:
        assert "should not be initialized before the init_process_group" in str(error), error
    else:
        raise AssertionError("a process group was made after the device had been used")
    print(json.dumps({"rank": local_rank, "refused": "AssertionError"}))
    sys.exit()

torch.neuron.set_device(local_rank)  # libraries do this before the group exists
dist.init_process_group("neuron")
rank = dist.get_rank()
assert dist.get_backend() == "neuron"
assert torch.accelerator.current_device_index() == torch.neuron.current_device() == local_rank
assert torch.ones(2, device="neuron").device == torch.device("neuron", local_rank)
assert torch.ones(2).to("neuron").device.index == local_rank

refused = []
for index in range(torch.accelerator.device_count()):
    try:
        torch.ones(2, device=f"neuron:{index}")
    except (RuntimeError, ValueError) as error:
        assert f"neuron:{index}" in str(error), error
        refused.append(index)
assert local_rank not in refused, refused
assert 1 - local_rank in refused, (
    f"rank {local_rank} could use the core of rank {1 - local_rank}; refused are {refused}"
)

later = dist.new_group(backend="neuron")  # a group made after the device was used is no mistake
x = torch.ones(1, device="neuron")
dist.all_reduce(x, group=later)
assert x.item() == dist.get_world_size()
dist.destroy_process_group()
print(json.dumps({"rank": rank, "core": local_rank, "refused": refused}))
