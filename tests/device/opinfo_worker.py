"""Child process of the operator sweep: one line of JSON per step, on the given file.

    python opinfo_worker.py RESULTS < TASKS

A task is ``operator<TAB>dtype``. ``{"start": ...}`` goes out before each step, so
that the parent knows what was running if this process dies. The device does all
tasks before the CPU does the first.
"""

from __future__ import annotations

import json
import sys

import torch
from opinfo_check import Check
from torch.testing._internal.common_methods_invocations import op_db


def main() -> None:
    torch.set_num_threads(1)
    emulated = getattr(sys.modules.get("torch_neuronx"), "__version__", "").endswith("+neuron_lab")
    ops = {op.full_name: op for op in op_db}
    tasks = [line.rstrip("\n").split("\t") for line in sys.stdin]
    with open(sys.argv[1], "a", encoding="utf-8") as results:

        def say(record: dict) -> None:
            results.write(json.dumps(record) + "\n")
            results.flush()

        checks = []
        for name, dtype in tasks:
            say({"start": [name, dtype]})
            checks.append(Check(ops[name], getattr(torch, dtype), same_random_numbers=emulated))
            checks[-1].run_device()
        for task, check in zip(tasks, checks, strict=True):
            say({"start": task})
            report = check.compare()
            say({"done": task, "compared": report.compared, "failures": report.failures})


if __name__ == "__main__":
    main()
