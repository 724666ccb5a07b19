"""The checks of benchmarks/small.py: a GPU's kernels against plain torch, its answers against loop and learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from small import CASES, make_engine, sample
from torch import Tensor, nn

from coterie.engines.torch.causal import CausalEngine
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.small import kernels, stepping
from coterie.engines.torch.small.stepping import Drawing, Rows
from coterie.engines.torch.small.tables import DeviceTables
from coterie.engines.torch.small.transformer import PolicyShape
from coterie.rollouts import Completion, Group, Task, make_batch
from coterie.worlds.base import Characters, TabledConstraint

DEVICE = torch.device("cuda")


def make_rows(slots: int, room: int, vocabulary: int) -> Rows:
    """Poisoned, but for the numbers."""
    numbers = torch.zeros(6, slots + 1, dtype=torch.int32, device=DEVICE)
    tokens = torch.full((slots + 1, room), -7, dtype=torch.int32, device=DEVICE)
    logprobs = torch.full((slots + 1, room), torch.nan, device=DEVICE)
    support = torch.full((slots + 1, room, (vocabulary + 7) // 8), 77, dtype=torch.uint8, device=DEVICE)
    numbers[4, -1] = stepping.STOP
    return Rows(numbers, tokens, logprobs, support)


def check_attention() -> str:
    worst = 0.0
    for heads, width, room, slots, batch in ((2, 24, 64, 5, 8), (8, 64, 576, 100, 96), (4, 128, 192, 40, 48)):
        rows = make_rows(slots, 1, 8)
        rows.length[:-1] = torch.randint(0, room - 1, (slots,), device=DEVICE)
        rows.length[0] = 0
        keys, values = torch.randn(2, slots + 1, heads, room, width, device=DEVICE)
        for slot in range(slots):  # what has not been written must not be read
            keys[slot, :, int(rows.length[slot]) :] = values[slot, :, int(rows.length[slot]) :] = torch.nan
        used = torch.randperm(slots, device=DEVICE)[:batch]
        idle = torch.full((batch - len(used),), slots, device=DEVICE)
        mapping = torch.cat([used, idle]).int()
        qkv = torch.randn(batch, 3 * heads * width, device=DEVICE)
        angles = torch.arange(room, device=DEVICE)[:, None] * torch.rand(width // 2, device=DEVICE)
        outcomes = []
        for module in (stepping, kernels):
            mine = keys.clone(), values.clone()
            out = module.attend(qkv, *mine, rows, mapping, angles.cos(), angles.sin())
            outcomes.append([out[: len(used)], *(x[:-1].nan_to_num(9.0) for x in mine)])
        worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(*outcomes, strict=True)))
    assert worst < 5e-6, worst
    return f"{worst:.1e} from plain torch"


def products(rows: int, width: int, hidden: int) -> list[Callable[[Any], Tensor]]:
    """The four of a layer, each to be called with a module that has `project`."""
    x, mixed, up = (torch.randn(rows, n, device=DEVICE) for n in (width, width, hidden))
    norm = nn.RMSNorm(width, device=DEVICE)
    qkv, out, gate, down = (
        torch.randn(n, k, device=DEVICE) / k**0.5
        for n, k in ((3 * width, width), (width, width), (2 * hidden, width), (width, hidden))
    )
    return [
        lambda m: m.project(x, qkv, norm),
        lambda m: m.project(mixed, out, add_to=x.clone()),
        lambda m: m.project(x, gate, norm, gated=True),
        lambda m: m.project(up, down, add_to=x.clone()),
    ]


class Exact:
    """The products in float64."""

    @staticmethod
    def project(x: Tensor, weight: Tensor, norm: nn.RMSNorm | None = None, **how: Any) -> Tensor:
        how = {key: value.double() if isinstance(value, Tensor) else value for key, value in how.items()}
        if norm is not None:
            x = x.double() * (x.double().square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()
        return stepping.project(x.double(), weight.double(), None, **how)


@torch.inference_mode()
def check_products() -> str:
    """How far from float64, ours and float32's."""
    ours, plain = 0.0, 0.0
    for rows, width, hidden in ((3, 40, 64), (16, 512, 1376), (100, 256, 688), (700, 192, 512), (2048, 512, 1376)):
        for product in products(rows, width, hidden):
            exact = product(Exact)
            ours = max(ours, float((product(kernels) - exact).abs().max()))
            plain = max(plain, float((product(stepping) - exact).abs().max()))
    assert ours < 3e-5, (ours, plain)
    return f"{ours:.1e} from float64; plain float32 {plain:.1e}"


