"""``torch.compile(backend="neuron")``: what counts as a compilation, what is refused, what is written down."""

from __future__ import annotations

import json
import logging
import warnings

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics, reset_dynamo_metrics

from neuron_lab.emulator import records


def ones(*size: int, **options) -> torch.Tensor:
    return torch.ones(*size, device="neuron", **options)


def events() -> list[str]:
    return [graph["event"] for graph in get_dynamo_metrics()["graphs"]]


PROCESS = """
import json, warnings
warnings.simplefilter("always")
import torch
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics
torch.manual_seed(0)
layer = torch.nn.Linear(4, 3).to("neuron")
def step(x):
    return layer(x).relu().sum()
for size in (2, 2, 5):
    torch._dynamo.reset()
    f = torch.compile(step, backend="neuron", dynamic=False, fullgraph=True)
    f(torch.ones(size, 4, device="neuron")).backward()
    f(torch.ones(size, 4, device="neuron")).backward()
graphs = get_dynamo_metrics()["graphs"]
print(json.dumps([[g["event"], g["kind"]] for g in graphs]))
"""


class TestThreeEvents:
    def test_across_processes(self, tmp_path, python):
        """Compiled by the first process, loaded by later ones, compiled again where the cache is damaged."""
        neff = tmp_path / "neff"
        env = {"TORCH_NEURONX_NEFF_CACHE_DIR": str(neff), "TORCH_NEURONX_DEBUG_DIR": str(tmp_path / "debug")}
        pair = [python.start(PROCESS, env) for _ in range(2)]  # they share the folder from the start
        for process in pair:
            out, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
            found, kinds = zip(*json.loads(out), strict=True)
            assert kinds == ("forward", "backward") * 3
            assert found[2:4] == ("reused", "reused") and set(found[:2] + found[4:]) <= {"compiled", "loaded"}
        entries = sorted(neff.iterdir())
        assert len(entries) == 4 and all(json.loads(path.read_text())["label"] == records.LABEL for path in entries)
        # The artefacts, because they were asked for: a readable graph of each kind, labelled.
        artefacts = {path.name.split("-")[1]: path.read_text() for path in (tmp_path / "debug").iterdir()}
        assert "torch.ops.aten.addmm" in artefacts["forward"] and "torch.ops.aten.mm" in artefacts["backward"]
        assert all(records.LABEL in text for text in artefacts.values())

        entries[0].write_text(entries[0].read_text()[:40])  # cut off
        entries[1].write_text("[]")  # whole, and no entry
        later = [event for event, _ in json.loads(python(PROCESS, env).stdout)]
        assert later[2:4] == ["reused", "reused"]
        assert sorted(later[:2] + later[4:]) == ["compiled"] * 2 + ["loaded"] * 2
        assert sorted(neff.iterdir()) == entries and json.loads(entries[1].read_text())["label"] == records.LABEL

    def test_in_one_process(self, compiled):
        f = compiled(lambda x: x * 2)
        f(ones(3))
        f(ones(3))
        assert events() == ["compiled"]  # the second call asks nobody
        torch._dynamo.reset()
        f(ones(3))
        assert events() == ["compiled", "reused"]
        records._state = records._State()  # what a new process begins with
        torch._dynamo.reset()
        f(ones(3))
        assert events() == ["loaded"]

    @pytest.mark.parametrize(
        "other",
        [
            lambda: ones(4),  # shape
            lambda: ones(3, dtype=torch.bfloat16),
            lambda: ones(6)[::2],  # strides
        ],
    )
    def test_what_makes_another_graph(self, compiled, other):
        f = compiled(lambda x: x * 2)
        f(ones(3))
        f(other())
        assert events() == ["compiled", "compiled"]
        assert len({graph["key"] for graph in get_dynamo_metrics()["graphs"]}) == 2

    def test_a_constant_and_an_option_are_part_of_the_key(self, compiled):
        for factor in (2, 3):
            torch._dynamo.reset()
            compiled(lambda x, factor=factor: x * factor)(ones(3))
        torch._dynamo.reset()
        compiled(lambda x: x * 3, options={"fallback_execution": True})(ones(3))
        assert events() == ["compiled"] * 3

    def test_names_of_variables_are_not(self, compiled):
        compiled(lambda x: x * 2 + 1)(ones(3))
        torch._dynamo.reset()

        def another(some_other_name):
            doubled = some_other_name * 2
            return doubled + 1

        compiled(another)(ones(3))
        assert events() == ["compiled", "reused"]


