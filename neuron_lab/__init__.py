"""PyTorch on AWS Trainium, learned and tested on any machine.

Installing this package gives PyTorch a device called ``neuron``, emulated on the CPU, without an import: a script
that only says ``import torch`` has it. This module is for the other half, the helpers that look, count and draw.
Nothing heavy is imported until a name is first used.

Examples
--------
>>> import neuron_lab as lab
>>> lab.setup()  # doctest: +SKIP
EMULATED: the device `neuron` is emulated on this machine's CPU ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from neuron_lab._version import __version__

if TYPE_CHECKING:
    from neuron_lab import checks, plots
    from neuron_lab.device import DeviceInfo, setup

# Public name -> module that has it. A module stands for itself.
_PUBLIC = {
    "DeviceInfo": "neuron_lab.device",
    "checks": "neuron_lab.checks",
    "plots": "neuron_lab.plots",
    "setup": "neuron_lab.device",
}

__all__ = ["DeviceInfo", "__version__", "checks", "plots", "setup"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    try:
        home = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    module = importlib.import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
