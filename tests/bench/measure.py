"""Time and peak memory of a piece of work, in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Measured:
    seconds: float
    peak_mib: float
    """resident, of the process that did the work"""
    result: Any


def measured(work: Callable[..., Any], *given: Any) -> Measured:
    """Run `work` in a forked process. What it returns must be small; what it raises ends the benchmark."""
    receiver, sender = FORK.Pipe(duplex=False)

    def run() -> None:
        began = time.perf_counter()
        result = work(*given)
        seconds = time.perf_counter() - began
        sender.send((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, result))

    process = FORK.Process(target=run)
    process.start()
    sender.close()
    try:
        seconds, peak, result = receiver.recv()
    except EOFError:
        process.join()
        raise SystemExit(f"bench: {work.__name__} failed, see above") from None
    process.join()
    return Measured(seconds, peak, result)


class Stopwatch:
    """Seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        result = work(*given)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        return result
