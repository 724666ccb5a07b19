from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import GRPOConfig, GRPOTrainer
from coterie.worlds.base import World
from coterie.worlds.load import load_world

# Tests share their cores with other processes; one thread each is fastest.
torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def sums_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example world of docs/adding-a-world.md, as a user would save it."""
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/adding-a-world.md").read_text(), re.DOTALL)
    path = tmp_path_factory.mktemp("world") / "my_world.py"
    path.write_text(code)
    return path


@pytest.fixture(scope="session")
def sums(sums_file: Path) -> World:
    return load_world(str(sums_file))


@pytest.fixture
def small() -> dict[str, Any]:
    """Settings of a policy that trains in a blink."""
    return {"width": 16, "depth": 1, "heads": 2, "threads": 1, "workers": 1}


@pytest.fixture
def sums_trainer(sums_file: Path, small: dict[str, Any]) -> GRPOTrainer:
    config = GRPOConfig(world=str(sums_file), prompts_per_step=4, group_size=4, cold_start_steps=5, **small)
    return GRPOTrainer(config)
