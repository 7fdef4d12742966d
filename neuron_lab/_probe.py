"""Run as ``python -m neuron_lab._probe`` by the doctor: imports torch and says what came of it, as a line of JSON."""

from __future__ import annotations

import contextlib
import json
import sys


def probe() -> dict[str, object]:
    """Look at the device in this process.

    Returns
    -------
    dict
        ``cuda`` (bool), ``cache_dir`` (str), ``device`` (str, a summary) and ``device_error`` (str, empty if none).
    """
    with contextlib.redirect_stdout(sys.stderr):  # a library's greeting must not mix with the answer
        import torch

        from neuron_lab.device import setup
        from neuron_lab.emulator.build import cache_dir

        device, error = "", ""
        try:
            info = setup(quiet=True)
            kind = "EMULATED" if info.emulated else "real"
            device = f"{kind}, {info.instance}, {info.cores} cores at LNC={info.lnc}. {info.reason}"
        except RuntimeError as failure:
            error = str(failure)
        return {
            "cuda": torch.cuda.is_available(),
            "cache_dir": str(cache_dir()),
            "device": device,
            "device_error": error,
        }


if __name__ == "__main__":
    print(json.dumps(probe()))
