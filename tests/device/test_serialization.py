"""Saving, loading, pickling and copying: the device is kept, or the one that was asked for is used."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from .helpers import DEVICE, assert_same, output_of, python


def through_a_file(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


class TestSaveAndLoad:
    @pytest.mark.parametrize("weights_only", [True, False])
    def test_a_tensor_comes_back_where_it_was(self, weights_only):
        x = torch.randn(3, 4, device=DEVICE)
        back = through_a_file(x, weights_only=weights_only)
        assert back.device == x.device and torch.equal(back, x) and back.data_ptr() != x.data_ptr()

    @pytest.mark.parametrize(
        "dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str
    )
    def test_dtypes(self, dtype):
        x = torch.tensor([0, 1, 1, 0]).to(dtype)
        back = through_a_file(x.to(DEVICE))
        assert back.dtype == dtype and torch.equal(back.cpu().view(torch.uint8), x.view(torch.uint8))

    @pytest.mark.parametrize(
        "location",
        ["cpu", torch.device("cpu"), {"neuron:0": "cpu"}, lambda storage, where: storage],
        ids=["name", "device", "mapping", "function"],
    )
    def test_to_the_cpu(self, location):
        back = through_a_file({"w": torch.arange(4.0, device=DEVICE)}, map_location=location)
        assert back["w"].device.type == "cpu" and back["w"].tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "location",
        [DEVICE, f"{DEVICE}:0", torch.device(DEVICE), {"cpu": f"{DEVICE}:0"}, lambda storage, where: storage.neuron()],
        ids=["bare", "indexed", "device", "mapping", "function"],
    )
    def test_to_the_device(self, location):
        back = through_a_file([torch.arange(4.0)], map_location=location)
        assert str(back[0].device) == f"{DEVICE}:0" and back[0].tolist() == [0, 1, 2, 3]

    def test_to_another_core(self, second_core):
        back = through_a_file(torch.ones(2, device=DEVICE), map_location=second_core)
        assert str(back.device) == second_core and back.tolist() == [1, 1]
        kept = through_a_file(torch.ones(2, device=second_core))
        assert str(kept.device) == second_core

    def test_to_the_current_core(self, second_core):
        buffer = io.BytesIO()
        torch.save(torch.ones(2), buffer)
        buffer.seek(0)
        with torch.accelerator.device_index(1):
            assert str(torch.load(buffer, map_location=DEVICE).device) == second_core

    def test_views_stay_views_of_one_memory(self):
        x = torch.arange(6.0, device=DEVICE)
        base, part = through_a_file([x, x.view(2, 3)[:, 1:]])
        part.zero_()
        assert base.tolist() == [0, 0, 0, 3, 0, 0] and part.stride() == (3, 1)

    def test_conjugate_and_negative_views(self):
        x = torch.tensor([1 + 2j], device=DEVICE)
        assert through_a_file(x.conj()).tolist() == [1 - 2j]
        assert through_a_file(x.conj().imag).tolist() == [-2]

    def test_parameters_modules_and_optimizers(self):
        model = torch.nn.Linear(2, 2).to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 2, device=DEVICE)).sum().backward()
        optimizer.step()
        parameter = through_a_file(model.weight)
        assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad and parameter.device.type == DEVICE
        whole = through_a_file(model, weights_only=False)
        assert_same(whole.weight, model.weight.detach().cpu())
        state = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location="cpu")
        here = torch.nn.Linear(2, 2)
        here.load_state_dict(state["model"])
        resumed = torch.optim.Adam(here.parameters())
        resumed.load_state_dict(state["optimizer"])
        assert_same(resumed.state[here.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"].cpu())

    def test_a_file_is_mapped_and_moved(self, tmp_path):
        path = tmp_path / "x.pt"
        torch.save({"w": torch.arange(1000.0)}, path)
        back = torch.load(path, map_location="cpu", mmap=True)
        assert back["w"].to(DEVICE).sum().item() == 499500
        direct = torch.load(path, map_location=DEVICE, mmap=True)
        assert direct["w"].device.type == DEVICE and direct["w"].sum().item() == 499500

    def test_a_core_that_is_missing_here_is_named_with_the_mend(self, second_core, tmp_path):
        path = tmp_path / "x.pt"
        last = torch.accelerator.device_count() - 1
        torch.save(torch.ones(2, device=f"{DEVICE}:{last}"), path)
        code = f"import torch; x = torch.load({str(path)!r}{{}}); print(x.device, x.tolist())"
        failed = python(code.format(""), NEURON_RT_NUM_CORES="1", NEURON_RT_VISIBLE_CORES=None)
        assert failed.returncode != 0
        error = failed.stderr.strip().splitlines()[-1]
        assert error.startswith("RuntimeError") and str(last) in error and "map_location" in error
        mended = output_of(
            code.format(", map_location='neuron'"), NEURON_RT_NUM_CORES="1", NEURON_RT_VISIBLE_CORES=None
        )
        assert mended == "neuron:0 [1.0, 1.0]"

    def test_a_process_without_the_device_can_read_the_file(self, tmp_path):
        path = tmp_path / "x.pt"
        torch.save(torch.ones(2, device=DEVICE), path)
        code = f"import torch; print(torch.load({str(path)!r}, map_location='cpu').tolist())"
        assert output_of(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "[1.0, 1.0]"
        failed = python(code.replace(", map_location='cpu'", ""), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert failed.returncode != 0 and "neuron:0" in failed.stderr.splitlines()[-1]


class TestPickleAndCopy:
    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_pickle(self, protocol):
        x = torch.randn(2, 3, device=DEVICE, requires_grad=True)
        back = pickle.loads(pickle.dumps(x, protocol))
        assert back.device == x.device and torch.equal(back, x) and back.requires_grad

    def test_pickle_of_a_device_and_a_generator_state(self):
        assert pickle.loads(pickle.dumps(torch.device(DEVICE, 0))) == torch.device(DEVICE, 0)

    def test_deepcopy_and_copy(self):
        x = torch.arange(6.0, device=DEVICE).view(2, 3)
        pair = copy.deepcopy([x, x[0], x])
        assert pair[0] is pair[2] and pair[0] is not x
        pair[0][0] = -1
        assert pair[1].tolist() == [-1, -1, -1] and x.tolist() == [[0, 1, 2], [3, 4, 5]]
        shallow = copy.copy(x)
        shallow[0, 0] = 9
        assert x[0, 0].item() == 9

    def test_deepcopy_keeps_what_a_tensor_carries(self):
        x = torch.ones(2, device=DEVICE, requires_grad=True)
        x.note = "kept"
        x.grad = torch.full((2,), 3.0, device=DEVICE)
        twin = copy.deepcopy(x)
        assert twin.note == "kept" and twin.requires_grad
        assert twin.grad.tolist() == [3, 3] and twin.grad.device.type == DEVICE

    def test_deepcopy_of_results_is_refused_as_on_the_cpu(self):
        x = torch.ones(1, device=DEVICE, requires_grad=True) * 2
        with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
            copy.deepcopy(x)


class TestSafetensors:
    def test_round_trip(self, tmp_path):
        safetensors = pytest.importorskip("safetensors.torch")
        model = torch.nn.Linear(3, 2).to(DEVICE)
        path = tmp_path / "model.safetensors"
        safetensors.save_file(dict(model.state_dict()), path)
        here = safetensors.load_file(path)
        assert_same(model.weight, here["weight"])
        with safetensors.safe_open(path, framework="pt") as file:  # its list of device names is its own
            part = file.get_slice("weight")[:, 1:].to(DEVICE)
        assert_same(part, here["weight"][:, 1:])

    def test_tied_weights_are_saved_once(self, tmp_path):
        safetensors = pytest.importorskip("safetensors.torch")
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
        model["b"].weight = model["a"].weight
        model.to(DEVICE)
        safetensors.save_model(model, tmp_path / "tied.safetensors")
        assert len(safetensors.load_file(tmp_path / "tied.safetensors")) == 1


def test_distributed_checkpoint_without_a_group(tmp_path):
    from torch.distributed import checkpoint

    state = {"w": torch.arange(4.0, device=DEVICE)}
    checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    target = {"w": torch.zeros(4, device=DEVICE)}
    checkpoint.load(target, checkpoint_id=tmp_path, no_dist=True)
    assert target["w"].tolist() == [0, 1, 2, 3]
