"""The contract of an engine: who samples and who learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coterie.rollouts import Batch, Bools, Floats, Group, Ints, Task
from coterie.worlds.base import Example

Metrics = dict[str, float]


class OutOfStep(ArithmeticError):
    """Training cannot go on: update after update had a gradient that is not finite."""


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    max_tokens: int | None = None  # None: as long as the language allows
    seed: int | None = None  # a random stream of its own; None: the engine's, which moves on
    begin: str = ""  # the beginning of every answer, to be gone on from
    fill_passes: int = 1  # of a policy that fills in: the surest blanks first, the others with those in sight


@dataclass(frozen=True)
class Dials:
    """What may change from one update to the next."""

    learning_rate: float
    temperature: float = 1.0  # of the sampling that is learned from
    kl_coef: float = 0.0
    entropy_coef: float = 0.0


class Judge(Protocol):
    """A frozen critic of texts, evaluated in batches; any function of this form is one."""

    def __call__(self, texts: Sequence[str], tasks: Sequence[Task], /) -> Sequence[float]:
        """How good each text is as an answer to its task; the higher the better."""
        ...


@dataclass(frozen=True)
class Specimen:
    """A text for a judge to learn from, and which of its tokens are not the true ones."""

    tokens: Ints  # [T]
    replaced: Bools  # [T]


class NewJudge(Judge, Protocol):
    """A judge that is still to be trained."""

    def learn(self, specimens: Sequence[Specimen], learning_rate: float) -> Metrics:
        """One supervised update."""
        ...


class Engine(Protocol):
    """A policy, its optimizer and, where wanted, a frozen reference."""

    def sample(self, tasks: Sequence[Task], group_size: int, sampling: Sampling) -> Iterator[tuple[int, Group]]:
        """Answer each task group_size times; a group comes, with its task's place, when it is complete."""
        ...

    def reference_logprobs(self, batch: Batch, temperature: float) -> Floats:
        """[N, T]: the batch under the reference, which is the policy itself if there was none yet."""
        ...

    def blend_reference(self, old_share: float) -> None:
        """reference = old_share * reference + (1 - old_share) * policy; 0 copies the policy."""
        ...

    def update(self, batch: Batch, dials: Dials) -> Metrics:
        """Learn from one step's rows."""
        ...

    def imitate(self, examples: Sequence[Example], learning_rate: float) -> Metrics:
        """One supervised update on examples."""
        ...

    def save(self, folder: Path) -> None:
        """Write all that resuming needs, as safetensors and JSON."""
        ...

    def load(self, folder: Path) -> None:
        """Become exactly what was saved."""
        ...

    def load_policy(self, folder: Path) -> None:
        """Take only the weights, to start another run from them."""
        ...

    def describe(self) -> str:
        """What runs, in a line."""
        ...
