"""Processes that exchange tensors by shared memory: what tests/test_torch_rooms.py starts.

For each line of standard input, [CASE, WORLD, FOLDER, SEED] in JSON, so many processes run the case; when all have
ended, a line says so.  What a process returns or raises goes to FOLDER/CASE-RANK.json, its standard error to
FOLDER/RANK.log.
"""

import datetime
import json
import os
import pathlib
import random
import signal
import sys
import time
import traceback

import forks
import support  # before mpk, which it finds

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from mpk import backend, rooms

ops = torch.ops._c10d_functional


def all_reduce(x):
    return ops.wait_tensor(ops.all_reduce(x, "sum", dist.group.WORLD.group_name))


def all_gather(x):
    return ops.wait_tensor(ops.all_gather_into_tensor(x, dist.get_world_size(), dist.group.WORLD.group_name))


def reduce_scatter(x):
    return ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", dist.get_world_size(), dist.group.WORLD.group_name))


def compiled(fn, reports=None, **more):
    options = backend.Options(threads=random.choice((1, 2)), reports=reports, **more)
    return torch.compile(fn, backend=backend.mpk, options=options, dynamic=False)


def failure(fast, x, calls=1):
    """What the call raises, and how long it took."""
    begin = time.monotonic()
    try:
        for _ in range(calls):
            fast(x)
    except rooms.RankError as problem:
        return [str(problem), time.monotonic() - begin]
    return [None, time.monotonic() - begin]


# ---- what goes well ----


def numbers(rank, world, seed):
    """All know what the others give: sums and parts of whole numbers, of many shapes, at different speeds."""
    draw = random.Random(seed)  # the same in all processes
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64]
    shapes = [[5], [1], [7, 3], [1, 1000], [2, 3, 4, 5], [5003, 2], [rooms.FLAGS * 2, 3], [1, 1, 6], [3, 5]]
    functions = []
    for _ in range(5):
        shape, dtype, kind = draw.choice(shapes), draw.choice(dtypes), draw.choice(("reduce", "gather", "scatter"))
        if kind == "scatter":
            shape = [shape[0] * world, *shape[1:]]
        run = {"reduce": all_reduce, "gather": all_gather, "scatter": reduce_scatter}[kind]
        second = draw.random() < 0.5
        reports = []
        fast = compiled(lambda x, run=run, second=second: (run(x), all_reduce(x + 1)) if second else (run(x),), reports)
        functions.append((shape, dtype, kind, second, fast, reports))
    for call in range(100):
        shape, dtype, kind, second, fast, _ = draw.choice(functions)
        given = [torch.tensor([draw.randrange(-9, 9)]) + torch.arange(9) for _ in range(world)]
        given = [g.repeat(int(torch.Size(shape).numel()) // 9 + 1)[: torch.Size(shape).numel()] for g in given]
        given = [g.reshape(shape).to(dtype) for g in given]
        if random.random() < 0.2:
            time.sleep(random.random() * 0.02)
        got = fast(given[rank])
        total = sum(given[1:], given[0])
        want = [total if kind == "reduce" else torch.cat(given) if kind == "gather" else total.chunk(world)[rank]]
        want += [total + world] if second else []
        assert len(got) == len(want)
        for g, w in zip(got, want):
            assert g.shape == w.shape and torch.equal(g, w), (call, kind, shape, dtype)
    assert all(len(r.programs) == 1 and not r.n_fallbacks for *_, reports in functions for r in reports)


def late(rank, world, seed):
    """A process may be late by more than the machine's limit for a step (10 s); its threads are not the cause."""
    x = torch.arange(6.0).reshape(2, 3) + rank
    fast = compiled(lambda x: all_reduce(x) * 2)
    fast(x)
    if rank == 1:
        time.sleep(11)
    assert torch.equal(fast(x), 2 * (world * torch.arange(6.0).reshape(2, 3) + sum(range(world))))


def forked(rank, world, seed):
    """A child that ends, and closes what it has inherited, is not taken for its parent."""
    fast = compiled(lambda x: all_reduce(x) * 2)
    fast(torch.ones(3))
    child = os.fork()
    if not child:
        os.closerange(3, 1000)
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(3 * rooms.LOOK_SECONDS)
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0 * world))


