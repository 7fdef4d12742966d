"""What PyTorch calls while it is imported: puts the device in place, or stands aside.

An error here would break ``import torch`` for everything in the environment, so
every failure becomes one warning and a reason that ``lab.setup()`` repeats.
"""

from __future__ import annotations

import importlib.abc
import importlib.metadata
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable

import torch

from . import EmulatorStatus, _set_status
from .environment import ConfigurationError, Instance, flag, read_instance

NAME = "neuron"
AWS_INDEX = "https://pip.repos.neuron.amazonaws.com"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _placeholders() -> list[str]:
    """Packages of Neuron's names from the public Python index, which only hold the names there."""
    found = []
    if re.match(r"[01](\.|$)", _version("torch-neuronx")):
        found.append(f"torch-neuronx {_version('torch-neuronx')}")
    if _version("nki") == "0.0.1":
        found.append("nki 0.0.1")
    return found


def real_package() -> tuple[bool, str]:
    """Whether a real ``torch_neuronx`` is installed, and what was found in words.

    On the public Python index ``torch-neuronx`` 1.0 and ``nki`` 0.0.1 only hold
    the names; they bring no device and do not count.
    """
    placeholders = _placeholders()
    version = _version("torch-neuronx")
    held = any(found.startswith("torch-neuronx") for found in placeholders)
    if not held and (version or importlib.util.find_spec("torch_neuronx") is not None):
        return True, f"the real torch-neuronx {version or '(version unknown)'} is installed"
    if placeholders:
        return False, (
            f"{' and '.join(placeholders)} is installed, but that is only the placeholder of the public Python index. "
            f"The real one is on AWS's index: pip install torch-neuronx nki --extra-index-url {AWS_INDEX} (on a "
            "Trainium instance)"
        )
    return False, ""


class _AfterImport(importlib.abc.MetaPathFinder):
    """Runs ``action`` once, right after a module has been imported by somebody."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module) -> None:
            execute(module)
            self.action()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _default_backend() -> None:
    """Make ``neuron`` what ``torch.compile`` takes on this device when no backend is named."""
    from torch._dynamo.backends.registry import get_default_backend, set_default_backend

    if get_default_backend() == "inductor":
        from .default_backend import neuron_or_inductor

        set_default_backend(neuron_or_inductor)


def _when_imported(name: str, action: Callable[[], None]) -> None:
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


def _install(instance: Instance) -> tuple[str, float | None]:
    from . import build

    extension, library, seconds = build.load()
    torch.utils.rename_privateuse1_backend(NAME)
    extension.start(
        cores=instance.cores,
        hbm_bytes=instance.hbm_bytes,
        cores_per_bank=instance.cores_per_bank,
        start_core=instance.start_core,
        refuse_float64=instance.refuse_float64,
        refuse_fallback=instance.refuse_fallback,
        problem=instance.problem,
    )
    from . import device_module, distributed, standin

    device_module.install(extension, instance)
    torch._register_device_module(NAME, device_module)
    sys.modules["torch.neuron"] = device_module
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    distributed.register(extension)
    standin.install()
    _when_imported("torch._dynamo.backends.registry", _default_backend)
    return str(library), seconds


def load() -> None:
    """Entry point ``torch.backends``: give this process its emulated device.

    Does nothing where the real backend is installed, where
    ``NEURON_LAB_EMULATOR=0``, or where another backend already took PyTorch's
    one slot for an out-of-tree device. Never raises.
    """
    try:
        _set_status(_load())
    except Exception as error:
        _set_status(EmulatorStatus(False, str(error)))
        _warn(
            f"there is no neuron device in this process. {error}\n"
            "(NEURON_LAB_EMULATOR=0 switches the emulated device off and this message with it.)"
        )


def _warn(text: str) -> None:
    """Warn, and only say it where warnings are errors: nothing here may break ``import torch``."""
    try:
        warnings.warn(f"neuron-lab: {text}", RuntimeWarning, stacklevel=4)
    except RuntimeWarning:
        if sys.stderr is not None:
            print(f"neuron-lab: {text}", file=sys.stderr)


def _load() -> EmulatorStatus:
    from . import status

    taken = torch._C._get_privateuse1_backend_name()
    if taken == NAME and status().library is not None:
        return status()  # called a second time
    try:
        wanted = flag(os.environ, "NEURON_LAB_EMULATOR", True)
    except ConfigurationError as error:
        raise RuntimeError(str(error)) from None
    if not wanted:
        return EmulatorStatus(False, "The emulated device is switched off (NEURON_LAB_EMULATOR=0). Unset the variable.")
    real, found = real_package()
    if real:
        return EmulatorStatus(False, f"The emulated device stands aside: {found}.")
    if taken != "privateuseone":
        return EmulatorStatus(
            False,
            f"PyTorch has one slot for an out-of-tree device, and {taken!r} already has it in this process. Use an "
            "environment without that backend.",
        )
    if found:
        _warn(found)
    instance = read_instance()
    if instance.problem:
        _warn(instance.problem)
    library, seconds = _install(instance)
    reason = "No real TorchNeuron backend is installed in this environment, so the emulated one is at work."
    if instance.problem:
        reason = instance.problem
    elif found:
        reason = f"{found}. The emulated device is at work."
    return EmulatorStatus(
        active=not instance.problem,
        reason=reason,
        instance=instance.name,
        cores=instance.cores,
        lnc=instance.lnc,
        hbm_bytes=instance.hbm_bytes,
        library=library,
        build_seconds=seconds,
    )
