"""Plain torch, transformers and trl code, without an import of this project, does on ``neuron`` what it does elsewhere.

The scripts check themselves against the CPU or one process; here it is checked that they did so, and what they counted.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).parent.glob("plain_*.py"))


def test_the_scripts_are_plain():
    assert len(SCRIPTS) > 5
    for path in SCRIPTS:
        text = path.read_text()
        assert "neuron_lab" not in text and "import torch" in text, path.name


def test_generation_equals_the_cpu_with_two_graphs(script):
    (counts,) = script("plain_generate.py")
    assert counts == {"eager": 0, "compiled": 2, "other prompts": 2, "prefill eager": 2, "by itself": 1}


@pytest.fixture(scope="module")
def on_cpu(script, tmp_path_factory):
    """The same training on the CPU, once."""
    return script("plain_sft.py", tmp_path_factory.mktemp("cpu"), "cpu")[-1]


class TestFineTuning:
    @pytest.mark.parametrize("mode", ["eager", "compiled"])
    def test_trl_finds_the_device_by_itself_and_learns_as_on_the_cpu(self, script, tmp_path, on_cpu, mode):
        report = script("plain_sft.py", tmp_path, mode)[-1]
        assert report["device"] == "neuron:0" and report["weights on"] == ["neuron"]
        assert report["pad_to_multiple_of"] == 128 and report["shapes"] == [["neuron", 4, 128]]
        losses = report["losses"]
        assert len(losses) == 8 and all(map(math.isfinite, losses))
        assert losses[-1] < losses[0] / 2
        assert losses == pytest.approx(on_cpu["losses"], rel=2e-2)
        assert on_cpu["weights on"] == ["cpu"]
        before, after = report["loss on the CPU"]  # of the checkpoint, loaded there
        assert report["saved on"] == "cpu" and after < before / 2
        if mode == "compiled":
            assert report["backend"] == "neuron" and 0 < report["graphs"] <= 5 and not report["symbolic"]
        else:
            assert report["backend"] is None and report["graphs"] == 0

    def test_the_announced_grid_of_tensor_and_data_parallel(self, script, tmp_path):
        script("plain_tiny.py", tmp_path / "model")
        report = script("plain_sft_grid.py", tmp_path, ranks=4, TP_SIZE="2", FSDP_SIZE="2")[-1]
        assert report["device"] == "neuron:0" and report["mesh"] == ["fsdp", "tp"] and report["graphs"] > 0
        losses = report["losses"]
        assert len(losses) == 4 and losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 1
        assert _loads_on_the_cpu(tmp_path / "out") < losses[0]


def _loads_on_the_cpu(folder):
    """Mean loss of the saved model on one of the texts it was trained on; the weights have to be whole again."""
    import torch
    from plain_tiny import SENTENCES
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert model.model.layers[0].self_attn.q_proj.weight.shape == (64, 64) and model.device.type == "cpu"
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES[0], return_tensors="pt")
    with torch.no_grad():
        return float(model(**batch, labels=batch["input_ids"]).loss)


class TestSeveralRanks:
    KINDS = (
        "all_reduce SUM", "all_reduce AVG", "all_reduce MAX", "all_reduce MAX bool", "all_gather torch.bool",
        "all_gather_into_tensor torch.bfloat16", "reduce_scatter torch.int64", "reduce_scatter_tensor AVG",
        "broadcast", "scatter", "gather", "reduce torch.float32", "send and recv", "isend and irecv",
        "batch_isend_irecv", "barrier", "objects", "all_reduce async", "a future", "all_reduce in a group",
    )  # fmt: skip

    @pytest.mark.parametrize("ranks", [2, 4])
    def test_collectives(self, script, ranks):
        (report,) = script("plain_collectives.py", ranks=ranks)
        assert report["ranks"] == ranks
        for kind in (*self.KINDS, "all_to_all refused" if ranks == 2 else "all_to_all_single uneven"):
            assert any(entry.startswith(kind) for entry in report["done"]), kind

    def test_data_tensor_and_pipeline_parallel_equal_one_process(self, script):
        (report,) = script("plain_parallel.py", ranks=2)
        assert report["done"] == [
            "DTensor", "DDP", "DDP compiled", "DDP no_sync", "FSDP2", "FSDP2 compiled by block", "DTensor TP",
            "DTensor TP compiled", "pipeline", "functional collectives compiled",
        ]  # fmt: skip

    def test_checkpoints_precision_sequences_and_schedules(self, script, tmp_path):
        (report,) = script("plain_sharding.py", tmp_path, ranks=2)
        assert report["done"] == [
            "distributed checkpoint",
            "mixed precision",
            "sequence parallel",
            "pipeline schedules",
        ]

    def test_random_numbers_of_sharded_tensors(self, script, tmp_path):
        (report,) = script("plain_sharding.py", tmp_path, "random", ranks=2)
        assert report["done"] == ["random numbers"]

    def test_a_rank_has_its_own_core_only(self, script):
        reports = sorted(script("plain_rules.py", "group-first", ranks=2), key=lambda report: report["rank"])
        assert [(report["rank"], report["core"], report["refused"]) for report in reports] == [
            (0, 0, [1, 2, 3]),
            (1, 1, [0, 2, 3]),
        ]

    def test_the_group_comes_before_the_device(self, script):
        reports = script("plain_rules.py", "device-first", ranks=2)
        assert [report["refused"] for report in reports] == ["AssertionError"] * 2

    def test_tensor_parallel_generation_equals_one_process(self, script, tmp_path):
        (report,) = script("plain_tp_generate.py", tmp_path, ranks=2)
        assert report["ranks"] == 2 and report["graphs"] == 2
        assert len(set(map(tuple, report["tokens"]))) == 2
