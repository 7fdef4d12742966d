"""A core's generator draws what the CPU's draws, and 16 bytes say where it stands."""

from __future__ import annotations

import copy
import pickle
import random
import threading

import pytest
import torch
import torch.nn.functional as F

DRAWS = [
    lambda d: torch.randn(3, device=d),  # draws pairs of normal numbers and keeps one for the next
    lambda d: torch.randn(1, device=d, dtype=torch.float64),
    lambda d: torch.empty(3, device=d).log_normal_(),
    lambda d: torch.randn(40, device=d),
    lambda d: torch.rand(5, device=d),
    lambda d: torch.rand(3000, device=d),
    lambda d: torch.randint(0, 9, (7,), device=d),
    lambda d: torch.randperm(9, device=d),
    lambda d: torch.empty(5, device=d).exponential_(),
    lambda d: F.dropout(torch.ones(33, device=d), 0.5),
]


def state_of(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


class TestState:
    @pytest.mark.parametrize("seed", range(8))
    def test_says_exactly_what_comes_next(self, seed):
        choose = random.Random(seed)
        plan = [choose.choice(DRAWS) for _ in range(40)]
        torch.manual_seed(seed * 977_777_777_777)
        on_cpu = [draw("cpu") for draw in plan]
        torch.manual_seed(seed * 977_777_777_777)
        states, drawn = {}, []
        for number, draw in enumerate(plan):
            if choose.random() < 0.5:
                states[number] = torch.neuron.get_rng_state()
            drawn.append(draw("neuron").cpu())
        assert all(map(torch.equal, drawn, on_cpu))
        for number in choose.sample(sorted(states), len(states)):
            torch.neuron.set_rng_state(states[number])
            assert torch.equal(torch.neuron.get_rng_state(), states[number])
            assert all(torch.equal(draw("neuron").cpu(), drawn[number + k]) for k, draw in enumerate(plan[number:]))

    def test_is_enough_for_another_process(self, python):
        torch.manual_seed(12)
        torch.rand(1234, device="neuron")
        torch.randn(3, device="neuron")
        state, want = torch.neuron.get_rng_state().tolist(), torch.randn(4, device="neuron").tolist()
        done = python(
            f"""
            import torch
            torch.neuron.set_rng_state(torch.tensor({state}, dtype=torch.uint8))
            print(torch.randn(4, device="neuron").tolist() == {want}, torch.neuron.initial_seed())
            """
        )
        assert done.stdout.split() == ["True", "12"]

    def test_is_a_seed_and_an_offset_that_can_be_added_to(self):
        """What PyTorch does for a part of a sharded tensor."""
        torch.manual_seed(7)
        torch.rand(6, device="neuron")
        state = torch.neuron.get_rng_state()
        assert state[:8].view(torch.int64).item() == 7 and state.numel() == 16
        want = torch.rand(12, device="neuron")
        state[8:] = (state[8:].view(torch.int64) + 4).view(torch.uint8)
        torch.neuron.set_rng_state(state)
        assert torch.equal(torch.rand(4, device="neuron"), want[8:])  # an offset of one is two words of 32 bits

    def test_goes_with_copies(self):
        generator = torch.Generator("neuron").manual_seed(5)
        torch.randn(3, device="neuron", generator=generator)
        copies = [
            copy.deepcopy(generator),
            pickle.loads(pickle.dumps(generator)),
            generator.clone_state(),
            generator.graphsafe_get_state(),
        ]
        copies.append(torch.Generator("neuron"))
        copies[-1].graphsafe_set_state(copies[2])
        want = torch.randn(3, device="neuron", generator=generator)
        for twin in copies:
            assert torch.equal(torch.randn(3, device="neuron", generator=twin), want)
        assert generator.get_offset() == copies[0].get_offset() > 0

    @pytest.mark.parametrize(
        ("state", "told"),
        [
            (torch.Generator().get_state(), "16 bytes .uint8.: seed and offset. Got 5056 values"),
            (torch.zeros(16), "Got 16 values of float"),
            (torch.zeros(15, dtype=torch.uint8), "Got 15 values"),
            (state_of([255] * 16), "no generator gave"),
            (state_of([0] * 14 + [1, 0]), "no generator gave"),
            (state_of([0] * 12 + [255, 0, 0, 0]), "is too far"),
        ],
    )
    def test_that_is_none_is_refused_and_changes_nothing(self, state, told):
        before = torch.neuron.get_rng_state()
        with pytest.raises(RuntimeError, match=told):
            torch.neuron.set_rng_state(state)
        assert torch.equal(torch.neuron.get_rng_state(), before)

    def test_is_read_while_another_thread_draws(self):
        """Neither hangs nor says a place that the generator never was at."""
        generator, stop = torch.Generator("neuron").manual_seed(1), threading.Event()

        def draw() -> None:
            while not stop.is_set():
                torch.rand(1000, device="neuron", generator=generator)

        thread = threading.Thread(target=draw)
        thread.start()
        try:
            offsets = [generator.get_offset() for _ in range(300)]
        finally:
            stop.set()
            thread.join()
        assert offsets == sorted(offsets) and all(offset % 500 == 0 for offset in offsets)
