"""The bricks world: build what the caption says, so that it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import overload

import numpy as np
from PIL.Image import Image

from coterie.rollouts import Score, Task
from coterie.worlds.base import Example, Language, World
from coterie.worlds.bricks.language import AbsoluteLanguage, Legality
from coterie.worlds.bricks.laying import Builder, lay_bricks
from coterie.worlds.bricks.picture import draw_bricks
from coterie.worlds.bricks.shapes import Shape, Voxels, all_shapes, target_of
from coterie.worlds.bricks.stability import analyze
from coterie.worlds.bricks.structure import (
    Brick,
    BrickError,
    best_overlap,
    find_fault,
    parse_bricks,
    print_bricks,
    voxels_of,
)

# A structure that stands and is at least this much of what was asked for is a success.
FAITHFUL = 0.75


@dataclass(frozen=True)
class BricksWorld(World):
    """Settings of the bricks world."""

    name: str = field(default="bricks", init=False)
    world_dim: int = 20
    max_bricks: int = 60
    legality: Legality = "attached"
    valid_weight: float = 0.1
    stability_weight: float = 0.25
    faithfulness_weight: float = 1.0
    care: float = 0.5
    slip_rate: float = 0.03
    layouts: int = 8  # how many ways each training shape is laid for the examples

    def __post_init__(self) -> None:
        if not 8 <= self.world_dim <= 32:
            raise ValueError(f"world_dim is {self.world_dim}; write a number from 8 to 32")
        if self.max_bricks < 1:
            raise ValueError(f"max_bricks is {self.max_bricks}; write 1 or more")
        if self.legality not in ("format", "geometry", "attached"):
            raise ValueError(f"legality is {self.legality!r}; write 'format', 'geometry' or 'attached'")

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits[split]

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        splits: dict[str, list[Task]] = {"train": [], "heldout": []}
        for shape in all_shapes():
            if max(shape.wide, shape.deep, shape.tall) <= self.world_dim:
                tags = {**asdict(shape), "voxels": int(shape.voxels().sum())}
                splits["heldout" if shape.heldout else "train"] += [
                    Task(caption.replace(" ", "-"), caption, {"shape": shape}, tags) for caption in shape.captions
                ]
        return splits

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        return [self._score(task, answer) for answer in answers]

    def _score(self, task: Task, answer: str) -> Score:
        """Nothing is earned for likeness by what does not stand, or rubble would pay."""
        try:
            bricks = parse_bricks(answer)
        except BrickError as error:
            return self._invalid(str(error))
        if len(bricks) > self.max_bricks:
            return self._invalid(f"{len(bricks)} bricks are more than max_bricks = {self.max_bricks}")
        if not bricks:
            return self._invalid("there is no brick")
        if fault := find_fault(bricks, self.world_dim):
            return self._invalid(fault)
        verdict = analyze(bricks)
        parts = {
            "valid": 1.0,
            "stability": min(verdict.load_factor, 1.0),
            "stable": float(verdict.stable),
            "load_factor": verdict.load_factor,
        }
        total = self.valid_weight + self.stability_weight * parts["stability"]
        shape = task.spec.get("shape")
        likeness = 1.0
        if shape is not None:
            likeness = best_overlap(voxels_of(bricks, self.world_dim), target_of(shape, self.world_dim))
            parts["faithfulness"] = likeness
            total += self.faithfulness_weight * likeness * parts["stable"]
        return Score(
            total=total,
            parts=parts,
            success=verdict.stable and likeness >= FAITHFUL,
            note=verdict.reason,
        )

    def _invalid(self, note: str) -> Score:
        parts = dict.fromkeys(("valid", "stability", "stable", "load_factor", "faithfulness"), 0.0)
        return Score(total=0.0, parts=parts, valid=False, note=note)

    def relabel(self, task: Task, answer: str) -> Task | None:
        """The training caption whose shape this structure is to the voxel, if it stands."""
        bricks = parse_bricks(answer)
        meant = self._by_voxels.get(_fingerprint(voxels_of(bricks, self.world_dim)))
        return meant if meant is not None and meant.id != task.id and analyze(bricks).stable else None

    @cached_property
    def _by_voxels(self) -> dict[bytes, Task]:
        return {
            _fingerprint(target_of(task.spec["shape"], self.world_dim)): task for task in reversed(self.tasks("train"))
        }

    def language(self) -> Language:
        return AbsoluteLanguage(self.world_dim, self.max_bricks, self.legality)

    def examples(self) -> Sequence[Example]:
        return LaidExamples(self)

    def picture(self, task: Task, answer: str) -> Image | None:
        try:
            bricks = parse_bricks(answer)
        except BrickError:
            return None
        return draw_bricks(bricks) if not find_fault(bricks, self.world_dim) else None


def _fingerprint(filled: Voxels) -> bytes:
    """The same for structures that differ only in where they stand."""
    x, y, z = (np.flatnonzero(filled.any(axes)) for axes in ((1, 2), (0, 2), (0, 1)))
    if len(z) == 0:
        return b""
    part = filled[x[0] : x[-1] + 1, y[0] : y[-1] + 1, : z[-1] + 1]
    return bytes(part.shape) + np.packbits(part).tobytes()


@dataclass(frozen=True)
class LaidExamples(Sequence[Example]):
    """Every training task, laid `layouts` times; made when asked for, always the same."""

    world: BricksWorld

    def __len__(self) -> int:
        return self.world.layouts * len(self.world.tasks("train"))

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        tasks = self.world.tasks("train")
        task = tasks[index % len(tasks)]
        shape: Shape = task.spec["shape"]
        builder = Builder(self.world.care, self.world.slip_rate)
        bricks = lay_bricks(target_of(shape, self.world.world_dim), builder, np.random.default_rng(index))
        if self.world.legality == "attached":
            bricks = list(in_reach(bricks))
        return Example(task, print_bricks(bricks[: self.world.max_bricks]))


def in_reach(bricks: Sequence[Brick]) -> Iterator[Brick]:
    """The bricks in an order in which each is held when it is put down; floating ones are left out."""
    waiting, placed = list(bricks), set[tuple[int, int, int]]()
    while True:
        for brick in waiting:
            cells = {(x, y) for x in range(brick.x, brick.x + brick.h) for y in range(brick.y, brick.y + brick.w)}
            if brick.z == 0 or any((x, y, z) in placed for x, y in cells for z in (brick.z - 1, brick.z + 1)):
                placed |= {(x, y, brick.z) for x, y in cells}
                waiting.remove(brick)
                yield brick
                break
        else:
            return
