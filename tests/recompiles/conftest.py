"""Every test starts with nothing compiled, and must leave PyTorch as it found it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.decorators

from neuron_lab.recompiles.listener import LISTENER


@pytest.fixture(autouse=True)
def _clean_slate() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    LISTENER._defined.clear()
    log = logging.getLogger("torch.__trace")
    stance = torch._dynamo.decorators._set_stance
    yield
    assert LISTENER._handler not in log.handlers, "a counter was left open"
    assert torch._dynamo.decorators._set_stance is stance
    torch.compiler.set_stance("default")
