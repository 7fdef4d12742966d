"""The conformance kit of the `neuron` device: public torch only, so that it can test the real backend as well."""

from __future__ import annotations

import pytest
import torch

from .helpers import DEVICE, is_emulated


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "emulated: about a property of neuron-lab's emulated device; skipped on a real one"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if is_emulated():
        return
    for item in items:
        if item.get_closest_marker("emulated"):
            item.add_marker(pytest.mark.skip(reason="about the emulated device, and this one is real"))


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    """Without the device the tests would say nothing; so they fail rather than being skipped."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != DEVICE:
        pytest.fail(f"there is no {DEVICE} device in this process, the accelerator is {accelerator}")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def second_core() -> str:
    """Another core, where the machine has one."""
    if torch.accelerator.device_count() < 2:
        pytest.skip("needs two cores")
    return f"{DEVICE}:1"
