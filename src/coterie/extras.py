"""Packages that not everyone needs."""

from __future__ import annotations

import importlib
from typing import Any


class MissingExtra(ImportError):
    """An extra is not installed; the message is the command that installs it."""


def require(module: str, extra: str) -> Any:
    """The module, or a sentence on how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(f"{module} is not installed; run: pip install 'coterie[{extra}]'") from None