def check_draws() -> str:
    from coterie.worlds.theory.language import TheoryLanguage

    language = TheoryLanguage()
    vocabulary = len(language.vocabulary)
    constraint = language.constraint([Task("t", "")])
    assert isinstance(constraint, TabledConstraint)
    tables = DeviceTables.upload(constraint.tables, DEVICE)
    worst = 0.0
    for greedy in (False, True):
        for masked in (False, True):
            outcomes = []
            for module in (stepping, kernels):
                torch.manual_seed(3)
                rows = make_rows(200, 5, vocabulary)
                rows.state[:-1] = torch.randint(0, len(tables.role), (200,), device=DEVICE)
                rows.drawn[:-1] = torch.randint(0, 5, (200,), device=DEVICE)
                rows.finish[7] = stepping.LENGTH
                slots = torch.cat([torch.randperm(200, device=DEVICE), torch.full((56,), 200, device=DEVICE)]).int()
                logits = 3 * torch.randn(256, vocabulary, device=DEVICE)
                noise = torch.empty_like(logits).exponential_()
                support = torch.rand(256, vocabulary, device=DEVICE) < 0.1 if masked else None
                limit = torch.tensor([5], dtype=torch.int32, device=DEVICE)
                how = Drawing(torch.tensor([0.7], device=DEVICE), limit, 0, greedy, tables)
                module.draw(rows, slots, logits, noise, support, how)
                outcomes.append(rows)
            for field in fields(Rows):
                a, b = (getattr(rows, field.name) for rows in outcomes)
                if field.name == "logprobs":
                    assert torch.equal(a.isnan(), b.isnan())
                    worst = max(worst, float((a - b).nan_to_num().abs().max()))
                else:
                    assert torch.equal(a, b), field.name
    assert worst < 5e-6, worst
    return f"draws alike, log-probabilities {worst:.1e} apart"


def pack(completion: Completion) -> bytes:
    assert completion.legal is not None
    return completion.legal.tobytes()


def check_answers(name: str) -> str:
    """Greedy answers of the loop, log-probabilities of the learner, at every way of narrowing."""
    engine, tasks = make_engine(CASES[name], "cuda")
    tasks = tasks[:4]
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.mul_(1.5)
    graphs, told = engine.graphs, []
    greedy = sample(engine, tasks, 8, 1, temperature=0.0)
    engine.graphs = None
    plain = sample(engine, tasks, 8, 1, temperature=0.0)
    engine.graphs = graphs
    same = [
        np.array_equal(a.tokens, b.tokens) and pack(a) == pack(b)
        for one, other in zip(greedy, plain, strict=True)
        for a, b in zip(one.completions, other.completions, strict=True)
    ]
    told.append(f"greedy {sum(same)}/{len(same)} identical")
    assert all(same), told
    for how in ({}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5}, {"max_tokens": 9}):
        told.append(f"{how or 'plain'} {ratio_error(engine, sample(engine, tasks, 32, 1, **how), how):.1e}")
    again = [sample(engine, tasks, 32, 5)[0].answers for _ in range(2)]
    assert again[0] == again[1], "the same seed gives other answers"
    return "; ".join(told)


def ratio_error(engine: CausalEngine, groups: Sequence[Group], how: dict[str, Any], limit: float = 1e-5) -> float:
    """How far the sampler's log-probabilities are from the learner's."""
    batch = make_batch(groups, np.zeros((len(groups), len(groups[0].completions))))
    again = engine.learner.logprobs(engine.model, batch, how.get("temperature", 1.0))
    worst = float(np.abs(again - batch.logprobs).max())
    assert worst < limit, worst
    return worst


def check_distribution() -> str:
    language = Characters("abcdef", max_tokens=2)
    engine = CausalEngine(language, PolicyShape(len(language.vocabulary), 48, 2, 3), LearnerSettings(), 0, "cuda")
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.mul_(3.0)
    [group] = sample(engine, [Task("t", "x")], 40_000, 1)
    first = [(int(c.tokens[2]), float(np.exp(c.logprobs[2]))) for c in group.completions]
    chances = dict(first)
    counts = np.bincount([token for token, _ in first], minlength=max(chances) + 1)
    chi_square = sum((counts[token] - 40_000 * p) ** 2 / (40_000 * p) for token, p in chances.items())
    assert chi_square < 28, chi_square  # p < .0001 for six degrees of freedom
    return f"chi-square {chi_square:.1f} with 6 degrees of freedom"
