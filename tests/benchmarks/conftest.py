"""Ratios, most of them against the plain CPU, measured in one run by turns and shown at the end of it."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch

#: A busy machine disturbs both sides, not always alike. A test fails by itself only beyond this factor of its bound;
#: ``NEURON_LAB_BENCHMARK_STRICT=1 pytest tests/benchmarks`` holds it to the bound, and wants a quiet machine.
TOLERANCE = 1.0 if os.environ.get("NEURON_LAB_BENCHMARK_STRICT") == "1" else 2.0
ATTEMPTS = 4

_lines: list[str] = []


def _sample(function: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        function()
    return time.perf_counter() - start


def measure(
    plain: Callable[[], object], device: Callable[[], object], *, rounds: int = 21, span: float = 2e-3
) -> tuple[float, float]:
    """Time two callables by turns.

    Returns
    -------
    ratio, seconds
        Median over the rounds of device time by CPU time, and the smallest
        device time of one call.
    """
    for function in (plain, device):
        _sample(function, 3)
    times = max(1, int(span / max(min(_sample(plain, 1) for _ in range(3)), 1e-9)))
    _sample(plain, times)
    _sample(device, times)
    ratios, best = [], float("inf")
    for number in range(rounds):
        order = (plain, device) if number % 2 else (device, plain)
        spent = {function: _sample(function, times) for function in order}
        ratios.append(spent[device] / spent[plain])
        best = min(best, spent[device] / times)
    return statistics.median(ratios), best


class Ratio:
    """Measures a ratio until it is within its bound, a few times at most, and writes it down."""

    def __init__(self, benchmark) -> None:
        self._benchmark = benchmark

    def __call__(
        self,
        name: str,
        plain: Callable[[], object],
        device: Callable[[], object],
        *,
        bound: float,
        rounds: int = 21,
        against: str = "the CPU's",
    ) -> float:
        ratio, seconds = float("inf"), float("inf")
        for _ in range(ATTEMPTS):
            found, best = measure(plain, device, rounds=rounds)
            ratio, seconds = min(ratio, found), min(seconds, best)
            if ratio <= bound:
                break
        self.record(name, f"{ratio:.2f} times {against} time", f"{bound:.2f}")
        self._benchmark.extra_info.update(ratio=round(ratio, 3), bound=bound)
        if self._benchmark.enabled and not self._benchmark.stats:
            self._benchmark.pedantic(device, rounds=5, iterations=max(1, int(2e-3 / seconds)))
        return ratio

    def record(self, name: str, found: str, bound: str) -> None:
        _lines.append(f"{name:<44} {found:<28} bound {bound}")


@pytest.fixture
def ratio(benchmark) -> Ratio:
    return Ratio(benchmark)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """One thread and no collector: both sides alike, and fewer surprises."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    torch.set_num_threads(threads)


def pytest_terminal_summary(terminalreporter) -> None:
    if _lines:
        terminalreporter.section("emulated on CPU; both sides measured in this run")
        for line in _lines:
            terminalreporter.write_line(line)
