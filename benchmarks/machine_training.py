"""From the cold start to a trained policy: what a machines example comes to, and how many machines it judges a second.

    python benchmarks/machine_training.py examples/machines-car.toml --out runs/car     # before and after
    python benchmarks/machine_training.py examples/machines-car.toml --steps 8 --tasks 1    # the rate alone

The example is trained as it stands. Before its first step and after its last it is judged on the same held-out tasks,
which is not counted as training. With --out, told.json, before.json and after.json, the best machines of either time,
are in the run folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie import GRPOConfig, GRPOTrainer
from coterie.config import read_toml
from coterie.training.evaluate import evaluate_groups


def judge(trainer: GRPOTrainer, num_tasks: int | None) -> dict[str, Any]:
    """Held-out tasks, `eval_samples` answers each, and the best machine of all."""
    groups = trainer.answer(trainer.pick_tasks("heldout", num_tasks))
    scores = trainer.judge(groups)
    totals = np.array([[score.total for score in group] for group in scores])
    task, answer = np.unravel_index(int(totals.argmax()), totals.shape)
    return {
        **evaluate_groups(groups, scores),
        "of each task": {group.task.id: float(row.max()) for group, row in zip(groups, totals, strict=True)},
        "best machine": groups[int(task)].answers[int(answer)],
    }


class Pace:
    """Watches the steps: how long each took, and whether the time is up."""

    def __init__(self, minutes: float) -> None:
        self.until = time.time() + 60 * minutes
        self.trainer: GRPOTrainer | None = None
        self.answers: list[float] = []  # a second, of each step
        self.distinct: list[float] = []

    def __call__(self, phase: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        assert self.trainer is not None
        if phase == "train":
            config = self.trainer.config
            self.answers.append(config.prompts_per_step * config.group_size / metrics["step_time"])
            self.distinct.append(self.answers[-1] * metrics["distinct"])
            told = f"reward {metrics['reward']:.2f}, {self.answers[-1]:.0f} answers a second"
            print(f"{done} of {total}: {told}, {metrics['distinct']:.0%} of them different", flush=True)
        if time.time() > self.until:
            self.trainer.stop()


def tell(before: Mapping[str, Any], after: Mapping[str, Any], samples: int) -> str:
    """Markdown: before and after."""
    shown = {f"best of {samples}": f"best@{samples}", "mean": "reward", "valid %": "valid", "success %": "success"}
    lines = ["| | " + " | ".join(shown) + " |", "|---" * (1 + len(shown)) + "|"]
    for name, metrics in (("cold start", before), ("trained", after)):
        cells = [f"{metrics[key] * (100 if '%' in title else 1):.1f}" for title, key in shown.items()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", type=Path)
    parser.add_argument("--steps", type=int, help="fewer or more than the example's")
    parser.add_argument("--tasks", type=int, help="held-out tasks; the example's eval_tasks")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which it stops at the next step")
    parser.add_argument("--out", type=Path, help="the run folder")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER", help="other settings, as in workers=4")
    options = parser.parse_args()
    changed: dict[str, Any] = {name: int(value) for name, value in (each.split("=") for each in options.set)}
    if options.steps is not None:
        changed["steps"] = options.steps
    if options.out:
        changed["out"] = str(options.out)
    pace, begun = Pace(options.minutes), time.time()
    trainer = GRPOTrainer(GRPOConfig(**{**read_toml(options.example), **changed}), watchers=[pace])
    pace.trainer = trainer
    with trainer.scorer:
        trainer.cold_start()
        before = judge(trainer, options.tasks)
        samples = trainer.config.eval_samples
        print(f"before: best of {samples} {before[f'best@{samples}']:.2f}", flush=True)
        if trainer.run:
            (trainer.run.path / "before.json").write_text(before["best machine"] + "\n")
        trainer.train()
        after = judge(trainer, options.tasks)
    step, minutes = trainer.progress.step, (time.time() - begun) / 60
    told = {"step": step, "minutes": minutes, "a second": pace.answers, "before": before, "after": after}
    if trainer.run:
        (trainer.run.path / "after.json").write_text(after["best machine"] + "\n")
        (trainer.run.path / "told.json").write_text(json.dumps(told))
    print(tell(before, after, samples))
    print(f"{step} steps in {minutes:.1f} minutes, the cold start and both judgments included")
    for name, rate in (("answers", pace.answers), ("different answers", pace.distinct)):
        if rate:
            spread = f"{min(rate):.0f} to {max(rate):.0f}"
            print(f"{name} judged a second of training: {np.median(rate):.0f}, the median of steps ({spread})")


if __name__ == "__main__":
    main()
