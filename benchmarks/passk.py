"""Does training for the best of k find better machines than training for the mean?

    python benchmarks/passk.py --seeds 3 --steps 120 --workers 16 --minutes 50 --out runs/passk

Every arm starts from its seed's cold start and samples the same number of answers to the same kind of tasks.
Each run is a process of its own. At milestones it is judged on held-out tasks: the mean and the best of 64 answers,
validity, success. The table compares the last milestone that every run has reached; what was finished before is
not run again. `table.md` and `results.json` are written to --out, and the best machine of each arm as JSON;
`--out runs/passk --pictures docs/images` draws these, and trains nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

BASE: dict[str, Any] = {
    "world": "machines",
    "width": 96,
    "depth": 3,
    "heads": 4,
    "prompts_per_step": 4,
    "group_size": 64,
    "minibatch_size": 64,
    "schedule": "constant",
    "warmup_steps": 3,
    "max_grad_norm": 0.5,
    "clip_high": 0.28,
    "cold_start_batch": 64,
    "device": "cpu",
    "threads": 1,
    "workers": 1,
    "answer_limit_s": 60.0,  # many runs share the cores
}
ARMS: dict[str, dict[str, Any]] = {
    "standardized": {"advantage": "standardized"},
    "pass@4": {"advantage": "pass_at_k", "pass_k": 4},
    "pass@16": {"advantage": "pass_at_k", "pass_k": 16},
    "pass@64 (best minus second)": {"advantage": "best_minus_second"},
}
BEST_OF = 64


def settings_of(kinds: str, seed: int) -> dict[str, Any]:
    return {**BASE, "seed": seed, "world_options": {"kinds": kinds}}


def slug(*names: Any) -> str:
    """A file's name of an arm's number, a kind, a rate, a seed."""
    return "-".join(str(name).replace(" ", "-") for name in names)


def cold_start(kinds: str, seed: int, steps: int, out: Path) -> None:
    from coterie import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(GRPOConfig(**settings_of(kinds, seed), steps=0, cold_start_steps=steps, out=str(out)))
    with trainer.scorer:
        trainer.train()


def judge(trainer: Any, num_tasks: int) -> dict[str, Any]:
    """Mean and best of 64 on held-out tasks, and the best machine of all."""
    tasks = trainer.pick_tasks("heldout", num_tasks)
    groups = trainer.answer(tasks, BEST_OF)
    scores = trainer.judge(groups)
    totals = np.array([[score.total for score in group] for group in scores])
    flat = [score for group in scores for score in group]
    task, answer = np.unravel_index(int(totals.argmax()), totals.shape)
    return {
        "mean": float(totals.mean()),
        "best": float(totals.max(1).mean()),
        "valid": float(np.mean([score.valid for score in flat])),
        "success": float(np.mean([score.success for score in flat])),
        "distinct": float(np.mean([len(set(group.answers)) / BEST_OF for group in groups])),
        "champion": {
            "total": float(totals.max()),
            "task": tasks[int(task)].id,
            "answer": groups[int(task)].answers[int(answer)],
        },
    }


def run_arm(arm: str, kinds: str, rate: str, seed: int, base: Path, result: Path, options: argparse.Namespace) -> None:
    """Train one arm from its cold start and write what it came to at each milestone."""
    from coterie import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        **settings_of(kinds, seed),
        **ARMS[arm],
        learning_rate=float(rate),
        steps=options.steps,
        cold_start_steps=0,
        start_from=str(base),
    )
    trainer = GRPOTrainer(config)
    begun, milestones = time.time(), [judge_at(trainer, options)]
    with trainer.scorer:
        while trainer.progress.step < options.steps:
            metrics = trainer.step()
            milestones[-1].setdefault("train_reward", metrics["reward"])
            if trainer.progress.step % options.every == 0 or trainer.progress.step == options.steps:
                milestones.append(judge_at(trainer, options))
                told = {"arm": arm, "kinds": kinds, "rate": rate, "seed": seed, "milestones": milestones}
                result.write_text(json.dumps(told))
            if time.time() > options.until:
                print(f"{arm}, {kinds}, {rate}, seed {seed}: out of time at step {trainer.progress.step}", flush=True)
                return
    print(f"{arm}, {kinds}, {rate}, seed {seed}: {time.time() - begun:.0f} s, {milestones[-1]['best']:.2f}", flush=True)


def judge_at(trainer: Any, options: argparse.Namespace) -> dict[str, Any]:
    step = trainer.progress.step
    answers = step * trainer.config.prompts_per_step * trainer.config.group_size
    return {"step": step, "answers": answers, **judge(trainer, options.tasks)}


def table(results: list[dict[str, Any]], kinds: str) -> str:
    """Markdown: means over seeds with their spread, at the last milestone that all runs of this kind reached."""
    mine = [r for r in results if r["kinds"] == kinds]
    if not mine:
        return f"{kinds}: nothing finished"
    reached = min(r["milestones"][-1]["step"] for r in mine)
    columns = {
        "best of 64": "best",
        "mean": "mean",
        "valid %": "valid",
        "success %": "success",
        "distinct %": "distinct",
    }

    def cell(values: list[float], percent: bool) -> str:
        scale = 100 if percent else 1
        return f"{scale * np.mean(values):.1f} ± {scale * np.std(values):.1f}"

    def line(name: str, rows: list[dict[str, Any]]) -> str:
        cells = [cell([row[key] for row in rows], "%" in shown) for shown, key in columns.items()]
        return f"| {name} | {rows[0]['answers']:,} | {len(rows)} | " + " | ".join(cells) + " |"

    lines = [f"| {kinds} | answers | seeds | " + " | ".join(columns) + " |", "|---" * (3 + len(columns)) + "|"]
    first = {r["seed"]: r["milestones"][0] for r in mine}
    lines.append(line("cold start", list(first.values())))
    for arm in ARMS:
        for rate in dict.fromkeys(r["rate"] for r in mine):
            runs = [r for r in mine if (r["arm"], r["rate"]) == (arm, rate)]
            rows = [next(m for m in r["milestones"] if m["step"] == reached) for r in runs]
            if rows:
                lines.append(line(f"{arm}, learning rate {rate}", rows))
    return "\n".join(lines)


def champions(results: list[dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of each kind and arm the best machine that it showed at any milestone."""
    for kinds in dict.fromkeys(r["kinds"] for r in results):
        for arm in ARMS:
            runs = [r for r in results if (r["arm"], r["kinds"]) == (arm, kinds)]
            if seen := [m["champion"] for r in runs for m in r["milestones"][1:]]:
                yield kinds, arm, max(seen, key=lambda champion: champion["total"])


