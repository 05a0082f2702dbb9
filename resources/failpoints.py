"""Named points at which a test can end the process, as a crash would: between any two writes.

Off unless the environment variable FINOPS_FAIL_AT names a point. What belongs here: dying. What does not: cleaning up.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "FINOPS_FAIL_AT"


def reached(point: str) -> None:
    """Ends the process with SIGKILL if it was asked to die at this point."""
    if os.environ.get(VARIABLE) == point:
        os.kill(os.getpid(), signal.SIGKILL)
