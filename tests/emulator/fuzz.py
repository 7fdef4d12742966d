"""A random walk over views, mutations, resizes and out=: each step on the CPU and on the device.

Both sides hold the same list of tensors, some sharing memory. After a step they
must agree: in values, geometry, lazy bits, who shares memory with whom, and in
whether the step was refused.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

Tensors = list[torch.Tensor]
DTYPES = [torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16, torch.uint8]
QUANTUM = 256  # the allocator's rounding below 16 MiB


def _shape(rng: random.Random) -> list[int]:
    return [rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randint(0, 3))]


def _dim(rng: random.Random, tensor_rank: int) -> int:
    return rng.randrange(max(tensor_rank, 1))


# ---- steps. Each takes a generator and the two lists' common facts (the CPU's), and returns what to do with one list.
# A step that returns a tensor adds it to the list; None only changes what is there.


def new(rng, facts):
    dtype, shape, value = rng.choice(DTYPES), _shape(rng), rng.randint(0, 3)
    return lambda ts, device: torch.full(shape, value, dtype=dtype, device=device)


def arange(rng, facts):
    dtype, count = rng.choice([torch.float32, torch.int64, torch.complex64]), rng.randint(0, 24)
    return lambda ts, device: torch.arange(count, device=device).to(dtype)


def moved(rng, facts):
    """A copy by way of the other device, so that all directions occur."""
    i = rng.randrange(len(facts))
    return lambda ts, device: ts[i].to("neuron").to("cpu").to(device)


VIEWS: list[Callable] = [
    lambda rng, t: (lambda d: lambda x: x.transpose(d, -1))(_dim(rng, t.dim())),
    lambda rng, t: (lambda d, a, b: lambda x: x.narrow(d, a, b))(
        _dim(rng, t.dim()), rng.randint(0, 2), rng.randint(0, 2)
    ),
    lambda rng, t: (lambda k: lambda x: x[::k])(rng.randint(1, 3)),
    lambda rng, t: lambda x: x[0],
    lambda rng, t: lambda x: x.view(-1),
    lambda rng, t: lambda x: x.reshape(-1),
    lambda rng, t: lambda x: x.unsqueeze(0).expand(2, *x.shape),
    lambda rng, t: lambda x: x.squeeze(),
    lambda rng, t: lambda x: x.diagonal(),
    lambda rng, t: lambda x: x.unfold(0, 2, 1),
    lambda rng, t: lambda x: x.chunk(2)[-1],
    lambda rng, t: lambda x: x.detach(),
    lambda rng, t: lambda x: x.conj(),
    lambda rng, t: lambda x: x.imag,
    lambda rng, t: lambda x: x.real,
    lambda rng, t: lambda x: torch.view_as_real(x),
    lambda rng, t: lambda x: torch.view_as_complex(x),
    lambda rng, t: lambda x: x.resolve_conj(),
    lambda rng, t: lambda x: x.resolve_neg(),
    lambda rng, t: lambda x: x.contiguous(),
    lambda rng, t: lambda x: x.view(torch.uint8),
    lambda rng, t: lambda x: x.view(torch.int16),
    lambda rng, t: lambda x: torch._neg_view(x) if x.dtype.is_floating_point else x.neg(),
    lambda rng, t: (lambda n, s, o: lambda x: x.as_strided((n,), (s,), o))(
        rng.randint(0, 4), rng.randint(1, 2), rng.randint(0, 4)
    ),
]


def view(rng, facts):
    i = rng.randrange(len(facts))
    k = rng.randrange(len(VIEWS))
    do = VIEWS[k](rng, facts[i])

    def step(ts, device):
        return do(ts[i])

    step.words = f"VIEWS[{k}] of {i}"
    return step


CHANGES: list[Callable] = [
    lambda k: lambda x, y: x.add_(k),
    lambda k: lambda x, y: x.mul_(k),
    lambda k: lambda x, y: x.neg_(),
    lambda k: lambda x, y: x.fill_(k),
    lambda k: lambda x, y: x.zero_(),
    lambda k: lambda x, y: x.copy_(y),
    lambda k: lambda x, y: x.add_(y),
    lambda k: lambda x, y: x.sub_(y, alpha=k),
    lambda k: lambda x, y: x.masked_fill_(x != k, k),
    lambda k: lambda x, y: x.index_fill_(0, torch.zeros(1, dtype=torch.long, device=x.device), k),
    lambda k: lambda x, y: x.conj_physical_(),
    lambda k: lambda x, y: x.t_(),
    lambda k: lambda x, y: x.transpose_(0, -1),
    lambda k: lambda x, y: x.squeeze_(),
    lambda k: lambda x, y: x.unsqueeze_(0),
    lambda k: lambda x, y: x.__setitem__(slice(0, k), k),
    lambda k: lambda x, y: x.__setitem__(0, y),
    lambda k: lambda x, y: torch._foreach_add_([x, x], k),
]


def change(rng, facts):
    i, j, k, number = *(rng.randrange(len(facts)) for _ in range(2)), rng.randrange(len(CHANGES)), rng.randint(0, 3)
    do = CHANGES[k](number)

    def step(ts, device):
        do(ts[i], ts[j])

    step.words = f"CHANGES[{k}]({number}) of {i} with {j}"
    return step


OUTS: list[Callable] = [
    lambda x, y, out: torch.add(x, y, out=out),
    lambda x, y, out: torch.mul(x, 2, out=out),
    lambda x, y, out: torch.cat([x, y], out=out),
    lambda x, y, out: torch.sum(x, 0, out=out),
    lambda x, y, out: torch.eq(x, y, out=out),
    lambda x, y, out: torch.index_select(x, 0, torch.zeros(2, dtype=torch.long, device=x.device), out=out),
    lambda x, y, out: torch.arange(7, out=out),
    lambda x, y, out: torch.clamp(x, 0, 1, out=out),
]


def out(rng, facts):
    (i, j, k), n = (rng.randrange(len(facts)) for _ in range(3)), rng.randrange(len(OUTS))

    def step(ts, device):
        OUTS[n](ts[i], ts[j], ts[k])

    step.words = f"OUTS[{n}] of {i} and {j} into {k}"
    step.written = k
    return step


def resize(rng, facts):
    i, shape, value = rng.randrange(len(facts)), _shape(rng), rng.randint(0, 3)

    def step(ts, device):
        ts[i].resize_(shape)
        _fill(ts[i], value)

    step.words = f"{i} to {shape}"
    return step


def _fill(tensor: torch.Tensor, value: int) -> None:
    """All bytes of a storage that may have grown: new ones hold anything."""
    torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).fill_(value)


def set_(rng, facts):
    j, at = rng.randrange(len(facts)), rng.randint(0, 2)

    def step(ts, device):
        x = torch.empty(0, dtype=ts[j].dtype, device=device)
        if at == 0:
            return x.set_(ts[j])
        x.set_(ts[j].untyped_storage(), at, (2,), (at,))
        _fill(x, at)
        return x

    step.words = f"to {j} at {at}"
    return step


def data(rng, facts):
    i, j = rng.randrange(len(facts)), rng.randrange(len(facts))

    def step(ts, device):
        ts[i].data = ts[j]

    step.words = f"of {i} from {j}"
    return step


def forget(rng, facts):
    i = rng.randrange(len(facts))

    def step(ts, device):
        del ts[i]

    step.words = f"{i}"
    return step


STEPS = [new] * 3 + [arange, moved] + [view] * 8 + [change] * 8 + [out] * 4 + [resize] * 2 + [set_] * 2 + [data, forget]


class Walk:
    """The two lists and their comparison."""

    def __init__(self, seed: int, device: str = "neuron:0", most: int = 14) -> None:
        self.rng = random.Random(seed)
        self.device = device
        self.most = most
        self.cpu: Tensors = []
        self.dev: Tensors = []
        self.trace: list[str] = []
        self.refused = 0
        # By device storage: weak references to it and to its partner on the CPU, and its last size in bytes.
        self.storages: dict[int, list] = {}
        self.base = self.counted()

    def counted(self) -> int:
        gc.collect()
        return torch.accelerator.memory_allocated(torch.device(self.device).index)

    def run(self, steps: int) -> None:
        for number in range(steps):
            if len(self.cpu) < 2:
                make = new
            elif len(self.cpu) > self.most:
                make = forget
            else:
                make = self.rng.choice(STEPS)
            step = make(self.rng, self.cpu)
            one = self.attempt(step, self.cpu, "cpu")
            other = self.attempt(step, self.dev, self.device)
            words = getattr(step, "words", "")
            self.trace.append(f"{number}: {make.__name__} {words} -> {one!r:.60}".replace("\n", ""))
            assert type(one) is type(other), f"CPU: {one!r}\ndevice: {other!r}\n{self.last()}"
            if isinstance(one, Exception):
                self.refused += 1
                self.drop(getattr(step, "written", None))
            elif one is not None:
                self.cpu.append(one)
                self.dev.append(other)
            self.compare()
            self.remember_storages()
            if number % 100 == 0:
                self.count_memory()

    def drop(self, written: int | None) -> None:
        """Forget an out= of a refused step, and what shares its memory.

        PyTorch's kernels resize an output before they find what they refuse; the
        device leaves it as it was.
        """
        if written is not None:
            family = self.sharing(self.cpu)
            keep = [i for i in range(len(self.cpu)) if family[i] != family[written]]
            self.cpu[:] = [self.cpu[i] for i in keep]
            self.dev[:] = [self.dev[i] for i in keep]

    def attempt(self, step, tensors: Tensors, device: str):
        try:
            return step(tensors, device)
        except (RuntimeError, IndexError, NotImplementedError, ValueError, TypeError) as error:
            return error.with_traceback(None)  # its frames would keep tensors alive

    def compare(self) -> None:
        for i, (one, other) in enumerate(zip(self.cpu, self.dev, strict=True)):
            words = f"tensor {i}: {self.last()}"
            assert other.device == torch.device(self.device), words
            assert one.shape == other.shape and one.dtype == other.dtype, words
            assert one.stride() == other.stride() and one.storage_offset() == other.storage_offset(), words
            assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg()), words
            assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes(), words
            back = other.cpu()
            assert torch.equal(one, back) or torch.equal(one != one, back != back), f"{words}\n{one}\n{back}"
        assert self.sharing(self.cpu) == self.sharing(self.dev), self.last()

    def sharing(self, tensors: Tensors) -> list[int]:
        storages = [t.untyped_storage()._cdata for t in tensors]
        return [storages.index(storage) for storage in storages]

    def remember_storages(self) -> None:
        """Note the storages there are, and those of the bases that autograd keeps for views."""
        for one, other in zip(self.cpu, self.dev, strict=True):
            for on_cpu, on_device in ((one, other), (one._base, other._base)):
                if on_device is None:
                    continue
                mine = on_device.untyped_storage()
                if mine._cdata not in self.storages:
                    refs = StorageWeakRef(mine), StorageWeakRef(on_cpu.untyped_storage())
                    self.storages[mine._cdata] = [*refs, 0]
                self.storages[mine._cdata][2] = mine.nbytes()

    def count_memory(self) -> None:
        """What the books say is what lives, to the byte; and what lives, lives on the CPU too.

        Autograd keeps more alive than can be seen from the tensors, of a view whose memory was replaced for example.
        """
        counted = self.counted()
        for key, (mine, on_cpu, _) in list(self.storages.items()):
            assert mine.expired() == on_cpu.expired(), self.last()
            if mine.expired():
                del self.storages[key]
        want = sum(-(-size // QUANTUM) * QUANTUM for _, _, size in self.storages.values())
        assert counted - self.base == want, self.last()

    def last(self) -> str:
        return "\n".join(self.trace[-15:])
