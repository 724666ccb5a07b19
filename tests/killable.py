"""Trains, and kills itself: after some seconds of training, or at some moment of a checkpoint's writing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.build import GRPOTrainer, read_run_config
from coterie.runs import checkpoints
from coterie.runs.folder import RunFolder
from coterie.training import trainer as loop


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_at_call(function: Callable[..., Any], call: int) -> Callable[..., Any]:
    calls = 0

    def wrapped(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            die()
        return function(*arguments)

    return wrapped


def main(run_path: str, how: str, when: str) -> None:
    run = RunFolder.open(Path(run_path))
    trainer = GRPOTrainer(read_run_config(run), run=run)
    trainer.resume(print)
    if how == "seconds":
        threading.Timer(float(when), die).start()
    elif how != "never":
        module = loop if how == "prune" else checkpoints
        setattr(module, how, dying_at_call(getattr(module, how), int(when)))
    with trainer.scorer:
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
