"""Collectives as tasks of programs, between processes that share memory (python/mpk/rooms.py, collectives.py): what
goes well, what stays with PyTorch, and what a process that ends, stays away or does something else does to the
others."""

import json
import math
import os
import signal
import subprocess
import sys
import threading

import pytest

import support

torch = pytest.importorskip("torch")
RANDOM = support.seed()

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)
if not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

from mpk import rooms


@pytest.fixture(scope="module")
def ranks():
    """A process that forks those of each case."""
    command = [sys.executable, support.ROOT / "tests" / "torch_room_ranks.py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, start_new_session=True) as p:
        yield p


def run(ranks, case, world, folder, gone=()):
    """What each process returns; those in `gone` end without a word."""
    ranks.stdin.write(json.dumps([case, world, str(folder), RANDOM.randrange(2**31)]) + "\n")
    ranks.stdin.flush()
    hangs = threading.Timer(300, os.killpg, (ranks.pid, signal.SIGKILL))
    hangs.start()
    ended = ranks.stdout.readline()
    hangs.cancel()
    assert ended == "ended\n", f"{case} hangs"
    found = []
    for rank in range(world):
        if rank in gone:
            continue
        told = folder / f"{case}-{rank}.json"
        assert told.exists(), (folder / f"{rank}.log").read_text()[-2000:]
        result, problem = json.loads(told.read_text())
        assert problem is None, f"rank {rank}: {problem}"
        found.append(result)
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_numbers(ranks, tmp_path, world):
    run(ranks, "numbers", world, tmp_path)


@pytest.mark.parametrize("case", ["late", "forked", "beside_what_stays"])
def test_goes_well(ranks, tmp_path, case):
    run(ranks, case, 2, tmp_path)


def test_not_all_compile(ranks, tmp_path):
    reasons = run(ranks, "not_all_compile", 2, tmp_path)[0]
    assert reasons and all("not all processes had compiled" in reason for reason in reasons), reasons


def test_no_memory(ranks, tmp_path):
    for reasons in run(ranks, "no_memory", 2, tmp_path):
        assert reasons and all("rank 1 cannot share memory: no such file" in r for r in reasons), reasons


def test_killed(ranks, tmp_path):
    """All others are told which one it was, within 10 s, and so is the next call at once."""
    for found, again in run(ranks, "killed", 3, tmp_path, gone=[2]):
        for problem, seconds in found, again:
            assert problem.endswith("the process of rank 2 has ended") and seconds < 10, (found, again)


def test_after_an_end(ranks, tmp_path):
    problem, seconds = run(ranks, "after_an_end", 2, tmp_path, gone=[1])[0]
    assert problem == "the process of rank 1 has ended" and seconds < 10


def test_strangers(ranks, tmp_path):
    """Each of the two finds it out, or is told by the other."""
    for problem, seconds in run(ranks, "strangers", 2, tmp_path):
        assert "another collective than this process's number 1, all_reduce of f32[" in problem, problem
        assert seconds < 60


def test_one_stays_away(ranks, tmp_path):
    first, second = run(ranks, "one_stays_away", 2, tmp_path)
    assert first[0] == "rank 1 has not come to all_reduce of f32[3] within 2 s", first
    assert second[0] == "rank 0 has given up: " + first[0], second


def test_rows():
    """As many rows as there are flags at most, each process's part whole rows."""
    for _ in range(300):
        shape = tuple(RANDOM.randrange(1, 90) for _ in range(RANDOM.randrange(1, 5)))
        parts = RANDOM.choice((1, 2, 3, 8))
        shape = (shape[0] * parts, *shape[1:])
        rows, columns = rooms.rows_of(shape, parts)
        assert rows * columns == math.prod(shape) and rows % parts == 0 and rows <= rooms.FLAGS, (shape, parts)
