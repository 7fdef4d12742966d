"""Real processes with a known environment."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

# What a developer or a CI job may have set, and a test must not see by chance.
_OURS = ("NEURON_", "TORCH_NEURONX_", "TORCH_DEVICE_BACKEND_AUTOLOAD", "LOCAL_RANK", "PYTHONWARNINGS", "CXX")


def clean_environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return environment | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


class Python:
    """Runs code in a fresh interpreter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def command(self, code: str, *options: str) -> list[str]:
        self._count += 1
        script = self.folder / f"script_{self._count}.py"
        script.write_text(textwrap.dedent(code))
        return [sys.executable, *options, str(script)]

    def environment(self, env: Mapping[str, str | None] | None) -> dict[str, str]:
        environment = clean_environment()
        for name, value in (env or {}).items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        return environment

    def __call__(
        self,
        code: str,
        env: Mapping[str, str | None] | None = None,
        *,
        options: tuple[str, ...] = (),
        status: int | None = 0,
        timeout: float = 180,
    ) -> subprocess.CompletedProcess:
        """Run ``code`` to its end; ``status`` is the exit status that is right (None: any)."""
        done = subprocess.run(
            self.command(code, *options),
            env=self.environment(env),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if status is not None:
            assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, code: str, env: Mapping[str, str | None] | None = None) -> subprocess.Popen:
        """Start ``code`` as the leader of a process group of its own."""
        return subprocess.Popen(
            self.command(code),
            env=self.environment(env),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
