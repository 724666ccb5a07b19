"""^C and SIGTERM let the step end."""

from __future__ import annotations

import signal
from types import FrameType

from coterie.display import Display
from coterie.training.trainer import Trainer


class stops_gently:  # noqa: N801 - it reads as a phrase after `with`
    """The first ^C (or SIGTERM) lets the step end and saves; the second stops at once."""

    def __init__(self, trainer: Trainer, display: Display) -> None:
        self.trainer, self.display = trainer, display

    def __enter__(self) -> None:
        self.before = {kind: signal.signal(kind, self._ask) for kind in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for kind, handler in self.before.items():
            signal.signal(kind, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.trainer.stopping:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return  # schedulers may say it twice
        self.trainer.stop()
        self.display.warn("finishing this step and saving; ^C again stops at once")