class TestKinds:
    def test_training(self, compiled):
        w = ones(3).requires_grad_()
        compiled(lambda x: (x * w).sum())(ones(3)).backward()
        assert [graph["kind"] for graph in get_dynamo_metrics()["graphs"]] == ["forward", "backward"]
        assert w.grad.tolist() == [1, 1, 1]

    def test_inference(self, compiled):
        layer = torch.nn.Linear(3, 3).to("neuron")
        f = compiled(layer)
        with torch.no_grad():
            f(ones(2, 3))
        with torch.inference_mode():
            assert f(ones(2, 3)).is_inference()
        assert {graph["kind"] for graph in get_dynamo_metrics()["graphs"]} == {"inference"}


class TestRecords:
    def test_say_what_they_are(self, compiled):
        compiled(lambda x: x.sin() + 1, options={"model_name": "tiny"})(ones(2, 3))
        metrics = get_dynamo_metrics()
        assert metrics["label"] == records.LABEL and "EMULATED" in metrics["label"]
        assert (metrics["compiled"], metrics["loaded"], metrics["reused"]) == (1, 0, 0)
        (graph,) = metrics["graphs"]
        assert graph["name"] == "tiny" and graph["nodes"] == 2
        assert graph["inputs"] == ("float32[2, 3]:[3, 1]@neuron",)

    def test_can_be_reset(self, compiled):
        compiled(lambda x: x + 1)(ones(2))
        reset_dynamo_metrics()
        assert get_dynamo_metrics()["graphs"] == []


class TestCacheFolder:
    @pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null/neff"])
    def test_that_cannot_be_written_warns_once(self, compiled, monkeypatch, place):
        monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", place)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for size in (2, 3):
                assert compiled(lambda x: x * 2)(ones(size)).sum().item() == 2 * size
        told = [str(w.message) for w in caught if "neuron-lab" in str(w.message)]
        assert len(told) == 1 and place in told[0] and "TORCH_NEURONX_NEFF_CACHE_DIR" in told[0]
        assert events() == ["compiled", "compiled"]

    def test_artefacts_that_cannot_be_written_do_not_stop_the_work(self, compiled, monkeypatch):
        monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", "/proc/nowhere")
        with pytest.warns(RuntimeWarning, match="TORCH_NEURONX_DEBUG_DIR='/proc/nowhere' cannot be written"):
            assert compiled(lambda x: x * 2)(ones(2)).sum().item() == 4

    def test_artefacts_only_when_asked_for(self, compiled, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        compiled(lambda x: x * 2)(ones(2))
        assert [path.name for path in tmp_path.iterdir()] == ["neff"]


class TestDynamicShapes:
    def test_dynamic_true_is_rejected(self, compiled):
        with pytest.raises(BackendCompilerFailed, match=r"NCC_EMOD025.*dynamic=False") as caught:
            compiled(lambda x: x * 2, dynamic=True)(ones(3))
        assert type(caught.value.inner_exception).__name__ == "DynamicShapeError"

    def test_a_second_shape_needs_dynamic_false(self, compiled):
        f = compiled(lambda x: x * 2, dynamic=None)
        f(ones(3))
        with pytest.raises(BackendCompilerFailed, match=r"\[emulated\].*automatic_dynamic_shapes = False"):
            f(ones(4))
        f(ones(3))  # what was compiled stays of use

    def test_and_with_it_each_shape_is_a_graph(self, compiled):
        f = compiled(lambda x: x * 2)
        for size in (3, 4, 3, 5):
            assert f(ones(size)).tolist() == [2.0] * size
        assert events() == ["compiled"] * 3

    def test_a_mark_of_the_user_is_rejected(self, compiled):
        x = ones(4)
        torch._dynamo.mark_dynamic(x, 0)
        with pytest.raises(BackendCompilerFailed, match="NCC_EMOD025"):
            compiled(lambda x: x * 2, dynamic=None)(x)

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x.nonzero(),
            lambda x: x[x > 0].sum(),
            lambda x: x.unique(),
            lambda x: x.repeat_interleave(x.long()),
            lambda x: torch.cond(x.sum() > 0, lambda x: x[x > 0].sum(), lambda x: x.sum(), (x,)),
        ],
        ids=["nonzero", "mask", "unique", "repeat_interleave", "inside cond"],
    )
    def test_sizes_that_depend_on_data_are_rejected(self, compiled, function):
        with pytest.raises(BackendCompilerFailed, match=r"NCC_EMOD025.*depends on data"):
            compiled(function)(ones(3))

    def test_item_breaks_the_graph(self, compiled):
        f = compiled(lambda x: x * x.sum().item(), fullgraph=False)
        assert f(ones(2)).tolist() == [2, 2]
        assert len(events()) == 2


