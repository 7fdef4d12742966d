"""PyTorch's own operator database as the yardstick: the device against the CPU, operator by operator.

`-m slow` sweeps all of it (some 2400 pairs of operator and dtype); otherwise a
fixed slice runs. See opinfo_check.py for what is compared and
opinfo_exceptions.py for the table of exceptions.
"""

from __future__ import annotations

from collections import Counter

import pytest

from . import opinfo_sweep
from .opinfo_exceptions import EXCEPTIONS, exception_for
from .opinfo_sweep import DTYPES, Sweep, all_tasks, in_slice, sweep

#: The share of operators, and of (operator, dtype), that must agree among those that work on the CPU.
SHARE = 0.995
SLICES = 16
#: Always in the slice, beside every sixteenth operator.
MOST_USED = {
    "add", "addmm", "amax", "arange", "argmax", "as_strided", "baddbmm", "bmm", "cat", "clamp", "cumsum",
    "div", "einsum", "exp", "expand", "gather", "index_put", "index_select", "linalg.vector_norm",
    "log_softmax", "masked_fill", "matmul", "mean", "mm", "mul", "nn.functional.conv2d",
    "nn.functional.cross_entropy", "nn.functional.dropout", "nn.functional.embedding", "nn.functional.gelu",
    "nn.functional.layer_norm", "nn.functional.linear", "nn.functional.rms_norm",
    "nn.functional.scaled_dot_product_attention", "nn.functional.silu", "permute", "pow", "reshape", "rsqrt",
    "scatter_add", "softmax", "sort", "split", "stack", "sub", "sum", "to", "topk", "transpose", "tril",
    "view", "where", "zeros_like",
}  # fmt: skip


@pytest.fixture(
    scope="module", params=["slice", pytest.param("full", marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def swept(request) -> tuple[str, Sweep]:
    tasks = all_tasks()
    if request.param == "slice":
        tasks = [task for task in tasks if task[0] in MOST_USED or in_slice(task[0], 0, SLICES)]
    return request.param, sweep(tasks)


def table(failures: dict) -> str:
    """Failures as lines: operator, dtype, variants, first message."""
    lines = []
    for (name, dtype), found in sorted(failures.items()):
        variants = ", ".join(sorted({variant for variant, *_ in found}))
        lines.append(f"{name} {dtype} [{variants}] {found[0][2]}")
    return "\n".join(lines)


@pytest.mark.timeout(600)
def test_nothing_crashes(swept):
    _, found = swept
    crashed = {task: failures for task, failures in found.failures.items() if failures[0][0] == "crash"}
    assert not crashed, table(crashed)


def test_every_failure_is_in_the_table_of_exceptions(swept):
    _, found = swept
    unexpected = {task: failures for task, failures in found.failures.items() if exception_for(*task) is None}
    assert not unexpected, f"{len(unexpected)} pairs disagree with the CPU:\n{table(unexpected)}"


def test_every_exception_still_fails(swept):
    part, found = swept
    failing = {(name, key) for name, dtype in found.failures for key in (dtype, "*")}
    ran = {(name, key) for name, dtype in found.working for key in (dtype, "*")}
    stale = [entry for entry in EXCEPTIONS if entry not in failing and (part == "full" or entry in ran)]
    assert not stale, f"these work now, take them out of opinfo_exceptions.py: {stale}"


def test_the_promised_share_agrees(swept):
    part, found = swept
    working = found.working
    operators = {name for name, _ in working}
    failing = {name for name, _ in found.failures}
    counts = Counter(dtype for _, dtype in working)
    wrong = Counter(dtype for _, dtype in found.failures)
    rates = ", ".join(f"{dtype} {counts[dtype] - wrong[dtype]}/{counts[dtype]}" for dtype in DTYPES)
    print(f"\n{part}: {rates}; {len(operators) - len(failing)}/{len(operators)} operators; {found.seconds:.0f} s")
    assert len(working) > (2300 if part == "full" else 200), "the sweep compared too little to say anything"
    if part == "full":
        assert 1 - len(found.failures) / len(working) >= SHARE, rates
        assert 1 - len(failing) / len(operators) >= SHARE, sorted(failing)


STUB = """
import json, os, sys, time
with open(sys.argv[1], "a") as results:
    for line in sys.stdin:
        name, dtype = line.rstrip().split("\t")
        print(json.dumps({"start": [name, dtype]}), file=results, flush=True)
        if name == "dies":
            os.abort()
        if name == "stalls":
            time.sleep(60)
        wrong = [["forward", 0, "not close"]] if name == "wrong" else []
        print(json.dumps({"done": [name, dtype], "compared": 3, "failures": wrong}), file=results, flush=True)
"""


def test_the_sweep_outlives_what_it_tests(monkeypatch, tmp_path):
    stub = tmp_path / "worker.py"
    stub.write_text(STUB)
    monkeypatch.setattr(opinfo_sweep, "WORKER", stub)
    names = ["fine", "dies", "wrong", "stalls", "last"]
    found = sweep([(name, "float32") for name in names], stall=2.0)
    assert sorted(name for name, _ in found.working) == sorted(names)
    kinds = {name: failures[0][0] for (name, _), failures in found.failures.items()}
    assert kinds == {"dies": "crash", "stalls": "crash", "wrong": "forward"}
    assert "exit status" in found.failures["dies", "float32"][0][2]
    assert "no answer" in found.failures["stalls", "float32"][0][2]


def test_a_worker_that_cannot_start_is_an_error_and_not_an_empty_result(monkeypatch, tmp_path):
    stub = tmp_path / "worker.py"
    stub.write_text("raise SystemExit('broken')")
    monkeypatch.setattr(opinfo_sweep, "WORKER", stub)
    with pytest.raises(RuntimeError, match="broken"):
        sweep([("add", "float32")])
