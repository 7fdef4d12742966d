"""The emulated ``neuron`` device: a PyTorch backend on the CPU.

PyTorch loads it by itself (entry point group ``torch.backends``); user code has
no reason to import it. The C++ part is in ``csrc/``, the rest is one module per
concern: :mod:`.environment` (what is emulated), :mod:`.build`, :mod:`.autoload`,
:mod:`.device_module` (``torch.neuron``), :mod:`.compiler` with :mod:`.lowering`
and :mod:`.records`, :mod:`.distributed`, :mod:`.standin` (``torch_neuronx``).
This package knows torch and nothing else of the project.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class EmulatorStatus:
    """Whether the emulated device is at work in this process, and why.

    Attributes
    ----------
    active
        True if ``neuron`` is the emulated device.
    reason
        One or two sentences: why it is active, or why not and what to do.
    instance, cores, lnc, hbm_bytes
        The emulated instance: type, logical cores that this process sees,
        physical cores per logical core, bytes of HBM per core.
    library
        Path of the built C++ part, or None.
    build_seconds
        How long the build took, if this process made it.
    """

    active: bool
    reason: str
    instance: str = ""
    cores: int = 0
    lnc: int = 0
    hbm_bytes: int = 0
    library: str | None = None
    build_seconds: float | None = None


_status: EmulatorStatus | None = None


def status() -> EmulatorStatus:
    """Say whether the emulated device is at work in this process, and why.

    Examples
    --------
    >>> import torch
    >>> from neuron_lab.emulator import status
    >>> status().active  # doctest: +SKIP
    True
    """
    if _status is not None:
        return _status
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return EmulatorStatus(
            False,
            "PyTorch's autoload of devices is switched off (TORCH_DEVICE_BACKEND_AUTOLOAD=0). Unset it, or call "
            "neuron_lab.emulator.autoload.load() after importing torch.",
        )
    return EmulatorStatus(
        False,
        "PyTorch did not load the device: the entry point of neuron-lab is not installed in this environment. Install "
        "the package (pip install -e .) instead of only putting it on the path.",
    )


def _set_status(value: EmulatorStatus) -> EmulatorStatus:
    global _status
    _status = value
    return value


# Last, and for its effect: PyTorch calls autoload.py while it is imported. Whoever imports a module of this package
# first would otherwise be half imported when that happens.
import torch  # noqa: E402, F401
