"""What do exact legal masks cost beside the policy's forward pass?

    OMP_NUM_THREADS=1 python benchmarks/masks.py --json masks.json

Random structures and theories grow token by token in many rows at once. For each token the masks (`legal` and
`advance`) and one decoding step of the policy (with its head) are timed in turn, so that a busy
moment and a cold cache hit both alike. One thread each; the fastest of several passes counts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from coterie.engines.torch.small.transformer import Cache, PolicyShape, Transformer
from coterie.rollouts import Ints, Task
from coterie.worlds.base import Language
from coterie.worlds.bricks.language import AbsoluteLanguage
from coterie.worlds.bricks.pivot import PivotLanguage
from coterie.worlds.machines.blocks import CATAPULT_LEVEL
from coterie.worlds.machines.language import MachineLanguage
from coterie.worlds.theory.language import TheoryLanguage

TOKENS_A_BRICK = {"absolute": 4, "two_step": 5, "machines": 3, "all_machines": 3}
TOKENS_A_THEORY = 100


def make_policy(language: Language, width: int, depth: int) -> Transformer:
    model = Transformer(PolicyShape(len(language.vocabulary), width, depth))
    model.initialize(torch.Generator().manual_seed(0))
    return model.eval()


@torch.inference_mode()
def time_pass(
    language: Language, model: Transformer, rows: int, tokens: int, rng: np.random.Generator
) -> tuple[list[float], list[float]]:
    """Seconds of the masks and of the forward pass at each token."""
    constraint = language.constraint([Task("any", "")] * rows)
    cache = Cache(model.shape, rows, tokens, torch.device("cpu"))
    cache.visible[...] = True
    mask_times, forward_times = [], []
    for place in range(tokens):
        start = time.perf_counter()
        legal = constraint.legal()
        mask_time = time.perf_counter() - start

        going = legal.copy()
        going[:, language.end] = False
        chosen: Ints = (rng.random(legal.shape, np.float32) * going).argmax(1)

        start = time.perf_counter()
        constraint.advance(chosen)
        mask_times.append(mask_time + time.perf_counter() - start)

        start = time.perf_counter()
        hidden = model(torch.from_numpy(chosen)[:, None], torch.full((rows, 1), place), cache)
        model.head(hidden[:, -1])
        forward_times.append(time.perf_counter() - start)
    return mask_times, forward_times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--bricks", type=int, default=25)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3, help="the best counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)

    languages: dict[str, Language] = {
        "absolute": AbsoluteLanguage(legality="attached"),
        "two_step": PivotLanguage(legality="attached"),
        "theory": TheoryLanguage(),
        "machines": MachineLanguage(1 + chosen.bricks, lambda task: CATAPULT_LEVEL),
        "all_machines": MachineLanguage(1 + chosen.bricks),
    }
    figures = {}
    print(f"{chosen.rows} rows, {chosen.bricks} bricks each; mean ms a token")
    for name, language in languages.items():
        model = make_policy(language, chosen.width, chosen.depth)
        tokens = TOKENS_A_BRICK[name] * chosen.bricks if name in TOKENS_A_BRICK else TOKENS_A_THEORY
        # Every pass draws the same structures, so that the best is taken token by token.
        passes = [
            time_pass(language, model, chosen.rows, tokens, np.random.default_rng(chosen.seed))
            for _ in range(chosen.repeats)
        ]
        masks, forward = 1e3 * np.array(passes).min(0).mean(1)
        parameters = sum(weight.numel() for weight in model.parameters())
        figures[name] = {"masks_ms": masks, "forward_ms": forward, "ratio": masks / forward, "parameters": parameters}
        print(
            f"  {name:9} masks {masks:6.2f}  forward {forward:7.2f}  ratio {masks / forward:6.2%}"
            f"  ({parameters / 1e6:.1f}M parameters)",
            flush=True,
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
