"""``python -m neuron_lab``: the same as the command ``neuron-lab``."""

from __future__ import annotations

import sys

from neuron_lab.cli import main

sys.exit(main())
