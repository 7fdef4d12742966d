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
    from neuron_lab import checks, plots, recompiles
    from neuron_lab.device import DeviceInfo, setup
    from neuron_lab.recompiles import Recompiles, count_recompiles
    from neuron_lab.widgets import RecompileMonitor

# Public name -> module that has it. A module stands for itself.
_PUBLIC = {
    "DeviceInfo": "neuron_lab.device",
    "RecompileMonitor": "neuron_lab.widgets",
    "Recompiles": "neuron_lab.recompiles",
    "checks": "neuron_lab.checks",
    "count_recompiles": "neuron_lab.recompiles",
    "plots": "neuron_lab.plots",
    "recompiles": "neuron_lab.recompiles",
    "setup": "neuron_lab.device",
}

__all__ = [
    "DeviceInfo",
    "RecompileMonitor",
    "Recompiles",
    "__version__",
    "checks",
    "count_recompiles",
    "plots",
    "recompiles",
    "setup",
]


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


def load_ipython_extension(shell: Any) -> None:
    """Bring the cell magics: ``%load_ext neuron_lab``. See :mod:`neuron_lab._magics`."""
    from neuron_lab._magics import load

    load(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
