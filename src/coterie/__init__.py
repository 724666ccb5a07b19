"""Coterie trains generators to make things that can be checked."""

import os

# Threads that spin while they wait make torch several times slower as soon as another process, such
# as one that scores, wants their core. Read when torch is first imported; what a user sets stays.
os.environ.setdefault("GOMP_SPINCOUNT", "100")
os.environ.setdefault("KMP_BLOCKTIME", "1")

from coterie.build import GRPOTrainer
from coterie.config import GRPOConfig
from coterie.own_rollouts import grpo_update
from coterie.rollouts import Score, Task
from coterie.worlds.base import Characters, Constraint, Example, Language, World
from coterie.worlds.load import load_world

__all__ = [
    "Characters",
    "Constraint",
    "Example",
    "GRPOConfig",
    "GRPOTrainer",
    "Language",
    "Score",
    "Task",
    "World",
    "grpo_update",
    "load_world",
]
__version__ = "0.1.0"