class TestFallback:
    """A graph that cannot be compiled runs eagerly where that is allowed, which it is not by default."""

    @pytest.mark.parametrize(
        ("variable", "option", "allowed"),
        [(None, None, False), ("1", None, False), ("0", None, True), ("0", False, False), ("1", True, True)],
    )
    def test_the_option_wins_over_the_variable(self, compiled, monkeypatch, variable, option, allowed):
        if variable is not None:
            monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", variable)
        options = {} if option is None else {"options": {"fallback_execution": option}}
        f = compiled(lambda x: (x * 2).sin().sum(), dynamic=None, **options)
        f(ones(2).requires_grad_()).backward()
        x = ones(3).requires_grad_()
        if not allowed:
            with pytest.raises(BackendCompilerFailed, match="NCC_EMOD025"):
                f(x)
            return
        with pytest.warns(UserWarning, match="runs eagerly"):
            f(x).backward()
        want = torch.ones(3, requires_grad=True)
        (want * 2).sin().sum().backward()
        torch.testing.assert_close(x.grad.cpu(), want.grad)

    def test_sizes_that_depend_on_data_run_too(self, compiled):
        f = compiled(lambda x: x.nonzero() * 2, options={"fallback_execution": True})
        with pytest.warns(UserWarning, match="runs eagerly"):
            assert f(ones(2)).tolist() == [[0], [2]]
        assert events() == []  # nothing was compiled, and nothing says so


class TestArguments:
    def test_mode_warns_and_has_no_effect(self, compiled):
        with pytest.warns(UserWarning, match="mode='max-autotune'.*has no effect"):
            assert compiled(lambda x: x * 2, mode="max-autotune")(ones(2)).tolist() == [2, 2]

    def test_default_mode_does_not_warn(self, compiled):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled(lambda x: x * 2, mode="default")(ones(2))

    def test_unknown_options_are_named(self, compiled, caplog):
        with caplog.at_level(logging.WARNING, logger="neuron_lab.emulator.compiler"):
            compiled(lambda x: x * 2, options={"compiler_args": "-O1"})(ones(2))
        assert "compiler_args" in caplog.text and "fallback_execution" in caplog.text

    @pytest.mark.parametrize("value", ["maybe", 2, None])
    def test_an_option_of_the_wrong_type_is_an_error(self, compiled, value):
        with pytest.raises(BackendCompilerFailed, match="fallback_execution"):
            compiled(lambda x: x * 2, options={"fallback_execution": value}, dynamic=True)(ones(3))


class TestWhatEagerModeRefuses:
    def test_float64_products(self, compiled):
        f = compiled(lambda x: x @ x)
        with pytest.raises(BackendCompilerFailed, match="64-bit floating point"):
            f(ones(2, 2, dtype=torch.float64))

    def test_operators_of_a_graph_are_tracked(self, compiled):
        import torch_neuronx

        torch_neuronx.clear_op_tracking()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(lambda x: torch.atan2(x, x))(ones(2))
        assert "aten::atan2" in torch_neuronx.get_fallback_ops()
        assert "aten::atan2" in torch_neuronx.get_executed_ops()
