"""The errors that a user sees: one line that says what is wrong, where, and what to do.

Every other exception is a defect of the program and keeps its traceback.
"""

from __future__ import annotations


class FinopsError(Exception):
    """Something that a user can fix. `exit_code` is the command's: 1 failed, 2 wrong use."""

    exit_code = 1


class UsageError(FinopsError):
    """A wrong argument, setting or input file."""

    exit_code = 2


class SourceError(FinopsError):
    """An outside system failed. `transient` failures are worth another try (5xx, timeouts, lost connections)."""

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient
