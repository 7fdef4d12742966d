"""Aliasing and the books: a random walk, and memory that comes from or goes to somewhere else."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from .fuzz import Walk

needs_two_cores = pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two cores")


def allocated(core: int = 0) -> int:
    gc.collect()
    return torch.accelerator.memory_allocated(core)


@pytest.mark.filterwarnings("ignore")  # resized outputs, deprecated casts, reported fallbacks
class TestWalk:
    @pytest.mark.parametrize("seed", range(6))
    def test_agrees_with_the_cpu(self, seed):
        walk = Walk(seed)
        walk.run(600)
        assert 20 < walk.refused < 400, "a walk that is always or never refused tests nothing"
        base = walk.base
        del walk
        assert allocated() == base

    @needs_two_cores
    def test_on_the_second_core(self):
        before = allocated(0)
        walk = Walk(99, "neuron:1")
        walk.run(300)
        assert allocated(0) == before, "something was made on the wrong core"

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(100, 140))
    def test_longer(self, seed):
        Walk(seed, most=25).run(3000)


class TestBooks:
    def test_of_many_threads(self):
        before, errors = allocated(), []

        def work(k):
            try:
                kept = []
                for i in range(200):
                    kept.append(torch.empty(k * 100 + i, device="neuron"))
                    if len(kept) > 5:
                        kept.pop(i % 5)
                    (kept[0] + 1).sum().item()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not errors
        assert allocated() == before

    @needs_two_cores
    def test_of_tensors_that_outlive_their_thread(self):
        before, made = allocated(1), []

        def work():
            torch.accelerator.set_device_index(1)
            made.append(torch.ones(100, device="neuron"))
            made.append(torch.Stream(device="neuron"))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert made[0].device.index == 1 and (made[0] + 1).sum().item() == 200
        assert allocated(1) == before + 512 and torch.accelerator.current_device_index() == 0
        made.clear()
        assert allocated(1) == before

    def test_of_reference_cycles(self):
        before = allocated()
        holder = {"tensor": torch.ones(1000, device="neuron")}
        holder["self"] = holder
        del holder
        assert allocated() == before

    def test_of_storages_that_are_freed_and_made_again(self):
        """What FSDP2 does with the parameters that it gathers."""
        before = allocated()
        tensor = torch.ones(1000, device="neuron")
        view = tensor[10:20]
        for _ in range(3):
            tensor.untyped_storage().resize_(0)
            assert allocated() == before
            tensor.untyped_storage().resize_(4000)
            assert allocated() == before + 4096
            tensor.fill_(3)
            assert view.tolist() == [3.0] * 10

    def test_of_a_result_that_is_larger_than_its_view(self):
        before = allocated()
        view = torch.ones(1000, 1000, device="neuron")[0, :2]
        assert allocated() == before + 4_000_000  # the whole storage lives
        view = view.clone()
        assert allocated() == before + 256
        del view


class TestSources:
    """Memory that was not allocated by the device: it is copied, and neither side sees the other's writes."""

    @pytest.mark.parametrize(
        "source",
        [
            lambda: torch.from_numpy(np.arange(6, dtype=np.float32)),
            lambda: torch.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]),
            lambda: torch.frombuffer(bytearray(np.arange(6, dtype=np.float32).tobytes()), dtype=torch.float32),
            lambda: torch.arange(6.0).share_memory_(),
            lambda: torch.arange(6.0).pin_memory(),
            lambda: torch.utils.dlpack.from_dlpack(torch.arange(6.0)),
            lambda: torch.arange(6.0).to(torch.complex64).conj(),
            lambda: torch.arange(6.0).expand(3, 6),
            lambda: torch.arange(6.0, requires_grad=True),
        ],
        ids=["numpy", "numpy strided", "buffer", "shared", "pinned", "dlpack", "conjugate", "expanded", "leaf"],
    )
    def test_are_copied(self, source):
        before = allocated()
        cpu = source()
        want = cpu.detach().clone()
        tensor = cpu.detach().to("neuron")
        tensor += 1
        assert torch.equal(cpu.detach(), want) and torch.equal(tensor.cpu(), want + 1)
        del tensor
        assert allocated() == before

    def test_negative_strides_are_refused_as_everywhere(self):
        with pytest.raises(ValueError, match="negative"):
            torch.as_tensor(np.arange(3.0, dtype=np.float32)[::-1], device="neuron")
        copied = np.arange(3.0, dtype=np.float32)[::-1].copy()
        assert torch.as_tensor(copied, device="neuron").tolist() == [2, 1, 0]

    def test_a_numpy_array_is_not_handed_out(self):
        tensor = torch.arange(3.0, device="neuron")
        for export in (np.asarray, lambda t: t.numpy(), np.from_dlpack):
            with pytest.raises((TypeError, RuntimeError, BufferError, ValueError)):
                export(tensor)
        forced = tensor.numpy(force=True)
        forced[0] = 9
        assert tensor.tolist() == [0, 1, 2]

    def test_dlpack_in_the_process_shares_and_is_counted_once(self):
        before = allocated()
        tensor = torch.arange(3.0, device="neuron")
        other = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))
        assert other.data_ptr() == tensor.data_ptr() and other.device == tensor.device
        assert allocated() == before + 256
        del tensor
        junk = [torch.full((3,), 7.0, device="neuron") for _ in range(50)]
        other[0] = 5
        assert (other * 2).tolist() == [10, 2, 4]
        del other, junk
        assert allocated() == before

    def test_pickled_views_stay_views(self):
        import pickle

        whole = torch.arange(6.0, device="neuron")
        one, other = pickle.loads(pickle.dumps([whole, whole.detach()]))
        one[0] = 9
        assert one.device.type == "neuron" and whole[0].item() == 0
        assert other[0].item() in (0, 9)  # plain pickle does not promise sharing; torch.save does
