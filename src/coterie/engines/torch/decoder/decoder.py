"""Writes the answers of a step: prompts once, a graph a token, rows that leave when done and others that enter."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from coterie.engines.base import Sampling
from coterie.engines.torch.decoder import twins
from coterie.engines.torch.decoder.layers import why_not_fused
from coterie.engines.torch.decoder.slots import ENDS, Room, Slots, bytes_a_place
from coterie.engines.torch.decoder.steps import BUCKETS, PROMPT_STEP, Steps, is_narrow
from coterie.engines.torch.pretrained import LanguageModel
from coterie.engines.torch.small.decoding import Drawn
from coterie.engines.torch.transfer import to_device
from coterie.rollouts import Bits, Finish, Ints, pack_bits
from coterie.worlds.base import Constraint

POLL = 4  # tokens between two looks at who is finished
MEMORY_SHARE = 0.6  # of what is free, for keys and values


@runtime_checkable
class Packing(Protocol):
    """A constraint that says packed what is legal, which is quicker where the vocabulary is large."""

    def packed(self) -> Bits: ...


@dataclass
class Job:
    """What an occupied slot is for."""

    answer: int
    issued: int = 0  # tokens asked for so far


@dataclass(frozen=True)
class Look:
    """Who was finished at some moment, on its way to the host."""

    finished: Tensor
    length: Tensor
    event: torch.cuda.Event | None
    answers: dict[int, int]  # in which slot each was being written then

    def is_for(self, slot: int, jobs: Mapping[int, Job]) -> bool:
        """Whether the slot is still being written in by the same answer."""
        return slot in jobs and self.answers.get(slot) == jobs[slot].answer


class Decoder:
    """Shares the learner's weights: what an update makes of them is what the next answer is drawn from."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.device = model, model.device
        config = model.causal.config.get_text_config()
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.shape = (config.num_hidden_layers, kv_heads, width, model.causal.dtype)
        self.why_own_layers = why_not_fused(model.causal)
        self.steps: Steps | None = None
        self.asked = Room(0, 0, 0, 0)
        self.aside = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def describe(self) -> str:
        layers = f"the model's own layers ({self.why_own_layers})" if self.why_own_layers else "fused layers"
        if self.aside is None:
            return f"sampling by plain operations over {layers}"
        from coterie.engines.torch.decoder.early import FEW_ROWS
        from coterie.engines.torch.decoder.narrow import have_room

        ours = not self.why_own_layers and have_room(self.device, self.model.causal.dtype)
        products = f", products of up to {FEW_ROWS} rows by Triton kernels" if ours else ""
        return f"sampling by CUDA graphs over {layers}{products}"

    def make_room(self, num_prompts: int, longest_prompt: int, num_answers: int, max_tokens: int) -> Steps:
        """Slots for as many answers as fit; graphs know only the slots they were captured with."""
        places = -(-max_tokens // PROMPT_STEP) * PROMPT_STEP
        slots_wanted = min(num_answers, BUCKETS[-1])
        wanted = Room(num_prompts, -(-longest_prompt // PROMPT_STEP) * PROMPT_STEP, slots_wanted, places)
        if self.steps is not None:
            if self.asked.holds(wanted):
                return self.steps
            names = Room.__dataclass_fields__
            wanted = Room(*(max(getattr(self.asked, name), getattr(wanted, name)) for name in names))
        self.release()
        self.asked = wanted  # of which as many slots are had as memory allows
        if self.device.type == "cuda":
            cached = bytes_a_place(*self.shape)
            each = cached + self.model.vocabulary / 8  # with the support, in case it is kept
            free = (
                MEMORY_SHARE * torch.cuda.mem_get_info(self.device)[0] - cached * wanted.prompts * wanted.prompt_places
            )
            wanted = replace(wanted, slots=max(1, min(wanted.slots, int(free / each / (wanted.places + 1)))))
        slots = Slots(wanted, *self.shape, self.device)
        self.steps = Steps(self.model, slots, not self.why_own_layers, self._operations())
        return self.steps

    def _operations(self) -> ModuleType:
        if self.device.type != "cuda":
            return twins
        from coterie.engines.torch.decoder import kernels

        return kernels

    def release(self) -> None:
        """Give the memory of keys, values and graphs back."""
        self.steps = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        ends: Collection[int],
        max_tokens: int,
        sampling: Sampling,
        generator: torch.Generator,
        constraint: Constraint | None = None,
        limits: Ints | None = None,
    ) -> Iterator[tuple[int, Drawn]]:
        """Draw group_size answers a prompt; yields (row, answer) as rows finish.

        `limits` bounds single answers, unknown to the host: with it benchmarks make lengths that nobody can foresee.
        """
        self.model.learn(False)
        num_answers = len(prompts) * group_size
        steps = self.make_room(len(prompts), max(map(len, prompts)), num_answers, max_tokens)
        slots = steps.slots
        slots.temperature.fill_(sampling.temperature or 1.0)
        slots.seed.fill_(int(torch.randint(2**62, (1,), generator=generator, device=generator.device)))
        slots.ends.copy_(to_device(np.array([*ends, *[-1] * (ENDS - len(ends))], np.int32), self.device))
        if is_narrow(sampling) or constraint is not None:
            slots.keep_support(-(-self.model.vocabulary // 8))
        steps.read_prompts(prompts)
        bounds = np.full(num_answers, max_tokens) if limits is None else limits
        order = Order(slots, prompts, group_size, bounds)
        keeps = sampling.temperature > 0 and (constraint is not None or is_narrow(sampling))
        if constraint is None:
            yield from self._free(steps, order, max_tokens, sampling, frozenset(ends), keeps)
        else:
            yield from self._guided(steps, order, max_tokens, sampling, frozenset(ends), keeps, constraint)

    def _free(
        self, steps: Steps, order: Order, max_tokens: int, sampling: Sampling, ends: frozenset[int], keeps: bool
    ) -> Iterator[tuple[int, Drawn]]:
        """Nothing waits for the host: it looks at what was true some tokens ago."""
        jobs: dict[int, Job] = {}
        looks: deque[Look] = deque()
        size, rows = 0, tuple[int, ...]()
        while True:
            entered = order.enter(jobs)
            going = tuple(sorted(slot for slot, job in jobs.items() if job.issued < max_tokens))
            if entered or (going != rows and (bucket_smaller(size, len(going)) or not set(going) <= set(rows))):
                rows, size = going, steps.choose(going) if going else 0
            count = min(POLL, max((max_tokens - jobs[slot].issued for slot in going), default=0))
            for burst in [POLL] if count == POLL else [1] * count:
                steps.write(size, sampling, burst)
            for slot in going:
                jobs[slot].issued += count
            looks.append(self._look(steps.slots, jobs))
            # The look before the last has arrived by now; when nothing goes on, neither need the last one wait.
            while len(looks) > (1 if going else 0):
                look = looks.popleft()
                if look.event is not None:
                    look.event.synchronize()
                done = [slot for slot in np.flatnonzero(look.finished.numpy()).tolist() if look.is_for(slot, jobs)]
                for slot, drawn in self._collect(steps.slots, done, look, ends, keeps):
                    yield jobs.pop(slot).answer, drawn
            if not jobs and not order.waiting:
                return

    def _guided(
        self, steps: Steps, order: Order, max_tokens: int, sampling: Sampling, ends: frozenset[int], keeps: bool,
        constraint: Constraint,
    ) -> Iterator[tuple[int, Drawn]]:  # fmt: skip
        """The host says what is legal, while the device computes what is likely."""
        jobs: dict[int, Job] = {}
        order.enter(jobs)
        if order.waiting:
            raise torch.OutOfMemoryError("under a grammar all answers of a step are written at once")
        slots, rows = steps.slots, list(jobs)
        size = steps.choose(rows)
        steps.forward(size)
        for _ in range(max_tokens):
            legal = constraint.packed() if isinstance(constraint, Packing) else pack_bits(constraint.legal())
            stuck = ~legal.any(1)
            if stuck.any():
                ended = [rows[i] for i in np.flatnonzero(stuck)]
                for slot, drawn in self._collect(slots, ended, self._look(slots, jobs), ends, keeps):
                    yield jobs.pop(slot).answer, replace(drawn, finish=Finish.DEAD_END)
                kept = np.flatnonzero(~stuck)
                constraint.keep(kept)
                legal, rows = legal[kept], [rows[i] for i in kept]
                if not rows:
                    return
                size = steps.choose(rows)
                steps.forward(size)  # the same tokens again: their places did not move
            steps.allow(size, legal)
            steps.draw(size, sampling)
            look = self._look(slots, jobs)
            tokens = slots.token[torch.tensor(rows, device=self.device)].cpu().numpy().astype(np.int64)
            if look.event is not None:
                look.event.synchronize()
            going = np.flatnonzero(look.finished.numpy()[rows] == 0)
            before, rows = rows, [rows[i] for i in going]
            if rows:
                if len(rows) < len(before):
                    size = steps.choose(rows)
                steps.forward(size)  # from here on the device is busy
            for slot, drawn in self._collect(slots, sorted({*before} - {*rows}), look, ends, keeps):
                yield jobs.pop(slot).answer, drawn
            if not rows:
                return
            constraint.advance(tokens)
            if len(rows) < len(before):
                constraint.keep(going)

    def _look(self, slots: Slots, jobs: dict[int, Job]) -> Look:
        answers = {slot: job.answer for slot, job in jobs.items()}
        if self.aside is None:
            return Look(slots.finished.clone(), slots.length.clone(), None, answers)
        finished, length = (
            torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
            for x in (slots.finished, slots.length)
        )
        event = torch.cuda.Event()
        event.record()
        return Look(finished, length, event, answers)

    def _collect(
        self, slots: Slots, done: Sequence[int], look: Look, ends: frozenset[int], keeps: bool
    ) -> Iterator[tuple[int, Drawn]]:
        """What finished slots hold, fetched beside the stream in which others go on."""
        if not len(done):
            return
        if look.event is not None:
            look.event.synchronize()
        lengths = look.length.numpy()[list(done)]
        longest = int(lengths.max())
        with torch.cuda.stream(self.aside):
            which = to_device(np.array(done), self.device)
            tokens = slots.tokens[which, :longest].cpu().numpy().astype(np.int64)
            logprobs = slots.logprobs[which, :longest].cpu().numpy()
            support = slots.support[which, :longest].cpu().numpy() if keeps and slots.support is not None else None
        for row, (slot, length) in enumerate(zip(done, lengths, strict=True)):
            stopped = length > 0 and int(tokens[row, length - 1]) in ends
            kept = None if support is None else support[row, :length]
            finish = Finish.STOP if stopped else Finish.LENGTH
            yield int(slot), Drawn(tokens[row, :length], logprobs[row, :length], kept, finish)


def bucket_smaller(size: int, count: int) -> bool:
    """Whether so many rows fit into a smaller bucket."""
    return size == 0 or any(count <= smaller < size for smaller in BUCKETS)


class Order:
    """The answers of a step in their order, and the slots that are free for them."""

    def __init__(self, slots: Slots, prompts: Sequence[Sequence[int]], group_size: int, limits: Ints) -> None:
        self.slots, self.group_size = slots, group_size
        self.waiting = deque(range(len(prompts) * group_size))
        self.last_tokens = np.array([prompt[-1] for prompt in prompts])
        self.limits = limits

    def enter(self, jobs: dict[int, Job]) -> bool:
        """Give waiting answers the slots that nobody writes in."""
        free = [slot for slot in range(self.slots.room.slots) if slot not in jobs][: len(self.waiting)]
        if not free:
            return False
        answers = [self.waiting.popleft() for _ in free]
        prompts = np.array(answers) // self.group_size
        zeros = np.zeros(len(free), np.int32)
        slots, told = self.slots, (answers, prompts, self.last_tokens[prompts], self.limits[answers], zeros, zeros)
        buffers = (slots.answer, slots.prompt, slots.token, slots.limit, slots.length, slots.finished)
        which, *values = to_device(np.array([free, *told], np.int32), slots.token.device)
        where = which.long()
        for buffer, value in zip(buffers, values, strict=True):
            buffer.index_copy_(0, where, value)
        jobs.update({slot: Job(answer) for slot, answer in zip(free, answers, strict=True)})
        return True
