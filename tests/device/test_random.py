"""Random numbers: seeds reach the device, generators are honoured, the CPU's sequence is left alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from .helpers import DEVICE

DRAWS = {
    "rand": lambda **k: torch.rand(6, **k),
    "randn": lambda **k: torch.randn(6, **k),
    "randint": lambda **k: torch.randint(0, 1000, (6,), **k),
    "randperm": lambda **k: torch.randperm(50, **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (6,), **k),
}
FILLS = {
    "uniform_": lambda x, **k: x.uniform_(-1, 1, **k),
    "normal_": lambda x, **k: x.normal_(2, 3, **k),
    "random_": lambda x, **k: x.random_(0, 100, **k),
    "bernoulli_": lambda x, **k: x.bernoulli_(0.5, **k),
    "exponential_": lambda x, **k: x.exponential_(1.0, **k),
    "geometric_": lambda x, **k: x.geometric_(0.2, **k),
    "cauchy_": lambda x, **k: x.cauchy_(0, 1, **k),
    "log_normal_": lambda x, **k: x.log_normal_(0, 1, **k),
    "bernoulli": lambda x, **k: torch.bernoulli(torch.full_like(x, 0.5), **k),
    "multinomial": lambda x, **k: torch.multinomial(torch.ones(20, device=x.device), 10, **k),
    "poisson": lambda x, **k: torch.poisson(torch.full_like(x, 4.0), **k),
    "normal of tensors": lambda x, **k: torch.normal(torch.zeros_like(x), torch.ones_like(x), **k),
    "trunc_normal_": lambda x, **k: torch.nn.init.trunc_normal_(x, **k),
    "kaiming_uniform_": lambda x, **k: torch.nn.init.kaiming_uniform_(x.view(4, 4), **k),
    "binomial": lambda x, **k: torch.binomial(torch.full_like(x, 9.0), torch.full_like(x, 0.5), **k),
}
#: Random without a generator argument: only a seed can reach them.
SILENT = {
    "dropout": lambda x: F.dropout(torch.ones_like(x), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(torch.ones_like(x), 0.5, training=True),
    "feature_dropout": lambda x: F.dropout2d(torch.ones(4, 8, 2, 2, device=x.device), 0.5),
    "rrelu": lambda x: F.rrelu(-torch.ones_like(x), training=True),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 0, 1000),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "gamma": lambda x: torch.distributions.Gamma(torch.ones_like(x), torch.ones_like(x)).rsample(),
    "dirichlet": lambda x: torch.distributions.Dirichlet(torch.ones_like(x)).rsample(),
    "categorical": lambda x: torch.distributions.Categorical(logits=torch.zeros(10, 50, device=x.device)).sample((4,)),
    "native_dropout": lambda x: torch.native_dropout(torch.ones_like(x), 0.5, True)[0],
    "sdpa": lambda x: F.scaled_dot_product_attention(*[torch.ones(1, 1, 16, 8, device=x.device)] * 3, dropout_p=0.5),
    "fractional pool": lambda x: F.fractional_max_pool2d(torch.arange(144.0, device=x.device).view(1, 1, 12, 12), 2, 7),
}


class TestSeeds:
    @pytest.mark.parametrize("name", [*DRAWS, *FILLS, *SILENT])
    def test_a_seed_determines_what_is_drawn(self, name):
        def draw() -> torch.Tensor:
            if name in DRAWS:
                return DRAWS[name](device=DEVICE)
            x = torch.zeros(16, device=DEVICE)
            return FILLS[name](x) if name in FILLS else SILENT[name](x)

        torch.manual_seed(5)
        first, second = draw().clone(), draw().clone()
        torch.manual_seed(5)
        again = draw().clone()
        torch.manual_seed(6)
        other = draw()
        assert first.device.type == DEVICE
        assert torch.equal(first, again)
        assert not torch.equal(first, second) and not torch.equal(first, other)

    @pytest.mark.parametrize("name", [*DRAWS, *FILLS, *SILENT])
    def test_the_cpus_sequence_is_left_alone(self, name):
        torch.manual_seed(5)
        expected = torch.rand(4)
        torch.manual_seed(5)
        if name in DRAWS:
            DRAWS[name](device=DEVICE)
        else:
            (FILLS | SILENT)[name](torch.zeros(16, device=DEVICE))
        assert torch.equal(torch.rand(4), expected)

    def test_the_devices_sequence_is_left_alone_by_the_cpu(self):
        torch.manual_seed(5)
        expected = torch.rand(4, device=DEVICE)
        torch.manual_seed(5)
        torch.rand(100)
        torch.dropout(torch.ones(10), 0.5, True)
        assert torch.equal(torch.rand(4, device=DEVICE), expected)

    def test_the_devices_own_seed_functions(self):
        torch.neuron.manual_seed(9)
        assert torch.neuron.initial_seed() == 9
        first = torch.rand(3, device=DEVICE)
        torch.neuron.manual_seed_all(9)
        assert torch.equal(torch.rand(3, device=DEVICE), first)
        torch.neuron.seed()
        assert not torch.equal(torch.rand(3, device=DEVICE), first)

    def test_different_dtypes_draw(self):
        for dtype in (torch.bfloat16, torch.float16):
            x = torch.randn(1000, dtype=dtype, device=DEVICE)
            assert x.dtype == dtype and abs(x.float().mean().item()) < 0.2 and 0.8 < x.float().std().item() < 1.2


class TestGenerators:
    @pytest.mark.parametrize("name", [*DRAWS, *FILLS])
    def test_are_honoured(self, name):
        def draw(generator: torch.Generator) -> torch.Tensor:
            if name in DRAWS:
                return DRAWS[name](device=DEVICE, generator=generator).clone()
            return FILLS[name](torch.zeros(16, device=DEVICE), generator=generator).clone()

        one, two = torch.Generator(DEVICE).manual_seed(3), torch.Generator(DEVICE).manual_seed(3)
        default = torch.neuron.get_rng_state()
        first = draw(one)
        assert torch.equal(first, draw(two))
        assert not torch.equal(first, draw(one))
        assert torch.equal(torch.neuron.get_rng_state(), default)

    def test_state_can_be_saved_and_restored(self):
        generator = torch.Generator(device=DEVICE)
        assert generator.device.type == DEVICE
        generator.manual_seed(1)
        assert generator.initial_seed() == 1
        torch.rand(5, device=DEVICE, generator=generator)
        state = generator.get_state()
        assert state.device.type == "cpu" and state.dtype == torch.uint8
        first = torch.rand(5, device=DEVICE, generator=generator)
        generator.set_state(state)
        assert torch.equal(torch.rand(5, device=DEVICE, generator=generator), first)
        twin = torch.Generator(DEVICE)
        twin.set_state(state)
        assert torch.equal(torch.rand(5, device=DEVICE, generator=twin), first)
        assert torch.Generator(DEVICE).initial_seed() == torch.Generator(DEVICE).initial_seed()

    def test_clones_go_their_own_way(self):
        generator = torch.Generator(DEVICE).manual_seed(4)
        twin = generator.clone_state()
        assert torch.equal(
            torch.rand(3, device=DEVICE, generator=generator), torch.rand(3, device=DEVICE, generator=twin)
        )

    def test_of_the_wrong_device_are_refused(self):
        with pytest.raises(RuntimeError, match=r"generator|Generator"):
            torch.rand(2, device=DEVICE, generator=torch.Generator())
        with pytest.raises(RuntimeError, match=r"generator|Generator"):
            torch.rand(2, generator=torch.Generator(DEVICE))
        with pytest.raises(RuntimeError, match=r"generator|Generator"):
            torch.zeros(2, device=DEVICE).normal_(generator=torch.Generator())

    def test_every_core_has_its_own(self, second_core):
        torch.manual_seed(2)
        first, other = torch.rand(3, device=f"{DEVICE}:0"), torch.rand(3, device=second_core)
        assert torch.equal(first.cpu(), other.cpu())  # one seed for all
        torch.rand(9, device=second_core)
        state = torch.neuron.get_rng_state(second_core)
        assert not torch.equal(state, torch.neuron.get_rng_state(f"{DEVICE}:0"))
        torch.neuron.set_rng_state(state, 0)
        assert torch.equal(torch.rand(3, device=f"{DEVICE}:0").cpu(), torch.rand(3, device=second_core).cpu())
        with torch.accelerator.device_index(1):
            torch.neuron.manual_seed(77)
            assert torch.neuron.initial_seed() == 77
        assert torch.neuron.initial_seed() == 2


class TestState:
    def test_get_and_set(self):
        state = torch.neuron.get_rng_state()
        first = torch.rand(3, device=DEVICE)
        torch.neuron.set_rng_state(state)
        assert torch.equal(torch.rand(3, device=DEVICE), first)
        states = torch.neuron.get_rng_state_all()
        assert len(states) == torch.accelerator.device_count()
        second = torch.rand(3, device=DEVICE)
        torch.neuron.set_rng_state_all(states)
        assert torch.equal(torch.rand(3, device=DEVICE), second)

    @pytest.mark.parametrize("devices", [None, [0]])
    def test_fork(self, devices):
        torch.manual_seed(1)
        expected = torch.rand(3, device=DEVICE), torch.rand(3)
        torch.manual_seed(1)
        options = {} if devices is None else {"devices": devices}
        with torch.random.fork_rng(device_type=DEVICE, **options):
            torch.manual_seed(99)
            torch.rand(3, device=DEVICE)
        assert torch.equal(torch.rand(3, device=DEVICE), expected[0]) and torch.equal(torch.rand(3), expected[1])

    def test_a_state_of_the_wrong_size_is_refused(self):
        with pytest.raises((RuntimeError, TypeError)):
            torch.neuron.set_rng_state(torch.zeros(3, dtype=torch.uint8))
        torch.rand(2, device=DEVICE)


class TestDropout:
    def test_trains_reproducibly(self):
        def run() -> list[float]:
            torch.manual_seed(4)
            model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1)).to(
                DEVICE
            )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            losses = []
            for _ in range(4):
                loss = model(torch.ones(4, 8, device=DEVICE)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        first = run()
        assert first == run()
        assert len(set(first)) == 4

    def test_backward_uses_the_mask_of_forward(self):
        x = torch.ones(1000, device=DEVICE, requires_grad=True)
        y = F.dropout(x, 0.4)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())
        assert 0.3 < (y == 0).float().mean().item() < 0.5

    def test_nothing_is_dropped_in_evaluation(self):
        x = torch.ones(100, device=DEVICE)
        assert torch.equal(torch.nn.Dropout(0.9).eval()(x), x)


@pytest.mark.emulated
@pytest.mark.parametrize("name", [*DRAWS, *FILLS, *SILENT])
def test_the_emulated_device_draws_the_cpus_numbers(name):
    """A property of the emulator, which compares itself with the CPU; the real device promises nothing like it."""

    def draw(device: str) -> torch.Tensor:
        torch.manual_seed(8)
        if name in DRAWS:
            return DRAWS[name](device=device)
        return (FILLS | SILENT)[name](torch.zeros(16, device=device))

    assert torch.equal(draw(DEVICE).cpu(), draw("cpu"))
