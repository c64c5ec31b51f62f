"""Memory that the processes of a torch.distributed program on one host share, and by which their programs exchange
tensors (src/op/posted.h; docs/gpus.md, "Processes of one group").

    head    a page for each rank: a word that is not 0 once it has given up, and why
    side 0  flags i64[ranks, FLAGS], then what is exchanged under an even number
    side 1  the same under an odd number

The memory has no name in any file system: rank 0 makes it, the others open it by rank 0's process, and it is gone when
the last process is, however that ended.  A rank holds a lock on one byte of it as long as its process lives: so the
others find out that it has ended, and no call waits for it.

All must agree that there is a room before any of them leaves out the collectives of PyTorch, once for a process: `join`
gives it, or the reason why there is none, the same in every process.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import math
import mmap
import os
import struct
import threading
import time
from typing import Any

import torch.distributed as dist

from mpk._library import Error

JOIN_SECONDS = 30.0  # that processes wait for each other before PyTorch runs their collectives
CALL_SECONDS = 540.0  # that a call waits for a process that lives; less than the machine's limit for a task
LOOK_SECONDS = 0.2  # how often a process looks whether the others live
FLAGS = 4096  # rows of an exchange
SIDE_BYTES = 1 << 32  # of what is exchanged at once, by all; memory is used as it is written
KIND_BITS = 24  # of a flag; the bits above are the number of the exchange
HEAD_BYTES = mmap.PAGESIZE
REASON_AT, REASON_BYTES = 8, 1024
FLOCK = "hhqqi"  # struct flock: type, whence, start, length, process


class RankError(Error):
    """Another process of the group has ended, does not come, or does something else."""


class Room:
    """This process's mapping.  `number` is that of the next exchange; the thread that runs a program with some holds
    `lock`."""

    def __init__(self, rank: int, world: int, fd: int, seconds: float) -> None:
        self.rank, self.world, self.fd, self.seconds = rank, world, fd, seconds
        self.flag_bytes = world * FLAGS * 8
        size = world * HEAD_BYTES + 2 * (self.flag_bytes + SIDE_BYTES)
        if rank == 0:
            os.ftruncate(fd, size)
        self.memory = mmap.mmap(fd, size)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        self.lock, self.number = threading.Lock(), 1
        self.problem: str | None = None  # why no call waits any more
        self.began: float | None = None  # when the exchanges began that are under way
        self.under_way: list[Any] = []

    # ---- places ----

    def word(self, at: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(at)

    def trouble_at(self, rank: int) -> int:
        return self.at + rank * HEAD_BYTES

    def flags_at(self, number: int, rank: int = 0) -> int:
        side = self.at + self.world * HEAD_BYTES + number % 2 * (self.flag_bytes + SIDE_BYTES)
        return side + rank * FLAGS * 8

    def data_at(self, number: int) -> int:
        return self.flags_at(number) + self.flag_bytes

    # ---- the others ----

    def watch(self) -> None:
        threading.Thread(target=self._watch, name="mpk-ranks", daemon=True).start()

    def _watch(self) -> None:
        while self.problem is None:
            time.sleep(LOOK_SECONDS)
            problem = self.find_problem()
            if problem:
                self.give_up(problem)

    def find_problem(self) -> str | None:
        """What keeps a call from coming to its end.  One that has ended without a word comes before those that have
        noticed it, which may have ended, too: so the words are read after the locks."""
        others = [r for r in range(self.world) if r != self.rank]
        ended = [r for r in others if not self.lives(r)]
        told = [r for r in others if self.word(self.trouble_at(r)).value]
        first = [r for r in ended if r not in told]
        if first:
            return f"the process of rank {first[0]} has ended"
        if told:
            at = told[0] * HEAD_BYTES + REASON_AT
            reason = self.memory[at : at + REASON_BYTES].partition(b"\0")[0].decode(errors="replace")
            return f"rank {told[0]} has given up: {reason}"
        return self.find_stranger(others) or self.find_late(others)

    def lives(self, rank: int) -> bool:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
        return struct.unpack(FLOCK, fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK

    def find_stranger(self, others: list[int]) -> str | None:
        """One that has posted something else under the number of an exchange of ours."""
        for number, kind, _, words in list(self.under_way):
            for r in others:
                flag = self.word(self.flags_at(number, r)).value
                if flag >> KIND_BITS == number and flag != number << KIND_BITS | kind:
                    return (
                        f"rank {r} runs another collective than this process's number {number}, {words}: all "
                        'must run the same ones in the same order, or be compiled with options={"collectives": False}'
                    )
        return None

    def find_late(self, others: list[int]) -> str | None:
        began, under_way = self.began, list(self.under_way)
        if began is None or time.monotonic() - began < self.seconds:
            return None
        for number, kind, rows, words in under_way:
            for r in others:
                if not self.has_posted(r, number, kind, rows) and self.began == began:
                    return f"rank {r} has not come to {words} within {self.seconds:.0f} s"
        return None

    def has_posted(self, rank: int, number: int, kind: int, rows: int) -> bool:
        flags = (ctypes.c_int64 * rows).from_address(self.flags_at(number, rank))
        return all(flag == number << KIND_BITS | kind for flag in flags)

    def give_up(self, problem: str) -> None:
        """From now on no task of this process waits, and the others learn of it."""
        self.problem = self.problem or problem
        at, text = self.rank * HEAD_BYTES + REASON_AT, self.problem.encode()[: REASON_BYTES - 1]
        self.memory[at : at + len(text)] = text
        self.word(self.trouble_at(self.rank)).value = 1

    # ---- a run ----

    def begin(self, exchanges: list[Any]) -> None:
        """With the lock held: exchanges that are numbered from self.number on are about to run."""
        if self.problem:
            raise RankError(self.problem)
        self.under_way, self.began = exchanges, time.monotonic()

    def end(self) -> None:
        """With the lock held.  What all have posted to the last exchange is right, whatever has happened since."""
        last, self.under_way, self.began = self.under_way[-1][:3], [], None
        self.number = last[0] + 1
        if self.problem and not all(self.has_posted(r, *last) for r in range(self.world)):
            raise RankError(self.problem)


# ---- joining ----


class _Board:
    """Where processes leave notes for each other: the store of torch.distributed."""

    def __init__(self) -> None:
        self.store = dist.PrefixStore("mpk/room", dist.distributed_c10d._get_default_store())

    def put(self, name: str, note: str) -> None:
        self.store.set(name, note)

    def read(self, name: str, until: float) -> str | None:
        """The note, which may take a while to be there; None: it is not there at that time."""
        while not self.store.check([name]):
            if time.monotonic() > until:
                return None
            time.sleep(0.01)
        return self.store.get(name).decode()

    def decide(self, answer: str) -> str:
        """The answer of who decides first."""
        decided = self.store.compare_set("decision", "", answer)
        return decided.decode() if isinstance(decided, bytes) else decided


def limit_of_calls() -> float:
    """How long a collective of PyTorch would wait, but no longer than CALL_SECONDS."""
    try:
        seconds = dist.distributed_c10d._get_default_group()._get_backend(_cpu()).options._timeout.total_seconds()
    except (AttributeError, RuntimeError, ValueError):
        seconds = CALL_SECONDS
    return min(seconds, CALL_SECONDS)


def _cpu() -> Any:
    import torch

    return torch.device("cpu")


def where() -> str:
    """Processes that are in the same place know each other by their numbers."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip() + os.readlink("/proc/self/ns/pid")


