"""What the emulated device costs over the plain CPU. No figure here says anything about a Trainium."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys

import pytest
import torch

from .conftest import ATTEMPTS, TOLERANCE

emulated = getattr(sys.modules.get("torch_neuronx"), "__version__", "").endswith("+neuron_lab")
pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(not emulated, reason="bounds of the emulated device; on a real one they mean nothing"),
]


def _both(make):
    """The same thing on the CPU and on the device."""
    return make("cpu"), make("neuron")


def _operators():
    """Operators that a model calls all the time, on tensors so small that the way to the kernel is what counts."""
    x, y = _both(lambda device: torch.linspace(-1, 1, 256, device=device).view(16, 16))
    i, j = _both(lambda device: torch.arange(8, device=device))
    m, n = x > 0, y > 0
    return {
        "add": (lambda: x + x, lambda: y + y),
        "mul_": (lambda: x.mul_(1.0), lambda: y.mul_(1.0)),
        "matrix product": (lambda: x @ x, lambda: y @ y),
        "addmm": (lambda: torch.addmm(x, x, x), lambda: torch.addmm(y, y, y)),
        "relu": (lambda: torch.relu(x), lambda: torch.relu(y)),
        "exp": (lambda: torch.exp(x), lambda: torch.exp(y)),
        "softmax": (lambda: x.softmax(-1), lambda: y.softmax(-1)),
        "sum": (lambda: x.sum(-1), lambda: y.sum(-1)),
        "layer norm": (
            lambda: torch.nn.functional.layer_norm(x, (16,)),
            lambda: torch.nn.functional.layer_norm(y, (16,)),
        ),
        "cat": (lambda: torch.cat([x, x]), lambda: torch.cat([y, y])),
        "index_select": (lambda: x.index_select(0, i), lambda: y.index_select(0, j)),
        "where": (lambda: torch.where(m, x, x), lambda: torch.where(n, y, y)),
        "comparison": (lambda: x > 0, lambda: y > 0),
        "copy_": (lambda: x.copy_(x), lambda: y.copy_(y)),
        "view": (lambda: x.view(256), lambda: y.view(256)),
        "transpose": (lambda: x.t(), lambda: y.t()),
        "slice": (lambda: x[2:4], lambda: y[2:4]),
        "empty": (lambda: torch.empty_like(x), lambda: torch.empty_like(y)),
        "zeros": (lambda: torch.zeros(16, 16), lambda: torch.zeros(16, 16, device="neuron")),
        "to bfloat16": (lambda: x.to(torch.bfloat16), lambda: y.to(torch.bfloat16)),
        "item": (lambda: x[0, 0].item(), lambda: y[0, 0].item()),
    }


OPERATORS = _operators() if emulated else {}


@pytest.mark.parametrize("name", OPERATORS)
def test_small_eager_operator(ratio, name):
    plain, device = OPERATORS[name]
    found = ratio(f"eager, {name}", plain, device, bound=1.5)
    _found[name] = found
    assert found <= 1.5 * TOLERANCE


_found: dict[str, float] = {}


def test_small_eager_operators_together(ratio, benchmark):
    if len(_found) < len(OPERATORS):
        pytest.skip("runs after all operators were measured")
    mean = math.exp(statistics.fmean(math.log(value) for value in _found.values()))
    ratio.record("eager, geometric mean of the above", f"{mean:.2f} times the CPU's time", "1.50 (aim 1.30)")
    benchmark.extra_info.update(ratio=round(mean, 3), bound=1.5)
    benchmark.pedantic(OPERATORS["add"][1], rounds=5, iterations=200)
    assert mean <= 1.5 * TOLERANCE


def _qwen3(device: str):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
    )
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(config).to(device)
    tokens = (torch.arange(4 * 128, device=device) % 500).view(4, 128)
    return model, tokens


def test_training_step_of_a_tiny_qwen3(ratio):
    """Forward, backward, AdamW: a batch of 4 x 128 tokens through two layers."""

    def make(device):
        model, tokens = _qwen3(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step():
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()

        return step

    plain, device = _both(make)
    assert ratio("training step of a tiny Qwen3", plain, device, bound=1.1, rounds=11) <= 1.1 * TOLERANCE


class TestCompiledGraph:
    """Against ``aot_eager``, which runs the same graphs on the CPU."""

    def test_forward_of_a_tiny_qwen3(self, ratio):
        def make(device):
            model, tokens = _qwen3(device)
            backend = "neuron" if device == "neuron" else "aot_eager"
            compiled = torch.compile(model.eval(), backend=backend, dynamic=False)

            def step():
                with torch.no_grad():
                    return compiled(input_ids=tokens, use_cache=False).logits

            return step

        plain, device = _both(make)
        torch.testing.assert_close(device().cpu(), plain(), atol=1e-4, rtol=1e-4)
        assert ratio("compiled forward of a tiny Qwen3", plain, device, bound=1.05, rounds=15) <= 1.05 * TOLERANCE

    def test_training_of_a_small_network(self, ratio):
        def make(device):
            torch.manual_seed(0)
            layers = [torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)] * 4
            model = torch.nn.Sequential(*layers).to(device)
            x = torch.ones(64, 256, device=device)
            compiled = torch.compile(model, backend="neuron" if device == "neuron" else "aot_eager", dynamic=False)

            def step():
                compiled(x).sum().backward()
                model.zero_grad()

            return step

        plain, device = _both(make)
        assert ratio("compiled training of a small network", plain, device, bound=1.05) <= 1.05 * TOLERANCE


def test_import_of_torch(ratio, benchmark, tmp_path):
    """With the device, built before, and without: two processes by turns, each in its own words."""
    script = tmp_path / "imports.py"
    script.write_text(
        "import json, time\nstart = time.perf_counter()\nimport torch\nprint(json.dumps(time.perf_counter() - start))\n"
    )

    def seconds(switch: str) -> float:
        environment = {**os.environ, "NEURON_LAB_EMULATOR": switch, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        return json.loads(done.stdout)

    seconds("1")  # the files are in the system's cache, the device is built
    more = math.inf
    for _ in range(ATTEMPTS):
        pairs = [(seconds("0"), seconds("1")) for _ in range(3)]
        without, with_device = (statistics.median(side) for side in zip(*pairs, strict=True))
        more = min(more, with_device - without)
        if more <= 0.3:
            break
    ratio.record("import torch, with the device", f"{more:+.2f} s", "+0.30 s")
    benchmark.extra_info.update(seconds_more=round(more, 3), bound=0.3)
    benchmark.pedantic(seconds, args=("1",), rounds=1)
    assert more <= 0.3 * TOLERANCE
