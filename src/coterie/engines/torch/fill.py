"""The engine for texts with blanks: a bidirectional transformer that fills them all in one pass, or in several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from coterie.engines.base import Metrics, Sampling
from coterie.engines.torch.filling import fill_blanks, score_blanks
from coterie.engines.torch.learner import LearnerSettings
from coterie.engines.torch.policy import TorchPolicy
from coterie.engines.torch.small.transformer import PolicyShape
from coterie.rollouts import Completion, Finish, Group, Ints, Task, make_batch, pack_bits
from coterie.worlds.base import Example, FillLanguage, LanguageError


class FillEngine(TorchPolicy):
    """Samples and trains one policy that fills in."""

    def __init__(
        self,
        language: FillLanguage,
        shape: PolicyShape,
        settings: LearnerSettings,
        seed: int,
        device: str = "cpu",
        offload_reference: bool = False,
    ) -> None:
        assert not shape.causal, "to fill in, a place must see what comes after it"
        score = partial(score_blanks, mask=language.mask)
        super().__init__(language, shape, settings, seed, score, device, offload_reference)
        self.mask, self.fillable, self.fill_in = language.mask, language.fillable, language.fill_in

    def sample(self, tasks: Sequence[Task], group_size: int, sampling: Sampling) -> Iterator[tuple[int, Group]]:
        assert not sampling.begin, "an answer that is filled in has no beginning to go on from"
        prompts = [self.language.encode_prompt(task.prompt) for task in tasks]
        lengths = np.repeat([len(prompt) for prompt in prompts], group_size)
        rows = np.zeros((len(lengths), lengths.max()), np.int64)
        for row, length in enumerate(lengths):
            rows[row, :length] = prompts[row // group_size]
        filled = fill_blanks(
            self.model,
            torch.from_numpy(rows).to(self.device),
            torch.from_numpy(lengths).to(self.device),
            self.mask,
            torch.from_numpy(self.fillable).to(self.device),
            sampling,
            self.stream(sampling),
        )
        tokens, chosen = filled.tokens.cpu().numpy(), filled.chosen.cpu().numpy()
        logprobs, passes = filled.logprobs.cpu().numpy(), filled.passes.cpu().numpy()
        legal = pack_bits(filled.support.cpu().numpy())
        ends = np.cumsum(chosen.sum(1))
        completions = [
            Completion(
                tokens=tokens[row, :length],
                chosen=chosen[row, :length],
                logprobs=logprobs[row, :length],
                legal=legal[ends[row] - chosen[row].sum() : ends[row]],
                text=self.language.decode(tokens[row, :length].tolist()),
                finish=Finish.STOP,
                passes=passes[row, :length] if sampling.fill_passes > 1 else None,
            )
            for row, length in enumerate(lengths)
        ]
        for place, task in enumerate(tasks):
            yield place, Group(task, completions[place * group_size : (place + 1) * group_size])

    def imitate(self, examples: Sequence[Example], learning_rate: float) -> Metrics:
        """Examples that are not their task's text are left out and counted, and so are those without a blank."""
        groups: list[Group] = []
        refused = 0
        for example in examples:
            try:
                row = self.fill_in(example.task.prompt, example.answer)
            except LanguageError:
                refused += 1
                continue
            completion = self._known(example, np.array(row, np.int64))
            if completion.chosen.any():
                groups.append(Group(example.task, [completion]))
        blankless = len(examples) - refused - len(groups)
        left_out = {"cold_start_refused": float(refused), "cold_start_blankless": float(blankless)}
        if not groups:
            return left_out
        return {**self.learner.imitate(make_batch(groups, np.ones((len(groups), 1))), learning_rate), **left_out}

    def _known(self, example: Example, row: Ints) -> Completion:
        """A text as if it had been filled in, everything being possible."""
        chosen = np.array(self.language.encode_prompt(example.task.prompt)) == self.mask
        legal = np.broadcast_to(pack_bits(self.fillable), (int(chosen.sum()), (len(self.fillable) + 7) // 8))
        return Completion(row, chosen, np.zeros(len(row), np.float32), legal, example.answer, Finish.STOP)
