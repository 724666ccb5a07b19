"""coterie train --profile: seconds by phase, and the heaviest operations of a step, in the run folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from coterie.phases import Phases, listening

NUM_OPERATIONS = 20
# The first step makes what the others use, the second is looked into and slower for it; the rest are timed.
LOOKED_INTO = 2


class Profile:
    """A watcher of steps that writes profile.json and profile.txt as it goes."""

    def __init__(self, folder: Path, on_gpu: bool) -> None:
        self.folder, self.on_gpu = folder, on_gpu
        self.phases = Phases(torch.cuda.synchronize if on_gpu else lambda: None)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self.profiler: Any = torch.profiler.profile(activities=activities)
        self.operations: list[dict[str, Any]] = []
        self.steps_seen = self.steps_timed = 0

    def __call__(self, phase: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        """A step has ended."""
        if phase != "train":
            return
        self.steps_seen += 1
        if self.steps_seen == LOOKED_INTO:
            self._read_operations()
        if self.steps_seen <= LOOKED_INTO:
            self.phases.clear()
        else:
            self.phases.count()
            self.steps_timed += 1
        if self.steps_seen == LOOKED_INTO - 1:
            self.profiler.start()

    def _read_operations(self) -> None:
        self.profiler.stop()
        found = self.profiler.key_averages()
        timed = "self_device_time_total" if self.on_gpu else "self_cpu_time_total"
        (self.folder / "profile.txt").write_text(found.table(sort_by=timed, row_limit=NUM_OPERATIONS))
        ranked = sorted(found, key=lambda each: -getattr(each, timed))[:NUM_OPERATIONS]
        self.operations = [
            {"name": each.key, "calls": each.count, "seconds": getattr(each, timed) / 1e6} for each in ranked
        ]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Phases by their share: name, seconds a step, share, calls a step."""
        whole, steps = sum(self.phases.seconds.values()), max(1, self.steps_timed)
        return [
            (name, f"{seconds / steps:.4f}", f"{seconds / whole:.1%}", f"{self.phases.calls[name] / steps:.3g}")
            for name, seconds in sorted(self.phases.seconds.items(), key=lambda pair: -pair[1])
        ]

    def write(self) -> None:
        """What was found so far."""
        steps = max(1, self.steps_timed)
        record = {
            "steps": self.steps_timed,
            "seconds_a_step": {name: seconds / steps for name, seconds in self.phases.seconds.items()},
            "calls_a_step": {name: calls / steps for name, calls in self.phases.calls.items()},
            "operations_of_a_step": self.operations,
        }
        (self.folder / "profile.json").write_text(json.dumps(record, indent=1) + "\n")


@contextmanager
def profiling(folder: Path, device: str) -> Iterator[Profile]:
    """A profile that is written when the run ends, however it ends."""
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    profile = Profile(folder, on_gpu)
    with listening(profile.phases):
        try:
            yield profile
        finally:
            if profile.steps_seen == LOOKED_INTO - 1:
                profile.profiler.stop()
            profile.write()
