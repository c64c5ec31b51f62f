"""Running a program on a GPU, with PyTorch's CUDA tensors where they are and on PyTorch's current stream.

A call is one launch; nothing is copied and the host waits for nothing.  Results are PyTorch's own allocations.  What a
run fails with inside the GPU is told by the next call, or by Program.wait.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import threading
import weakref
from typing import Any

import torch

from mpk import backend
from mpk._library import LimitError, OutOfMemoryError
from mpk.graph import Program

ALIGNMENT = 16  # bytes; of addresses that a program takes


class Order:
    """The last program that was launched on a GPU: the next one runs after it, on whatever stream, since each
    wants the whole GPU."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last: Any = lambda: None


_orders: dict[int, Order] = {}
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def name_compiler() -> None:
    """Let the library find the NVRTC of this Python's packages, unless the user has named one: the python3 that it
    would ask may be another."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found else ():
        for place in ("cu13/lib", "cuda_nvrtc/lib"):
            if list(pathlib.Path(folder, place).glob("libnvrtc.so.*")):
                os.environ.setdefault("MPK_NVRTC", str(pathlib.Path(folder, place)))


class GpuRunner(backend.Runner):
    """A program on a GPU and how to call it with PyTorch's tensors."""

    keeps_copies = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.index = self.device.index
        self.order = _orders.setdefault(self.index, Order())
        for slot in self.slots:
            if slot.data is not None:
                data = slot.data.to(self.device)
                slot.data = data.clone() if data.data_ptr() % ALIGNMENT else data
        self.addresses = [s.data.data_ptr() if s.data is not None else 0 for s in self.slots]
        self.slot_of = {i: at for at, i in self.inputs}

    def start(self) -> None:
        threads = self.options.threads
        name_compiler()
        try:
            program = self.compile(threads, self.index)
        except (LimitError, OutOfMemoryError):
            torch.cuda.empty_cache()  # PyTorch keeps what it has freed
            program = self.compile(threads, self.index)
        copied = set(program.describe()["copied"])
        self.statics.watch([s.index for s in self.slots if s.kind == "argument" and s.name in copied])
        self.adopt(program)

    def check(self, i: int, tensor: torch.Tensor) -> None:
        super().check(i, tensor)
        if tensor.data_ptr() % ALIGNMENT:
            self.copied.add(i)

    def run(self) -> None:
        changed = self.statics.changed
        if changed:
            for i in changed:  # they are copied again
                self.program.touch(self.slot_of[i])
            changed.clear()
        self.launch()

    def launch(self) -> None:
        order, program = self.order, self.program
        stream = current_stream(self.index)
        with order.lock:
            last: Program | None = order.last()
            program.launch(stream, last)
            if last is not program:
                order.last = weakref.ref(program)
