"""diffusers' own tensor parallelism and regional compilation on ``neuron``."""

from __future__ import annotations


def test_flux_transformer_in_two_parts_equals_one_process(script):
    (report,) = script("plain_flux.py", ranks=2)
    assert len(report["ranks"]) == 2
    for rank in report["ranks"]:
        assert rank["eager"] < 1e-5 and rank["compiled"] < 1e-5
    assert report["graphs"] == 3, "one graph per kind of block: two sorts, one of them in two layouts"
    assert 0.5 <= report["share"] < 0.75, "the wide layers are split, norms and modulation are whole on each rank"
