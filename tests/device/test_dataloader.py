"""Feeding the device: DataLoader workers, pinned memory, and what a forked child may not do."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from .helpers import DEVICE, output_of

FORKS = sys.platform.startswith("linux")


class Squares(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict:
        return {"x": torch.tensor([index, index * index]), "name": f"n{index}"}


class OnTheDevice(Squares):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1, device=DEVICE)


class TestLoading:
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("pin", [False, True])
    def test_batches_arrive_whole_and_pinned(self, workers, pin):
        torch.ones(1, device=DEVICE).add_(1)  # the parent has used the device
        loader = DataLoader(Squares(), batch_size=4, num_workers=workers, pin_memory=pin, timeout=60 if workers else 0)
        batches = list(loader)
        assert [len(b["name"]) for b in batches] == [4, 4, 2]
        assert all(b["x"].is_pinned() == pin for b in batches)
        there = torch.cat([b["x"].to(DEVICE, non_blocking=True) for b in batches])
        assert there.tolist() == [[i, i * i] for i in range(10)]

    def test_spawned_workers(self):
        loader = DataLoader(
            Squares(), batch_size=5, num_workers=1, multiprocessing_context="spawn", pin_memory=True, timeout=120
        )
        assert sum(int(b["x"][:, 1].sum()) for b in loader) == sum(i * i for i in range(10))

    def test_shuffling_is_reproducible_and_epochs_differ(self):
        def order(seed: int) -> list[list[int]]:
            generator = torch.Generator().manual_seed(seed)
            loader = DataLoader(TensorDataset(torch.arange(20)), shuffle=True, generator=generator)
            return [[int(b[0]) for b in loader] for _ in range(2)]

        first = order(1)
        assert first == order(1) and first[0] != first[1]

    def test_batches_of_device_tensors_can_be_collated(self):
        batch = next(iter(DataLoader(OnTheDevice(), batch_size=3)))
        assert batch.device.type == DEVICE and batch.shape == (3, 1)

    def test_persistent_workers_and_training(self):
        model = torch.nn.Linear(2, 1).to(DEVICE)
        loader = DataLoader(
            Squares(), batch_size=5, num_workers=1, persistent_workers=True, pin_memory=True, timeout=60
        )
        for _ in range(2):
            for batch in loader:
                model(batch["x"].to(DEVICE).float()).sum().backward()
        assert model.weight.grad[0, 0].item() == 2 * sum(range(10))


@pytest.mark.skipif(not FORKS, reason="fork is the default start method on Linux only")
class TestFork:
    def test_a_worker_that_touches_the_device_after_its_parent_is_told_what_to_do(self):
        torch.ones(1, device=DEVICE).add_(1)
        loader = DataLoader(OnTheDevice(), num_workers=1, multiprocessing_context="fork", timeout=60)
        with pytest.raises(RuntimeError, match="forked subprocess") as caught:
            next(iter(loader))
        assert "spawn" in str(caught.value)

    def test_every_way_to_the_device_is_closed_in_the_child_and_open_in_the_parent(self):
        code = """
import os, sys, torch
x = torch.ones(4, device="neuron")
attempts = {
    "factory": lambda: torch.zeros(1, device="neuron"), "copy": lambda: torch.zeros(1).to("neuron"),
    "operator": lambda: x + 1, "read": lambda: x.tolist(), "random": lambda: torch.rand(1, device="neuron"),
    "in-place": lambda: x.add_(1), "init": lambda: torch.neuron.init(), "wait": lambda: torch.neuron.synchronize(),
}
child = os.fork()
if child == 0:
    wrong = 0
    for name, attempt in attempts.items():
        try:
            attempt()
            print(name, "was allowed"); wrong = 1
        except RuntimeError as error:
            if "forked subprocess" not in str(error):
                print(name, error); wrong = 1
    ok = torch.ones(3).sum().item() == 3.0 and torch.neuron._is_in_bad_fork()  # the CPU goes on
    torch.manual_seed(1)
    sys.stdout.flush()
    os._exit(wrong or not ok)
status = os.waitpid(child, 0)[1]
print(status, (x + 1).tolist())
"""
        assert output_of(code) == "0 [2.0, 2.0, 2.0, 2.0]"

    def test_fork_before_the_first_use_is_fine(self):
        code = """
import os, torch
torch.accelerator.device_count()
child = os.fork()
if child == 0:
    os._exit(int(torch.ones(3, device="neuron").sum().item()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.ones(1, device="neuron").item())
"""
        assert output_of(code) == "3 1.0"


SPAWNING = """
import torch
import torch.multiprocessing as mp

def work(rank, queue):
    queue.put((torch.ones(3, device="neuron") * rank).sum().item())

if __name__ == "__main__":
    torch.ones(1, device="neuron").add_(1)
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, args=(queue,), nprocs=2)
    print(sorted(queue.get() for _ in range(2)))
"""


class TestSpawn:
    def test_a_spawned_process_has_its_own_device(self, tmp_path):
        script = tmp_path / "spawning.py"  # a spawned child imports its parent's file
        script.write_text(SPAWNING)
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "[0.0, 3.0]"

    def test_sending_a_device_tensor_to_another_process_is_refused_in_words(self):
        code = """
import torch, torch.multiprocessing as mp
queue = mp.get_context("spawn").Queue()
import multiprocessing.reduction as reduction
try:
    bytes(reduction.ForkingPickler.dumps(torch.ones(2, device="neuron")))
    print("allowed")
except Exception as error:
    print(type(error).__name__, error)
"""
        assert "CPU" in output_of(code)
