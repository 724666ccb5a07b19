"""How many theories a second does one core judge? And is everything that a policy samples grammatical?

    OMP_NUM_THREADS=1 python benchmarks/judging.py --catalog runs/theory/theories.jsonl

Theories nobody has judged yet, after a warm-up on others: a run remembers the representations it has met. Random
ones are those a policy starts from; those of a run's catalog are what it ends with. Processor time; best of three.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from coterie import GRPOConfig, GRPOTrainer, load_world
from coterie.engines.base import Sampling
from coterie.engines.torch.causal import CausalEngine
from coterie.rollouts import Finish, Task, make_batch
from coterie.worlds.base import World
from coterie.worlds.theory.theory import parse_theory

ANY = Task("any", "BOS")


def rate(world: World, texts: list[str]) -> float:
    """Theories a second."""
    best = 0.0
    for part in np.array_split(np.array(texts, object), 3):
        begun = time.process_time()
        world.score(ANY, list(part))
        best = max(best, len(part) / (time.process_time() - begun))
    return best


def sample(number: int) -> tuple[int, int, float]:
    """(answers, those that parse or were cut at the limit, largest distance of a ratio from 1) of a fresh policy."""
    trainer = GRPOTrainer(GRPOConfig(world="theory", world_options={"products": True}, width=32, depth=2, heads=2))
    engine = trainer.engine
    assert isinstance(engine, CausalEngine)
    count = fine = 0
    worst = 0.0
    with trainer.scorer:
        while count < number:
            tasks = trainer.curriculum.draw(16)
            groups = [group for _, group in engine.sample(tasks, 64, Sampling(temperature=1.0))]
            batch = make_batch(groups, np.zeros((len(groups), 64)))
            ratios = np.exp(engine.learner.logprobs(engine.model, batch, 1.0) - batch.logprobs)[batch.chosen]
            worst = max(worst, float(np.abs(ratios - 1).max()))
            for group in groups:
                for completion in group.completions:
                    count += 1
                    if completion.finish is Finish.STOP:
                        parse_theory(f"{group.task.prompt} {completion.text}")
                    fine += completion.finish in (Finish.STOP, Finish.LENGTH)
    return count, fine, worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=3_000)
    parser.add_argument("--warm-up", type=int, default=12_000)
    parser.add_argument("--catalog", type=Path, help="theories.jsonl of a run")
    parser.add_argument("--sampled", type=int, default=10_000)
    options = parser.parse_args()
    world = load_world("theory", {"num_examples": 10**6})
    examples = world.examples()
    for warm in range(options.warm_up):
        world.score(examples[warm].task, [examples[warm].answer])
    fresh = [examples[options.warm_up + i] for i in range(options.number)]
    print(f"random: {rate(world, [f'{e.task.prompt} {e.answer}' for e in fresh]):,.0f} theories a second")
    if options.catalog:
        found = [json.loads(line)["theory"] for line in options.catalog.read_text().splitlines()]
        for text in found[: len(found) // 2]:
            world.score(ANY, [text])
        later = found[len(found) // 2 :][: options.number]
        print(f"found:  {rate(world, later):,.0f} theories a second")
    if options.sampled:
        count, fine, worst = sample(options.sampled)
        print(f"{fine:,} of {count:,} sampled sequences are grammatical; ratios are within {worst:.1e} of 1")


if __name__ == "__main__":
    main()
