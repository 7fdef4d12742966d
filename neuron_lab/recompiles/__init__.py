"""Count what ``torch.compile`` compiles, again, and why.

On a Trainium a compile takes seconds to minutes, and every new shape is one. :func:`count_recompiles` shows them, with
cause and remedy, for any backend and on any device, from what PyTorch records about itself. It looks on; it changes
nothing about what is compiled.

Cut into: ``events`` (what is told), ``causes`` (guards in words), ``listener`` (what PyTorch records),
``frames`` (where it was called), ``counter`` (the
object that you hold) and ``report`` (its faces). Figures are in :mod:`neuron_lab.plots`.
"""

from __future__ import annotations

from neuron_lab.recompiles.counter import Recompiles, count_recompiles
from neuron_lab.recompiles.events import Cause, CompileEvent, GraphBreak, Seconds

__all__ = ["Cause", "CompileEvent", "GraphBreak", "Recompiles", "Seconds", "count_recompiles"]
