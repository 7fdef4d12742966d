"""Memory of a core: counted exactly, limited, and given back."""

from __future__ import annotations

import gc

import pytest
import torch

from .helpers import DEVICE, output_of

MIB = 1 << 20
ALL_CORES = {"NEURON_RT_NUM_CORES": None, "NEURON_RT_VISIBLE_CORES": None, "NEURON_LAB_CORES": None, "LOCAL_RANK": None}


def allocated() -> int:
    torch.accelerator.synchronize()
    return torch.accelerator.memory_allocated()


def ordered() -> None:
    stats = torch.accelerator.memory_stats()
    assert (
        stats["reserved_bytes.all.current"]
        >= stats["allocated_bytes.all.current"]
        >= stats["active_bytes.all.current"]
        >= 0
    )


class TestCounting:
    def test_what_is_made_is_counted_and_what_is_dropped_is_not(self):
        before = allocated()
        x = torch.empty(MIB, device=DEVICE)
        assert allocated() - before == 4 * MIB
        y = x.view(2, -1)[0]
        del x
        assert allocated() - before == 4 * MIB  # the view keeps it
        del y
        assert allocated() == before
        ordered()

    def test_every_way_of_making_a_tensor_counts(self):
        makers = {
            "factory": lambda: torch.zeros(MIB, device=DEVICE),
            "copy": lambda: torch.zeros(MIB).to(DEVICE),
            "result": lambda: torch.zeros(MIB // 2, device=DEVICE).repeat(2),
            "random": lambda: torch.randn(MIB, device=DEVICE),
            "out": lambda: torch.arange(float(MIB), out=torch.empty(0, device=DEVICE)),
            "resize": lambda: torch.empty(0, device=DEVICE).resize_(MIB),
            "clone": lambda: torch.zeros(MIB, device=DEVICE).clone(),
            "matrix product": lambda: torch.zeros(1024, 8, device=DEVICE) @ torch.zeros(8, 1024, device=DEVICE),
            "bfloat16 product": lambda: (
                torch.zeros(1024, 64, device=DEVICE).bfloat16() @ torch.zeros(64, 2048, device=DEVICE).bfloat16()
            ),
            "sort": lambda: torch.zeros(MIB, device=DEVICE).sort().values,
        }
        for name, make in makers.items():
            before = allocated()
            x = make()
            assert allocated() - before == 4 * MIB, name
            del x
            assert allocated() == before, name

    def test_small_tensors_are_rounded_up(self):
        before = allocated()
        x = torch.empty(1, device=DEVICE)
        assert 4 <= allocated() - before <= 512
        del x
        assert allocated() == before

    def test_a_training_step_returns_to_where_it_was(self):
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(32, 64, device=DEVICE)

        def step(dtype: torch.dtype) -> None:
            with torch.autocast(DEVICE, dtype=dtype, enabled=dtype != torch.float32):
                loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        for dtype in (torch.float32, torch.bfloat16):
            step(dtype)
            gc.collect()
            steady = allocated()
            for _ in range(3):
                step(dtype)
            gc.collect()
            assert allocated() == steady, dtype

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_convolutions_and_attention_leave_nothing(self, dtype):
        def work() -> None:
            x = torch.randn(2, 16, 24, 24, dtype=dtype, device=DEVICE, requires_grad=True)
            w = torch.randn(16, 16, 3, 3, dtype=dtype, device=DEVICE, requires_grad=True)
            torch.nn.functional.conv2d(x, w, padding=1).sum().backward()
            q = torch.randn(1, 4, 128, 32, dtype=dtype, device=DEVICE, requires_grad=True)
            torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
            (q[0, 0] @ q[0, 0].t()).exp().sum().item()

        before = allocated()
        work()
        gc.collect()
        assert allocated() == before

    def test_errors_leave_nothing(self):
        before = allocated()
        for _ in range(3):
            with pytest.raises(RuntimeError):
                torch.ones(1000, 1000, device=DEVICE) @ torch.ones(999, 1000, device=DEVICE)
            with pytest.raises(RuntimeError):
                torch.linalg.cholesky(-torch.eye(500, device=DEVICE))
        gc.collect()
        assert allocated() == before

    def test_each_core_counts_its_own(self, second_core):
        before = [torch.accelerator.memory_allocated(i) for i in (0, 1)]
        x = torch.empty(MIB, device=second_core)
        y = x + 1
        after = [torch.accelerator.memory_allocated(i) for i in (0, 1)]
        assert after[0] == before[0] and after[1] - before[1] == 8 * MIB
        del x, y


class TestPeaks:
    def test_the_peak_is_what_was_held_at_once(self):
        torch.accelerator.reset_peak_memory_stats()
        base = allocated()
        assert torch.accelerator.max_memory_allocated() == base
        x = torch.empty(2 * MIB, device=DEVICE)
        y = torch.empty(MIB, device=DEVICE)
        del x
        z = torch.empty(MIB // 4, device=DEVICE)
        assert torch.accelerator.max_memory_allocated() - base == 12 * MIB
        assert torch.accelerator.max_memory_reserved() >= torch.accelerator.max_memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        assert torch.accelerator.max_memory_allocated() - base == 5 * MIB
        del y, z

    def test_memory_that_an_operator_needs_inside_is_in_the_peak(self):
        x = torch.zeros(MIB, device=DEVICE)
        torch.accelerator.reset_peak_memory_stats()
        base = allocated()
        torch.sort(x)
        assert torch.accelerator.max_memory_allocated() - base >= 12 * MIB  # values and int64 indices

    def test_running_totals_only_grow_until_reset(self):
        torch.accelerator.reset_accumulated_memory_stats()
        for _ in range(3):
            torch.empty(MIB, device=DEVICE)
        stats = torch.accelerator.memory_stats()
        assert stats["allocated_bytes.all.allocated"] >= 12 * MIB
        assert stats["allocation.all.allocated"] >= 3
        torch.accelerator.reset_accumulated_memory_stats()
        assert torch.accelerator.memory_stats()["allocated_bytes.all.allocated"] == 0

    def test_two_pools(self):
        before = torch.accelerator.memory_stats()
        small, large = torch.empty(1000, device=DEVICE), torch.empty(MIB, device=DEVICE)
        after = torch.accelerator.memory_stats()
        grown = {
            pool: after[f"allocated_bytes.{pool}.current"] - before[f"allocated_bytes.{pool}.current"]
            for pool in ("small_pool", "large_pool")
        }
        assert 4000 <= grown["small_pool"] < 8192 and grown["large_pool"] == 4 * MIB
        del small, large


class TestCache:
    def test_freed_memory_stays_reserved_until_the_cache_is_emptied(self):
        torch.accelerator.empty_cache()
        base = torch.accelerator.memory_reserved()
        x = torch.empty(8 * MIB, device=DEVICE)
        held = torch.accelerator.memory_reserved()
        assert held >= base + 32 * MIB - 2 * MIB
        del x
        assert torch.accelerator.memory_reserved() == held
        torch.accelerator.empty_cache()
        assert torch.accelerator.memory_reserved() <= base + 2 * MIB
        ordered()

    def test_free_and_total(self):
        free, total = torch.accelerator.get_memory_info()
        assert 0 < free <= total == torch.neuron.get_device_properties(0).total_memory
        x = torch.empty(16 * MIB, device=DEVICE)
        assert free - torch.accelerator.get_memory_info()[0] == 64 * MIB
        del x

    def test_the_same_numbers_under_torch_neuron(self):
        x = torch.empty(MIB, device=DEVICE)
        for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
            assert getattr(torch.neuron, name)() == getattr(torch.accelerator, name)()
            assert getattr(torch.neuron, name)(f"{DEVICE}:0") == getattr(torch.accelerator, name)(0)
        assert torch.neuron.memory_stats() == dict(torch.accelerator.memory_stats())
        assert isinstance(torch.neuron.memory_summary(), str)
        torch.neuron.reset_peak_memory_stats()
        torch.neuron.empty_cache()
        del x

    def test_the_stand_in_of_the_package_has_them_too(self):
        import torch_neuronx

        assert torch_neuronx.memory_allocated() == torch.accelerator.memory_allocated()


@pytest.mark.emulated
class TestLimit:
    """NEURON_LAB_HBM_GB is the emulator's own variable."""

    def test_beyond_it_the_error_names_request_use_and_limit(self):
        code = """
import torch
kept = torch.empty(16 << 20, dtype=torch.uint8, device="neuron")
try:
    torch.empty(60 << 20, dtype=torch.uint8, device="neuron")
except torch.OutOfMemoryError as error:
    print(error)
print(torch.ones(1 << 20, dtype=torch.uint8, device="neuron").sum().item(), torch.accelerator.memory_allocated())
"""
        text = output_of(code, NEURON_LAB_HBM_GB="0.0625")  # 64 MiB
        assert "60.00 MiB" in text and "16.00 MiB" in text and "64.00 MiB" in text
        assert "48.00 MiB" in text  # what is free
        assert text.splitlines()[-1] == f"{1 << 20} {16 << 20}"

    def test_results_of_operators_and_copies_are_limited_as_well(self):
        code = """
import gc, torch
x = torch.ones(4 << 20, device="neuron")  # 16 MiB
empty, four = (lambda: torch.empty(0, device="neuron")), torch.ones(4, device="neuron")
attempts = [lambda: x.repeat(4), lambda: torch.randn(16 << 20).to("neuron"), lambda: x.view(-1, 1) * four,
            lambda: empty().resize_(16 << 20), lambda: x.double().sort(), lambda: torch.cat([x] * 4),
            lambda: torch.add(x.view(-1, 1), four, out=empty())]
for attempt in attempts:
    try:
        attempt()
        print("no error")
    except torch.OutOfMemoryError as error:
        assert "Neuron OOM" in str(error)
    except Exception as error:
        print(type(error), error)
    gc.collect()
print(torch.accelerator.memory_allocated() >> 20, x.sum().item())
"""
        assert output_of(code, NEURON_LAB_HBM_GB="0.0625") == f"16 {float(4 << 20)}"

    def test_an_error_in_backward_reaches_the_caller_and_all_comes_back(self):
        code = """
import gc, torch
w = torch.ones(2 << 20, device="neuron", requires_grad=True)
try:
    y = w
    for _ in range(20):
        y = y * torch.rand_like(y) + y.exp()
    y.sum().backward()
except torch.OutOfMemoryError:
    print("caught")
del y; w.grad = None; gc.collect()
print(torch.accelerator.memory_allocated() >> 20)
(w * 2).sum().backward()
print(w.grad[0].item(), torch.accelerator.memory_stats()["num_ooms"])
"""
        assert output_of(code, NEURON_LAB_HBM_GB="0.1").split() == ["caught", "8", "2.0", "1"]

    def test_cached_memory_is_given_back_before_an_error(self):
        code = """
import torch
x = [torch.empty(1 << 19, dtype=torch.uint8, device="neuron") for _ in range(120)]  # 60 MiB in the small pool
del x
print(torch.accelerator.memory_reserved() >> 20)
y = torch.empty(60 << 20, dtype=torch.uint8, device="neuron")
print(torch.accelerator.memory_allocated() >> 20, torch.accelerator.memory_reserved() >> 20)
"""
        held, now = output_of(code, NEURON_LAB_HBM_GB="0.0625").splitlines()
        assert int(held) >= 60
        assert now.split()[0] == "60" and 60 <= int(now.split()[1]) <= 64

    def test_it_is_per_core(self):
        code = """
import torch
a, b = (torch.empty(60 << 20, dtype=torch.uint8, device=f"neuron:{k}") for k in (0, 1))
try:
    b.to("neuron:0")
except torch.OutOfMemoryError as error:
    print("neuron:0" in str(error))
"""
        assert output_of(code, NEURON_LAB_HBM_GB="0.0625", **ALL_CORES) == "True"

    def test_at_lnc_1_two_cores_share_a_bank(self):
        code = """
import torch
a, c = (torch.empty(40 << 20, dtype=torch.uint8, device=f"neuron:{k}") for k in (0, 2))
try:
    torch.empty(40 << 20, dtype=torch.uint8, device="neuron:1")
except torch.OutOfMemoryError as error:
    print("neighbour" in str(error))
"""
        assert output_of(code, NEURON_LAB_HBM_GB="0.0625", NEURON_LOGICAL_NC_CONFIG="1", **ALL_CORES) == "True"

    def test_the_limit_is_the_total_memory(self):
        code = "import torch; print({})"
        for ask in ("torch.accelerator.get_memory_info()[1]", "torch.neuron.get_device_properties().total_memory"):
            assert output_of(code.format(ask), NEURON_LAB_HBM_GB="0.5") == str(1 << 29)
