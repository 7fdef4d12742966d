"""torch.accelerator, the whole of it, and the same things under torch.neuron."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from .helpers import DEVICE, output_of


class TestWhich:
    def test_it_is_the_accelerator(self):
        assert torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator() == torch.device(DEVICE)
        assert torch.accelerator.current_accelerator(check_available=True).type == DEVICE
        assert torch.get_device_module(DEVICE) is torch.neuron
        assert torch.get_device_module() is torch.neuron
        assert torch.accelerator.device_count() == torch.neuron.device_count() >= 1

    def test_names_and_properties(self):
        assert isinstance(torch.neuron.get_device_name(), str) and torch.neuron.get_device_name()
        properties = torch.neuron.get_device_properties(0)
        assert properties.total_memory > 0 and properties.name
        assert torch.neuron.is_bf16_supported()
        assert torch.bfloat16 in torch.neuron.get_amp_supported_dtype()
        with pytest.raises(RuntimeError, match="neuron:99"):
            torch.neuron.get_device_properties(99)

    def test_capability_lists_dtypes(self):
        capability = torch.accelerator.get_device_capability()
        assert torch.bfloat16 in capability["supported_dtypes"] and torch.float32 in capability["supported_dtypes"]

    def test_initialisation_happens_at_first_use(self):
        code = "import torch; asked = torch.neuron.is_initialized; a = asked(); torch.neuron.init(); print(a, asked())"
        assert output_of(code) == "False True"

    def test_lazy_questions_do_not_claim_the_device(self):
        code = """
