"""Figures carry their source and their description, into the notebook and into the page made from it."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib
import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from neuron_lab import device, plots

TEXTS = {"xlabel": "step", "ylabel": "loss (nats)", "title": "It falls", "alt": 'A line that falls, "all the way".'}
LABEL = "emulated on CPU"


def texts(figure):
    return [t.get_text() for t in figure.findobj(matplotlib.text.Text)]


class Images(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.alts = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))


@pytest.fixture
def figure():
    return plots.curves({"neuron": [3, 2, 1], "CPU": [3, 2, 1]}, **TEXTS, label=LABEL)


class TestFigure:
    def test_it_is_a_figure_with_its_texts(self, figure):
        assert isinstance(figure, Figure)
        assert figure.alt == TEXTS["alt"]
        for text in (LABEL, "step", "loss (nats)", "It falls", "neuron", "CPU"):
            assert text in texts(figure)

    def test_pyplot_does_not_know_it_and_nothing_global_changed(self):
        code = (
            "import sys; from neuron_lab import plots; early = 'matplotlib' in sys.modules;"
            "plots.bars({'a': 1}, xlabel='x', ylabel='y', title='t', alt='a', label='emulated on CPU')._png();"
            "sys.exit(early or 'matplotlib.pyplot' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0

    @pytest.mark.parametrize("missing", ["xlabel", "ylabel", "title", "alt"])
    def test_each_text_is_needed(self, missing):
        with pytest.raises(ValueError, match=f"{missing} is ''"):
            plots.curves({"a": [1, 2]}, **(TEXTS | {missing: ""}), label=LABEL)

    def test_a_label_must_say_how_the_numbers_came_about(self):
        with pytest.raises(ValueError, match=r"give DeviceInfo\.label"):
            plots.curves({"a": [1, 2]}, **TEXTS, label="Trainium")

    def test_the_label_is_that_of_the_device_at_hand(self, monkeypatch):
        info = device.DeviceInfo("neuron", False, "trn2.48xlarge", 64, 2, None, {}, "")
        monkeypatch.setattr(device, "_current", info)
        assert "measured on trn2.48xlarge" in texts(plots.bars({"a": 1}, **TEXTS))

    @pytest.mark.parametrize("series", [{}, {str(i): [1, 2] for i in range(8)}])
    def test_a_number_of_series_that_cannot_be_shown(self, series):
        with pytest.raises(ValueError, match="a figure shows 1 to 7"):
            plots.curves(series, **TEXTS, label=LABEL)

    def test_series_of_the_wrong_length(self):
        with pytest.raises(ValueError, match="2 values of x and 3 of y"):
            plots.curves({"a": ([1, 2], [1, 2, 3])}, **TEXTS, label=LABEL)
        with pytest.raises(ValueError, match="has no values"):
            plots.curves({"a": []}, **TEXTS, label=LABEL)


class TestDrawing:
    def test_curves_take_pairs_arrays_and_tensors(self):
        import torch

        figure = plots.curves(
            {"pair": ([1, 10], [2, 3]), "array": np.array([1.0, 2.0]), "tensor": torch.tensor([4.0, 5.0])},
            **TEXTS,
            label=LABEL,
            logy=True,
        )
        lines = figure.axes[0].get_lines()
        assert [line.get_xdata()[-1] for line in lines] == [10, 1, 1]
        assert [line.get_ydata()[-1] for line in lines] == [3.0, 2.0, 5.0]
        assert figure.axes[0].get_yscale() == "log"

    def test_lines_differ_by_more_than_colour(self):
        figure = plots.curves({str(i): [i, i + 1] for i in range(7)}, **TEXTS, label=LABEL)
        lines = figure.axes[0].get_lines()
        assert len({line.get_marker() for line in lines}) == 7
        assert len({line.get_color() for line in lines}) == 7

    def test_bars_show_their_values(self):
        figure = plots.bars({"growing": 20, "fixed": 2}, **TEXTS, label=LABEL)
        assert {"20", "2", "growing", "fixed"} <= set(texts(figure))
        assert [bar.get_height() for bar in figure.axes[0].patches] == [20, 2]

    def test_groups_of_bars_may_have_gaps(self):
        figure = plots.bars({"eager": {"a": 1.5, "b": 2}, "compiled": {"b": 3}}, **TEXTS, label=LABEL)
        bars = figure.axes[0].patches
        assert [bar.get_height() for bar in bars] == [1.5, 2, 3]
        assert bars[2].get_x() > bars[1].get_x() and bars[2].get_hatch() != bars[1].get_hatch()

    def test_the_picture_is_legible_in_grey(self):
        figure = plots.bars({"eager": {"a": 1}, "compiled": {"a": 1}}, **TEXTS, label=LABEL)
        picture = Image.open(io.BytesIO(figure._png())).convert("L")
        assert picture.width > 600
        levels = [matplotlib.colors.rgb_to_hsv(matplotlib.colors.to_rgb(c))[2] for c in plots._COLOURS[:2]]
        assert abs(levels[0] - levels[1]) > 0.1


class TestInANotebook:
    def test_the_bundle(self, figure):
        data, metadata = figure._repr_mimebundle_()
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
        assert picture.info["Description"] == TEXTS["alt"]
        described = f"{TEXTS['alt']} ({LABEL})"
        assert metadata["image/png"]["alt"] == described
        assert data["text/plain"] == f"Figure: {described}"
        assert Images(data["text/html"]).alts == [described]

    @pytest.mark.parametrize("first", ["", "import matplotlib.pyplot as plt; plt.figure(); plt.close()"])
    def test_the_page_made_from_an_executed_notebook_has_the_text(self, tmp_path, first):
        from neuron_lab import runner

        cell = f"{first}\nfrom neuron_lab import plots\nplots.curves({{'a': [2, 1]}}, **{TEXTS!r}, label={LABEL!r})"
        node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
        node.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(node, tmp_path / "plot.ipynb")
        assert runner.main([tmp_path / "plot.ipynb"], out=tmp_path / "b") == 0
        described = f"{TEXTS['alt']} ({LABEL})"
        assert Images((tmp_path / "b" / "plot.html").read_text()).alts == [described]
        (cell,) = nbformat.read(tmp_path / "b" / "plot.ipynb", as_version=4).cells
        (output,) = cell.outputs
        assert output.metadata["image/png"]["alt"] == described
