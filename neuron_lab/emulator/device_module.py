"""``torch.neuron``: the device's functions for Python, as PyTorch's accelerators have them.

Which names the real module has is documented in part only; the rest follows
PyTorch's convention (the names that ``torch.cuda`` and ``torch.xpu`` share).
``mem_get_info`` is left out on purpose: the real module has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from .environment import Instance

_extension: ModuleType | None = None
_instance = Instance()

Device = int | str | torch.device | None


@dataclass(frozen=True)
class _DeviceProperties:
    """What ``get_device_properties`` returns. ``name`` is the chip, as on the real device.

    Attributes
    ----------
    name
        Chip generation, ``"trn2"``.
    total_memory
        HBM of the core in bytes.
    instance
        Emulated instance type.
    logical_nc_config
        Physical cores per logical core.
    emulated
        Always True; the real object has no such field.
    """

    name: str
    total_memory: int
    instance: str
    logical_nc_config: int
    emulated: bool = True


def install(extension: ModuleType, instance: Instance) -> None:
    """Connect this module with the loaded extension."""
    global _extension, _instance
    _extension = extension
    _instance = instance
    # PyTorch gives every accelerator a thread for the backward pass, to keep its queue filled. The emulated core has no
    # queue, and the hand-over between threads would cost more than small operators do. This thread runs it itself.
    torch.autograd.set_multithreading_enabled(False)


def extension() -> ModuleType:
    """The C++ part."""
    return _extension


def _index(device: Device) -> int:
    """Checked index of a device given in any of PyTorch's ways."""
    if device is None:
        return _extension.check_device(-1)
    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device)):
        raise TypeError(f"device must be an int, a str or a torch.device, got {type(device).__name__}: {device!r}")
    if isinstance(device, int):
        if device < 0:
            raise ValueError(f"device index must not be negative, got {device}")
        return _extension.check_device(device)
    chosen = torch.device(device)
    if chosen.type != "neuron":
        raise ValueError(f"torch.neuron works on neuron devices, got {chosen}. Use torch.device('neuron').")
    return _extension.check_device(-1 if chosen.index is None else chosen.index)


# ---- availability and choice of core


def is_available() -> bool:
    """True if a core can be used. Called very often by PyTorch, so it costs nothing."""
    return _instance.cores > 0


def is_initialized() -> bool:
    """True once this process has touched the device."""
    return _extension.touched()


def __getattr__(name: str) -> Any:
    """Answer ``_initialized``, which PyTorch's checkpointing reads to know whether to save the generator's state."""
    if name == "_initialized":
        return _extension.touched()
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}")


def init() -> None:
    """Claim the device now instead of at its first use."""
    _extension.touch()


def _lazy_init() -> None:
    _extension.touch()


def _is_in_bad_fork() -> bool:
    return _extension.in_bad_fork()


def device_count() -> int:
    """Number of logical cores that this process sees."""
    return _instance.cores


def current_device() -> int:
    """Index of the current core."""
    return _extension.check_device(-1)


def set_device(device: Device) -> None:
    """Make a core the current one. Takes an index, a string or a ``torch.device``."""
    if isinstance(device, int) and device < 0:
        return  # PyTorch's convention: no change
    _extension.set_device(_index(device))


class device(contextlib.AbstractContextManager):
    """Make a core the current one inside a ``with`` block."""

    def __init__(self, device: Device) -> None:
        self._to = -1 if device is None or (isinstance(device, int) and device < 0) else _index(device)
        self._before = -1

    def __enter__(self) -> None:
        self._before = _extension.exchange_device(self._to)

    def __exit__(self, *error: object) -> None:
        _extension.exchange_device(self._before)


class device_of(device):
    """Make the core of a tensor the current one; any other tensor changes nothing."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "neuron" else None)


def get_device_name(device: Device = None) -> str:
    """``"neuron:<index>"``; the chip's name is in :func:`get_device_properties`."""
    return f"neuron:{_index(device)}"


def get_device_properties(device: Device = None) -> _DeviceProperties:
    """Properties of a core: ``name`` (the chip), ``total_memory`` (bytes of HBM), and where they come from."""
    _index(device)
    return _DeviceProperties(
        name=_instance.name.split(".")[0],
        total_memory=_instance.hbm_bytes,
        instance=_instance.name,
        logical_nc_config=_instance.lnc,
    )


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: bfloat16 is the natural type of the tensor engine."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that ``torch.autocast("neuron")`` may cast to."""
    return [torch.bfloat16, torch.float16]


# ---- streams, events, waiting (the emulated core works synchronously)


