"""Which ``neuron`` device this process has, in words: :func:`setup` and :class:`DeviceInfo`.

The first code cell of every lesson calls :func:`setup`, so that nobody takes an emulated number for a measured one.
It reads public PyTorch only, except that it asks the emulator whether it is active. It never runs anything on the
device: on hardware the first operation claims the cores, and a notebook that launches other processes must not.
"""

from __future__ import annotations

import html
import importlib.metadata
import os
import platform
import re
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DeviceInfo", "setup"]

_GIB = 1 << 30
_WIDTH = 100

# HBM of one logical core at LNC=2, from the hardware pages of the Neuron documentation: 96 GiB and four logical cores
# on a Trainium2 chip, 144 GiB and four on a Trainium3 chip. At LNC=1 two cores share a bank, so no figure is given.
_HBM_AT_LNC2 = {"trn2": 24 * _GIB, "trn2u": 24 * _GIB, "trn3": 36 * _GIB}

_INSTANCE_TYPE = re.compile(r"(?:trn|inf)[0-9][a-z0-9-]*\.[a-z0-9-]+")
_PRODUCT_NAME = Path("/sys/devices/virtual/dmi/id/product_name")

_PACKAGES = ("torch", "torch-neuronx", "neuronx-cc", "nki", "transformers", "trl", "diffusers")

# What only confuses in a notebook: variable -> (value, what it turns off). See _quieten.
_QUIET = {
    "TOKENIZERS_PARALLELISM": ("false", "the tokenizers' warning about forked processes"),
    "HF_HUB_DISABLE_TELEMETRY": ("1", "telemetry of the Hugging Face libraries, TRL's included"),
}
_set_here: dict[str, str] = {}
_current: DeviceInfo | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """What the ``neuron`` device of this process is.

    Attributes
    ----------
    device : str
        The device type, ``"neuron"``.
    emulated : bool
        True on the emulated device, False on a Trainium.
    instance : str
        The instance type: the one that is running or, if emulated, the one whose shape is emulated.
    cores : int
        Logical NeuronCores that this process may use.
    lnc : int
        Physical cores per logical core (1 or 2).
    hbm_bytes : int or None
        Device memory of one logical core, in bytes. None where AWS documents no figure.
    versions : dict of str to str
        Python, neuron-lab and those of the libraries that are installed.
    reason : str
        Why the device is what it is, in words.
    quieted : tuple of str
        The environment variables that :func:`setup` set itself, as ``NAME=value``.

    Examples
    --------
    >>> info = DeviceInfo("neuron", True, "trn2.3xlarge", 4, 2, 24 << 30, {}, "no Trainium here")
    >>> info.label
    'emulated on CPU'
    """

    device: str
    emulated: bool
    instance: str
    cores: int
    lnc: int
    hbm_bytes: int | None
    versions: dict[str, str]
    reason: str
    quieted: tuple[str, ...] = field(default=())

    @property
    def label(self) -> str:
        """The source of a number, as it is stamped on every figure and table."""
        return "emulated on CPU" if self.emulated else f"measured on {self.instance}"

    @property
    def paragraph(self) -> str:
        """The honest paragraph, on one line."""
        cores = f"{self.cores} core{'s' * (self.cores != 1)} at LNC={self.lnc}"
        each = " each" if self.cores != 1 else ""
        hbm = f" with {_gib(self.hbm_bytes)} of HBM{each}" if self.hbm_bytes is not None else ""
        if self.emulated:
            what = (
                f"EMULATED: the device `{self.device}` is emulated on this machine's CPU ({platform.machine()}, "
                f"{os.cpu_count()} processors) in the shape of a {self.instance}, {cores}{hbm}. {self.reason} "
                "Results come from PyTorch's CPU kernels; no time, cost or speed seen here is a Trainium's."
            )
        else:
            what = f"{self.instance}: the device `{self.device}` is real, {cores}{hbm}. {self.reason}"
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        quiet = ""
        if self.quieted:
            off = " and ".join(f"{_QUIET[item.partition('=')[0]][1]} ({item})" for item in self.quieted)
            quiet = f" Turned off by setup(): {off}."
        return f"{what} Figures say \u201c{self.label}\u201d. Versions: {versions}.{quiet}"

    def __repr__(self) -> str:
        return textwrap.fill(self.paragraph, _WIDTH, break_on_hyphens=False, break_long_words=False)

    def _repr_html_(self) -> str:
        first, colon, rest = self.paragraph.partition(":")
        border = "#d55e00" if self.emulated else "#009e73"
        return (
            f'<p role="note" style="border-left: 4px solid {border}; margin: 0; padding: 0.3em 0.8em; '
            f'max-width: 60em; line-height: 1.5;"><strong>{html.escape(first)}</strong>{colon}'
            f"{_code(html.escape(rest))}</p>"
        )


