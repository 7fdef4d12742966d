"""How many cores a process sees: the documented variables, and what a wrong value says."""

from __future__ import annotations

import pytest

from .helpers import output_of, python

# The names that PyTorch's convention and the Neuron runtime document; one fresh process each.
CLEAN = dict.fromkeys(
    [
        "NEURON_RT_VISIBLE_CORES",
        "NEURON_RT_NUM_CORES",
        "NEURON_LOGICAL_NC_CONFIG",
        "NEURON_RT_VIRTUAL_CORE_SIZE",
        "LOCAL_RANK",
        "NEURON_LAB_CORES",
        "NEURON_LAB_INSTANCE",
        "NEURON_LAB_HBM_GB",
    ]
)
ASK = """
import torch
print(torch.neuron.device_count(), torch.neuron.current_device(), torch.ones(1, device="neuron").device)
"""


WRONG = [
    ("NEURON_RT_VISIBLE_CORES", "0-9", "cores 0 to 3"),
    ("NEURON_RT_NUM_CORES", "two", "whole number"),
    ("NEURON_LOGICAL_NC_CONFIG", "3", "1 or 2"),
    ("LOCAL_RANK", "7", "at most 4 processes"),
    ("NEURON_LAB_HBM_GB", "lots", "0.5"),
    ("NEURON_LAB_INSTANCE", "p5.48xlarge", "trn2.3xlarge"),
    # A process each, so only when asked for.
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [
            ("NEURON_RT_VISIBLE_CORES", "a-b", "not a list of cores"),
            ("NEURON_RT_VISIBLE_CORES", "3-1", "NEURON_RT_VISIBLE_CORES"),
            ("NEURON_RT_VISIBLE_CORES", "1,1", "twice"),
            ("NEURON_RT_VISIBLE_CORES", "0,", "not a list of cores"),
            ("NEURON_RT_VISIBLE_CORES", "-1", "not a list of cores"),
            ("NEURON_RT_NUM_CORES", "9", "0 to 4"),
            ("NEURON_RT_NUM_CORES", "-1", "0 to 4"),
            ("NEURON_LOGICAL_NC_CONFIG", "0", "1 or 2"),
            ("LOCAL_RANK", "x", "whole number"),
            ("NEURON_LAB_CORES", "0", "NEURON_LAB_CORES"),
            ("NEURON_LAB_HBM_GB", "-1", "0.5"),
            ("NEURON_LAB_HBM_GB", "nan", "0.5"),
            ("NEURON_LAB_HBM_GB", "inf", "0.5"),
            ("NEURON_LAB_FLOAT64", "maybe", "refuse or allow"),
        ]
    ),
]


def ask(**environment: str) -> str:
    return output_of(ASK, **(CLEAN | environment))


class TestNumbers:
    def test_visible_cores_are_numbered_from_zero(self):
        assert ask(NEURON_RT_VISIBLE_CORES="1-2") == "2 0 neuron:0"

    def test_visible_cores_win_over_their_number(self):
        assert ask(NEURON_RT_VISIBLE_CORES="0-2", NEURON_RT_NUM_CORES="1") == "3 0 neuron:0"

    def test_a_rank_begins_on_its_own_core(self):
        assert ask(LOCAL_RANK="1").endswith("1 neuron:1")
        assert ask(LOCAL_RANK="3", NEURON_RT_VISIBLE_CORES="3") == "1 0 neuron:0"  # the launcher gave it one core

    def test_an_index_beyond_them(self):
        done = python("import torch; torch.ones(1, device='neuron:2')", **(CLEAN | {"NEURON_RT_NUM_CORES": "2"}))
        assert done.returncode != 0
        assert "neuron:2 does not exist" in done.stderr and "neuron:0 to neuron:1" in done.stderr

    def test_one_core_is_described_as_one(self):
        done = python("import torch; torch.ones(1, device='neuron:1')", **(CLEAN | {"NEURON_RT_NUM_CORES": "1"}))
        assert "neuron:1 does not exist" in done.stderr and "only neuron:0" in done.stderr


@pytest.mark.emulated
class TestEmulatedInstance:
    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({}, "4 0 neuron:0"),
            ({"NEURON_LOGICAL_NC_CONFIG": "1"}, "8 0 neuron:0"),
            ({"NEURON_LAB_CORES": "127", "LOCAL_RANK": "126"}, "127 126 neuron:126"),
            ({"NEURON_LAB_INSTANCE": "trn2.48xlarge"}, "64 0 neuron:0"),
            ({"NEURON_RT_VISIBLE_CORES": "0,2-3", "LOCAL_RANK": "2"}, "3 2 neuron:2"),
            ({"NEURON_RT_NUM_CORES": "", "NEURON_LAB_HBM_GB": ""}, "4 0 neuron:0"),
        ],
        ids=str,
    )
    def test_counts(self, environment, expected):
        assert ask(**environment) == expected

    def test_as_many_cores_as_pytorch_can_count(self):
        """PyTorch keeps a device's index in eight bits; one core more and backward would break."""
        code = """
import torch
x = torch.ones(2, device="neuron", requires_grad=True)
(x * x).sum().backward()
print(torch.accelerator.device_count(), x.grad.tolist())
"""
        assert output_of(code, **(CLEAN | {"NEURON_LAB_CORES": "127"})) == "127 [2.0, 2.0]"
        refused = python(code, **(CLEAN | {"NEURON_LAB_CORES": "128"}))
        assert refused.returncode != 0 and "127" in refused.stderr and "NEURON_LAB_CORES" in refused.stderr

    def test_an_instance_with_more_cores_than_that_says_so(self):
        many = CLEAN | {"NEURON_LAB_INSTANCE": "trn2.48xlarge", "NEURON_LOGICAL_NC_CONFIG": "1"}
        refused = python(ASK, **many)
        assert refused.returncode != 0 and "127" in refused.stderr and "NEURON_RT_NUM_CORES" in refused.stderr
        assert ask(**(many | {"NEURON_RT_NUM_CORES": "64"})) == "64 0 neuron:0"

    @pytest.mark.parametrize(("name", "value", "words"), WRONG)
    def test_a_wrong_value_is_an_error_at_use_and_not_at_import(self, name, value, words):
        code = """
import torch
print(torch.ones(2).sum().item(), torch.accelerator.device_count())
made, moved = (lambda: torch.ones(1, device="neuron")), (lambda: torch.nn.Linear(1, 1).to("neuron"))
for attempt in (made, moved, torch.neuron.current_device):
    try:
        attempt()
        print("allowed")
    except RuntimeError as error:
        print("refused:", error)
"""
        done = python(code, **(CLEAN | {name: value}))
        assert done.returncode == 0, done.stderr
        lines = done.stdout.strip().splitlines()
        assert lines[0] == "2.0 0"
        assert len(lines) == 4
        for line in lines[1:]:
            assert line.startswith("refused:") and name in line and words in line, line
        assert name in done.stderr  # one warning at import, so that it is not a surprise later

    def test_the_device_can_be_switched_off(self):
        code = "import torch; print(torch.accelerator.is_available(), hasattr(torch, 'neuron'))"
        assert output_of(code, **(CLEAN | {"NEURON_LAB_EMULATOR": "0"})) == "False False"
        assert output_of(code, **(CLEAN | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})) == "False False"
