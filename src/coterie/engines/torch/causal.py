"""The engine for closed languages: a small transformer, trained from scratch, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from coterie.engines.base import Metrics, Sampling
from coterie.engines.torch.decoding import Drawn, decode
from coterie.engines.torch.learner import LearnerSettings, score_places
from coterie.engines.torch.policy import TorchPolicy
from coterie.engines.torch.transformer import PolicyShape
from coterie.rollouts import Completion, Finish, Group, Task, make_batch
from coterie.worlds.base import Example, Language, LanguageError, trace_legal


class CausalEngine(TorchPolicy):
    """Samples and trains one policy in one language."""

    def __init__(
        self,
        language: Language,
        shape: PolicyShape,
        settings: LearnerSettings,
        seed: int,
        device: str = "cpu",
        offload_reference: bool = False,
    ) -> None:
        super().__init__(language, shape, settings, seed, score_places, device, offload_reference)

    def sample(self, tasks: Sequence[Task], group_size: int, sampling: Sampling) -> Iterator[tuple[int, Group]]:
        language = self.language
        begun = language.encode(sampling.begin)[:-1] if sampling.begin else []
        prompts = [language.encode_prompt(task.prompt) + begun for task in tasks]
        constraint = language.constraint([task for task in tasks for _ in range(group_size)])
        for token in begun:
            constraint.advance(np.full(len(tasks) * group_size, token))
        room = language.max_tokens - len(begun)
        max_tokens = min(sampling.max_tokens or room, room)
        waiting: dict[int, dict[int, Completion]] = {i: {} for i in range(len(tasks))}
        drawn = decode(
            self.model, prompts, group_size, constraint, language.end, max_tokens, sampling, self.stream(sampling)
        )
        for row, answer in drawn:
            place, sibling = divmod(row, group_size)
            waiting[place][sibling] = self._complete(prompts[place], answer, begun)
            if len(waiting[place]) == group_size:
                siblings = waiting.pop(place)
                yield place, Group(tasks[place], [siblings[i] for i in range(group_size)])

    def _complete(self, prompt: list[int], answer: Drawn, begun: Sequence[int] = ()) -> Completion:
        blank = np.zeros(len(prompt), np.float32)
        return Completion(
            tokens=np.concatenate([np.array(prompt, np.int64), answer.tokens]),
            chosen=np.concatenate([blank.astype(np.bool_), np.ones(len(answer.tokens), np.bool_)]),
            logprobs=np.concatenate([blank, answer.logprobs]),
            legal=None if answer.support is None else answer.support.copy(),
            text=self.language.decode([*begun, *answer.tokens.tolist()]),
            finish=answer.finish,
        )

    def imitate(self, examples: Sequence[Example], learning_rate: float) -> Metrics:
        """Examples that the language or its constraint refuses are left out and counted."""
        tasks, answers = [], []
        for example in examples:
            try:
                answers.append(self.language.encode(example.answer))
                tasks.append(example.task)
            except LanguageError:
                continue
        groups = []
        for task, answer, legal in zip(tasks, answers, trace_legal(self.language, tasks, answers), strict=True):
            if legal is not None:
                tokens = np.array(answer, np.int64)
                drawn = Drawn(tokens, np.zeros(len(tokens), np.float32), legal, Finish.STOP)
                groups.append(Group(task, [self._complete(self.language.encode_prompt(task.prompt), drawn)]))
        refused = {"cold_start_refused": float(len(examples) - len(groups))}
        if not groups:
            return refused
        batch = make_batch(groups, np.ones((len(groups), 1)))
        return {**self.learner.imitate(batch, learning_rate), **refused}
