"""Where the time of a run goes, by named phases; nothing is measured unless somebody listens."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Phases:
    """Seconds and calls by name; a phase inside another counts for itself alone."""

    def __init__(
        self, settle: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.settle, self.clock = settle, clock  # settle waits until the device has done what it was told
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._open = ["rest"]
        self._since = self.clock()

    def count(self) -> None:
        """Give the time since the last change to the innermost phase."""
        self.settle()
        now = self.clock()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def enter(self, name: str) -> None:
        self.count()
        self._open.append(name)
        self.calls[name] += 1

    def leave(self) -> None:
        self.count()
        self._open.pop()


_listening: list[Phases] = []


@contextmanager
def phase(name: str) -> Iterator[None]:
    """What happens here is this phase's; a generator may not yield inside."""
    if not _listening:
        yield
        return
    _listening[-1].enter(name)
    try:
        yield
    finally:
        _listening[-1].leave()


@contextmanager
def listening(phases: Phases) -> Iterator[None]:
    """Measure for a while."""
    _listening.append(phases)
    phases.clear()
    try:
        yield
    finally:
        _listening.pop()