def _code(text: str) -> str:
    """Names between backticks as HTML shows them."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


def setup(*, quiet: bool = False) -> DeviceInfo:
    """Say which ``neuron`` device this process has, and turn off what only confuses in a notebook.

    Call it first, before the Hugging Face libraries are imported: they read their settings at import. Calling it again
    is harmless. As the last line of a notebook cell its result is shown; in a script it prints itself.

    Parameters
    ----------
    quiet : bool, default False
        Print nothing in a script.

    Returns
    -------
    DeviceInfo
        Its ``repr`` is one paragraph that starts with EMULATED or with the instance type.

    Raises
    ------
    RuntimeError
        There is no ``neuron`` device. The message says why, and what to do.

    Examples
    --------
    >>> import neuron_lab as lab
    >>> info = lab.setup(quiet=True)  # doctest: +SKIP
    >>> info.label  # doctest: +SKIP
    'emulated on CPU'
    """
    global _current
    quieted = _quieten()
    _current = _describe(quieted)
    if not quiet and not _in_ipython():
        print(_current)
    return _current


def current() -> DeviceInfo:
    """The result of the last :func:`setup`, or of one made now. For figures that need the label."""
    return _current if _current is not None else setup(quiet=True)


def _describe(quieted: tuple[str, ...]) -> DeviceInfo:
    import torch

    status = _emulator_status()
    if not _neuron_is_available(torch):
        raise RuntimeError(_no_device_message(status))
    if status.active:
        took = f" Built in {status.build_seconds:.0f} s by this process." if status.build_seconds else ""
        return DeviceInfo(
            device="neuron",
            emulated=True,
            instance=status.instance,
            cores=status.cores,
            lnc=status.lnc,
            hbm_bytes=status.hbm_bytes,
            versions=_versions(),
            reason=f"{_sentence(status.reason)}{took}",
            quieted=quieted,
        )
    instance = _instance_type(_PRODUCT_NAME)
    lnc = _logical_core_config()
    family = instance.partition(".")[0]
    return DeviceInfo(
        device="neuron",
        emulated=False,
        instance=instance,
        cores=torch.accelerator.device_count(),
        lnc=lnc,
        hbm_bytes=_HBM_AT_LNC2.get(family) if lnc == 2 else None,
        versions=_versions(),
        reason=_sentence(status.reason),
        quieted=quieted,
    )


def _emulator_status() -> Any:
    """The emulator's word on itself: see ``neuron_lab.emulator.status``. Replaced in tests."""
    from neuron_lab import emulator

    return emulator.status()


def _neuron_is_available(torch: Any) -> bool:
    module = getattr(torch, "neuron", None)
    return module is not None and bool(module.is_available())


def _no_device_message(status: Any) -> str:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        step = "unset TORCH_DEVICE_BACKEND_AUTOLOAD and restart Python (in a notebook: restart the kernel)"
    elif os.environ.get("NEURON_LAB_EMULATOR") == "0":
        step = "unset NEURON_LAB_EMULATOR and restart Python (in a notebook: restart the kernel)"
    elif "torch-neuronx" in _versions():
        step = (
            "on a Trainium instance look at the driver with `neuron-ls`; on any other machine uninstall torch-neuronx, "
            "which claims the name `neuron` and has no device there, and the emulated one takes its place"
        )
    else:
        step = "run `neuron-lab doctor`, which names what is missing and how to mend it"
    return f"there is no `neuron` device. {_sentence(status.reason)} Next step: {step}."


def _quieten() -> tuple[str, ...]:
    """Set the variables of ``_QUIET`` that the user has not set. Says which, as ``NAME=value``."""
    for name, (value, _) in _QUIET.items():
        if name not in os.environ:
            os.environ[name] = value
            _set_here[name] = value
    # The library reads its variable once, at import. If that was before this call, tell it directly.
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None and "HF_HUB_DISABLE_TELEMETRY" in _set_here:
        constants.HF_HUB_DISABLE_TELEMETRY = True  # type: ignore[attr-defined]
    return tuple(f"{name}={value}" for name, value in _set_here.items() if os.environ.get(name) == value)


def _instance_type(product_name: Path) -> str:
    """The instance type as the virtual machine's firmware gives it: no network, no privileges."""
    try:
        name = product_name.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        name = ""
    return name if _INSTANCE_TYPE.fullmatch(name) else "Trainium (instance type unknown)"


def _logical_core_config() -> int:
    """LNC as the runtime reads it; 2 is the documented default on Trainium2."""
    return 1 if os.environ.get("NEURON_LOGICAL_NC_CONFIG", "").strip() == "1" else 2


def _versions() -> dict[str, str]:
    from neuron_lab._version import __version__

    found = {"Python": platform.python_version(), "neuron-lab": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _in_ipython() -> bool:
    """Whether a notebook or IPython shows the value of a cell's last line by itself."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _gib(count: int) -> str:
    return f"{count / _GIB:.3g} GiB"


def _sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    text = text[0].upper() + text[1:] if not text.startswith(("torch", "neuron")) else text
    return text if text.endswith((".", "!", "?")) else f"{text}."
