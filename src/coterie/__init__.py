"""Coterie trains generators to make things that can be checked."""

from coterie.build import GRPOTrainer
from coterie.config import GRPOConfig
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
    "load_world",
]
__version__ = "0.1.0"
