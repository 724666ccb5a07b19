"""Rejection, rollback and best of n."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from coterie import GRPOConfig, GRPOTrainer
from coterie.assembly import Assembler, Assembly, last_sound
from coterie.engines.base import Sampling
from coterie.rollouts import Completion, Finish, Group, Task
from coterie.worlds.bricks import BricksWorld
from coterie.worlds.bricks.structure import Brick, find_fault, parse_bricks

TASK = next(t for t in BricksWorld().tasks("train") if t.prompt == "a tower 2 wide 2 deep 4 tall")


class Script:
    """Stands for an engine: answers what it is told to, brick by brick or whole."""

    def __init__(self, *bricks: str) -> None:
        self.bricks = list(bricks)
        self.temperatures: list[float] = []

    def sample(self, tasks: Sequence[Task], group_size: int, sampling: Sampling) -> Iterator[tuple[int, Group]]:
        self.temperatures.append(sampling.temperature)
        text = self.bricks.pop(0)
        finish = Finish.STOP if text == "" else Finish.LENGTH
        blank = np.zeros(0)
        completion = Completion(
            blank.astype(int), blank.astype(bool), blank.astype(np.float32), None, sampling.begin + text, finish
        )
        yield 0, Group(tasks[0], [completion])


def assemble(script: Script, **how: object) -> tuple[list[Brick], Assembler]:
    assembler = Assembler(script, BricksWorld(), Assembly(**how), 0)  # type: ignore[arg-type]
    return parse_bricks(assembler.build(TASK).answer), assembler


def test_bad_bricks_are_refused_until_a_good_one_comes() -> None:
    script = Script("2x2 (0,0,0)\n", "2x2 (1,1,0)\n", "2x2 (1,1,0)\n", "2x2 (19,19,0)\n", "2x2 (0,0,1)\n", "")
    bricks, assembler = assemble(script, rejection=True)
    assert bricks == [Brick(2, 2, 0, 0, 0), Brick(2, 2, 0, 0, 1)]
    assert assembler.rejections == 3
    # It warms up only when the same brick is drawn again, and starts anew with the next one.
    assert script.temperatures == pytest.approx([0.6, 0.6, 0.6, 0.61, 0.61, 0.6])


def test_a_brick_is_given_up_after_so_many_refusals() -> None:
    bricks, assembler = assemble(Script("2x2 (0,0,0)\n", *["2x2 (0,0,0)\n"] * 5), rejection=True, max_rejections=5)
    assert bricks == [Brick(2, 2, 0, 0, 0)]
    assert assembler.rejections == 5


def test_what_falls_is_taken_back_to_before_the_first_that_falls() -> None:
    script = Script("2x2 (0,0,0)\n2x2 (9,9,3)\n2x2 (0,0,1)\n", "2x2 (0,0,1)\n2x2 (0,0,2)\n")
    bricks, assembler = assemble(script, rollback=True)
    assert [str(b) for b in bricks] == ["2x2 (0,0,0)", "2x2 (0,0,1)", "2x2 (0,0,2)"]
    assert assembler.rollbacks == 1


def test_rolling_back_ends_though_nothing_ever_stands() -> None:
    _, assembler = assemble(Script(*["1x1 (5,5,5)\n"] * 9), rollback=True, max_rollbacks=4)
    assert assembler.rollbacks == 4


def test_the_last_sound_beginning() -> None:
    tower = [Brick(1, 1, 0, 0, 0), *(Brick(8, 1, 0, 0, z) for z in range(1, 14))]
    assert last_sound(tower[:11]) == 11
    assert last_sound(tower) < 11
    assert last_sound([Brick(1, 1, 0, 0, 4)]) == 0


def test_the_best_of_several_is_kept() -> None:
    bricks, _ = assemble(Script("1x1 (0,0,0)\n", "2x2 (0,0,0)\n2x2 (0,0,1)\n", "1x1 (5,5,5)\n"), best_of=3)
    assert len(bricks) == 2


@pytest.mark.parametrize("actions", ["absolute", "two_step"])
def test_a_real_policy_goes_on_from_a_beginning(actions: str) -> None:
    config = GRPOConfig(width=16, depth=1, heads=2, threads=1, world_options={"actions": actions, "max_bricks": 6})
    trainer = GRPOTrainer(config)
    begin = "2x2 (0,0,0)\n1x4 (1,1,1)\n"
    [(_, group)] = trainer.engine.sample([TASK], 5, Sampling(begin=begin, seed=1))
    for completion in group.completions:
        assert completion.text.startswith(begin)
        bricks = parse_bricks(completion.text)
        assert len(bricks) <= 6
        assert not find_fault(bricks, 20)
    assert isinstance(trainer.world, BricksWorld)
    built = Assembler(trainer.engine, trainer.world, Assembly(rejection=True, rollback=True, max_rollbacks=2), 0)
    assert not find_fault(parse_bricks(built.build(TASK).answer), 20)
