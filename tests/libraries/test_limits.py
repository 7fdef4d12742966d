"""What the README says that other libraries do not know: true as long as these tests pass."""

from __future__ import annotations

import pytest
import torch

X = torch.ones(2, 3)


def test_safetensors_takes_no_neuron_but_its_tensors_move(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"x": X}, tmp_path / "x.safetensors")
    with pytest.raises(Exception, match="neuron is invalid"):
        safetensors.load_file(tmp_path / "x.safetensors", device="neuron")
    assert torch.equal(safetensors.load_file(tmp_path / "x.safetensors")["x"].to("neuron").cpu(), X)


def test_flex_attention_names_its_devices():
    from torch.nn.attention.flex_attention import flex_attention

    with pytest.raises(ValueError, match="FlexAttention is only supported on"):
        flex_attention(*[torch.ones(1, 1, 16, 16, device="neuron")] * 3)


def test_dlpack_has_no_number_for_it():
    with pytest.raises(ValueError, match="Unknown device type neuron for Dlpack"):
        torch.from_dlpack(X.to("neuron"))


def test_device_map_auto_stays_on_the_cpu_and_the_name_works(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    devices = {}
    for device_map in ("auto", "neuron"):
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, device_map=device_map)
        devices[device_map] = {parameter.device.type for parameter in model.parameters()}
    assert devices == {"auto": {"cpu"}, "neuron": {"neuron"}}
