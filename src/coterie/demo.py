"""The demo: train bricks on this machine, then show before and after."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.build import GRPOTrainer
from coterie.config import GRPOConfig
from coterie.display import Display, clock, show_table
from coterie.report.pictures import contact_sheet
from coterie.report.plots import plot_curves
from coterie.rollouts import Group, Score
from coterie.training.trainer import Trainer

# Chosen so that the whole of it takes about eight minutes on two cores.
SETTINGS = {
    "world": "bricks",
    "width": 96,
    "cold_start_steps": 900,
    "cold_start_rate": 3e-3,
    "steps": 160,
    "prompts_per_step": 16,
    "group_size": 8,
    "learning_rate": 1.5e-4,
    "warmup_steps": 10,
    "save_every": 40,
    "log_every": 5,
}
NUM_TASKS, NUM_PICTURES = 200, 12


@dataclass(frozen=True)
class Exam:
    """One answer to each of the held-out tasks, and how long it took to give them."""

    groups: Sequence[Group]
    scores: Sequence[Score]
    seconds: float

    def row(self, name: str) -> list[str]:
        """valid, stable, load factor, IoU, success, seconds a structure"""

        def mean(part: str) -> float:
            return float(np.mean([score.parts[part] for score in self.scores]))

        success = float(np.mean([score.success for score in self.scores]))
        shares = [f"{100 * x:.1f} %" for x in (mean("valid"), mean("stable"))]
        means = [f"{mean('load_factor'):.2f}", f"{mean('faithfulness'):.3f}", f"{100 * success:.1f} %"]
        return [name, *shares, *means, f"{self.seconds / len(self.scores):.4f}"]


def examine(trainer: Trainer) -> Exam:
    """One sample a caption; nothing is rejected and nothing rolled back."""
    tasks = trainer.pick_tasks("heldout", NUM_TASKS)
    started = time.perf_counter()
    groups = trainer.answer(tasks, 1)
    seconds = time.perf_counter() - started
    return Exam(groups, [scores[0] for scores in trainer.judge(groups)], seconds)


def draw_exams(trainer: Trainer, exams: dict[str, Exam], path: Path) -> None:
    """The first structures of each exam, under each other."""
    rows = []
    for start in range(0, NUM_PICTURES, 6):
        for title, exam in exams.items():
            cells = [
                (trainer.world.picture(group.task, group.answers[0]), caption(group, score))
                for group, score in list(zip(exam.groups, exam.scores, strict=True))[start : start + 6]
            ]
            rows.append((title, cells))
    contact_sheet(rows, path)


def caption(group: Group, score: Score) -> str:
    verdict = "stands" if score.parts["stable"] else "falls"
    return f"{group.task.prompt}: {verdict}, IoU {score.parts['faithfulness']:.2f}"


def run_demo(config: GRPOConfig, display: Display) -> Path:
    """Train with this configuration and write the table, the curves and the pictures."""
    started = time.perf_counter()
    trainer = GRPOTrainer(config, watchers=[display])
    assert trainer.run is not None, "the demo keeps a run folder"
    run = trainer.run.path
    display.say(f"{trainer.engine.describe()}\nFirst it imitates a hasty builder, then it learns from what stands.")
    with trainer.scorer, display:
        trainer.cold_start()
        before = examine(trainer)
        trainer.train()
        after = examine(trainer)
        draw_exams(trainer, {"before": before, "after": after}, run / "before-after.png")
    plot_curves(trainer.run.metrics(), run / "curves.png", "bricks")
    header = ("", "valid", "stable", "load factor", "IoU", "success", "s/structure")
    show_table(
        f"{NUM_TASKS} held-out captions, one sample each, no rejection, no rollback",
        header,
        [before.row("before"), after.row("after")],
    )
    display.say(
        f"It took {clock(time.perf_counter() - started)}.\n"
        f"Twelve structures: {run}/before-after.png\nCurves: {run}/curves.png\n"
        f'Try next: coterie sample {run} --prompt "a bridge 10 wide 3 deep 5 tall" --picture bridge.png\n'
        f"          coterie eval {run} --tasks 500 --samples 8\n"
        f"          coterie train bricks --legality geometry --steps 300   (bricks may float: see it learn what holds)"
    )
    return run
