"""The run folder, which is the truth about a run: config.toml, metrics.jsonl, rollouts.jsonl, checkpoints/."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from coterie.runs.checkpoints import CheckpointError, damage, newest_sound

ROLLOUTS_LIMIT = 64 * 2**20  # bytes; then the older half goes


class RunFolder:
    """Reads and writes one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: Path, config: str) -> RunFolder:
        """A new run; a folder that holds one already is left alone."""
        if (path / "config.toml").exists():
            raise CheckpointError(
                f"{path} already holds a run; go on with `coterie train --resume {path}`, or choose another --out"
            )
        folder = cls(path)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder.write_config(config)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run that is already there."""
        if not (path / "config.toml").is_file():
            raise CheckpointError(f"{path} is no run folder: it has no config.toml")
        return cls(path)

    def write_config(self, config: str) -> None:
        self._replace("config.toml", config)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._append("metrics.jsonl", [{"step": step, **metrics}])

    def log_rollouts(self, step: int, rollouts: Iterable[Mapping[str, Any]]) -> None:
        self._append("rollouts.jsonl", [{"step": step, **rollout} for rollout in rollouts])
        path = self.path / "rollouts.jsonl"
        if path.exists() and path.stat().st_size > ROLLOUTS_LIMIT:
            lines = path.read_text().splitlines(keepends=True)
            self._replace("rollouts.jsonl", "".join(lines[len(lines) // 2 :]))

    def log_discoveries(self, step: int, found: Iterable[Mapping[str, Any]], name: str) -> None:
        self._append(name, [{"step": step, **each} for each in found])

    def discoveries(self, name: str) -> list[dict[str, Any]]:
        """What a run's catalog holds."""
        return self._read(name)

    def write_stats(self, stats: Mapping[str, Any]) -> None:
        self._replace("training_stats.json", json.dumps(stats, indent=1))

    def metrics(self) -> list[dict[str, float]]:
        """All that was logged so far; a line that was cut off by a kill is left out."""
        return self._read("metrics.jsonl")

    def rollouts(self) -> list[dict[str, Any]]:
        return self._read("rollouts.jsonl")

    def rewind(self, step: int) -> None:
        """Forget what was logged after this step: a resumed run will log it again."""
        for path in self.path.glob("*.jsonl"):
            kept = [record for record in self._read(path.name) if record["step"] <= step]
            self._replace(path.name, "".join(json.dumps(record) + "\n" for record in kept))

    def find_checkpoint(self, warn: Callable[[str], None], which: str | None = None) -> Path:
        """The newest sound checkpoint, or the one named: 'best', 'last', 'step-000100'."""
        if which is None:
            found = newest_sound(self.checkpoints, warn)
            if found is None:
                raise CheckpointError(f"{self.path} has no checkpoint that can be used")
            return found
        path = self.checkpoints / which
        if not path.is_dir():
            raise CheckpointError(f"{self.path} has no checkpoint {which!r}")
        if problem := damage(path):
            raise CheckpointError(f"checkpoint {which} of {self.path} is damaged: {problem}")
        return path

    def _append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        with (self.path / name).open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def _read(self, name: str) -> list[dict[str, Any]]:
        records = []
        path = self.path / name
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    records.append(json.loads(line))
                except ValueError:
                    break
        return records

    def _replace(self, name: str, text: str) -> None:
        aside = self.path / f".{name}.new"
        aside.write_text(text)
        os.replace(aside, self.path / name)
