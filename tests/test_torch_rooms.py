"""Collectives as tasks of programs, between processes that share memory (python/mpk/rooms.py, collectives.py): what
goes well, what stays with PyTorch, and what a process that ends, stays away or does something else does to the
others."""

import json
import math
import subprocess
import sys

import pytest

import support

torch = pytest.importorskip("torch")
RANDOM = support.seed()

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)
if not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

from mpk import rooms


def run(case, world, folder, gone=()):
    """What each process returns; those in `gone` end without a word."""
    script, seed = support.ROOT / "tests" / "torch_room_ranks.py", str(RANDOM.randrange(2**31))
    logs = [folder / f"{rank}.log" for rank in range(world)]
    started = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, script, case, str(rank), str(world), folder, seed]
            started.append(subprocess.Popen(command, stderr=log.open("w")))
        for p in started:
            p.wait(timeout=300)
    finally:
        for p in started:
            p.kill()
            p.wait()
    found = []
    for rank in range(world):
        if rank in gone:
            continue
        told = folder / f"{case}-{rank}.json"
        assert told.exists(), logs[rank].read_text()[-2000:]
        result, problem = json.loads(told.read_text())
        assert problem is None, f"rank {rank}: {problem}"
        found.append(result)
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_numbers(tmp_path, world):
    run("numbers", world, tmp_path)


@pytest.mark.parametrize("case", ["late", "forked", "beside_what_stays"])
def test_goes_well(tmp_path, case):
    run(case, 2, tmp_path)


def test_not_all_compile(tmp_path):
    reasons = run("not_all_compile", 2, tmp_path)[0]
    assert reasons and all("not all processes had compiled" in reason for reason in reasons), reasons


def test_no_memory(tmp_path):
    for reasons in run("no_memory", 2, tmp_path):
        assert reasons and all("rank 1 cannot share memory: no such file" in r for r in reasons), reasons


def test_killed(tmp_path):
    """All others are told which one it was, within 10 s, and so is the next call at once."""
    for found, again in run("killed", 3, tmp_path, gone=[2]):
        for problem, seconds in found, again:
            assert problem.endswith("the process of rank 2 has ended") and seconds < 10, (found, again)


def test_after_an_end(tmp_path):
    problem, seconds = run("after_an_end", 2, tmp_path, gone=[1])[0]
    assert problem == "the process of rank 1 has ended" and seconds < 10


def test_strangers(tmp_path):
    """Each of the two finds it out, or is told by the other."""
    for problem, seconds in run("strangers", 2, tmp_path):
        assert "another collective than this process's number 1, all_reduce of f32[" in problem, problem
        assert seconds < 60


def test_one_stays_away(tmp_path):
    first, second = run("one_stays_away", 2, tmp_path)
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
