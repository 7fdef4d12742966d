"""What it costs to count where nothing is compiled."""

from __future__ import annotations

import pytest
import torch

import neuron_lab as lab

from .conftest import TOLERANCE

pytestmark = pytest.mark.benchmark


def test_an_open_counter_on_steps_that_do_not_compile(ratio):
    step, x = torch.compile(lambda x: (x @ x).relu(), backend="eager", dynamic=False), torch.ones(16, 16)
    step(x)

    def plain() -> None:
        for _ in range(500):
            step(x)

    def counted() -> None:
        with lab.count_recompiles() as seen:
            for _ in range(500):
                step(x)
        assert not seen.events

    found = ratio("500 small compiled steps, counted", plain, counted, bound=1.02, against="the uncounted")
    assert found <= 1.02 * TOLERANCE
