"""What the tests of the emulated device's own code share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("neuron_lab.emulator")


@pytest.fixture
def distribution(tmp_path: Path) -> Callable[..., str]:
    """Write an installed distribution into a folder; returns the folder, for PYTHONPATH."""

    def make(name: str, version: str, *, entry_points: str = "", modules: Mapping[str, str] | None = None) -> str:
        site = tmp_path / "site"
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        for path, text in (modules or {}).items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(textwrap.dedent(text))
        return str(site)

    return make


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable]:
    """``torch.compile`` for the device, from a clean slate: nothing compiled, an empty cache, no records."""
    import torch
    import torch_neuronx

    from neuron_lab.emulator import records

    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "neff"))
    for name in ("TORCH_NEURONX_DEBUG_DIR", "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(records, "_state", records._State())
    torch._dynamo.reset()
    torch_neuronx.neuron_dynamo_backend.reset_dynamo_metrics()

    def make(function: Callable | None = None, **options) -> Callable:
        return torch.compile(function, **{"backend": "neuron", "fullgraph": True, "dynamic": False, **options})

    return make
