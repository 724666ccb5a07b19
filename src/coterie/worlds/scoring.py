"""Scores groups in worker processes, so that a world that hangs, dies or raises costs one answer.

A group goes to workers in shares of some answers; whole, where siblings are compared. If a worker does
not come back within one answer's time limit, dies, or raises, its share is scored again answer by answer,
each on its own, and whoever fails then is the culprit. Equal answers to a task are scored once, and what
is already being scored is waited for: `prefetch` starts the work while sampling goes on, `score` collects it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import multiprocessing
import signal
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Self

from coterie.rollouts import Group, Score, Task
from coterie.worlds.base import World

CACHE_SIZE = 100_000
SHARE = 16  # answers: a large group then keeps every worker busy to its end
# fork starts a worker in milliseconds and needs neither a picklable world nor a guarded main module.
START_METHOD = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


STARTING = threading.Lock()  # warning filters are one for all threads


class WorkerFailure(Exception):
    """A worker did not deliver; the message says why."""


def serve(world: World, pipe: Connection) -> None:
    """A worker's life: groups in, scores out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the trainer, which finishes its step
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the trainer
    while True:
        try:
            task, answers = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(judge(world, task, answers))
        except Exception as error:  # whatever a world raises is its answer's fault, and is told
            pipe.send(f"raised {type(error).__name__}: {error}"[:500])


def judge(world: World, task: Task, answers: Sequence[str]) -> list[Score] | str:
    """The world's scores, or what is wrong with them."""
    scores = world.score(task, answers)
    if len(scores) != len(answers):
        return f"gave {len(scores)} scores for {len(answers)} answers"
    if any(not math.isfinite(score.total) for score in scores):
        if len(scores) == 1:
            return f"gave a total of {scores[0].total}"
        return "gave a total that is not finite"
    return scores


class Worker:
    """One process, started when first needed and again after each failure."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self.closed = False

    def score(self, task: Task, answers: Sequence[str], limit_s: float) -> list[Score]:
        if self.closed:
            raise RuntimeError("scoring was stopped")
        if self.process is None or self.pipe is None or not self.process.is_alive():
            self._start()
        assert self.process is not None and self.pipe is not None
        try:
            self.pipe.send((task, list(answers)))
            if not self.pipe.poll(limit_s):
                self.stop()
                raise WorkerFailure(f"took longer than {limit_s:g} s")
            reply = self.pipe.recv()
        except (EOFError, OSError) as error:
            process = self.process
            self.stop()
            raise WorkerFailure(f"died with exit code {process.exitcode}") from error
        if isinstance(reply, str):
            raise WorkerFailure(reply)
        scores: list[Score] = reply
        return scores

    def _start(self) -> None:
        context = multiprocessing.get_context(START_METHOD)
        self.pipe, theirs = context.Pipe()
        process = context.Process(target=serve, args=(self.world, theirs), daemon=True)  # type: ignore[attr-defined]
        with STARTING, warnings.catch_warnings():
            # Python and jax warn of forking beside threads; the child runs the world only, none of theirs.
            warnings.filterwarnings("ignore", message=".*fork.*")
            process.start()
        theirs.close()
        self.process = process

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


class Scorer:
    """A pool of workers for one world, and a cache of what they said."""

    def __init__(self, world: World, num_workers: int, answer_limit_s: float) -> None:
        self.world, self.answer_limit_s = world, answer_limit_s
        self.cache: OrderedDict[tuple[str, str], Future[Score]] = OrderedDict()
        self.slow = False  # whether groups take longer than an answer's limit though nothing fails
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="scoring")
        self._workers: list[Worker] = []
        self._own = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers at once; what they had not finished is lost."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.closed = True
            with contextlib.suppress(OSError, ValueError):
                worker.stop()

    def prefetch(self, task: Task, answers: Sequence[str]) -> None:
        """Begin scoring what is not known yet."""
        keys = self._keys(task, answers)
        fresh = {key: answer for key, answer in zip(keys, answers, strict=True) if key not in self.cache}
        if not fresh:
            return
        promised: list[Future[Score]] = [Future() for _ in fresh]
        self.cache.update(zip(fresh, promised, strict=True))
        share = len(fresh) if self.world.compares_siblings else SHARE
        for first in range(0, len(fresh), share):
            part = slice(first, first + share)
            self._threads.submit(self._fulfil, task, list(fresh.values())[part], promised[part])

    def _keys(self, task: Task, answers: Sequence[str]) -> list[tuple[str, str]]:
        """What each score is remembered by: the answer, or its place among siblings where these matter."""
        if not self.world.compares_siblings:
            return [(task.id, answer) for answer in answers]
        group = hashlib.sha256("\0".join(answers).encode(errors="replace")).hexdigest()
        return [(task.id, f"{group}-{place}") for place in range(len(answers))]

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        """The score of each answer; one on which the world failed gets its siblings' lowest total."""
        self.prefetch(task, answers)
        scores = [self.cache[key].result() for key in self._keys(task, answers)]
        while len(self.cache) > CACHE_SIZE:
            self.cache.popitem(last=False)
        lowest = min((s.total for s in scores if not s.fault), default=0.0)
        return [replace(s, total=lowest) if s.fault else s for s in scores]

    def prepare(self) -> None:
        """Nothing is to be made ready: workers start when they are first needed."""

    def score_groups(self, groups: Sequence[Group]) -> list[list[Score]]:
        """The scores of a whole step."""
        return [self.score(group.task, group.answers) for group in groups]

    def _fulfil(self, task: Task, answers: list[str], promised: list[Future[Score]]) -> None:
        try:
            scores = self._score_group(task, answers)
        except BaseException as error:
            for promise in promised:
                promise.set_exception(error)
            raise
        for promise, score in zip(promised, scores, strict=True):
            promise.set_result(score)

    def _score_group(self, task: Task, answers: list[str]) -> list[Score]:
        worker = self._worker()
        # Siblings that are compared are judged together, however long that takes within each one's limit.
        together = len(answers) if self.world.compares_siblings else 1
        if len(answers) > 1 and not self.slow:
            try:
                return worker.score(task, answers, self.answer_limit_s * together)
            except WorkerFailure:
                pass  # who is to blame shows below
        scores = []
        for answer in answers:
            try:
                scores += worker.score(task, [answer], self.answer_limit_s)
            except WorkerFailure as failure:
                scores.append(Score(total=0.0, valid=False, note=f"the world {failure}", fault=_kind(str(failure))))
        if len(answers) > together and not any(score.fault for score in scores):
            self.slow = True
        return scores

    def _worker(self) -> Worker:
        if not hasattr(self._own, "worker"):
            self._own.worker = Worker(self.world)
            self._workers.append(self._own.worker)
        worker: Worker = self._own.worker
        return worker


def _kind(reason: str) -> str:
    """A short name for metrics: timeout, died, raised or nonsense."""
    first = reason.split()[0]
    return {"took": "timeout", "died": "died", "raised": "raised"}.get(first, "nonsense")