def write_champions(results: list[dict[str, Any]], out: Path) -> None:
    for kinds, arm, best in champions(results):
        name = slug("best", kinds, list(ARMS).index(arm), ARMS[arm]["advantage"])
        (out / f"{name}.json").write_text(best["answer"] + "\n")
        (out / f"{name}.txt").write_text(f"{arm}: {best['total']:.3f} on {best['task']}\n")


def draw_champions(results: list[dict[str, Any]], folder: Path) -> None:
    """A picture a kind, machines-best-KIND.png: for each arm its machine, and a strip of the task it did best."""
    from PIL import Image

    from coterie.worlds.load import load_world
    from coterie.worlds.machines.goals import goal_of
    from coterie.worlds.machines.picture import draw_machine, draw_strip
    from coterie.worlds.machines.tree import read_machine

    world, strips = load_world("machines"), dict[str, list[Any]]()
    tasks = {task.id: task for task in world.tasks("heldout")}
    for kinds, arm, best in champions(results):
        print(f"{kinds}, {arm}: {best['total']:.1f} on {best['task']}")
        machine = read_machine(best["answer"])
        strip = draw_strip(machine, goal_of(tasks[best["task"]]).scene, 4, (250, 180))
        row = Image.new("RGB", (180 + strip.width, 180))
        row.paste(draw_machine(machine, 180), (0, 0))
        row.paste(strip, (180, 0))
        strips.setdefault(kinds, []).append(row)
    for kinds, rows in strips.items():
        sheet = Image.new("RGB", (rows[0].width, sum(row.height for row in rows)))
        for number, row in enumerate(rows):
            sheet.paste(row, (0, number * row.height))
        sheet.save(folder / f"{slug('machines-best', kinds)}.png")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=20, help="steps between milestones")
    parser.add_argument("--tasks", type=int, default=10, help="held-out tasks a milestone")
    parser.add_argument("--cold-start-steps", type=int, default=250)
    parser.add_argument("--kinds", nargs="*", default=["car", "catapult"], help="one study for each")
    parser.add_argument("--rates", nargs="*", default=["5e-4", "1.5e-3"], help="learning rates; each arm with each")
    parser.add_argument("--arms", nargs="*", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which runs stop at their next step")
    parser.add_argument("--out", type=Path, default=Path("runs/passk"))
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of a finished study's best machines")
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--part", nargs="*", help=argparse.SUPPRESS)  # what a child process does
    options = parser.parse_args()
    options.until = options.until or time.time() + 60 * options.minutes
    return options


def main() -> None:
    options = read_options()
    if options.part and options.part[0] == "cold":
        _, kinds, seed, base = options.part
        cold_start(kinds, int(seed), options.cold_start_steps, Path(base))
        return
    if options.part:
        arm, kinds, rate, seed, base, result = options.part
        run_arm(arm, kinds, rate, int(seed), Path(base), Path(result), options)
        return

    if options.pictures:
        draw_champions(json.loads((options.out / "results.json").read_text()), options.pictures)
        return

    def child(*part: str) -> None:
        shared = {name: getattr(options, name) for name in ("steps", "every", "tasks", "cold_start_steps", "until")}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in shared.items()]
        command = [sys.executable, __file__, *words, "--part", *part]
        done = subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:  # the others go on; the table says how many seeds each row has
            print(f"{part} failed with exit code {done.returncode}", file=sys.stderr, flush=True)

    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.workers) as pool:
        seeds = range(options.seeds)
        bases = {(kinds, seed): options.out / slug("cold", kinds, seed) for kinds in options.kinds for seed in seeds}
        missing = [(key, base) for key, base in bases.items() if not (base / "checkpoints" / "last").exists()]
        list(pool.map(lambda job: child("cold", job[0][0], str(job[0][1]), str(job[1])), missing))
        # Seeds outermost: when time runs out, whole comparisons are done.
        jobs = [
            (arm, kinds, rate, seed, options.out / f"{slug(number, kinds, rate, seed)}.json")
            for seed in seeds
            for kinds in options.kinds
            for rate in options.rates
            for number, arm in enumerate(ARMS)
            if arm in options.arms
        ]
        todo = [job for job in jobs if not job[-1].exists()]
        list(pool.map(lambda job: child(*map(str, job[:-1]), str(bases[job[1], job[3]]), str(job[-1])), todo))
    results = [json.loads(job[-1].read_text()) for job in jobs if job[-1].exists()]
    (options.out / "results.json").write_text(json.dumps(results))
    write_champions(results, options.out)
    text = "\n\n".join(table(results, kinds) for kinds in options.kinds)
    (options.out / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
