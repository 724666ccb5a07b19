"""Metrics for people who keep them elsewhere: TensorBoard and Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coterie.extras import require
from coterie.training.trainer import Watcher


def tensorboard(run: Path, project: str, name: str | None) -> Watcher:
    """Event files under tensorboard/ in the run folder."""
    require("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run / "tensorboard"))

    def watch(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(f"{phase}/{name}", value, done)
        writer.flush()

    return watch


def wandb(run: Path, project: str, name: str | None) -> Watcher:
    """A W&B run, by default named after the folder; WANDB_MODE=offline keeps it on this machine."""
    session = require("wandb", "wandb").init(project=project, id=run.name, name=name, resume="allow", dir=str(run))

    def watch(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
        session.log({f"{phase}/{name}": value for name, value in metrics.items()} | {f"{phase}/step": done})
        if phase == "train" and done == total:
            session.finish()

    return watch


TRACKERS: dict[str, Callable[[Path, str, str | None], Watcher]] = {"tensorboard": tensorboard, "wandb": wandb}
