"""Builds structures as BrickGPT does: bad bricks are refused, and what falls is taken back.

The published system needs both, since it samples without masks (arXiv 2505.05469). A policy with legality =
"format" is built with here in the same way; where masks rule bad bricks out, nothing is left to refuse, and
little falls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.engines.base import Engine, Sampling
from coterie.rollouts import Completion, Finish, Score, Task
from coterie.worlds.bricks import BricksWorld
from coterie.worlds.bricks.stability import VERDICT_CAP, analyze, analyze_prefixes
from coterie.worlds.bricks.structure import Brick, find_fault, parse_bricks, print_bricks


@dataclass(frozen=True)
class Assembly:
    """How a structure is put together; the numbers are the published ones."""

    rejection: bool = False
    rollback: bool = False
    best_of: int = 1
    temperature: float = 0.6
    temperature_step: float = 0.01  # for each brick that is drawn again after it was refused
    max_temperature: float = 2.0
    max_rejections: int = 500  # of one brick
    max_rollbacks: int = 100


@dataclass(frozen=True)
class Built:
    """A finished structure and what it took."""

    answer: str
    score: Score
    rejections: int
    rollbacks: int
    seconds: float


class Assembler:
    """Builds one structure at a time with an engine's policy."""

    def __init__(self, engine: Engine, world: BricksWorld, how: Assembly, seed: int) -> None:
        self.engine, self.world, self.how, self.seed = engine, world, how, seed
        self.draws = self.rejections = self.rollbacks = 0

    def build(self, task: Task) -> Built:
        """The best of `best_of` structures by the world's own score."""
        built = [self._build_one(task) for _ in range(self.how.best_of)]
        best = max(built, key=lambda b: b.score.total)
        return replace(best, seconds=sum(b.seconds for b in built))

    def _build_one(self, task: Task) -> Built:
        started = time.perf_counter()
        self.rejections = self.rollbacks = 0
        bricks = self._continue(task, [])
        while self.how.rollback and self.rollbacks < self.how.max_rollbacks:
            kept = last_sound(bricks)
            if kept == len(bricks):
                break
            self.rollbacks += 1
            bricks = self._continue(task, bricks[:kept])
        answer = print_bricks(bricks)
        [score] = self.world.score(task, [answer])
        return Built(answer, score, self.rejections, self.rollbacks, time.perf_counter() - started)

    def _continue(self, task: Task, bricks: Sequence[Brick]) -> list[Brick]:
        """Go on from these bricks to the end of the structure."""
        if not self.how.rejection:
            return parse_bricks(self._draw(task, bricks, self.how.temperature, None).text)
        built, temperature, refused = list(bricks), self.how.temperature, list[Brick]()
        while len(built) < self.world.max_bricks and len(refused) < self.how.max_rejections:
            # At the usual temperature all the rest is drawn at once and kept up to the first bad brick,
            # which is the same as asking for one brick after the other.
            warmed = temperature > self.how.temperature
            completion = self._draw(task, built, temperature, self._tokens_per_brick if warmed else None)
            fresh = parse_bricks(completion.text)[len(built) :]
            good = self._good(built, fresh)
            built += good
            if good:
                temperature, refused = self.how.temperature, []
            if len(good) < len(fresh):
                bad = fresh[len(good)]
                if bad in refused:
                    temperature = min(temperature + self.how.temperature_step, self.how.max_temperature)
                refused.append(bad)
                self.rejections += 1
            elif completion.finish is not Finish.LENGTH:
                break
        return built

    def _good(self, built: Sequence[Brick], fresh: Sequence[Brick]) -> list[Brick]:
        """The fresh bricks before the first that is out of bounds or overlaps."""
        for count in range(len(fresh)):
            if find_fault([*built, *fresh[: count + 1]], self.world.world_dim):
                return list(fresh[:count])
        return list(fresh)

    @property
    def _tokens_per_brick(self) -> int:
        return self.world.language().max_tokens // self.world.max_bricks

    def _draw(self, task: Task, bricks: Sequence[Brick], temperature: float, max_tokens: int | None) -> Completion:
        self.draws += 1
        sampling = Sampling(temperature, max_tokens=max_tokens, seed=hash((self.seed, self.draws)) % 2**31)
        [(_, group)] = self.engine.sample([task], 1, replace(sampling, begin=print_bricks(bricks)))
        return group.completions[0]


def last_sound(bricks: Sequence[Brick]) -> int:
    """How many bricks to keep: all of a structure that stands, else a stable beginning before what falls."""
    verdict = analyze(bricks, cap=VERDICT_CAP)
    if verdict.stable or verdict.weakest is None:
        return len(bricks)
    sound = [k + 1 for k, v in enumerate(analyze_prefixes(bricks[: verdict.weakest])) if v.stable]
    return max(sound, default=0)
