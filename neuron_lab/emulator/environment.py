"""The emulated instance, read from the documented environment variables.

What an instance has is in docs of the Neuron SDK (cores, LNC, HBM); which
variable wins over which is in its runtime configuration guide. Variables that
begin with ``NEURON_LAB_`` are this project's own. Nothing here touches torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

#: Physical NeuronCores and HBM banks per instance. Two physical cores make one
#: logical core at LNC=2 (the default on Trainium2); each bank of 24 GiB serves
#: two physical cores. Sources: Neuron docs, "trainium2" and "logical-neuroncore-config".
INSTANCES: dict[str, int] = {"trn2.3xlarge": 8, "trn2.48xlarge": 128}
HBM_BANK_BYTES = 24 << 30
MAX_CORES = 127  # PyTorch's device index is one signed byte

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class ConfigurationError(ValueError):
    """An environment variable has a value that makes no sense."""


@dataclass(frozen=True)
class Instance:
    """What this process may use of the emulated instance.

    Attributes
    ----------
    name
        Instance type, for example ``"trn2.3xlarge"``.
    lnc
        Physical cores per logical core, 1 or 2.
    cores
        Logical cores that this process sees; ``neuron:0`` to ``neuron:<cores-1>``.
    hbm_bytes
        Capacity of one HBM bank in bytes.
    cores_per_bank
        Logical cores that share one bank: 2 at LNC=1, else 1.
    start_core
        Index of the core that the process begins on (its ``LOCAL_RANK``).
    refuse_float64, refuse_fallback
        The two strictness switches, see ``NEURON_LAB_FLOAT64`` and
        ``NEURON_FALLBACK_ENABLED`` in the README.
    problem
        Why the device cannot be used, or an empty string.
    """

    name: str = "trn2.3xlarge"
    lnc: int = 2
    cores: int = 4
    hbm_bytes: int = HBM_BANK_BYTES
    cores_per_bank: int = 1
    start_core: int = 0
    refuse_float64: bool = True
    refuse_fallback: bool = False
    problem: str = ""


def flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    """Read a boolean variable; the runtime documents 0, 1, true and false."""
    text = env.get(name, "").strip().lower()
    if not text:
        return default
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise ConfigurationError(f"{name}={env[name]!r} is not a boolean. Use 0, 1, true or false.")


def _range(low: int, high: int) -> str:
    return f"{low} or {high}" if high - low == 1 else f"{low} to {high}"


def _number(env: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is not a whole number. Use {_range(low, high)}.") from None
    if not low <= value <= high:
        raise ConfigurationError(f"{name}={value} is out of range. Use {_range(low, high)}.")
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()  # isdigit alone is true for a superscript two


def parse_cores(text: str, available: int, name: str = "NEURON_RT_VISIBLE_CORES") -> list[int]:
    """Expand a list of cores: ``"0-3"``, ``"2,3"`` or ``"0,2-3"``.

    Parameters
    ----------
    text
        The variable's value; ranges are inclusive.
    available
        Number of logical cores of the instance.
    name
        The variable's name, for the message.

    Returns
    -------
    list of int
        Indices in the order given, each once.

    Raises
    ------
    ConfigurationError
        For anything that is not such a list, or names a core that does not exist.

    Examples
    --------
    >>> parse_cores("0,2-3", available=4)
    [0, 2, 3]
    """
    cores: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not _is_number(low) or (dash and not _is_number(high)):
            raise ConfigurationError(
                f"{name}={text!r} is not a list of cores. Write an index, an inclusive range or a list: 2, 0-3 or "
                "0,2-3."
            )
        last = min(int(high or low), available)  # one too many is enough to be refused
        cores.extend(range(int(low), last + 1) if int(low) <= available else [int(low)])
    wrong = [core for core in cores if core >= available]
    if wrong or not cores:
        raise ConfigurationError(
            f"{name}={text!r} names core {wrong[0] if wrong else 'none'}; this instance has cores 0 to "
            f"{available - 1}. "
            "NEURON_LAB_CORES raises the number of emulated cores."
        )
    if len(set(cores)) != len(cores):
        raise ConfigurationError(f"{name}={text!r} names a core twice. Name each one once.")
    return cores


def _start_core(env: Mapping[str, str], cores: int, visible: bool) -> int:
    local_rank = _number(env, "LOCAL_RANK", 0, 1 << 16) or 0
    if local_rank < cores:
        return local_rank
    if visible and cores == 1:
        return 0  # the launcher already gave this rank its one core
    raise ConfigurationError(
        f"LOCAL_RANK={local_rank} needs core {local_rank}, and this process sees {cores} "
        f"({'neuron:0' if cores == 1 else f'neuron:0 to neuron:{cores - 1}'}): one process per core. Start at most "
        f"{cores} "
        "processes (torchrun --nproc_per_node), or emulate more cores with NEURON_LAB_CORES."
    )


def _read(env: Mapping[str, str]) -> Instance:
    name = env.get("NEURON_LAB_INSTANCE", "").strip() or "trn2.3xlarge"
    if name not in INSTANCES:
        raise ConfigurationError(f"NEURON_LAB_INSTANCE={name!r} is not emulated. Use one of {', '.join(INSTANCES)}.")
    lnc = _number(env, "NEURON_LOGICAL_NC_CONFIG", 1, 2) or _number(env, "NEURON_RT_VIRTUAL_CORE_SIZE", 1, 2) or 2
    available = _number(env, "NEURON_LAB_CORES", 1, MAX_CORES) or INSTANCES[name] // lnc
    visible = env.get("NEURON_RT_VISIBLE_CORES", "").strip()
    if visible:  # documented to win over NEURON_RT_NUM_CORES
        cores = len(parse_cores(visible, available))
    else:
        cores = _number(env, "NEURON_RT_NUM_CORES", 0, available) or available  # 0 or unset: all
    if cores > MAX_CORES:
        raise ConfigurationError(
            f"{name} at LNC={lnc} has {cores} logical cores, and PyTorch counts at most {MAX_CORES} devices in a "
            "process. Take fewer with NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES, or use "
            "NEURON_LOGICAL_NC_CONFIG=2."
        )
    text = env.get("NEURON_LAB_HBM_GB", "").strip()
    try:
        hbm_bytes = int(float(text) * (1 << 30)) if text else HBM_BANK_BYTES
    except (ValueError, OverflowError):
        hbm_bytes = 0
    if not 0 < hbm_bytes <= 1 << 50:
        raise ConfigurationError(f"NEURON_LAB_HBM_GB={text!r} is not a size. Use GiB per core, for example 0.5.")
    float64 = env.get("NEURON_LAB_FLOAT64", "").strip().lower() or "refuse"
    if float64 not in {"refuse", "allow"}:
        raise ConfigurationError(f"NEURON_LAB_FLOAT64={float64!r} is not known. Use refuse or allow.")
    return Instance(
        name=name,
        lnc=lnc,
        cores=cores,
        hbm_bytes=hbm_bytes,
        cores_per_bank=2 if lnc == 1 else 1,
        start_core=_start_core(env, cores, bool(visible)),
        refuse_float64=float64 == "refuse",
        refuse_fallback=not flag(env, "NEURON_FALLBACK_ENABLED", True),
    )


def read_instance(env: Mapping[str, str] | None = None) -> Instance:
    """Describe the emulated instance; a wrong variable becomes ``problem``.

    An error here would break ``import torch`` for the whole environment, so it
    is kept and raised at the first use of the device instead.

    Parameters
    ----------
    env
        Environment to read, ``os.environ`` by default.

    Examples
    --------
    >>> read_instance({"NEURON_LOGICAL_NC_CONFIG": "1"}).cores
    8
    """
    try:
        return _read(os.environ if env is None else env)
    except ConfigurationError as error:
        return Instance(cores=0, problem=f"The emulated neuron device cannot start: {error}")
