"""What a person sees while a run goes on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

Metrics = Mapping[str, float]


def describe(metrics: Metrics) -> str:
    """What matters of a step, in one line."""
    shown = []
    if "cold_start_loss" in metrics:
        shown.append(f"loss {metrics['cold_start_loss']:.3f}")
    if "judge_error" in metrics:
        shown.append(f"error {metrics['judge_error']:.3f}")
    if "reward" in metrics:
        shown += [
            f"reward {metrics['reward']:.3f}",
            f"success {metrics['success']:.0%}",
            f"loss {metrics['loss']:+.4f}",
        ]
        shown.append(f"kl {metrics.get('kl', metrics.get('approx_kl', 0.0)):.4f}")
        shown.append(f"{metrics['tokens_per_s']:,.0f} tok/s")
    if "rewards/independent" in metrics:
        shown.append(f"independent {metrics['rewards/independent']:.3f}")
    if "phase" in metrics:
        shown.append(f"phase {metrics['phase']:.0f}")
    if metrics.get("skipped_updates"):
        shown.append("update skipped: gradient not finite")
    if metrics.get("faults"):
        kinds = ", ".join(f"{k.removeprefix('faults/')} {v:.0f}" for k, v in metrics.items() if k.startswith("faults/"))
        shown.append(f"world failed on {metrics['faults']:.0f} answers ({kinds})")
    if "eval/success" in metrics:
        shown.append(f"held out {metrics['eval/success']:.0%}")
    return "  ".join(shown)


COLORS = {"plain": "", "blank": "yellow", "right": "green", "wrong": "bold red"}


def clock(seconds: float) -> str:
    """1:05:09 or 5:09"""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class Display:
    """A watcher for people: a bar that stays in place on a terminal, else a line every `log_every` steps."""

    def __init__(self, log_every: int, quiet: bool = False) -> None:
        self.log_every, self.quiet = log_every, quiet
        self.console = Console(stderr=False)
        self.live = self.console.is_terminal and not quiet
        self.bars: dict[str, TaskID] = {}
        self.pace: dict[str, float] = {}
        self.progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[metrics]}"),
            console=self.console,
        )

    def __enter__(self) -> Self:
        if self.live:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.progress.stop()

    def __call__(self, phase: str, done: int, total: int, metrics: Metrics) -> None:
        if self.quiet:
            return
        if self.live:
            if phase not in self.bars:
                self.bars[phase] = self.progress.add_task(phase, total=total, completed=done - 1, metrics="")
            self.progress.update(self.bars[phase], completed=done, metrics=describe(metrics))
            return
        seconds = metrics["step_time"]
        self.pace[phase] = 0.9 * self.pace.get(phase, seconds) + 0.1 * seconds
        every = self.log_every if phase == "train" else 10 * self.log_every
        if done % every == 0 or done == total:
            left = clock(self.pace[phase] * (total - done))
            print(f"{phase} {done}/{total}  {describe(metrics)}  {left} left", flush=True)

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

    def show(self, heading: str, passages: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> None:
        """A text in several states, its pieces in colors."""
        if self.quiet:
            return
        self.console.print(Text(heading, style="bold"))
        for title, pieces in passages:
            line = Text(f"{title:>7}: ", style="dim")
            for text, kind in pieces:
                line.append(text.replace("\n", "⏎"), style=COLORS[kind] or "not dim")
            self.console.print(line)

    def warn(self, text: str) -> None:
        print(f"coterie: {text}", file=sys.stderr, flush=True)


def show_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on the terminal; numbers to the right."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
