"""Draws answers on a GPU: a token of all rows is one captured graph.

A constraint in tables is followed by the device; the host launches ahead and learns a few tokens later who has
finished. Any other constraint is asked on the host while the device already computes the next logits. Finished rows
leave when a smaller bucket holds the others. On a CPU the same runs in plain torch, for tests.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.engines.base import Sampling
from coterie.engines.torch.small.decoding import Drawn, choose_support
from coterie.engines.torch.small.stepping import DEAD_END, GOING, LENGTH, STOP, Drawing, Rows
from coterie.engines.torch.small.tables import DeviceTables
from coterie.engines.torch.small.transformer import Block, PolicyShape, Transformer
from coterie.rollouts import Bools, Finish, Ints
from coterie.worlds.base import Constraint, TabledConstraint

FINISHES = {STOP: Finish.STOP, LENGTH: Finish.LENGTH, DEAD_END: Finish.DEAD_END}
SMALLEST_BUCKET = 16
MEMORY_SHARE = 0.5  # of what is free on the device, for keys, values and answers
FETCH_SHARE = 1 / 8  # of the rows: so many finished ones come at once, if no group is complete before
LARGE = 512  # rows from which a token takes so long that finished ones should leave soon


def bucket_of(rows: int) -> int:
    """The next of 16, 24, 32, 48, 64, ..."""
    size = SMALLEST_BUCKET
    while size < rows:
        if size * 3 // 2 >= rows:
            return size * 3 // 2
        size *= 2
    return size


class Memory:
    """All that graphs read and write, at addresses that stay. Slot `scratch` belongs to no answer."""

    def __init__(self, shape: PolicyShape, slots: int, length: int, answer: int, device: torch.device) -> None:
        self.scratch, self.length, self.answer = slots, length, answer
        size = (slots + 1, shape.heads, length, shape.width // shape.heads)
        self.keys = [torch.empty(size, device=device) for _ in range(shape.depth)]
        self.values = [torch.empty(size, device=device) for _ in range(shape.depth)]
        self.rows = Rows(
            numbers=torch.zeros(6, slots + 1, dtype=torch.int32, device=device),
            tokens=torch.zeros(slots + 1, answer, dtype=torch.int32, device=device),
            logprobs=torch.zeros(slots + 1, answer, device=device),
            support=torch.zeros(slots + 1, answer, (shape.vocabulary + 7) // 8, dtype=torch.uint8, device=device),
        )
        self.slots = torch.zeros(slots, dtype=torch.int32, device=device)
        self.logits, self.noise = torch.zeros(2, slots, shape.vocabulary, device=device)
        self.mask = torch.zeros(slots, shape.vocabulary, dtype=torch.bool, device=device)
        self.temperature = torch.ones(1, device=device)
        self.max_tokens = torch.zeros(1, dtype=torch.int32, device=device)

    @staticmethod
    def bytes_a_row(shape: PolicyShape, length: int, answer: int) -> int:
        return 8 * shape.depth * shape.width * length + answer * (8 + (shape.vocabulary + 7) // 8)

    def begin(self, prompts: Sequence[Sequence[int]], group_size: int, sampling: Sampling, max_tokens: int) -> int:
        """Every row stands before the last token of its prompt; returns the bucket."""
        num_rows = len(prompts) * group_size
        first = np.zeros((6, self.scratch + 1), np.int32)
        first[0, :num_rows] = np.repeat([p[-1] for p in prompts], group_size)
        first[1, :num_rows] = np.repeat([len(p) - 1 for p in prompts], group_size)
        first[4, num_rows:] = STOP
        self.rows.numbers.copy_(torch.from_numpy(first))
        self.slots.copy_(torch.arange(self.scratch, device=self.slots.device))
        self.slots[num_rows:] = self.scratch
        self.temperature.fill_(sampling.temperature or 1.0)
        self.max_tokens.fill_(max_tokens)
        return bucket_of(num_rows)


class PromptCache:
    """What `Block` asks of a cache, for prompts: their keys and values go to all siblings' slots."""

    def __init__(self, memory: Memory, group_size: int) -> None:
        self.memory, self.group_size, self.filled = memory, group_size, 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, length = k.shape[0] * self.group_size, k.shape[2]
        for mine, new in ((self.memory.keys[layer], k), (self.memory.values[layer], v)):
            mine[:rows, :, :length] = new.repeat_interleave(self.group_size, 0)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@dataclass(frozen=True)
