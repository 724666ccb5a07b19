"""What is done for a token or a prompt, by buckets of rows, each captured once as a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from coterie.engines.base import Sampling
from coterie.engines.torch.decoder.graphs import Replayed
from coterie.engines.torch.decoder.layers import FusedLayers
from coterie.engines.torch.decoder.reading import DecodeLayout, PromptLayout
from coterie.engines.torch.decoder.slots import Slots
from coterie.engines.torch.pretrained import LanguageModel
from coterie.engines.torch.small.decoding import choose_support
from coterie.engines.torch.transfer import pack, to_device, unpack
from coterie.rollouts import Bits

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PROMPT_TOKENS = 16_384  # read at once
PROMPT_STEP = 64  # prompts are padded to multiples of this


def bucket_of(count: int) -> int:
    """The rows that a graph for so many has."""
    return next((size for size in BUCKETS if size >= count), count)


class Steps:
    """The graphs of one model on one set of slots."""

    def __init__(self, model: LanguageModel, slots: Slots, fuse: bool, operations: ModuleType) -> None:
        self.model, self.slots, self.operations = model, slots, operations
        self.device = model.device
        positions = slots.room.prompt_places + slots.room.places + 1
        self.fused = FusedLayers(model.causal, positions, operations) if fuse else None
        self.head = plain_head(model)
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.graphs: dict[tuple[object, ...], Replayed] = {}
        self.buffers: dict[tuple[object, ...], Tensor] = {}

    def buffer(self, *key: object, make: Callable[[], Tensor]) -> Tensor:
        """A tensor that stays where it is, made when first wanted."""
        if key not in self.buffers:
            self.buffers[key] = make()
        return self.buffers[key]

    # Prompts.

    def read_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Keys and values of every prompt but for its last token, which each sibling reads for itself."""
        lengths = np.array([len(prompt) - 1 for prompt in prompts], np.int32)
        self.slots.prompt_length[: len(prompts)] = to_device(lengths, self.device)
        order = sorted((row for row in range(len(prompts)) if len(prompts[row]) > 1), key=lambda row: len(prompts[row]))
        while order:
            width = -(-(len(prompts[order[-1]]) - 1) // PROMPT_STEP) * PROMPT_STEP
            count = max(1, PROMPT_TOKENS // width)
            rows, order = order[-count:], order[:-count]
            self._read(rows, [prompts[row][:-1] for row in rows], width)

    def _read(self, rows: Sequence[int], prompts: Sequence[Sequence[int]], width: int) -> None:
        """Prompts of like length, padded on the right, where causality hides it."""
        size, nobody = bucket_of(len(rows)), self.slots.room.prompts
        which = self.buffer("which", size, make=lambda: torch.full((size,), nobody, device=self.device))
        make = lambda: torch.zeros(size, width, dtype=torch.long, device=self.device)  # noqa: E731
        tokens = self.buffer("prompts", size, width, make=make)
        layout = PromptLayout(self.slots, which)

        def work() -> None:
            if self.fused is not None:
                self.fused.read(tokens, layout)
            else:
                self.model(tokens, layout=layout)

        if ("read", size, width) not in self.graphs:
            which.fill_(nobody)  # warming up must not touch anybody's
            self.graphs["read", size, width] = Replayed(work, self.device, self.pool)
        padded = np.zeros((size, width), np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = prompt
        which.copy_(to_device(np.array([*rows, *[nobody] * (size - len(rows))]), self.device))
        tokens.copy_(to_device(padded, self.device))
        self.graphs["read", size, width]()

    # Tokens.

    def choose(self, rows: Sequence[int]) -> int:
        """The bucket for these slots, told which they are."""
        size = bucket_of(len(rows))
        nobody = self.slots.room.slots
        padded = np.array([*rows, *[nobody] * (size - len(rows))], np.int32)
        self.active(size).copy_(to_device(padded, self.device))
        return size

    def active(self, size: int) -> Tensor:
        """[size]: the slots of a bucket's rows."""
        nobody = self.slots.room.slots
        make = lambda: torch.full((size,), nobody, dtype=torch.int32, device=self.device)  # noqa: E731
        return self.buffer("active", size, make=make)

    def forward(self, size: int) -> None:
        """The logits after each row's newest token."""
        self._for_nobody(("forward", size), size, lambda: self._forward(size))

    def draw(self, size: int, sampling: Sampling) -> None:
        """A token a row from those logits, as far as it is allowed."""
        key = ("draw", size, *kind_of(sampling))
        self._for_nobody(key, size, lambda: self._draw(size, sampling, guided=True))

    def write(self, size: int, sampling: Sampling, count: int) -> None:
        """So many tokens a row, all in one graph."""

        def work() -> None:
            for _ in range(count):
                self._forward(size)
                self._draw(size, sampling, guided=False)

        self._for_nobody(("write", size, count, *kind_of(sampling)), size, work)

    def _for_nobody(self, key: tuple[object, ...], size: int, work: Callable[[], None]) -> None:
        """Replay; if it must be captured first, warm up on rows that are nobody's."""
        if key not in self.graphs:
            active = self.active(size)
            wanted = active.clone()
            active.fill_(self.slots.room.slots)
            self.graphs[key] = Replayed(work, self.device, self.pool)
            active.copy_(wanted)
        self.graphs[key]()

    def _forward(self, size: int) -> None:
        slots, active = self.slots, self.active(size)
        if self.fused is not None:
            hidden = self.fused(slots, active)
        else:
            rows = slots.rows(active)
            tokens = slots.token.index_select(0, active).long()[:, None]
            layout = DecodeLayout(slots, rows, self.operations)
            hidden = self.model(tokens, positions=rows.position.long()[:, None], layout=layout)[:, 0]
        if self.head is None:
            logits = self.model.logits(hidden)
            self.buffer("logits", size, make=lambda: torch.empty_like(logits)).copy_(logits)
        else:
            make = lambda: hidden.new_empty(size, len(self.head))  # noqa: E731
            self.operations.linear(hidden, self.head, out=self.buffer("logits", size, make=make))

    def _draw(self, size: int, sampling: Sampling, guided: bool) -> None:
        slots, active, logits = self.slots, self.active(size), self.buffers["logits", size]
        greedy = sampling.temperature == 0
        support = self.legal(size) if guided else None
        if is_narrow(sampling):
            full = logits.float()
            legal = torch.ones_like(full, dtype=torch.bool) if support is None else unpack(support, full.shape[1])
            support = pack(choose_support(full, legal, sampling))
        if support is not None and not greedy:
            # A finished slot has a place left over to write to.
            kept = slots.keep_support(support.shape[1])
            kept[active.long(), slots.length.index_select(0, active).long()] = support
        self.operations.draw(logits, slots, active, greedy, support)

    def legal(self, size: int) -> Tensor:
        """[size, bytes]: what a grammar allows each row."""
        num_bytes = -(-self.model.vocabulary // 8)
        make = lambda: torch.full((size, num_bytes), 255, dtype=torch.uint8, device=self.device)  # noqa: E731
        return self.buffer("legal", size, make=make)

    def allow(self, size: int, legal: Bits) -> None:
        """Tell a bucket what its first rows may draw."""
        self.legal(size)[: len(legal)].copy_(to_device(legal, self.device))


def plain_head(model: LanguageModel) -> Tensor | None:
    """The weights that make logits where nothing more is done: those stay in the model's precision, half the bytes."""
    config, head = model.causal.config.get_text_config(), model.causal.get_output_embeddings()
    special = any(getattr(config, name, None) for name in ("logit_scale", "logits_scaling", "final_logit_softcapping"))
    plain = type(head) is torch.nn.Linear and head.bias is None and not special
    return head.weight.data if plain else None


def kind_of(sampling: Sampling) -> tuple[object, ...]:
    """What a graph for drawing is captured for; where nothing narrows it reads the temperature from the slots."""
    narrowing = (sampling.top_p, sampling.top_k, sampling.temperature) if is_narrow(sampling) else ()
    return (sampling.temperature == 0, *narrowing)


def is_narrow(sampling: Sampling) -> bool:
    """Whether top-k or top-p leave less than everything."""
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0)
