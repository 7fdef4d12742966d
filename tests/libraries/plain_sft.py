"""Supervised fine-tuning of a tiny Qwen3 with TRL, as anybody would write it: no device is named anywhere.

Usage: plain_sft.py OUTPUT_FOLDER eager|compiled|cpu
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from plain_tiny import make_dataset, make_model, make_tokenizer
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

folder, mode = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)

args = SFTConfig(
    str(folder),
    max_length=128,
    per_device_train_batch_size=4,
    max_steps=8,
    learning_rate=5e-3,
    lr_scheduler_type="constant",
    logging_steps=1,
    save_strategy="steps",
    save_steps=8,
    torch_compile=mode == "compiled",
    use_cpu=mode == "cpu",
    bf16=True,  # TRL's own choice on the device, said aloud for the comparison
    pad_to_multiple_of=128 if mode == "cpu" else "auto",
    report_to="none",
    disable_tqdm=True,
    seed=0,
)
seen = {
    "device": str(args.device),
    "pad_to_multiple_of": args.pad_to_multiple_of,
    "backend": args.torch_compile_backend,
}

shapes = set()


class Trainer(SFTTrainer):
    def compute_loss(self, model, inputs, *rest, **named):
        shapes.add((inputs["input_ids"].device.type, *inputs["input_ids"].shape))
        return super().compute_loss(model, inputs, *rest, **named)


trainer = Trainer(model=make_model(), args=args, train_dataset=make_dataset(), processing_class=make_tokenizer())
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
device = {weight.device.type for weight in trainer.model.parameters()}

# the checkpoint is an ordinary one: it loads on the CPU and holds what the device holds
saved = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-8").eval()
trained = trainer.model.state_dict()
for name, weight in saved.state_dict().items():
    torch.testing.assert_close(weight, trained[name].cpu(), rtol=0, atol=0, msg=name)
with torch.no_grad():
    batch = {name: value.cpu() for name, value in next(iter(trainer.get_train_dataloader())).items()}
    after, before = (float(model(**batch).loss) for model in (saved, make_model()))

metrics = get_dynamo_metrics()
print(
    json.dumps(
        seen
        | {
            "losses": losses,
            "weights on": sorted(device),
            "shapes": sorted(shapes),
            "saved on": str(saved.device),
            "loss on the CPU": [before, after],
            "graphs": len(metrics["graphs"]),
            "symbolic": any("Sym" in text for graph in metrics["graphs"] for text in graph["inputs"]),
        }
    )
)
