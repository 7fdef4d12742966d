"""setup() says which device this is, truly, and turns off only what it says."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from neuron_lab import device

GIB = 1 << 30


@dataclasses.dataclass
class Status:
    """The shape of neuron_lab.emulator.status()."""

    active: bool
    reason: str
    instance: str = "trn2.3xlarge"
    cores: int = 4
    lnc: int = 2
    hbm_bytes: int = 24 * GIB
    library: str | None = None
    build_seconds: float | None = None


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("TOKENIZERS_PARALLELISM", "HF_HUB_DISABLE_TELEMETRY", "NEURON_LAB_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("TORCH_DEVICE_BACKEND_AUTOLOAD", "NEURON_LOGICAL_NC_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device, "_set_here", {})
    monkeypatch.setattr(device, "_current", None)


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Stand-ins for the emulator's word, the device's presence and the firmware's product name."""

    def build(status, *, available=True, product=None, cores=64, versions=None):
        import torch

        monkeypatch.setattr(device, "_emulator_status", lambda: status)
        monkeypatch.setattr(device, "_neuron_is_available", lambda _: available)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: cores)
        name = tmp_path / "product_name"
        if product is not None:
            name.write_text(product)
        monkeypatch.setattr(device, "_PRODUCT_NAME", name)
        if versions is not None:
            monkeypatch.setattr(device, "_versions", lambda: versions)

    return build


EMULATED = Status(True, "no Trainium is here")
REAL = Status(False, "the real torch_neuronx 2.13.3 is installed, so the emulated device stands aside")


class TestEmulated:
    def test_the_first_word_cannot_be_missed(self, world):
        world(EMULATED)
        info = device.setup(quiet=True)
        assert repr(info).split(":")[0] == "EMULATED"
        assert info.emulated and info.label == "emulated on CPU"

    def test_the_paragraph_says_what_it_stands_for_and_what_not_to_believe(self, world):
        world(dataclasses.replace(EMULATED, cores=2, hbm_bytes=GIB // 2))
        text = " ".join(repr(device.setup(quiet=True)).split())
        assert "in the shape of a trn2.3xlarge, 2 cores at LNC=2 with 0.5 GiB of HBM each." in text
        assert "No Trainium is here." in text
        assert "no time, cost or speed seen here is a Trainium's" in text

    def test_it_is_one_paragraph_that_fits_a_hundred_columns(self, world):
        world(EMULATED)
        lines = repr(device.setup(quiet=True)).splitlines()
        assert len(lines) > 3 and max(map(len, lines)) <= 100 and all(lines)

    def test_a_build_is_mentioned_with_its_time(self, world):
        world(dataclasses.replace(EMULATED, build_seconds=21.4))
        assert "Built in 21 s by this process." in device.setup(quiet=True).paragraph

    def test_html_is_escaped_and_marks_the_first_word(self, world):
        world(dataclasses.replace(EMULATED, reason="no <Trainium> here"))
        page = device.setup(quiet=True)._repr_html_()
        assert "<strong>EMULATED</strong>:" in page
        assert "No &lt;Trainium&gt; here." in page


class TestReal:
    def test_the_first_word_is_the_instance_type(self, world):
        world(REAL, product="trn2.48xlarge\n")
        info = device.setup(quiet=True)
        assert repr(info).startswith("trn2.48xlarge: ")
        assert info.label == "measured on trn2.48xlarge"
        assert (info.cores, info.lnc, info.hbm_bytes) == (64, 2, 24 * GIB)
        assert "EMULATED" not in repr(info)

    @pytest.mark.parametrize("product", [None, "Standard PC (Q35)", "m5.large", "", "trn2.48xlarge; rm"])
    def test_an_unknown_machine_is_called_unknown(self, world, product):
        world(REAL, product=product)
        info = device.setup(quiet=True)
        assert info.instance == "Trainium (instance type unknown)"
        assert info.hbm_bytes is None and "HBM" not in repr(info)

    def test_no_figure_is_made_up_for_one_core_per_core(self, world, monkeypatch):
        monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
        world(REAL, product="trn2.3xlarge", cores=8)
        info = device.setup(quiet=True)
        assert (info.cores, info.lnc, info.hbm_bytes) == (8, 1, None)

    def test_the_device_is_not_touched(self, world, monkeypatch):
        import torch

        def touched(*_, **__):
            raise AssertionError("setup() touched the device: on hardware this claims the cores")

        world(REAL, product="trn2.3xlarge")
        monkeypatch.setattr(torch, "neuron", SimpleNamespace(get_device_properties=touched), raising=False)
        monkeypatch.setattr(torch.accelerator, "current_device_index", touched)
        device.setup(quiet=True)


class TestNoDevice:
    @pytest.mark.parametrize(
        ("environment", "versions", "step"),
        [
            ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, {}, "unset TORCH_DEVICE_BACKEND_AUTOLOAD"),
            ({"NEURON_LAB_EMULATOR": "0"}, {}, "unset NEURON_LAB_EMULATOR"),
            ({}, {"torch-neuronx": "2.13.3"}, "uninstall torch-neuronx"),
            ({}, {}, "neuron-lab doctor"),
        ],
    )
    def test_the_error_gives_the_reason_and_the_next_step(self, world, monkeypatch, environment, versions, step):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        world(Status(False, "it could not be built: c++ is missing"), available=False, versions=versions)
        with pytest.raises(RuntimeError, match="there is no `neuron` device") as caught:
            device.setup(quiet=True)
        assert "It could not be built: c++ is missing." in str(caught.value)
        assert f"Next step: {step}" in str(caught.value) or step in str(caught.value).partition("Next step: ")[2]

    def test_an_active_emulator_without_a_device_is_no_device(self, world):
        world(EMULATED, available=False)
        with pytest.raises(RuntimeError):
            device.setup(quiet=True)


class TestQuiet:
    def test_it_says_what_it_turned_off(self, world):
        world(EMULATED)
        info = device.setup(quiet=True)
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
        assert "TOKENIZERS_PARALLELISM=false" in repr(info) and "HF_HUB_DISABLE_TELEMETRY=1" in repr(info)

    def test_calling_it_again_says_the_same(self, world):
        world(EMULATED)
        assert repr(device.setup(quiet=True)) == repr(device.setup(quiet=True))

    def test_what_the_user_set_stays_and_is_not_claimed(self, world, monkeypatch):
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
        world(EMULATED)
        info = device.setup(quiet=True)
        assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
        assert info.quieted == () and "Turned off" not in repr(info)

    def test_telemetry_is_off_even_if_the_library_came_first(self, world, monkeypatch):
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
        world(EMULATED)
        device.setup(quiet=True)
        assert constants.HF_HUB_DISABLE_TELEMETRY is True

    def test_a_script_prints_the_paragraph_unless_quiet(self, world, capsys):
        world(EMULATED)
        info = device.setup()
        assert capsys.readouterr().out == f"{info!r}\n"
        device.setup(quiet=True)
        assert capsys.readouterr().out == ""


def test_on_this_machine():
    """The real thing, in a process of its own: whatever is here says so in its first word."""
    code = "import neuron_lab as lab; info = lab.setup(); import torch; print(torch.ones(1, device=info.device).device)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr
    first = answer.stdout.split(":")[0]
    assert first == "EMULATED" or first.startswith(("trn", "Trainium"))
    assert answer.stdout.splitlines()[-1].startswith("neuron:")