def synchronize(device: Device = None) -> None:
    """Wait until the core has done all that was asked of it."""
    index = _index(device)
    _extension.touch()
    torch.accelerator.synchronize(index)


class _OfNeuron(type):
    """Makes ``isinstance`` true for PyTorch's own streams and events of this device.

    PyTorch accepts no subclass of ``torch.Event`` in ``elapsed_time``, so the
    two classes below make plain objects of PyTorch.
    """

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.made) and value.device.type == "neuron"


class Stream(metaclass=_OfNeuron):
    """A stream of the neuron device. Work in it runs at once, in program order."""

    made = torch.Stream

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> torch.Stream:
        if "stream_id" in kwargs:
            return torch.Stream(priority=priority, **kwargs)
        return torch.Stream(device=torch.device("neuron", _index(device)), priority=priority)


class Event(metaclass=_OfNeuron):
    """An event of the neuron device; it holds the host's time of its record.

    Field reports say that on the real device, too, ``elapsed_time`` compares
    host record times. Do not time with events.
    """

    made = torch.Event

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:
        return torch.Event(device="neuron", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def current_stream(device: Device = None) -> torch.Stream:
    """The current stream of a core."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The default stream of a core."""
    return torch.Stream(
        stream_id=0, device_index=_index(device), device_type=torch._C._autograd.DeviceType.PrivateUse1.value
    )


def set_stream(stream: torch.Stream) -> None:
    """Make a stream the current one of its core."""
    torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Work in a stream inside a ``with`` block; None changes nothing."""
    if stream is None:
        yield
        return
    before = current_stream(stream.device)
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(before)


StreamContext = stream


# ---- random numbers


def _generator(device: Device) -> torch.Generator:
    return _extension.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Seed the generator of the current core."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all cores."""
    for index in range(device_count()):
        _extension.default_generator_unchecked(index).manual_seed(int(seed))


def seed() -> None:
    """Seed the current core's generator from the system's entropy."""
    _generator(None).seed()


def seed_all() -> None:
    """Seed every core's generator with one number from the system's entropy."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """Seed of the current core's generator."""
    return _generator(None).initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """State of a core's generator, a CPU tensor of 16 bytes: seed and offset.

    Raises
    ------
    NotImplementedError
        While a function is being traced, where a state is no number yet.
        PyTorch asks for it there for random operators on a DTensor, which it
        traces on CUDA only.
    """
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        raise NotImplementedError(
            "A random operator on a DTensor (dropout, for example) cannot be compiled on neuron: PyTorch traces it for "
            "CUDA only. Keep that operator outside the compiled function; in eager mode it works."
        )
    return _generator(device).get_state()


get_rng_state._torchdynamo_disable = True  # Dynamo cannot trace it, and would say so at length


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Put a core's generator into a state that :func:`get_rng_state` gave."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all cores' generators."""
    return [_extension.default_generator_unchecked(index).get_state() for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restore what :func:`get_rng_state_all` gave."""
    for index, state in enumerate(new_states):
        _extension.default_generator_unchecked(index).set_state(state)


# ---- memory


def empty_cache() -> None:
    """Give cached segments back, so that ``memory_reserved`` falls to what is in use."""
    torch.accelerator.empty_cache()


def memory_allocated(device: Device = None) -> int:
    """Bytes of HBM in use by tensors of a core."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """Largest value of :func:`memory_allocated` since the last reset, in bytes."""
    return torch.accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes of HBM held by the allocator of a core; never less than what is allocated."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """Largest value of :func:`memory_reserved` since the last reset, in bytes."""
    return torch.accelerator.max_memory_reserved(_index(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    """All counters of a core's allocator, under PyTorch's flat keys (``allocated_bytes.all.current``)."""
    return dict(torch.accelerator.memory_stats(_index(device)))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The counters of a core as a small table, in MiB."""
    stats = memory_stats(device)
    lines = [f"neuron:{_index(device)} memory [emulated], MiB    current       peak"]
    for label, name in [("allocated", "allocated_bytes"), ("active", "active_bytes"), ("reserved", "reserved_bytes")]:
        current, peak = (stats[f"{name}.all.{what}"] / (1 << 20) for what in ("current", "peak"))
        lines.append(f"{label:<36} {current:>10.2f} {peak:>10.2f}")
    if not abbreviated:
        lines.append(f"{'limit (HBM of the core)':<36} {_instance.hbm_bytes / (1 << 20):>10.2f}")
        lines.append(f"{'out-of-memory errors':<36} {stats.get('num_ooms', 0):>10}")
    return "\n".join(lines)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the peaks anew from the current values."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Start the running totals anew from zero."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))
