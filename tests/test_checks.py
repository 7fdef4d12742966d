"""Checks hold for right answers, and name the rung and the values for wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neuron_lab import checks
from neuron_lab.checks import CheckFailed, Score, check, claims

CASES = {"contiguous": (torch.arange(6.0),), "strided": lambda: (torch.arange(12.0)[::2],), "empty": (torch.ones(0),)}


def double(x):
    return x + x


class TestCheck:
    def test_one_line_on_success(self, capsys):
        check(lambda x: 2 * x, CASES, double, name="double")
        assert capsys.readouterr().out == "double: all 3 rungs hold (contiguous, strided, empty)\n"

    def test_the_first_failing_rung_is_named_with_its_values(self, capsys):
        def wrong(x):
            return 2 * x if x.is_contiguous() else x

        with pytest.raises(CheckFailed) as caught:
            check(wrong, CASES, double)
        assert caught.value.rung == "strided"
        message = str(caught.value)
        assert message.startswith("wrong, rung 2 of 3 (strided): got 2.0 in the result at [1], should be 4.0 (5 of 6")
        assert "tensor [0.0, 2.0, 4.0, 6.0, 8.0, 10.0] of shape (6,)" in message
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(
        ("fn", "words"),
        [
            (lambda x: None, "A `return` is missing"),
            (lambda x: x.double() * 2, "got dtype torch.float64, should be torch.float32"),
            (lambda x: (2 * x)[None], "got shape (1, 6), should be (6,)"),
            (lambda x: (2 * x).tolist(), "should be a tensor of shape (6,)"),
            (lambda x: 2 * x + torch.nan, "got nan in the result at [0]"),
            (lambda x: 2 * x + 1e-3, "6 of 6 values differ"),
            (lambda x: (2 * x).to("meta"), "got a tensor on meta, should be on cpu"),
            (lambda x: x.no_such_method(), "raised AttributeError"),
        ],
    )
    def test_each_way_to_be_wrong_has_its_words(self, fn, words):
        with pytest.raises(CheckFailed) as caught:
            check(fn, CASES, double)
        assert words in str(caught.value)

    def test_an_open_gap_is_said_and_does_not_stop_the_notebook(self, capsys):
        def gap(x):
            raise NotImplementedError

        assert check(gap, CASES, double) is False
        assert check(lambda x: ..., CASES, double, name="dots") is False
        assert capsys.readouterr().out.splitlines() == [
            "gap: still to do. Fill the gap and run this cell again.",
            "dots: still to do. Fill the gap and run this cell again.",
        ]

    def test_a_refusal_of_the_device_is_not_an_open_gap(self):
        def refused(x):
            raise NotImplementedError("aten::mm got a Double tensor")

        with pytest.raises(CheckFailed, match="aten::mm got a Double tensor"):
            check(refused, CASES, double)

    def test_solved_is_true(self):
        assert check(double, CASES, double) is True

    def test_neither_sees_what_the_other_did_to_the_arguments(self):
        x = torch.ones(3)
        check(lambda t: t.mul_(2), {"in place": (x,)}, lambda t: t.mul_(2))
        assert torch.equal(x, torch.ones(3))

    def test_nested_results_say_where(self):
        with pytest.raises(CheckFailed, match=r"got 5 at \['b'\]\[1\], should be 3"):
            check(lambda: {"a": 1, "b": [2, 5]}, {"only": ()}, lambda: {"a": 1, "b": [2, 3]})

    @pytest.mark.parametrize(("got", "want"), [(True, 1), (1, True), ("1", 1), ([1], [1, 2]), (1.1, 1.0)])
    def test_plain_values_that_differ(self, got, want):
        with pytest.raises(CheckFailed):
            check(lambda: got, {"only": ()}, lambda: want)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 3, "text", (1, [2.0]), np.float32(1.5)])
    def test_plain_values_that_agree(self, value, capsys):
        check(lambda: value, {"only": ()}, lambda: value)

    def test_arrays_and_the_types_that_numpy_lacks(self, capsys):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        x = np.arange(4).astype(ml_dtypes.bfloat16)
        check(lambda: x, {"only": ()}, lambda: x.copy())
        with pytest.raises(CheckFailed, match="got dtype float32, should be bfloat16"):
            check(lambda: x.astype(np.float32), {"only": ()}, lambda: x)
        with pytest.raises(CheckFailed, match="1 of 4 values differ"):
            check(lambda: np.array([0, 1, 2, 9], ml_dtypes.bfloat16), {"only": ()}, lambda: x)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool, torch.int64])
    def test_tensors_of_every_kind(self, dtype, capsys):
        x = torch.tensor([0, 1, 1]).to(dtype)
        check(lambda: x, {"only": ()}, lambda: x.clone())
        with pytest.raises(CheckFailed, match="1 of 3 values differ"):
            check(lambda: torch.tensor([0, 1, 0]).to(dtype), {"only": ()}, lambda: x)

    def test_a_check_that_proves_nothing_is_refused(self):
        with pytest.raises(ValueError, match="at least one case"):
            check(double, {}, double)
        with pytest.raises(TypeError, match="must give a tuple"):
            check(double, {"oops": lambda: torch.ones(2)}, double)

    def test_importing_it_does_not_import_torch(self):
        import subprocess
        import sys

        code = (
            "import sys; from neuron_lab.checks import check;"
            "check(lambda x: x, {'one': (1,)}, lambda x: x, name='id'); sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


class TestInANotebook:
    def test_the_reader_sees_the_message_and_not_our_code(self):
        with pytest.raises(CheckFailed) as caught:
            check(lambda x: x, CASES, double)
        assert caught.value._render_traceback_() == [f"Not yet. {caught.value}"]

    def test_an_error_of_the_readers_own_keeps_its_traceback(self):
        def mine(x):
            return x.no_such_method()

        with pytest.raises(CheckFailed) as caught:
            check(mine, CASES, double)
        text = "".join(caught.value._render_traceback_())
        assert "in mine" in text and "neuron_lab/checks.py" not in text

    def test_it_turns_a_cell_red(self):
        from IPython.core.interactiveshell import InteractiveShell

        shell = InteractiveShell()
        result = shell.run_cell("from neuron_lab import checks; checks.claims('n', {'r': (1, 2)})")
        assert isinstance(result.error_in_exec, AssertionError)


class TestClaims:
    def test_success(self, capsys):
        claims("cache", {"graphs": (2, 2), "small": (3, lambda n: n < 5)})
        assert capsys.readouterr().out == "cache: all 2 rungs hold (graphs, small)\n"

    @pytest.mark.parametrize(
        ("rung", "words"),
        [((3, 2), "got 3, should be 2"), ((9, lambda n: n < 5), "9 does not hold"), ((None, 0), "got None")],
    )
    def test_failure(self, rung, words):
        with pytest.raises(CheckFailed) as caught:
            claims("cache", {"good": (1, 1), "bad": rung})
        assert words in str(caught.value) and "rung 2 of 2 (bad)" in str(caught.value)

    def test_nothing_is_refused(self):
        with pytest.raises(ValueError):
            claims("cache", {})


def test_score_is_a_table_of_fixed_width():
    lines = repr(Score({"graphs": 12, "copies": 2}, best={"graphs": 1}, title="yours")).splitlines()
    assert lines == ["yours   graphs  copies", "here        12       2", "good         1       -"]


def test_values_are_shown_short():
    assert len(checks._show(list(range(10_000)))) < 150
    assert checks._show(torch.ones(100, 2)) == "tensor of shape (100, 2) torch.float32 on cpu"
