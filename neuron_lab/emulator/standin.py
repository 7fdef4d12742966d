"""A stand-in for the package ``torch_neuronx``, in ``sys.modules`` only.

Libraries look for that name to know that a Neuron device is there, and lessons
import a few functions from it. Nothing is installed under the name, so the real
package is never shadowed on disk.
"""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType

import torch

from . import device_module

_PACKAGE = "torch_neuronx"


def _module(name: str, doc: str, **names: object) -> ModuleType:
    module = ModuleType(name, doc)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=name == _PACKAGE)
    if name == _PACKAGE:
        module.__path__ = []  # a package, so that its submodules can be imported
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def nki_op(name: str, *, mutates_args: tuple[str, ...] | set[str] | dict | str = ()):
    """Register a function as a PyTorch operator, as ``torch_neuronx.nki_op`` does.

    Built on :func:`torch.library.custom_op`: the result works in eager mode and
    as one node of a compiled graph, and has ``register_fake`` and
    ``register_autograd``.

    Parameters
    ----------
    name
        ``"namespace::operator"``.
    mutates_args
        Names of the arguments that the function changes in place.

    Examples
    --------
    >>> @nki_op("mylib::double", mutates_args=())  # doctest: +SKIP
    ... def double(x: torch.Tensor) -> torch.Tensor:
    ...     return x * 2
    """
    if isinstance(mutates_args, dict):
        mutates_args = tuple(mutates_args)

    def register(function):
        operator = torch.library.custom_op(name, function, mutates_args=mutates_args)
        # The body allocates its outputs and calls kernels; it serves as its own fake where it runs on fake tensors.
        operator.register_fake(function)
        return operator

    return register


def install() -> None:
    """Put the stand-in where ``import torch_neuronx`` finds it."""
    from . import profiling, records

    backend = _module(
        f"{_PACKAGE}.neuron_dynamo_backend",
        "Stand-in of neuron-lab: what the emulated compiler did.",
        get_dynamo_metrics=records.get_dynamo_metrics,
        reset_dynamo_metrics=records.reset_dynamo_metrics,
        set_model_name=records.set_model_name,
    )
    profiler = _module(
        f"{_PACKAGE}.profiling",
        "Stand-in of neuron-lab: CPU events only.",
        NeuronConfig=profiling.NeuronConfig,
        NeuronProfiler=profiling.NeuronProfiler,
        ProfileMode=profiling.ProfileMode,
    )
    memory = {
        name: getattr(device_module, name)
        for name in dir(device_module)
        if "memory" in name and not name.startswith("_")
    }
    extension = device_module.extension()
    package = _module(
        _PACKAGE,
        "Stand-in of neuron-lab for AWS's torch_neuronx: the device is EMULATED on the CPU.",
        __version__=f"{torch.__version__.split('+')[0]}+neuron_lab",
        __file__=__file__,
        neuron_dynamo_backend=backend,
        profiling=profiler,
        get_dynamo_metrics=records.get_dynamo_metrics,
        nki_op=nki_op,
        get_executed_ops=extension.executed_operators,
        get_fallback_ops=extension.fallback_operators,
        clear_op_tracking=extension.clear_tracking,
        Stream=device_module.Stream,
        Event=device_module.Event,
        stream=device_module.stream,
        synchronize=device_module.synchronize,
        empty_cache=device_module.empty_cache,
        **memory,
    )
    package.__all__ = [name for name in package.__dict__ if not name.startswith("_")]
