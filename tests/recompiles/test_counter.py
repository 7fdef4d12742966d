"""What the counter tells apart, and that it leaves no trace."""

from __future__ import annotations

import json
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neuron_lab as lab
from neuron_lab.recompiles import events as kinds
from neuron_lab.recompiles.causes import explain

ones = torch.ones


def compiled(function, **options):
    return torch.compile(function, **{"backend": "eager", "dynamic": False, **options})


def kinds_of(seen: lab.Recompiles) -> list[str]:
    return [event.kind for event in seen.events]


class TestMeasuredFacts:
    """Numbers of users' reports, counted again."""

    LENGTHS = range(4, 51)

    @pytest.mark.parametrize(
        ("pad", "expected"),
        [(lambda n: n, 47), (lambda n: next(b for b in (14, 26, 38, 50) if n <= b), 4), (lambda n: 50, 1)],
        ids=["as they come", "four buckets", "the longest"],
    )
    @pytest.mark.parametrize("backend", ["eager", "neuron"])
    def test_lengths(self, pad, expected, backend):
        device = "neuron" if backend == "neuron" else "cpu"
        function = compiled(lambda x: x * 2, backend=backend, recompile_limit=64)
        with lab.count_recompiles() as seen:
            for length in self.LENGTHS:
                function(F.pad(ones(length, device=device), (0, pad(length) - length)))
        seen.expect(compiles=expected, recompiles=expected - 1)

    @pytest.mark.parametrize(("drop", "expected"), [(False, 2), (True, 1)])
    def test_the_last_batch(self, drop, expected):
        loader = torch.utils.data.DataLoader(ones(70, 4), batch_size=16, drop_last=drop)
        step = compiled(nn.Linear(4, 1))
        with lab.count_recompiles() as seen:
            for batch in loader:
                step(batch)
        seen.expect(compiles=expected)
        if not drop:
            (event,) = seen.recompiles
            assert str(event.cause).endswith("size(0): 16 -> 6") and "last batch" in event.cause.remedy

    def test_a_fixed_cache_with_the_position_in_a_tensor(self):
        seen = self.decode(lambda position: torch.tensor(position))
        seen.expect(compiles=1, recompiles=0)

    def test_a_fixed_cache_with_an_integer_position_ends_in_eager_mode(self):
        seen = self.decode(lambda position: position)
        assert len(seen.compiles) == 8 and len(seen.recompiles) == 7
        (event,) = seen.fell_back_to_eager
        assert event.function == "write" and "position" in event.cause.what and "tensor" in event.cause.remedy
        assert "1 function now EAGER" in repr(seen)
        with pytest.raises(AssertionError, match="recompile limit and runs eagerly"):
            seen.expect(compiles=8)

    def decode(self, hold):
        def write(cache, key, position):
            index = torch.as_tensor(position).reshape(1)
            return cache.index_copy(0, index, key)

        step, cache = compiled(write), torch.zeros(16, 4)
        with lab.count_recompiles(label="decode") as seen:
            for position in range(12):
                cache = step(cache, ones(1, 4), hold(position))
        return seen

    def test_twelve_cells_of_the_same_source_are_twelve_cold_compiles(self):
        source = "def step(x):\n    return x * 2\n"
        with lab.count_recompiles() as seen:
            for _ in range(12):
                scope: dict = {}
                exec(compile(source, "<cell>", "exec"), scope)
                compiled(scope["step"])(ones(2))
        assert kinds_of(seen) == [kinds.FIRST] + [kinds.DEFINED_AGAIN] * 11
        seen.expect(compiles=12, recompiles=0)

    def test_train_evaluation_and_no_grad_are_three(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        step = compiled(model)
        with lab.count_recompiles() as seen:
            step(ones(2))
            model.eval()
            step(ones(2))
            with torch.no_grad():
                step(ones(2))
        seen.expect(compiles=3)


class TestKinds:
    def test_breaks_split_a_function(self):
        def function(x):
            y = x + 1
            print(end="")
            return y * 2

        with lab.count_recompiles() as seen:
            compiled(function)(ones(2))
        assert kinds_of(seen) == [kinds.FIRST, kinds.AFTER_BREAK]
        (found,) = seen.graph_breaks
        assert found.file == __file__ and found.line == function.__code__.co_firstlineno + 2
        assert "Take the output out" in found.remedy and found.where in repr(seen)
        seen.expect(compiles=2, recompiles=0, graph_breaks=1)

    def test_loaded_from_the_compile_cache(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
        x = ones(3, 5, device="neuron", requires_grad=True)

        def step():
            torch._dynamo.reset()
            with lab.count_recompiles() as seen:
                compiled(lambda x: (x * 3).sin(), backend="neuron")(x)
            return seen

        first, second = step(), step()
        assert first.graphs == second.graphs == 2  # forward and backward
        assert len(first.cache_hits) == 0 and len(second.cache_hits) == 1
        assert "1 loaded from cache" in repr(second)

    def test_inductors_cache(self, monkeypatch, tmp_path):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

        def step():
            torch._dynamo.reset()
            with torch._inductor.config.patch(fx_graph_cache=True), lab.count_recompiles() as seen:
                compiled(lambda x: (x * 3).cos(), backend="inductor")(ones(3))
            return seen

        first, second = step(), step()
        first.expect(compiles=1)
        second.expect(compiles=1)
        assert (len(first.cache_hits), len(second.cache_hits)) == (0, 1)
        assert second.compiles[0].seconds.backend < first.compiles[0].seconds.backend

    def test_switched_off_by_a_stance(self):
        step = compiled(lambda x: x + 1)
        with lab.count_recompiles() as seen, torch.compiler.set_stance("force_eager"):
            step(ones(2))
        (event,) = seen.events
        assert event.kind == kinds.SKIPPED and event.detail == "stance 'force_eager'" and event.file == __file__
        assert "switched off" in repr(seen)

    def test_a_stance_set_before_and_a_switch(self):
        with (
            torch._dynamo.config.patch(disable=True),
            torch.compiler.set_stance("eager_on_recompile"),
            lab.count_recompiles() as seen,
        ):
            pass
        assert [event.detail for event in seen.skips] == [
            "stance 'eager_on_recompile', set before",
            "torch._dynamo.config.disable (TORCHDYNAMO_DISABLE=1)",
        ]

    def test_other_options(self):
        def function(x):
            return x + 1

        with lab.count_recompiles() as seen:
            for name in ("a", "b"):
                compiled(function, backend="neuron", options={"model_name": name})(ones(2, device="neuron"))
        assert kinds_of(seen) == [kinds.FIRST, kinds.OTHER_OPTIONS]
        cause = seen.events[1].cause
        assert "'a'" in cause.before and "'b'" in cause.after and "compile it once" in cause.remedy

    def test_a_refusal_of_the_backend(self):
        step = torch.compile(lambda x: x + 1, backend="neuron", dynamic=True)
        with lab.count_recompiles() as seen, pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
            step(ones(5, device="neuron"))
        (event,) = seen.failures
        assert "Dynamic shape is not supported" in event.detail and not seen.compiles
        torch.compiler.reset()
        with lab.count_recompiles() as again:
            compiled(lambda x: x + 1, backend="neuron")(ones(5, device="neuron"))
        again.expect(compiles=1)

    def test_what_the_optimizer_compiles_is_said_to_be_its(self):
        parameter = nn.Parameter(ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.grad = ones(2)
        with lab.count_recompiles() as seen:
            compiled(optimizer.step)()
        assert {event.origin for event in seen.compiles} == {"optimizer"}

    def test_what_an_evaluation_compiles_is_said_to_be_its(self):
        step = compiled(lambda x: x * 2)

        def evaluate(batch):
            return step(batch)

        step(ones(4))
        with lab.count_recompiles() as seen:
            evaluate(ones(3))
        (event,) = seen.recompiles
        assert event.origin == "evaluation" and event.called_from.startswith(__file__)

    def test_nothing_to_compile(self):
        with lab.count_recompiles() as seen:
            compiled(lambda n: n)(ones(2))
        seen.expect(compiles=0)


class TestFormsOfUse:
    def test_nested_counters_are_phases(self):
        step = compiled(lambda x: x + 1)
        with lab.count_recompiles(label="all") as outer:
            step(ones(2))
            with lab.count_recompiles(label="prefill") as prefill:
                step(ones(3))
            with lab.count_recompiles(label="decode") as decode, lab.count_recompiles(label="first token"):
                step(ones(4))
        assert [event.phase for event in outer.events] == ["", "prefill", "decode / first token"]
        assert len(prefill.events) == len(decode.events) == 1 and decode.events[0].phase == "first token"
        assert [event.number for event in outer.events] == [1, 2, 3] and decode.events[0].number == 1

    def test_as_a_decorator(self):
        step = compiled(lambda x: x + 1)

        @lab.count_recompiles
        def serve(n):
            """Serves."""
            return step(ones(n))

        @lab.count_recompiles(label="named")
        def other(n):
            return step(ones(n))

        assert serve(2).shape == (2,) and serve.__doc__ == "Serves."
        serve(3), other(4)
        assert len(serve.recompiles.compiles) == 2 and serve.recompiles.label == "serve"
        assert other.recompiles.label == "named" and len(other.recompiles.recompiles) == 1

    def test_opened_twice_goes_on(self):
        step, seen = compiled(lambda x: x + 1), lab.count_recompiles()
        with seen, seen:
            step(ones(2))
        with seen:
            step(ones(3))
        step(ones(4))
        seen.expect(compiles=2)
        seen.stop()  # once too often, which is no mistake

    def test_across_a_reset(self):
        step = compiled(lambda x: x + 1)
        with lab.count_recompiles() as seen:
            step(ones(2))
            torch._dynamo.reset()
            step(ones(2))
        assert kinds_of(seen) == [kinds.FIRST, kinds.DEFINED_AGAIN]

    def test_more_than_pytorch_keeps(self):
        """PyTorch remembers 64 compilations."""
        step = compiled(lambda x: x + 1, recompile_limit=200)
        with lab.count_recompiles() as seen:
            for n in range(100):
                step(ones(n + 2))
        seen.expect(compiles=100)

    def test_compilations_of_other_threads(self):
        def work(k):
            compiled(lambda x: x + k)(ones(2 + k))

        with lab.count_recompiles() as seen:
            threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        assert len(seen.compiles) == 4 and [event.number for event in seen.events] == [1, 2, 3, 4]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_an_error_in_the_block_or_in_the_middle_of_a_compile(self, error):
        def backend(graph, inputs):
            raise error("stopped")

        with pytest.raises(BaseException, match="stopped"), lab.count_recompiles() as seen:
            compiled(lambda x: x + 1, backend=backend)(ones(2))
        assert kinds_of(seen) == [kinds.FAILED]
        torch._dynamo.reset()
        with lab.count_recompiles() as seen:
            compiled(lambda x: x + 1)(ones(2))
        seen.expect(compiles=1)

    def test_a_counter_that_breaks_does_not_break_the_compile(self, monkeypatch, caplog):
        with lab.count_recompiles() as seen:
            monkeypatch.setattr(seen, "receive", lambda found: 1 / 0)
            assert torch.equal(compiled(lambda x: x + 1)(ones(2)), ones(2) + 1)
        assert "could not read an event" in caplog.text

    def test_bad_input(self):
        with pytest.raises(TypeError, match=r"label is a keyword: count_recompiles\(label='warm-up'\)"):
            lab.count_recompiles("warm-up")
        with pytest.raises(ValueError, match="asked for nothing"):
            lab.count_recompiles().expect()

    def test_pytorch_is_left_as_it_was_found(self, python):
        """PyTorch's own trace handler takes itself away at the first event when it has nowhere to write to."""
        python(
            """
            import logging, torch, torch._dynamo
            import neuron_lab as lab
            log = logging.getLogger("torch.__trace")
            before = list(log.handlers), log.level, log.propagate, torch._dynamo.decorators._set_stance
            step = torch.compile(lambda x: x + 1, backend="eager")
            with lab.count_recompiles() as seen:
                step(torch.ones(2))
            assert len(seen.compiles) == 1
            after = list(log.handlers), log.level, log.propagate, torch._dynamo.decorators._set_stance
            assert before == after and len(before[0]) == 1, (before, after)
            """
        )

    def test_importing_and_opening_loads_no_notebook_library(self, python):
        python(
            """
            import sys
            import neuron_lab as lab
            with lab.count_recompiles() as seen:
                repr(seen), seen._repr_html_(), seen.to_json()
            assert not {"IPython", "ipywidgets", "matplotlib", "transformers"} & set(sys.modules)
            """
        )


class TestFaces:
    @pytest.fixture
    def seen(self):
        step = compiled(lambda x, n: x * n, recompile_limit=3)
        with lab.count_recompiles(label="a <label>") as seen:
            for n in (2, 3, 4, 5):
                step(ones(2), n)
        return seen

    def test_text_is_of_fixed_width(self, seen):
        lines = repr(seen).splitlines()
        assert all(len(line) <= 100 for line in lines)
        assert lines[0].startswith("a <label>: 3 compiles, 2 recompiles, 3 graphs, 1 function now EAGER")
        assert any("n: 2 -> 3" in line and "test_counter.py:" in line for line in lines)
        assert any("pass it as a tensor" in line for line in lines)

    def test_html_says_the_same_and_is_escaped(self, seen):
        page = seen._repr_html_()
        assert "a &lt;label&gt;" in page and "<label>" not in page and "n: 2 -&gt; 3" in page
        assert page.count("<tr>") == 1 + len(seen.events)

    def test_json_has_everything(self, seen):
        found = json.loads(seen.to_json())
        assert found["counts"]["compiles"] == 3 and found["counts"]["fell_back_to_eager"] == 1
        assert found["events"][1]["cause"]["after"] == "3" and found["events"][1]["seconds"]["tracing"] > 0

    def test_a_timeline(self, seen):
        figure = lab.plots.timeline(seen, label="emulated on CPU")
        assert figure.alt.startswith("3 compilations of 1 functions") and "2 of them are recompiles" in figure.alt
        (axes,) = figure.axes
        assert "test_counter.py:" in axes.get_yticklabels()[0].get_text()
        spans = [path for collection in axes.collections for path in collection.get_paths()]
        assert len(spans) == 3
        with pytest.raises(ValueError, match="nothing was compiled"):
            lab.plots.timeline(lab.count_recompiles())

    def test_a_module_of_torch_nn_is_named_by_its_call(self):
        with lab.count_recompiles() as seen:
            compiled(nn.Linear(2, 2))(ones(2))
        (event,) = seen.compiles
        assert event.function == "Linear.forward" and event.file == __file__

    def test_a_decorated_function_is_named_itself(self):
        @torch.no_grad()
        def decode(x):
            return x * 2

        step = compiled(decode, recompile_limit=2)
        with lab.count_recompiles() as seen:
            for n in (2, 3, 4):
                step(ones(n))
        assert [event.function for event in seen.events] == ["decode"] * 3, seen
        assert {event.line for event in seen.events} == {decode.__wrapped__.__code__.co_firstlineno}

    def test_a_function_that_uses_another_keeps_its_own_name(self):
        fn = torch.sin

        def mine(x):
            return fn(x) + 1

        with lab.count_recompiles() as seen:
            compiled(mine)(ones(2))
        assert seen.compiles[0].function == "mine"

    def test_nothing_happened(self):
        with lab.count_recompiles() as seen:
            pass
        assert repr(seen) == "0 compiles, 0 recompiles, 0 graphs"

    def test_expect_shows_the_table(self, seen):
        with pytest.raises(AssertionError, match=r"(?s)compiles 3, expected 1.*n: 2 -> 3"):
            seen.expect(compiles=1)


class TestCauses:
    def test_a_guard_that_is_not_known_is_shown_raw(self):
        cause = explain("3/1: ___some_new_guard(L['x'], 7)")
        assert cause.kind == "unknown" and cause.remedy == "" and str(cause) == "___some_new_guard(L['x'], 7)"

    @pytest.mark.parametrize(
        ("guard", "said", "remedy"),
        [
            ("0/0: tensor 'past_keys' size mismatch at index 2. expected 7, actual 8", "7 -> 8", "static cache"),
            ("0/0: tensor 'x' size mismatch at index 1. expected 7, actual 8", "x.size(1): 7 -> 8", "bucket"),
            ("0/2: self.param_groups[0]['lr'] == 0.1   # for group in ...", "0.1 -> ?", "learning rate a tensor"),
            ("0/0: cache_position == 4  # x", "cache_position: 4", "position in a tensor"),
            ("0/0: GLOBAL_STATE changed: num_threads ", "num_threads", "set_num_threads"),
            (
                "0/0: tensor 'x' Tensor device index mismatch. Expected device index to be \x00, actual \x01",
                "x",
                "one dev",
            ),
        ],
    )
    def test_known_ones(self, guard, said, remedy):
        cause = explain(guard)
        assert said in str(cause) and remedy in cause.remedy
