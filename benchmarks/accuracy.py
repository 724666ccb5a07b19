"""How often is a language model right on held-out questions, before, while and after it learns from rewards?

    python benchmarks/accuracy.py --config examples/llm-arithmetic.toml --minutes 8 --out runs/accuracy
    python benchmarks/accuracy.py --out runs/fast learning_rate=5e-5 steps=200     # any setting, as name=value

One greedy answer to each of `eval_tasks` held-out questions: untrained, every `eval_every` steps, and at the end. It
stops by itself when the minutes are over, which count from the first step. After every evaluation `curve.json` in --out
holds all there is so far; `table.md` is the table that is printed last. Nothing else is written: no checkpoints.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from coterie import GRPOConfig, GRPOTrainer
from coterie.arguments import take_apart
from coterie.config import parse_settings, read_toml
from coterie.worlds.load import world_fields

NUM_SHOWN = 4


def read_config(path: Path, changes: list[str], steps: int | None) -> GRPOConfig:
    settings: dict[str, Any] = read_toml(path) | take_apart(changes).named
    settings |= {} if steps is None else {"steps": steps}
    return parse_settings(settings, world_fields(settings["world"])).model_copy(update={"out": None})


class Curve:
    """Watches a run: keeps what it is like at every evaluation, and stops it in time."""

    def __init__(self, trainer: GRPOTrainer, out: Path, minutes: float) -> None:
        self.trainer, self.out, self.minutes = trainer, out, minutes
        self.points: list[dict[str, Any]] = []
        self.rewards: list[float] = []
        self.started = time.perf_counter()

    @property
    def passed(self) -> float:
        return (time.perf_counter() - self.started) / 60

    def __call__(self, phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
        if phase != "train":
            return
        self.rewards.append(metrics["reward"])
        if done % self.trainer.config.log_every == 0:
            shown = ("reward", "success", "frac_reward_zero_std", "completions/mean_length", "step_time", "time/sample")
            told = "  ".join(f"{name} {metrics[name]:.3g}" for name in shown if name in metrics)
            print(f"{done}/{total}  {self.passed:.1f} min  {told}", flush=True)
        if "eval/success" in metrics:
            self.add(done, metrics["eval/success"], metrics["eval/reward"])
        if self.passed > self.minutes:
            self.trainer.stop()

    def add(self, step: int, right: float, reward: float) -> None:
        trained_on = sum(self.rewards) / len(self.rewards) if self.rewards else None
        self.rewards.clear()
        self.points.append(
            {"step": step, "minutes": self.passed, "right": right, "reward": reward, "training_reward": trained_on}
        )
        config = self.trainer.config.model_dump(exclude_none=True)
        told = {"policy": self.trainer.engine.describe(), "points": self.points, "config": config}
        (self.out / "curve.json").write_text(json.dumps(told, indent=1))
        print(f"held out, after {step} steps: {right:.1%} right", flush=True)

    def table(self) -> str:
        lines = ["| step | minutes | right | training reward |", "|---|---|---|---|"]
        for point in self.points:
            reward = "" if point["training_reward"] is None else f"{point['training_reward']:.3f}"
            lines.append(f"| {point['step']} | {point['minutes']:.1f} | {point['right']:.1%} | {reward} |")
        gained = 100 * (self.points[-1]["right"] - self.points[0]["right"])
        return "\n".join(lines) + f"\n\nGained: {gained:+.1f} points on {self.trainer.config.eval_tasks} questions.\n"


def show_answers(trainer: GRPOTrainer) -> None:
    for group in trainer.answer(trainer.pick_tasks("heldout", NUM_SHOWN), 1):
        print(f"  {group.task.prompt!r} -> {group.answers[0]!r}  (right: {group.task.spec.get('answer')})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("examples/llm-arithmetic.toml"))
    parser.add_argument("--steps", type=int, help="instead of the configuration's")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training, at most")
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("changes", nargs="*", help="settings, as name=value")
    asked = parser.parse_args()
    config = read_config(asked.config, asked.changes, asked.steps)
    asked.out.mkdir(parents=True, exist_ok=True)

    trainer = GRPOTrainer(config)
    print(trainer.engine.describe(), flush=True)
    with trainer.scorer:
        curve = Curve(trainer, asked.out, asked.minutes)
        before = trainer.evaluate()
        curve.add(0, before["success"], before["reward"])
        print(f"evaluating took {60 * curve.passed:.1f} s", flush=True)
        show_answers(trainer)
        trainer.watchers.append(curve)
        curve.started = time.perf_counter()
        trainer.train()
        if curve.points[-1]["step"] != trainer.progress.step:
            after = trainer.evaluate()
            curve.add(trainer.progress.step, after["success"], after["reward"])
        show_answers(trainer)
    if torch.cuda.is_available():
        print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB on {torch.cuda.get_device_name()}")
    (asked.out / "table.md").write_text(curve.table())
    print(curve.table(), end="")


if __name__ == "__main__":
    main()
