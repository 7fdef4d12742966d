"""``init_process_group("neuron")``: one process per core, on gloo."""

from __future__ import annotations

import os
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

_extension: ModuleType | None = None


def _local_core(extension: ModuleType) -> int | None:
    """The core of this rank: its LOCAL_RANK, or None outside a launcher."""
    text = os.environ.get("LOCAL_RANK", "")
    if not text.isdigit():
        return None
    cores = extension.device_count()
    return int(text) if int(text) < cores else (0 if cores == 1 else None)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Make the backend of one group. Called by PyTorch on every rank."""
    extension = _extension
    # Asked of the first group only: later ones are made in the middle of training.
    if extension.touched() and not extension.group_exists():
        raise AssertionError(
            "Neuron runtime should not be initialized before the init_process_group. A tensor was already placed on "
            "the "
            'device in this process. Call torch.distributed.init_process_group("neuron") first, before anything uses '
            "the "
            "device; torch.neuron.set_device may come earlier."
        )
    backend = extension.NeuronProcessGroup(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))
    extension.set_group_exists()
    core = _local_core(extension)
    if core is not None:
        extension.restrict_to(core)
    extension.touch()
    return backend


def register(extension: ModuleType) -> None:
    """Register the backend ``neuron`` with ``torch.distributed``, where that was built."""
    global _extension
    _extension = extension
    if dist.is_available() and hasattr(extension, "NeuronProcessGroup"):
        torch.distributed.Backend.register_backend("neuron", _create, devices=["neuron"])
