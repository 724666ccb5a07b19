"""The GPU part of benchmarks/small.py: graphs checked against the plain loop, then timed."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np
import torch
from small import CASES, count, make_engine, sample
from small_checks import (
    DEVICE,
    check_answers,
    check_attention,
    check_distribution,
    check_draws,
    check_products,
    products,
    ratio_error,
)
from torch import Tensor

from coterie.engines.base import Sampling
from coterie.engines.torch.causal import CausalEngine
from coterie.engines.torch.small import kernels
from coterie.engines.torch.small.decoding import decode
from coterie.engines.torch.small.graphs import GraphDecoder
from coterie.engines.torch.small.stepping import Rows
from coterie.rollouts import Task
from coterie.worlds.base import Constraint, TabledConstraint

FLOAT32_RATE, MEMORY_RATE = 60e12, 4.3e12  # what an H200 gives, operations and bytes a second


TILES_TRIED = tuple(
    kernels.Tile(*tile)
    for tile in (
        (16, 16, 64, 2, 4), (16, 16, 128, 2, 3), (16, 32, 64, 4, 4), (32, 32, 64, 4, 3), (64, 32, 32, 4, 3),
        (64, 64, 32, 4, 3), (128, 64, 32, 8, 3), (128, 128, 32, 8, 3), (64, 128, 32, 4, 3),
    )
)  # fmt: skip


def run_all(work: Sequence[Callable[[Any], Tensor]]) -> None:
    for product in work:
        product(kernels)


@torch.inference_mode()
def choose_tiles() -> dict[str, Any]:
    """Milliseconds of a layer's products by tile; from here on the best are used. None: cuBLAS."""
    found: dict[str, Any] = {}
    best: dict[int, kernels.Tile | None] = {}
    start = time.perf_counter()
    for bucket in (16, 64, 128, 256, 512, 1024, 2048):
        work, times = products(bucket, 512, 1376), {}
        for tile in (None, *TILES_TRIED):
            late = time.perf_counter() - start > 80
            if tile is not None and (late or tile.rows > max(bucket, 16) or bucket // tile.rows > 32):
                continue
            kernels.TILES = {1 << 30: tile}
            try:
                times[tile] = 1e3 * in_graph(partial(run_all, work))
            except Exception:  # a tile that does not fit loses
                traceback.print_exc()
        ordered = sorted(times, key=lambda tile: times[tile])
        best[bucket] = ordered[0]
        told = (f"{times[tile]:.4f} {astuple(tile) if tile else 'cuBLAS'}" for tile in (*ordered[:3], None))
        found[f"{bucket} rows"] = ", ".join(told)
    best[1 << 30] = best[2048]
    kernels.TILES = best
    return found


def with_cublas() -> dict[str, float]:
    kept, kernels.TILES = kernels.TILES, {}
    try:
        return time_case("theory 2,048", baseline=False)
    finally:
        kernels.TILES = kept


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The best of several, the device idle before and after."""
    best = float("inf")
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def time_case(name: str, baseline: bool = True) -> dict[str, float]:
    """Tokens a second of the loop, of graphs alone and with completions made, and of the floor."""
    case = CASES[name]
    engine, tasks = make_engine(case, "cuda")
    language, graphs = engine.language, engine.graphs
    assert graphs is not None
    prompts = [language.encode_prompt(task.prompt) for task in tasks]
    siblings = [task for task in tasks for _ in range(case.group_size)]
    start = time.perf_counter()
    groups = sample(engine, tasks, case.group_size, 1)
    first = time.perf_counter() - start
    tokens = count(groups)
    ratio = ratio_error(engine, groups, {}, 1.0)
    timed = TimedConstraint(language.constraint(siblings))

    def only_drawn(constraint: Constraint | None = None) -> None:
        stream = torch.Generator("cuda").manual_seed(1)
        constraint = constraint or language.constraint(siblings)
        for _ in graphs.decode(prompts, case.group_size, constraint, language.max_tokens, Sampling(), stream):
            pass

    def loop() -> None:
        stream = torch.Generator("cuda").manual_seed(1)
        for _ in decode(
            engine.model, prompts, case.group_size, language.constraint(siblings), language.end, language.max_tokens,
            Sampling(), stream,
        ):  # fmt: skip
            pass

    whole = seconds(lambda: sample(engine, tasks, case.group_size, 1), 8)
    device = seconds(only_drawn, 8)
    lengths = [int(c.chosen.sum()) for g in groups for c in g.completions]
    figures = {
        "tokens": tokens,
        "longest": max(lengths),
        "first call s": first,
        "ratio error": ratio,
        "graphs tok/s": tokens / device,
        "with completions tok/s": tokens / whole,
        "floor tok/s": tokens / floor_seconds(engine, np.array(lengths), float(np.mean([len(p) for p in prompts]))),
        "rows computed a token": count_rows(graphs, only_drawn) / tokens,
        "device busy": busy_seconds(only_drawn) / device,
    }
    if baseline:
        figures["loop tok/s"] = tokens / seconds(loop, 1)
    if not isinstance(language.constraint(siblings[:1]), TabledConstraint):
        only_drawn(timed)
        figures |= {"host steps": timed.steps, "masks ms a step": 1e3 * timed.spent / timed.steps}
        figures["all ms a step"] = 1e3 * device / timed.steps
        figures["masks alone, rows/s"] = time_masks(engine, tasks, case.group_size)
    return figures


class TimedConstraint:
    """Another's answers, and how long they took."""

    def __init__(self, asked: Constraint) -> None:
        self.asked, self.spent, self.steps = asked, 0.0, 0

    def _timed(self, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        outcome = work()
        self.spent += time.perf_counter() - start
        return outcome

    def legal(self) -> Any:
        self.steps += 1
        return self._timed(self.asked.legal)

    def advance(self, tokens: Any) -> None:
        self._timed(lambda: self.asked.advance(tokens))

    def keep(self, rows: Any) -> None:
        self._timed(lambda: self.asked.keep(rows))


def count_rows(graphs: GraphDecoder, work: Callable[[], None]) -> int:
    """How many rows went through the model, those included that had finished or were never there."""
    rows, plain = 0, graphs._graph

    def counted(kind: str, bucket: int, sampling: Sampling) -> Callable[[], None]:
        replay = plain(kind, bucket, sampling)

        def run() -> None:
            nonlocal rows
            rows += bucket * (kind != "draw")
            replay()

        return run

    graphs._graph = counted  # type: ignore[method-assign]
    try:
        work()
    finally:
        graphs._graph = plain  # type: ignore[method-assign]
    return rows


def busy_seconds(work: Callable[[], None]) -> float:
    """Of kernels and copies."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(float(event.self_device_time_total) for event in seen.key_averages()) / 1e6


def floor_seconds(engine: CausalEngine, lengths: np.ndarray[Any, Any], prompt: float) -> float:
    """Operations at the rate of float32 or bytes at that of memory, whichever takes longer, token by token."""
    shape = engine.model.shape
    weights = sum(p.numel() for p in engine.model.parameters()) - shape.vocabulary * shape.width
    total = 0.0
    for t in range(int(lengths.max())):
        rows = int((lengths > t).sum())
        seen = rows * (prompt + t) * shape.width * shape.depth
        operations = 2 * rows * weights + 4 * seen
        total += max(operations / FLOAT32_RATE, (4 * weights + 8 * seen) / MEMORY_RATE)
    return total


def time_masks(engine: CausalEngine, tasks: Sequence[Task], group_size: int) -> float:
    """Rows a second that the constraint alone could serve, on random structures."""
    constraint = engine.language.constraint([task for task in tasks for _ in range(group_size)])
    rng, spent, served = np.random.default_rng(0), 0.0, 0
    for _ in range(60):
        start = time.perf_counter()
        legal = constraint.legal()
        spent += time.perf_counter() - start
        legal = legal.copy()
        legal[:, engine.language.end] = False
        token = (rng.random(legal.shape) * legal).argmax(1)
        start = time.perf_counter()
        constraint.advance(token)
        spent += time.perf_counter() - start
        served += len(token)
    return served / spent


def time_parts() -> dict[str, Any]:
    """Milliseconds of a replay by bucket, and of its parts at the largest."""
    engine, tasks = make_engine(CASES["theory 2,048"], "cuda")
    graphs = engine.graphs
    assert graphs is not None
    found: dict[str, Any] = {}
    sample(engine, tasks, 64, 1)  # there is room for full answers from here on
    memory = graphs.memory
    assert memory is not None
    rows = memory.rows
    with torch.inference_mode():
        for bucket in (2048, 1024, 512, 128, 16):
            memory.slots.copy_(torch.arange(len(memory.slots), device=DEVICE))
            token = graphs._graph("token", bucket, Sampling())
            for length in (32, 128):
                found[f"{bucket} rows at {length}"] = 1e3 * seconds(partial(replay, token, rows, length), 3) / 20
        slots, qkv = memory.slots, torch.randn(2048, 3 * 512, device=DEVICE)
        history = memory.keys[0], memory.values[0]
        attend = partial(kernels.attend, qkv, *history, rows, slots, graphs.cos, graphs.sin)
        for length in (32, 128):
            rows.length.fill_(length)
            found[f"attention at {length}"] = 1e3 * in_graph(attend)
        for part, product in zip(("qkv", "out", "gate and up", "down"), products(2048, 512, 1376), strict=True):
            found[part] = 1e3 * in_graph(partial(product, kernels))
        found["draw"] = 1e3 * in_graph(partial(graphs._draw, 2048, Sampling(), True), graphs.generator)
    return found


def replay(token: Callable[[], None], rows: Rows, length: int) -> None:
    """A token twenty times, always at the same length."""
    for _ in range(20):
        rows.numbers[2:] = 0
        rows.length.fill_(length)
        rows.state.fill_(5)
        token()


def in_graph(work: Callable[[], Any], generator: torch.Generator | None = None) -> float:
    """Seconds of one of ten in a graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        graph.capture_begin()
        for _ in range(10):
            work()
        graph.capture_end()
    return seconds(graph.replay, 5) / 10


def with_tf32() -> dict[str, float]:
    """The same with matrix products in TF32, in sampler and learner alike."""
    torch.set_float32_matmul_precision("high")
    try:
        case = CASES["theory 2,048"]
        engine, tasks = make_engine(case, "cuda")
        groups = sample(engine, tasks, case.group_size, 1)
        whole = seconds(lambda: sample(engine, tasks, case.group_size, 1), 4)
        return {"with completions tok/s": count(groups) / whole, "ratio error": ratio_error(engine, groups, {}, 1.0)}
    finally:
        torch.set_float32_matmul_precision("highest")


def on_gpu() -> dict[str, Any]:
    parts: dict[str, Callable[[], Any]] = {
        "attention kernel": check_attention,
        "product kernel": check_products,
        "draw kernel": check_draws,
        "theory answers": lambda: check_answers("theory example"),
        "bricks answers": lambda: check_answers("bricks default"),
        "distribution": check_distribution,
        "theory 2,048, first tiles": lambda: time_case("theory 2,048", baseline=False),
        "theory 2,048, cuBLAS": with_cublas,
        "ms of a layer's products": choose_tiles,
        "product kernel, new tiles": check_products,
        "theory answers, new tiles": lambda: check_answers("theory example"),
        **{name: partial(time_case, name) for name in CASES},
        "TF32, theory 2,048": with_tf32,
        "ms of a token, theory 2,048": time_parts,
    }
    found: dict[str, Any] = {"device": torch.cuda.get_device_name()}
    for name, part in parts.items():
        start = time.perf_counter()
        try:
            found[name] = part()
        except Exception:  # one part that fails must not lose the others
            found[name] = "FAILED"
            traceback.print_exc()
        print(f"{name} ({time.perf_counter() - start:.1f} s)", flush=True)
    for name, figures in found.items():
        if isinstance(figures, dict):
            figures = "  ".join(
                f"{key} {value if isinstance(value, str) else format(value, ',.4g')}" for key, value in figures.items()
            )
        print(f"{name}: {figures}")
    return found
