"""The counter agrees with what PyTorch logs under ``TORCH_LOGS=recompiles``, program by program."""

from __future__ import annotations

import logging

import pytest
import torch

from neuron_lab.recompiles import count_recompiles
from neuron_lab.recompiles.causes import clean

from .programs import PROGRAMS


class Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def logged():
    """PyTorch's own lines about recompiles."""
    lines = Lines()
    torch._logging.set_logs(recompiles=True)
    log = logging.getLogger("torch._dynamo.guards.__recompiles")
    propagates, log.propagate = log.propagate, False
    log.addHandler(lines)
    yield lines.messages
    log.removeHandler(lines)
    log.propagate = propagates
    torch._logging.set_logs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_and_causes(name, logged):
    program, kind = PROGRAMS[name]
    with count_recompiles(label=name) as seen:
        program()
    asked_again = [event for event in seen.events if event.cause is not None]
    assert len(asked_again) == len(logged) > 0
    for event, line in zip(asked_again, logged, strict=True):
        assert event.guards and all(guard.splitlines()[0] in line for guard in event.guards)
        assert event.cause.guard in event.guards
        name_of_function = line.removeprefix("Recompiling function ").split(" in ")[0]
        # Inside a decorator, PyTorch names the decorator's function.
        assert event.function.split(" ")[0].split(".")[-1] in name_of_function or name_of_function in (
            "inner",
            "wrapper",
        )
    assert asked_again[0].cause.kind == kind, asked_again[0].cause
    first_reason = clean(logged[0].split("failure(s):\n")[1].lstrip(" -"))
    assert kind == "backend" or asked_again[0].cause.guard == first_reason.splitlines()[0]