import torch
torch.accelerator.is_available(), torch.accelerator.current_accelerator(), torch.accelerator.device_count()
torch.manual_seed(3)
print(torch.neuron.is_initialized(), torch.rand(1, device="neuron").device)
"""
        assert output_of(code) == "False neuron:0"

    def test_a_seed_set_before_the_first_use_counts(self):
        code = "import torch; torch.manual_seed(3); print(torch.rand(3, device='neuron').tolist())"
        assert output_of(code) == output_of(code)


class TestCurrentCore:
    def test_set_and_read(self, second_core):
        try:
            torch.accelerator.set_device_index(1)
            assert torch.accelerator.current_device_index() == torch.neuron.current_device() == 1
            assert str(torch.ones(1, device=DEVICE).device) == second_core
            assert str(torch.ones(1).to(DEVICE).device) == second_core
            assert str(torch.ones(1).neuron().device) == second_core
            assert str(torch.Generator(DEVICE).device) == second_core
            torch.neuron.set_device(f"{DEVICE}:0")
            assert torch.neuron.current_device() == 0
        finally:
            torch.accelerator.set_device_index(0)

    def test_context(self, second_core):
        with torch.accelerator.device_index(1):
            x = torch.ones(2, device=DEVICE)
            with torch.accelerator.device_index(0):
                assert torch.ones(1, device=DEVICE).device.index == 0
            assert torch.accelerator.current_device_index() == 1
            with torch.accelerator.device_index(None):
                assert torch.accelerator.current_device_index() == 1
        assert str(x.device) == second_core and torch.accelerator.current_device_index() == 0
        with pytest.raises(ValueError, match="inside"), torch.accelerator.device_index(1):
            raise ValueError("inside")
        assert torch.accelerator.current_device_index() == 0
        with torch.neuron.device(second_core), torch.neuron.device_of(torch.ones(1)):
            assert torch.neuron.current_device() == 1
        with torch.neuron.device_of(x):
            assert torch.neuron.current_device() == 1

    def test_work_on_another_core_leaves_the_current_one(self, second_core):
        x = torch.ones(4, 4, device=second_core, requires_grad=True)
        ((x @ x).relu() + torch.zeros_like(x)).sum().backward()
        assert torch.accelerator.current_device_index() == 0 and str(x.grad.device) == second_core
        assert str(x.new_empty(3).device) == second_core

    def test_a_new_thread_works_where_the_process_does(self, second_core):
        seen = []
        torch.accelerator.set_device_index(1)
        try:
            thread = threading.Thread(target=lambda: seen.append(str(torch.ones(1, device=DEVICE).device)))
            thread.start()
            thread.join(60)
        finally:
            torch.accelerator.set_device_index(0)
        assert seen == [second_core]

    def test_an_index_out_of_range(self):
        for attempt in (torch.accelerator.set_device_index, torch.neuron.set_device, torch.accelerator.synchronize):
            with pytest.raises(RuntimeError, match="neuron:99"):
                attempt(99)
        assert torch.accelerator.current_device_index() == 0
        assert torch.ones(1, device=DEVICE).device.index == 0

    def test_a_device_of_another_type_is_refused(self):
        with pytest.raises(ValueError, match="cpu"):
            torch.accelerator.set_device_index(torch.device("cpu"))
        with pytest.raises(ValueError, match="cpu"):
            torch.neuron.set_device("cpu")


class TestStreamsAndEvents:
    def test_streams(self):
        default = torch.accelerator.current_stream()
        assert default.device.type == DEVICE
        side = torch.Stream(device=DEVICE)
        assert side != default and side.query()
        x = torch.ones(1000, device=DEVICE)
        with side:
            assert torch.accelerator.current_stream() == side
            y = x * 2
        assert torch.accelerator.current_stream() == default
        default.wait_stream(side)
        y.record_stream(default)
        side.synchronize()
        assert y.sum().item() == 2000

    def test_setting_the_stream(self):
        before, side = torch.accelerator.current_stream(), torch.Stream(DEVICE)
        torch.accelerator.set_stream(side)
        try:
            assert torch.accelerator.current_stream() == side and torch.neuron.current_stream() == side
        finally:
            torch.accelerator.set_stream(before)
        assert torch.accelerator.current_stream() == before

    def test_events_are_ordered(self):
        first, last = (torch.Event(device=DEVICE, enable_timing=True) for _ in range(2))
        first.record()
        x = torch.ones(64, 64, device=DEVICE)
        for _ in range(5):
            x = x @ x * 0.01
        time.sleep(0.01)
        last.record()
        last.synchronize()
        assert last.query() and first.elapsed_time(last) >= 5.0

    def test_an_event_between_streams(self):
        side, event = torch.Stream(DEVICE), torch.Event(DEVICE)
        with side:
            x = torch.ones(3, device=DEVICE)
            event.record()
        torch.accelerator.current_stream().wait_event(event)
        side.wait_event(event)
        assert torch.accelerator.current_stream().record_event().query()
        assert x.sum().item() == 3

    def test_an_event_that_was_not_recorded_times_nothing(self):
        first, last = torch.Event(device=DEVICE, enable_timing=True), torch.Event(device=DEVICE, enable_timing=True)
        with pytest.raises((RuntimeError, ValueError)):
            first.elapsed_time(last)
        plain, other = torch.Event(device=DEVICE), torch.Event(device=DEVICE)
        plain.record()
        other.record()
        with pytest.raises((RuntimeError, ValueError)):
            plain.elapsed_time(other)  # made without enable_timing

    def test_the_names_of_torch_neuron(self):
        stream, event = torch.neuron.Stream(), torch.neuron.Event(enable_timing=True)
        with torch.neuron.stream(stream):
            assert torch.neuron.current_stream() == stream
            event.record()
        assert torch.neuron.current_stream() == torch.neuron.default_stream()
        with torch.neuron.stream(None):
            assert torch.neuron.current_stream() == torch.neuron.default_stream()
        torch.neuron.synchronize()
        assert event.query()

    def test_streams_of_another_core(self, second_core):
        side = torch.Stream(device=second_core)
        assert str(side.device) == second_core
        with side:
            assert torch.accelerator.current_device_index() == 1
        assert torch.accelerator.current_device_index() == 0

    def test_synchronise(self):
        torch.ones(10, device=DEVICE).add_(1)
        for device in (None, 0, DEVICE, torch.device(DEVICE, 0)):
            torch.accelerator.synchronize(device)
            torch.neuron.synchronize(device)


class TestPinnedMemory:
    def test_pinned_memory_is_known_as_such(self):
        x = torch.arange(6.0)
        pinned = x.pin_memory()
        assert not x.is_pinned() and pinned.is_pinned() and pinned[2:].is_pinned()
        assert pinned.device.type == "cpu" and torch.equal(pinned, x)
        assert torch.empty(3, pin_memory=True).is_pinned()
        assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
        assert torch.equal(pinned.to(DEVICE, non_blocking=True).cpu(), x)

    def test_only_cpu_tensors_can_be_pinned(self):
        with pytest.raises(RuntimeError, match="pin"):
            torch.ones(2, device=DEVICE).pin_memory()
        with pytest.raises(RuntimeError, match="pin"):
            torch.empty(2, device=DEVICE, pin_memory=True)