def after_an_end(rank, world, seed):
    """What a process has posted before it ended is good."""
    fast = compiled(lambda x: all_reduce(x) * 2)
    for _ in range(3):
        got = fast(torch.ones(3))
    if rank == 0:
        time.sleep(4 * rooms.LOOK_SECONDS)
        assert torch.equal(got, torch.full((3,), 2.0 * world))
        return failure(fast, torch.ones(3))
    os._exit(0)


# ---- what stays with PyTorch ----


def not_all_compile(rank, world, seed):
    rooms.JOIN_SECONDS = 2
    reports = []
    fn = lambda x: all_reduce(x) * 2
    fast = compiled(fn, reports) if rank == 0 else fn
    for _ in range(2):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0 * world))
    return [reason for report in reports for reason in report.fallbacks.values()]


def no_memory(rank, world, seed):
    def refuse(*_):
        raise OSError("no such file")

    if rank == 1:
        rooms._open = refuse
    reports = []
    fast = compiled(lambda x: all_reduce(x) * 2, reports)
    for _ in range(2):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0 * world))
    return [reason for report in reports for reason in report.fallbacks.values()]


def beside_what_stays(rank, world, seed):
    """Operators that PyTorch runs between collectives; an order that all keep."""
    reports = []

    def fn(x):
        y = all_reduce(x + 1)
        z = funcol.all_reduce(y * 2, "max", dist.group.WORLD)  # PyTorch's
        w = torch.linalg.eigvalsh(z @ z.T)  # that has no lowering
        return all_gather(y) * 2, all_reduce(w * 0 + 1), z

    x = torch.randint(-9, 9, (3, 3)).float()
    want, fast = fn(x), compiled(fn, reports)
    for _ in range(2):
        for g, w in zip(fast(x), want):
            assert torch.equal(g, w)
    kinds = [program.describe()["kinds"] for report in reports for program in report.programs]
    assert sum(k.get("post", 0) for k in kinds) == 3, kinds


# ---- what goes wrong ----


def killed(rank, world, seed):
    """The last rank dies while the others wait for it."""
    fast = compiled(lambda x: all_reduce(all_reduce(x) * 2))
    fast(torch.ones(3))
    if rank == world - 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    found = failure(fast, torch.ones(3))
    again = failure(fast, torch.ones(3))
    return [found, again]


def strangers(rank, world, seed):
    """Rank 1 adds something of another shape."""
    fast = compiled(lambda x: all_reduce(x * 2))
    return failure(fast, torch.ones(4, 3) if rank == 1 else torch.ones(3, 4))


def one_stays_away(rank, world, seed):
    rooms.CALL_SECONDS = 1.5
    fast = compiled(lambda x: all_reduce(x * 2))
    fast(torch.ones(3))
    if rank == 1:
        time.sleep(4)
    found = failure(fast, torch.ones(3))
    time.sleep(0 if rank else 5)  # for as long as rank 1 asks
    return found


def run(case, rank, world, folder, seed):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    random.seed(seed + rank)
    torch.manual_seed(seed)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{case}", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=120))
    try:
        with torch.no_grad():
            result = [globals()[case](rank, world, seed), None]
    except Exception:
        result = [None, traceback.format_exc()]
    (folder / f"{case}-{rank}.json").write_text(json.dumps(result))
    os._exit(0)  # gloo would wait for those that are gone


def main():
    for line in sys.stdin:
        case, world, folder, seed = json.loads(line)
        folder = pathlib.Path(folder)
        rank, _ = forks.fork([folder / f"{rank}.log" for rank in range(world)])
        if rank is not None:
            run(case, rank, world, folder, seed)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