def _make(board: _Board, world: int) -> Room:
    fd = os.memfd_create("mpk-room")
    room, mark = Room(0, world, fd, limit_of_calls()), os.urandom(16).hex()
    room.memory[HEAD_BYTES - len(mark) : HEAD_BYTES] = mark.encode()
    board.put("memory", json.dumps([where(), os.getpid(), fd, mark]))
    return room


def _open(note: str, rank: int, world: int) -> Room:
    place, process, fd, mark = json.loads(note)
    if place != where():
        raise OSError("rank 0 is on another host, or in another container")
    room = Room(rank, world, os.open(f"/proc/{process}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), limit_of_calls())
    if room.memory[HEAD_BYTES - len(mark) : HEAD_BYTES] != mark.encode():
        raise OSError("rank 0 has other memory there")
    return room


def _meet(board: _Board, rank: int, world: int) -> Room | str:
    until = time.monotonic() + JOIN_SECONDS
    late = f"no: not all processes had compiled a collective after {JOIN_SECONDS:.0f} s"
    room: Room | None = None
    try:
        note = None if rank == 0 else board.read("memory", until)
        room = _make(board, world) if rank == 0 else _open(note, rank, world) if note else None
        mine = "in" if room else late
    except (AttributeError, OSError, ValueError, OverflowError) as problem:  # without memfd_create, too
        mine = f"no: rank {rank} cannot share memory: {problem}"
    board.put(f"rank/{rank}", mine)
    if mine != "in":
        board.decide(mine)
    elif rank == 0:
        answers = [board.read(f"rank/{r}", until) or late for r in range(world)]
        board.decide(next((a for a in answers if a != "in"), "yes"))
    decision = board.read("decision", until + JOIN_SECONDS / 2) or board.decide(late)
    return room if decision == "yes" and room else decision.removeprefix("no: ")


_joined: tuple[Any, Room | str] | None = None  # the default group, and its room


def join() -> Room | str:
    """The room of all processes, or why there is none.  All must call it in the same order among their collectives; it
    waits for those that are late."""
    global _joined
    group = dist.distributed_c10d._get_default_group()
    if _joined is not None and _joined[0] is group:
        return _joined[1]
    if _joined is not None and isinstance(_joined[1], Room):
        _joined[1].give_up("its process group has been destroyed")
    board = _Board()
    decided = board.read("decision", 0)
    found = decided.removeprefix("no: ") if decided else _meet(board, dist.get_rank(), dist.get_world_size())
    _joined = group, found
    if isinstance(found, Room):
        found.watch()
    return found


def rows_of(shape: tuple[int, ...], parts: int) -> tuple[int, int]:
    """A dense tensor of this shape as [rows, columns]: at most FLAGS rows, a multiple of `parts`, along its axes where
    they allow it, so that a row can be exchanged as soon as it is there."""
    n = math.prod(shape)
    rows = math.prod(shape[:-1]) if len(shape) > 1 else parts
    each = rows // parts
    while each * parts > FLAGS:
        each = next((each // k for k in range(2, int(math.isqrt(each)) + 1) if each % k == 0), 1)
    return each * parts, n // (each * parts)