class Coming:
    """Answers on their way to the host."""

    rows: Ints
    lengths: Ints
    finish: Ints
    longest: int
    packed: Tensor  # [rows, bytes] tokens, log-probabilities and support, one after the other
    event: torch.cuda.Event | None

    def has_come(self) -> bool:
        return self.event is None or self.event.query()

    def answers(self) -> list[tuple[int, Drawn]]:
        if self.event is not None:
            self.event.synchronize()
        size = 4 * self.longest
        tokens, logprobs, support = np.split(self.packed.numpy(), [size, 2 * size], axis=1)
        tokens, logprobs = tokens.view(np.int32).astype(np.int64), logprobs.view(np.float32)
        support = support.reshape(len(support), self.longest, -1)
        return [
            (row, Drawn(tokens[i, :n], logprobs[i, :n], support[i, :n], FINISHES[finish]))
            for i, (row, n, finish) in enumerate(
                zip(self.rows.tolist(), self.lengths.tolist(), self.finish.tolist(), strict=True)
            )
        ]


class GraphDecoder:
    """Draws answers of one model; it reads the weights where they are, so that it always has the newest."""

    def __init__(self, model: Transformer, end: int) -> None:
        self.model, self.end = model, end
        self.device = model.head.weight.device
        self.on_gpu = self.device.type == "cuda"
        name = "kernels" if self.on_gpu else "stepping"
        self.ops: Any = importlib.import_module(f"coterie.engines.torch.small.{name}")
        # Graphs remember their generator: the stream of a sampling comes in here and leaves again.
        self.generator = torch.Generator(self.device)
        self.memory: Memory | None = None
        self.tables: DeviceTables | None = None
        self.graphs: dict[tuple[object, ...], Callable[[], None]] = {}
        self.pool: Any = None
        self._forget_graphs()
        if self.on_gpu:
            self.beside = torch.cuda.Stream(self.device)
        self.busy = False

    def tasks_at_once(self, prompts: Sequence[Sequence[int]], group_size: int, max_tokens: int) -> int:
        """How many tasks' answers fit into memory together."""
        length = self._length(prompts, max_tokens)
        memory = self.memory
        if not self.on_gpu or (memory and memory.scratch >= len(prompts) * group_size and memory.length >= length):
            return len(prompts)
        held = (
            0 if memory is None else memory.scratch * Memory.bytes_a_row(self.model.shape, memory.length, memory.answer)
        )
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        free = torch.cuda.mem_get_info(self.device)[0] + unused + held
        rows = int(MEMORY_SHARE * free) // Memory.bytes_a_row(self.model.shape, length, max_tokens)
        if rows < group_size:
            raise torch.OutOfMemoryError(
                f"memory does not suffice for {group_size} answers of {max_tokens} tokens at once; "
                "lower group_size or max_tokens"
            )
        return min(len(prompts), rows // group_size)

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        constraint: Constraint,
        max_tokens: int,
        sampling: Sampling,
        generator: torch.Generator,
    ) -> Iterator[tuple[int, Drawn]]:
        """Draw group_size answers a prompt; yields (row, answer) as rows finish."""
        assert not self.busy, "answers are still being drawn: one sampling at a time"
        self.busy = True
        try:
            self.generator.set_state(generator.get_state())
            self._make_room(len(prompts) * group_size, self._length(prompts, max_tokens), max_tokens)
            bucket = self._begin(prompts, group_size, sampling, max_tokens)
            num_rows = len(prompts) * group_size
            if isinstance(constraint, TabledConstraint):
                self._follow(constraint)
                yield from self._draw_ahead(num_rows, group_size, bucket, max_tokens, sampling)
            else:
                yield from self._draw_with_host(num_rows, bucket, constraint, max_tokens, sampling)
        finally:
            generator.set_state(self.generator.get_state())
            self.busy = False

    def _length(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> int:
        return -(-(max(map(len, prompts)) + max_tokens) // 64) * 64

    def _make_room(self, num_rows: int, length: int, answer: int) -> None:
        slots = bucket_of(num_rows)
        old = self.memory
        if old is not None:
            if old.scratch >= slots and old.length >= length and old.answer >= answer:
                return
            length, answer = max(old.length, length), max(old.answer, answer)
        self._forget_graphs()
        self.memory = old = None
        self.memory = Memory(self.model.shape, slots, length, answer, self.device)
        angles = torch.arange(length, device=self.device)[:, None] * self.model.frequencies
        self.cos, self.sin = angles.cos(), angles.sin()

    def _begin(self, prompts: Sequence[Sequence[int]], group_size: int, sampling: Sampling, max_tokens: int) -> int:
        """All tokens of the prompts but the last go through the model, once a group."""
        memory = self._memory
        longest = max(map(len, prompts)) - 1
        if longest > 0:
            tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
            for row, prompt in enumerate(prompts):
                tokens[row, : len(prompt) - 1] = torch.tensor(prompt[:-1])
            positions = torch.arange(longest, device=self.device).expand(len(prompts), longest)
            self.model(tokens.to(self.device), positions, PromptCache(memory, group_size))
        return memory.begin(prompts, group_size, sampling, max_tokens)

    def _forget_graphs(self) -> None:
        """A pool ends with its last graph: the next ones get a new one."""
        self.graphs.clear()
        if self.on_gpu:
            self.pool = torch.cuda.graph_pool_handle()

    @property
    def _memory(self) -> Memory:
        assert self.memory is not None
        return self.memory

    def _follow(self, constraint: TabledConstraint) -> None:
        tables = constraint.tables
        if self.tables is None or not self.tables.holds(tables):
            self.tables = DeviceTables.upload(tables, self.device)
            self._forget_graphs()
        for mine, places in zip((self._memory.rows.state, self._memory.rows.count), constraint.places, strict=True):
            mine[: len(places)] = torch.from_numpy(places.astype(np.int32)).to(self.device)

    def _forward(self, bucket: int) -> None:
        """The last tokens go through the model; their logits go to `memory.logits`."""
        model, memory = self.model, self._memory
        slots, project = memory.slots[:bucket], self.ops.project
        x = model.embedding(memory.rows.token[slots])
        for layer, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            qkv = project(x, block.qkv.weight, block.attention_norm)
            keys, values = memory.keys[layer], memory.values[layer]
            mixed = self.ops.attend(qkv, keys, values, memory.rows, slots, self.cos, self.sin)
            project(mixed, block.attention_out.weight, add_to=x)
            project(project(x, block.gate_and_up.weight, block.mlp_norm, gated=True), block.down.weight, add_to=x)
        project(x, model.head.weight, model.norm, out=memory.logits[:bucket])

    def _draw(self, bucket: int, sampling: Sampling, tabled: bool) -> None:
        """The next tokens from `memory.logits`."""
        memory = self._memory
        slots, logits, noise = memory.slots[:bucket], memory.logits[:bucket], memory.noise[:bucket]
        tables = self.tables if tabled else None
        support = None if tabled else memory.mask[:bucket]
        greedy = sampling.temperature == 0
        if not greedy:
            noise.exponential_(generator=self.generator)
            if sampling.top_p < 1 or sampling.top_k > 0:
                rows = memory.rows
                legal = tables.legal(rows.state[slots], rows.count[slots]) if tables else memory.mask[:bucket]
                support = choose_support(logits, legal, sampling, memory.temperature)
        how = Drawing(memory.temperature, memory.max_tokens, self.end, greedy, tables)
        self.ops.draw(memory.rows, slots, logits, noise, support, how)

    def _token(self, bucket: int, sampling: Sampling) -> None:
        self._forward(bucket)
        self._draw(bucket, sampling, tabled=True)

    def _graph(self, kind: str, bucket: int, sampling: Sampling) -> Callable[[], None]:
        """A token, or its forward pass or its draw alone."""
        greedy = sampling.temperature == 0
        narrowed = () if greedy or kind == "forward" else (sampling.top_k, sampling.top_p)
        key = (kind, bucket, greedy and kind != "forward", *narrowed)
        if key not in self.graphs:
            works: dict[str, Callable[[], None]] = {
                "forward": lambda: self._forward(bucket),
                "draw": lambda: self._draw(bucket, sampling, tabled=False),
                "token": lambda: self._token(bucket, sampling),
            }
            self.graphs[key] = self._capture(works[kind], bucket) if self.on_gpu else works[kind]
        return self.graphs[key]

    def _capture(self, work: Callable[[], None], bucket: int) -> Callable[[], None]:
        """Run it once on scratch, so that kernels are compiled and chosen, then record it."""
        slots, state = self._memory.slots[:bucket], self.generator.get_state()
        kept = slots.clone()
        slots.fill_(self._memory.scratch)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
            side.synchronize()
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
        slots.copy_(kept)
        self.generator.set_state(state)
        return graph.replay

    def _draw_ahead(
        self, num_rows: int, group_size: int, bucket: int, max_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, Drawn]]:
        """Everything is on the device: launch some tokens, and look at the outcome of those before them."""
        memory = self._memory
        launched, known, asked = 0, np.zeros(num_rows, np.bool_), np.zeros(num_rows, np.bool_)
        flying: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        coming: deque[Coming] = deque()
        ready: deque[tuple[int, Drawn]] = deque()
        while not known.all() or coming or ready:
            # Always two launches ahead, so that the device never waits and what leaves does not depend on the clock.
            while launched < max_tokens and len(flying) < 2 and not known.all():
                token = self._graph("token", bucket, sampling)
                some = min(2 if bucket >= LARGE else 4, max_tokens - launched)
                for _ in range(some):
                    token()
                launched += some
                flying.append(self._ask(memory.rows.report))
            idle = not ready and not coming
            if flying and (idle or flying[0][1] is None or flying[0][1].query()):
                answer, event = flying.popleft()
                if event is not None:
                    event.synchronize()
                finish, drawn = answer.numpy()[:, :num_rows]
                known = finish != GOING
                whole = np.repeat(known.reshape(-1, group_size).all(1), group_size)
                new = np.flatnonzero(known & ~asked)
                # Answers come when a group is complete, or when there are many, so that few transfers are made.
                if (whole & ~asked).any() or len(new) >= num_rows * FETCH_SHARE:
                    asked[new] = True
                    coming.append(self._send(new, drawn[new], finish[new], event))
                num_left = num_rows - int(known.sum())
                if num_left == 0:
                    flying.clear()  # what was launched since then changes nothing
                elif bucket_of(num_left) < bucket:
                    bucket = self._shrink(bucket, num_left)
            elif coming and (not ready or coming[0].has_come()):
                ready.extend(coming.popleft().answers())
            if ready:
                yield ready.popleft()

    def _ask(self, tensor: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """A copy of it for the host, and when it has come."""
        if not self.on_gpu:
            return tensor.clone(), None
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return copy, event

    def _shrink(self, bucket: int, num_left: int) -> int:
        """Bring the slots that go on to the front. By now it may be fewer than num_left: the others do no harm."""
        memory, smaller = self._memory, bucket_of(num_left)
        slots = memory.slots[:bucket]
        order = (memory.rows.finish[slots] != GOING).to(torch.uint8).argsort(stable=True)
        memory.slots[:smaller] = slots[order[:smaller]]
        return smaller

    def _send(self, index: Ints, drawn: Ints, finish: Ints, event: torch.cuda.Event | None) -> Coming:
        """The answers of these rows set out for the host, beside what the device is doing."""
        rows, longest = self._memory.rows, max(int(drawn.max()), 1)
        with torch.cuda.stream(self.beside) if self.on_gpu else nullcontext():
            if event is not None:
                self.beside.wait_event(event)
            where = self._upload(index)
            parts = [part[where, :longest].view(torch.uint8) for part in (rows.tokens, rows.logprobs)]
            packed, came = self._ask(torch.cat([*parts, rows.support[where, :longest].flatten(1)], 1))
        return Coming(index, drawn, finish, longest, packed, came)

    def _draw_with_host(
        self, num_rows: int, bucket: int, constraint: Constraint, max_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, Drawn]]:
        """The host says what is legal; meanwhile the device computes the logits that this is about."""
        memory = self._memory
        rows, done = np.arange(num_rows), np.zeros(num_rows, np.bool_)
        coming: deque[Coming] = deque()
        legal: Bools = constraint.legal()
        self._graph("forward", bucket, sampling)()
        for t in range(max_tokens):
            memory.mask[: len(rows)].copy_(self._pinned(legal), non_blocking=True)
            self._graph("draw", bucket, sampling)()
            answer, event = self._ask(memory.rows.token[memory.slots[: len(rows)]])
            # Those who had finished a token ago leave now, before the next logits are computed in a new order.
            kept = np.flatnonzero(~done)
            if bucket_of(len(kept)) < bucket:
                bucket = bucket_of(len(kept))
                memory.slots[: len(kept)] = memory.slots[self._upload(kept)]
                memory.slots[len(kept) : bucket] = memory.scratch
            else:
                kept = np.arange(len(rows))
            if t + 1 < max_tokens:
                self._graph("forward", bucket, sampling)()
            stuck = ~done & ~legal.any(1)
            while coming and coming[0].has_come():
                yield from coming.popleft().answers()
            if event is not None:
                event.synchronize()
            token = np.where(done | stuck, self.end, answer.numpy())
            new = np.flatnonzero(~done & (stuck | (token == self.end) | (t + 1 == max_tokens)))
            if len(new):
                finish = np.where(stuck[new], DEAD_END, np.where(token[new] == self.end, STOP, LENGTH))
                coming.append(self._send(rows[new], t + ~stuck[new], finish, event))
            done[new] = True
            if done.all():
                break
            constraint.advance(token.astype(np.int64))
            if len(kept) < len(rows):
                constraint.keep(kept)
                rows, done = rows[kept], done[kept]
            legal = constraint.legal()
        for answers in coming:
            yield from answers.answers()

    def _pinned(self, array: Bools | Ints) -> Tensor:
        copy = torch.from_numpy(np.ascontiguousarray(array))
        return copy.pin_memory() if self.on_gpu else copy

    def _upload(self, array: Ints) -> Tensor:
        return self._pinned(array).to(self.device, non_blocking=True)
