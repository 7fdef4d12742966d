"""How much the emulated device costs, as ratios against the plain CPU in the same run.

The two sides take turns, round by round, and the ratio is that of their best
rounds: a shared machine slows both, and one slow round counts for nothing. A
ratio fails the suite only where it is grossly off (twice its bound);
NEURON_LAB_BENCHMARK_STRICT=1 asserts the bounds themselves, on a quiet machine.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import pytest
import torch

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(
        not getattr(sys.modules.get("torch_neuronx"), "__version__", "").endswith("+neuron_lab"),
        reason="the ratios are about the emulated device, which is not at work here",
    ),
]

STRICT = os.environ.get("NEURON_LAB_BENCHMARK_STRICT") == "1"
ROUNDS = 30


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(before)


def ratio(on_cpu: Callable[[], object], on_device: Callable[[], object], repeats: int) -> float:
    """Best round of the device over the best of the CPU, taken in turns."""
    best = [float("inf"), float("inf")]
    for number in range(ROUNDS + 3):
        for side, work in enumerate((on_cpu, on_device)):
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            if number >= 3:  # the first rounds warm up
                best[side] = min(best[side], time.perf_counter() - start)
    return best[1] / best[0]


def judge(record_property, name: str, found: float, bound: float) -> None:
    record_property(name, round(found, 3))
    print(f"\n{name}: {found:.2f}x of the CPU (bound {bound}x)")
    assert found <= (bound if STRICT else 2 * bound), f"{name}: {found:.2f}x, bound {bound}x"


SMALL = {
    "add": lambda x, y: x + y,
    "mul_": lambda x, y: x.mul_(y),
    "mm": lambda x, y: x @ y,
    "relu": lambda x, y: x.relu(),
    "sum": lambda x, y: x.sum(),
    "softmax": lambda x, y: x.softmax(-1),
    "view": lambda x, y: x.view(64),
    "transpose": lambda x, y: x.t(),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_eager_operator(name, record_property):
    torch.manual_seed(0)
    x, y = torch.rand(8, 8), torch.rand(8, 8)
    on_x, on_y = x.to("neuron"), y.to("neuron")
    work = SMALL[name]
    judge(record_property, name, ratio(lambda: work(x, y), lambda: work(on_x, on_y), repeats=300), bound=1.5)


def tiny_qwen3() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(config)


def test_a_training_step_of_a_tiny_qwen3(record_property):
    model = tiny_qwen3()
    ids = torch.randint(0, 512, (4, 64))

    def step_on(device: str) -> Callable[[], None]:
        own = copy.deepcopy(model).to(device)
        batch = ids.to(device)
        optimizer = torch.optim.AdamW(own.parameters(), 1e-3)

        def step() -> None:
            optimizer.zero_grad()
            own(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()

        return step

    judge(record_property, "training step", ratio(step_on("cpu"), step_on("neuron"), repeats=1), bound=1.1)


def test_a_compiled_graph(record_property):
    model = tiny_qwen3().eval()
    ids = torch.randint(0, 512, (4, 64))

    def compiled_on(device: str, backend: str) -> Callable[[], None]:
        compiled = torch.compile(copy.deepcopy(model).to(device), backend=backend, dynamic=False)
        batch = ids.to(device)

        def run() -> None:
            with torch.no_grad():
                compiled(input_ids=batch, use_cache=False)

        return run

    found = ratio(compiled_on("cpu", "aot_eager"), compiled_on("neuron", "neuron"), repeats=3)
    judge(record_property, "compiled graph", found, bound=1.05)


def test_import_torch_with_the_device(record_property):
    """Bound: 0.3 s more than without. Processor time, since a busy disk says nothing about the device."""
    code = "import time; import torch; print(time.process_time())"

    def seconds(autoload: str) -> float:
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        return float(done.stdout)

    best = {"0": float("inf"), "1": float("inf")}
    for _ in range(4):
        for autoload in best:
            best[autoload] = min(best[autoload], seconds(autoload))
    more = best["1"] - best["0"]
    record_property("import torch", round(more, 3))
    print(f"\nimport torch: {more:.3f} s more with the device (bound 0.3 s)")
    assert more <= (0.3 if STRICT else 0.6)
