"""What helps on bricks: estimators, and with what they can be joined, on equal numbers of sampled answers.

Every seed has one cold start; each variant goes on from it until it has sampled its share of answers, and is
then judged on held-out captions.

    python benchmarks/toolbox.py --seeds 3 --steps 80 --parallel 8 --out runs/toolbox
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

BASE: dict[str, Any] = {
    "width": 96,
    "prompts_per_step": 16,
    "group_size": 8,
    "warmup_steps": 5,
    "learning_rate": 3e-4,
    # A builder hastier than the default, so that the cold start leaves more to learn.
    "world_options": {"care": 0.5, "slip_rate": 0.03},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "standardized": {},
    "centered": {"advantage": "centered"},
    "leave_one_out": {"advantage": "leave_one_out"},
    "pass_at_k, k = 4": {"advantage": "pass_at_k", "pass_k": 4},
    "standardized + dynamic sampling": {"redraws": 2},
    "standardized + replay": {"replay_capacity": 128, "replay_share": 0.5, "importance_cap": 2.0},
    "standardized + hindsight": {"hindsight": 16},
}
NUM_TASKS, NUM_SAMPLES = 200, 8


def cold_start(seed: int, out: Path, steps: int, device: str) -> None:
    from coterie import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        **BASE, seed=seed, steps=0, cold_start_steps=steps, cold_start_rate=3e-3, device=device, out=str(out)
    )
    trainer = GRPOTrainer(config)
    with trainer.scorer:
        trainer.train()


def run_variant(name: str, seed: int, base: Path, steps: int, result: Path) -> None:
    from coterie import GRPOConfig, GRPOTrainer

    settings = {**BASE, **VARIANTS[name]}
    # More steps than can be needed: the run stops when its answers are used up.
    config = GRPOConfig(
        **settings, seed=seed, steps=steps, cold_start_steps=0, start_from=str(base), device="cpu", threads=1, workers=1
    )
    trainer = GRPOTrainer(config)
    answers = 0

    def count(phase: str, done: int, total: int, metrics: dict[str, float]) -> None:
        nonlocal answers
        answers += round((config.prompts_per_step + metrics["redrawn"]) * config.group_size)
        if answers >= steps * config.prompts_per_step * config.group_size:
            trainer.stop()

    trainer.watchers.append(count)
    with trainer.scorer:
        before = trainer.evaluate(num_tasks=NUM_TASKS, num_samples=NUM_SAMPLES)
        trainer.train()
        after = trainer.evaluate(num_tasks=NUM_TASKS, num_samples=NUM_SAMPLES)
    record = {"variant": name, "seed": seed, "answers": answers, "steps": trainer.progress.step}
    result.write_text(json.dumps({**record, "before": before, "after": after}))


def table(results: list[dict[str, Any]]) -> str:
    """Means over seeds with their spread; the first row is the cold start."""

    def cell(values: list[float]) -> str:
        return f"{100 * np.mean(values):.1f} ± {100 * np.std(values):.1f}"

    columns = ("success", f"pass@{NUM_SAMPLES}", "rewards/faithfulness", "distinct")
    lines = ["| | answers | success % | best of 8 % | IoU % | distinct % |", "|---|---|---|---|---|---|"]
    first = [r for r in results if r["variant"] == "standardized"]
    lines.append("| cold start | 0 | " + " | ".join(cell([r["before"][c] for r in first]) for c in columns) + " |")
    for name in VARIANTS:
        runs = [r for r in results if r["variant"] == name]
        if runs:
            shown = " | ".join(cell([r["after"][c] for r in runs]) for c in columns)
            lines.append(f"| {name} | {np.mean([r['answers'] for r in runs]):,.0f} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--cold-start-steps", type=int, default=500)
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cold-device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/toolbox"))
    parser.add_argument("--part", nargs="*", help=argparse.SUPPRESS)  # what a child process does
    args = parser.parse_args()
    if args.part:
        if args.part[0] == "cold":
            cold_start(int(args.part[1]), Path(args.part[2]), args.cold_start_steps, args.cold_device)
        else:
            run_variant(args.part[0], int(args.part[1]), Path(args.part[2]), args.steps, Path(args.part[3]))
        return

    def child(*part: str) -> None:
        options = ["--steps", str(args.steps), "--cold-start-steps", str(args.cold_start_steps)]
        command = [sys.executable, __file__, *options, "--cold-device", args.cold_device, "--part", *part]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    args.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.parallel) as pool:
        bases = {seed: args.out / f"cold-{seed}" for seed in range(args.seeds)}
        missing = {seed: base for seed, base in bases.items() if not base.exists()}
        list(pool.map(lambda item: child("cold", str(item[0]), str(item[1])), missing.items()))
        jobs = [(name, seed, args.out / f"{i}-{seed}.json") for seed in bases for i, name in enumerate(VARIANTS)]
        todo = [(name, seed, file) for name, seed, file in jobs if not file.exists()]
        list(pool.map(lambda job: child(job[0], str(job[1]), str(bases[job[1]]), str(job[2])), todo))
    text = table([json.loads(file.read_text()) for _, _, file in jobs])
    (args.out / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
