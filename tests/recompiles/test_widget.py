"""The live widget, without a browser: what it sends is recorded."""

from __future__ import annotations

import pytest
import torch

import neuron_lab as lab
from neuron_lab.widgets import rows_of

pytest.importorskip("ipywidgets")
comm = pytest.importorskip("comm")

ones = torch.ones


class Recorder(comm.base_comm.BaseComm):
    """Stands where the channel to a browser is."""

    sent: list[dict]

    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
        RECORD.append(data or {})


RECORD: list[dict] = []


@pytest.fixture(autouse=True)
def _recorded(monkeypatch):
    RECORD.clear()
    monkeypatch.setattr(comm, "create_comm", lambda *args, **kwargs: Recorder(*args, **kwargs))


@pytest.fixture
def monitor():
    made = lab.RecompileMonitor("a test")
    yield made
    made.close()


def updates() -> str:
    return "".join(str(data.get("state", {}).get("value", "")) for data in RECORD if data.get("method") == "update")


def three_lengths():
    def triple(x):
        return x * 3

    step = torch.compile(triple, backend="eager", dynamic=False, recompile_limit=2)
    for n in (2, 3, 4):
        step(ones(n))
    return triple


def test_says_that_nothing_happened_yet(monitor):
    assert "Nothing has been compiled yet" in monitor.table.value
    assert monitor.seen.label == "a test"


def test_is_updated_while_things_compile(monitor):
    RECORD.clear()
    three_lengths()
    assert "triple" in updates() and "x.size(0): 2 -&gt; 3" in updates()
    assert "EAGER" in monitor.table.value
    (row,) = rows_of(monitor.seen)
    assert (row.name, row.compiles, row.recompiles, row.state) == ("triple", 2, 1, "EAGER")
    assert "bucket" in row.remedy


def test_sends_nothing_when_nothing_happened(monitor):
    three_lengths()
    RECORD.clear()
    monitor.update()
    assert not RECORD


def test_breaks_are_counted_with_their_function(monitor):
    def function(x):
        y = x + 1
        print(end="")
        return y * 2

    torch.compile(function, backend="eager")(ones(2))
    rows = {row.name: row for row in rows_of(monitor.seen)}
    assert rows["function"].breaks == 1 and rows["function (rest)"].breaks == 0


def test_filter(monitor):
    three_lengths()
    monitor.filter.value = "TRIPLE size(0)"
    assert "triple" in monitor.table.value
    monitor.filter.value = "<nothing> like it"
    assert "No function matches" in monitor.table.value and "&lt;nothing&gt;" in monitor.table.value


def test_reset_goes_on_watching(monitor):
    three_lengths()
    monitor.reset.click()
    assert "Nothing has been compiled yet" in monitor.table.value and not monitor.seen.events
    torch.compile(lambda x: x - 1, backend="eager")(ones(2))
    assert len(monitor.seen.compiles) == 1 and "lambda" in monitor.table.value


def test_the_report_to_copy_is_the_text(monitor):
    three_lengths()
    assert 'data-report="a test: 2 compiles' in monitor.copy.value and "2 -&gt; 3" in monitor.copy.value
    assert repr(monitor) == repr(monitor.seen)


def test_closing_ends_the_watching(monitor):
    monitor.close()
    three_lengths()
    assert not monitor.seen.events
    monitor.close()  # twice is no mistake


def test_a_cell_that_is_run_again_leaves_one_monitor(monitor):
    again = lab.RecompileMonitor("a test")
    three_lengths()
    assert not monitor.seen.events and len(again.seen.compiles) == 2
    assert {event.phase for event in again.seen.events} == {""}
    again.close()


def test_text_and_widget_are_one_display(monitor):
    three_lengths()
    bundle = monitor._bundle()
    assert set(bundle) >= {"text/plain", "application/vnd.jupyter.widget-view+json"}
    assert bundle["text/plain"].startswith("a test: 2 compiles")
