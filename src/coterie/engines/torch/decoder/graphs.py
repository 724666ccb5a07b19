"""Work that is captured once as a CUDA graph and then replayed; without CUDA it is simply done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 2  # before capture: libraries choose their kernels, Triton compiles


class Replayed:
    """Work on buffers that stay where they are."""

    def __init__(self, work: Callable[[], None], device: torch.device, pool: Any) -> None:
        self.work, self.graph = work, None
        if device.type != "cuda":
            return
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream(device).wait_stream(aside)
        torch.cuda.synchronize(device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            work()

    def __call__(self) -> None:
        if self.graph is None:
            self.work()
        else:
            self.graph.replay()
