"""What the conformance tests share: where the device is, running a thing on both devices, a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_map

DEVICE = "neuron"


def is_emulated() -> bool:
    """Whether ``neuron`` is neuron-lab's emulated device; the real package has another version."""
    return getattr(sys.modules.get("torch_neuronx"), "__version__", "").endswith("+neuron_lab")


def on(device: str, value: Any) -> Any:
    """A nest of containers with its tensors copied to ``device``; leaves that need gradients stay such leaves."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)

    return tree_map(move, value)


def assert_same(actual: Any, expected: Any, **tolerance: float) -> None:
    """Equal to what the CPU gave; ``actual`` may be on the device."""
    assert_close(
        tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, actual), expected, **tolerance
    )


def assert_agrees(function: Callable[..., Any], *arguments: Any, **tolerance: float) -> Any:
    """Run ``function`` on the device and on the CPU, compare, and return what the device gave.

    Gradients of the arguments that require them are compared as well.
    """
    results, grads = {}, {}
    for device in (DEVICE, "cpu"):
        moved = on(device, arguments)
        torch.manual_seed(0)
        results[device] = function(*moved)
        leaves = [t for t in moved if isinstance(t, torch.Tensor) and t.requires_grad]
        if leaves and isinstance(results[device], torch.Tensor) and results[device].requires_grad:
            grads[device] = torch.autograd.grad(results[device].float().pow(2).sum(), leaves, allow_unused=True)
    if isinstance(results[DEVICE], torch.Tensor):
        assert results[DEVICE].device.type == DEVICE
    assert_same(
        results[DEVICE],
        tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, results["cpu"]),
        **tolerance,
    )
    assert_same(grads.get(DEVICE), grads.get("cpu"), **tolerance) if grads else None
    return results[DEVICE]


def python(code: str, *, timeout: float = 300.0, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter; a variable set to None is removed from its environment."""
    variables = {**os.environ, **{name: value for name, value in environment.items() if value is not None}}
    for name, value in environment.items():
        if value is None:
            variables.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, env=variables, check=False
    )


def output_of(code: str, **environment: str | None) -> str:
    """Standard output of ``code`` in a fresh interpreter that must succeed."""
    done = python(code, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()
