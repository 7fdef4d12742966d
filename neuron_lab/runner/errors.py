"""The error of the runner that the reader can mend by changing the command."""

from __future__ import annotations

__all__ = ["UsageError"]


class UsageError(Exception):
    """The command cannot be carried out as given. Raised before anything is run or written."""
