"""The bricks world: build what the caption says, so that it stands."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from PIL.Image import Image

from coterie.rollouts import Score, Task
from coterie.worlds.base import Example, Language, MadeExamples, World
from coterie.worlds.bricks.dataset import BadRow, Structure, examples_of, instruction, load_structures, tasks_of
from coterie.worlds.bricks.language import AbsoluteLanguage, Legality
from coterie.worlds.bricks.laying import Builder, lay_bricks
from coterie.worlds.bricks.picture import draw_bricks
from coterie.worlds.bricks.pivot import PivotLanguage
from coterie.worlds.bricks.reward import Weights, in_reach, invalid, judge
from coterie.worlds.bricks.shapes import Voxels, all_shapes, target_of
from coterie.worlds.bricks.stability import PROGRAMS, analyze
from coterie.worlds.bricks.structure import (
    MASSES,
    SIZES,
    BrickError,
    find_fault,
    parse_bricks,
    print_bricks,
    voxels_of,
)


@dataclass(frozen=True)
class BricksWorld(World):
    """Settings of the bricks world."""

    name: str = field(default="bricks", init=False)
    world_dim: int = 20
    max_bricks: int = 60
    sizes: str = ""  # the library, as in "1x2 2x2 2x4"; "": all
    legality: Legality = "attached"
    actions: Literal["absolute", "two_step"] = "absolute"  # bricks at absolute places, or from a pivot
    max_offset_distance: int = 5  # of a two-step brick from its pivot, each way
    program: str = "limit_load"  # how stability is judged
    valid_weight: float = 0.1
    stability_weight: float = 0.25
    connectivity_weight: float = 0.0
    length_weight: float = 0.0
    faithfulness_weight: float = 1.0
    order_weight: float = 0.0
    full_length: int = 30  # bricks that earn the whole of the length part
    care: float = 0.8  # of the builder whose structures a policy starts from
    slip_rate: float = 0.02
    layouts: int = 8  # how many ways each training shape is laid for the examples
    data: str = ""  # a file or folder with StableText2Brick's columns, instead of our captions

    def __post_init__(self) -> None:
        sizes = {f"{h}x{w}" for h, w in SIZES}
        for wrong, told in (
            (not 8 <= self.world_dim <= 32, f"world_dim is {self.world_dim}; write a number from 8 to 32"),
            (self.max_bricks < 1, f"max_bricks is {self.max_bricks}; write 1 or more"),
            (self.full_length < 1, f"full_length is {self.full_length}; write 1 or more"),
            (self.max_offset_distance < 1, f"max_offset_distance is {self.max_offset_distance}; write 1 or more"),
            (
                self.legality not in ("format", "geometry", "attached"),
                f"legality is {self.legality!r}; write 'format', 'geometry' or 'attached'",
            ),
            (
                self.actions not in ("absolute", "two_step"),
                f"actions is {self.actions!r}; write 'absolute' or 'two_step'",
            ),
            (self.program not in PROGRAMS, f"program is {self.program!r}; write one of {', '.join(PROGRAMS)}"),
            (
                not sizes.issuperset(self.sizes.split()),
                f"sizes is {self.sizes!r}; write some of {' '.join(f'{h}x{w}' for h, w in MASSES)}",
            ),
        ):
            if wrong:
                raise ValueError(told)

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits[split]

    @cached_property
    def _splits(self) -> dict[str, list[Task]]:
        if self.data:
            return {split: tasks_of(self._structures, split, instruction) for split in ("train", "heldout")}
        splits: dict[str, list[Task]] = {"train": [], "heldout": []}
        for shape in all_shapes():
            if max(shape.wide, shape.deep, shape.tall) <= self.world_dim:
                tags = {**asdict(shape), "voxels": int(shape.voxels().sum())}
                splits["heldout" if shape.heldout else "train"] += [
                    Task(caption.replace(" ", "-"), caption, {"shape": shape}, tags) for caption in shape.captions
                ]
        return splits

    @cached_property
    def _structures(self) -> list[Structure]:
        def report(row: BadRow) -> None:
            warnings.warn(str(row), stacklevel=2)

        return load_structures(Path(self.data), self.world_dim, report)

    def target(self, task: Task) -> Voxels | None:
        """The voxels that were asked for; None for a task that asks for nothing in particular."""
        if "shape" in task.spec:
            return target_of(task.spec["shape"], self.world_dim)
        return voxels_of(parse_bricks(task.spec["bricks"]), self.world_dim) if "bricks" in task.spec else None

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        return [self._score(task, answer) for answer in answers]

    def _score(self, task: Task, answer: str) -> Score:
        try:
            bricks = parse_bricks(answer)
        except BrickError as error:
            return invalid(str(error))
        if len(bricks) > self.max_bricks:
            return invalid(f"{len(bricks)} bricks are more than max_bricks = {self.max_bricks}")
        for number, brick in enumerate(bricks, 1):
            if (brick.h, brick.w) not in self.library:
                return invalid(f"line {number}: {brick.h}x{brick.w} is not among the sizes {self.sizes!r}")
        return judge(bricks, self.target(task), self.weights, self.world_dim, self.program)

    @property
    def weights(self) -> Weights:
        return Weights(
            valid=self.valid_weight,
            stability=self.stability_weight,
            connectivity=self.connectivity_weight,
            length=self.length_weight,
            faithfulness=self.faithfulness_weight,
            order=self.order_weight,
            full_length=self.full_length,
        )

    @cached_property
    def library(self) -> tuple[tuple[int, int], ...]:
        """The sizes that may be used, in both orientations."""
        named = {tuple(sorted(map(int, size.split("x")))) for size in self.sizes.split()}
        return tuple(size for size in SIZES if not named or tuple(sorted(size)) in named)

    def language(self) -> Language:
        settings = (self.world_dim, self.max_bricks, self.legality, self.library)
        if self.actions == "two_step":
            return PivotLanguage(*settings, self.max_offset_distance)
        return AbsoluteLanguage(*settings)

    def examples(self) -> Sequence[Example]:
        """The structures of the data; or every training task, laid `layouts` times."""
        if self.data:
            return examples_of(self._structures, instruction)
        return MadeExamples(self.layouts * len(self.tasks("train")), self._lay)

    def _lay(self, index: int) -> Example:
        tasks = self.tasks("train")
        task = tasks[index % len(tasks)]
        target, rng = self.target(task), np.random.default_rng(index)
        assert target is not None
        # A builder who forgot every brick tries again.
        bricks = lay_bricks(target, Builder(self.care, self.slip_rate), rng, self.library)
        bricks = bricks or lay_bricks(target, Builder(self.care, 0.0), rng, self.library)
        if self.legality == "attached":
            bricks = list(in_reach(bricks))
        return Example(task, print_bricks(bricks[: self.max_bricks]))

    def relabel(self, task: Task, answer: str) -> Task | None:
        """The training task whose target this structure is to the voxel, if it stands."""
        bricks = parse_bricks(answer)
        meant = self._by_voxels.get(_fingerprint(voxels_of(bricks, self.world_dim)))
        return meant if meant is not None and meant.id != task.id and analyze(bricks).stable else None

    @cached_property
    def _by_voxels(self) -> dict[bytes, Task]:
        targets = ((self.target(task), task) for task in reversed(self.tasks("train")))
        return {_fingerprint(target): task for target, task in targets if target is not None}

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
