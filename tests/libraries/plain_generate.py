"""Text generation with a tiny Qwen3: eager, with a static cache, and with a static cache compiled.

Plain transformers. Prints the number of graphs after each step.
"""

from __future__ import annotations

import json

import torch
from plain_tiny import SENTENCES, make_model, make_tokenizer
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics
from transformers import CompileConfig

PADDED, CACHE = 96, 128  # no text fills its chunk: without padding there is no mask, and that is another graph

torch.set_num_threads(1)
tokenizer = make_tokenizer()
on_cpu = make_model()
on_neuron = make_model().to("neuron")
COMPILED = CompileConfig(backend="neuron", mode="default", fullgraph=False, dynamic=False)
CHUNKED = {"cache_implementation": "static", "max_cache_len": CACHE, "prefill_chunk_size": PADDED}


def prompt(text: str) -> dict[str, torch.Tensor]:
    return dict(tokenizer(text, return_tensors="pt", padding="max_length", max_length=PADDED, truncation=True))


def generate(model, text: str, tokens: int = 12, **settings) -> list[int]:
    batch = prompt(text)
    out = model.generate(**batch, do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, **settings)
    return out[0, PADDED:].tolist()


def graphs() -> int:
    """Graphs asked of the compiler so far, and as many in Dynamo's own books."""
    metrics = get_dynamo_metrics()
    asked = len(metrics["graphs"])
    assert asked == metrics["compiled"] + metrics["loaded"] + metrics["reused"]
    assert asked == torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    return asked


counts = {}
first, *others = SENTENCES
expected = {text: generate(on_cpu, text) for text in SENTENCES}
assert len(set(map(tuple, expected.values()))) == len(SENTENCES), "the texts have to differ, or equality says little"
assert all(len(set(tokens)) > 3 for tokens in expected.values())

for text in SENTENCES:
    assert generate(on_neuron, text) == expected[text], "eager, default cache"
assert generate(on_neuron, first, cache_implementation="static", disable_compile=True) == expected[first]
assert generate(on_neuron, first, disable_compile=True, **CHUNKED) == expected[first]
counts["eager"] = graphs()

# inputs may be on the device as well; the result is then there
batch = {name: value.to("neuron") for name, value in prompt(first).items()}
moved = on_neuron.generate(**batch, do_sample=False, max_new_tokens=12)
assert moved.device.type == "neuron" and moved[0, PADDED:].tolist() == expected[first]

assert generate(on_neuron, first, compile_config=COMPILED, **CHUNKED) == expected[first]
counts["compiled"] = graphs()
for text in others:
    assert generate(on_neuron, text, compile_config=COMPILED, **CHUNKED) == expected[text]
longer = generate(on_cpu, first, tokens=20)
assert generate(on_neuron, first, tokens=20, compile_config=COMPILED, **CHUNKED) == longer
counts["other prompts"] = graphs()

# without chunks the prefill stays eager and only the step of one token is compiled: the graph that is there serves
settings = {"cache_implementation": "static", "max_cache_len": CACHE, "compile_config": COMPILED}
assert generate(on_neuron, first, **settings) == expected[first]
counts["prefill eager"] = graphs()

# naming no backend: on this device transformers compiles by itself, with this backend
torch._dynamo.reset()
before = graphs()
assert generate(on_neuron, first, cache_implementation="static", max_cache_len=CACHE) == expected[first]
counts["by itself"] = graphs() - before

print(json.dumps(counts))
