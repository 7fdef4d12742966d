"""Stand-in for ``torch_neuronx.profiling``: the documented objects, around PyTorch's own profiler.

The real ones capture what happens on the chip. The emulated core is the CPU, so
a trace holds what PyTorch's profiler sees there, and says so.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch


class ProfileMode(enum.Enum):
    """What the real profiler can capture. Nothing of it exists on the emulated core."""

    DEVICE = "device"
    RUNTIME = "runtime"
    CPU_UTIL = "cpu_util"
    HOST_MEMORY = "host_memory"


class NeuronConfig(torch._C._profiler._ExperimentalConfig):
    """Options of a capture, for ``torch.profiler.profile(experimental_config=...)``.

    Parameters
    ----------
    modes
        What to capture; by default ``[ProfileMode.DEVICE, ProfileMode.RUNTIME]``.
    max_events_per_nc, capture_enabled_for_nc, neff_cache_dir, precache_node_info
        Accepted as documented, without effect here.
    profile_output_dir
        Folder below which the traces are written.
    """

    def __init__(
        self,
        modes: Sequence[ProfileMode] = (ProfileMode.DEVICE, ProfileMode.RUNTIME),
        max_events_per_nc: int | None = None,
        capture_enabled_for_nc: str | None = None,
        profile_output_dir: str = "./output",
        neff_cache_dir: str | None = None,
        precache_node_info: bool = True,
    ) -> None:
        super().__init__()
        self.modes = list(modes)
        self.max_events_per_nc = max_events_per_nc
        self.capture_enabled_for_nc = capture_enabled_for_nc
        self.profile_output_dir = profile_output_dir
        self.neff_cache_dir = neff_cache_dir
        self.precache_node_info = precache_node_info


class NeuronProfiler:
    """Writes the traces of a capture; its ``export_trace`` goes to ``on_trace_ready``.

    Examples
    --------
    >>> config = NeuronConfig(profile_output_dir="traces")  # doctest: +SKIP
    >>> ready = NeuronProfiler(config).export_trace  # doctest: +SKIP
    >>> with torch.profiler.profile(on_trace_ready=ready):  # doctest: +SKIP
    ...     model(x)
    """

    def __init__(self, config: NeuronConfig) -> None:
        self.config = config

    def export_trace(self, profiler: torch.profiler.profile) -> None:
        """Write ``trace.json`` below ``<dir>/emulated_pid_<pid>/<time>/``."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        folder = Path(self.config.profile_output_dir) / f"emulated_pid_{os.getpid()}" / stamp
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / "trace.json"))
        (folder / "EMULATED.txt").write_text(
            "Captured on the emulated neuron device of neuron-lab: CPU events only. No time in it is a Trainium's.\n"
        )
