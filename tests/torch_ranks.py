"""Processes that share collectives over gloo: what tests/test_torch_collectives.py starts.

usage: torch_ranks.py WORLD FOLDER SEED [CASE...].  In each of WORLD processes each case runs eager and compiled on
fresh data; what differs, or is raised, goes to FOLDER/WORLD-RANK.json by the case's name, its standard error to
FOLDER/WORLD-RANK.log.  All processes run the cases in the same order.
"""

import copy
import datetime
import json
import os
import pathlib
import random
import sys
import traceback

import forks
import support  # before mpk, which it finds

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

import tiny
from mpk import backend

ops = torch.ops._c10d_functional
SECONDS = 900  # that a collective waits for the others, which compile meanwhile; one that ends is noticed at once
cases = []


def case(function):
    cases.append(function)
    return function


class Ranks:
    """This process, its groups, and the comparison with eager."""

    def __init__(self, rank, world, folder):
        self.rank, self.world, self.folder = rank, world, folder
        self.all = dist.group.WORLD
        # made by all processes, in the same order: this process's alone, and all but the last process
        alone = [dist.new_group([r]) for r in range(world)]
        self.alone, self.first = alone[rank], dist.new_group(list(range(max(1, world - 1))))

    def same(self, fn, *arguments, exact=True, whole=None, **more):
        """fn compiled gives what eager gives, twice, and changes its arguments as eager does; the reports.  whole: is
        it one program with its collectives, if there are several processes?"""
        torch._dynamo.reset()  # it compiles one piece of code a few times only
        reports = []
        options = backend.Options(threads=random.choice((1, 2)), reports=reports)
        fast = torch.compile(fn, backend=backend.mpk, options=options, **more)
        for _ in range(2):
            mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
            numbers = torch.get_rng_state()
            expected = fn(*theirs)
            torch.set_rng_state(numbers)
            got = fast(*mine)
            compare([got, mine], [expected, theirs], exact)
        assert any(report.programs for report in reports)
        if whole is not None and self.world > 1:
            kinds = [program.describe()["kinds"] for report in reports for program in report.programs]
            n_posts = sum(k.get("post", 0) for k in kinds)
            assert (n_posts > 0 and len(kinds) == 1) == whole and (n_posts > 0) == whole, kinds
        return reports


def leaves(value):
    found = [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    return [v.trigger_wait() if isinstance(v, funcol.AsyncCollectiveTensor) else v for v in found]


def compare(got, expected, exact):
    got, expected = leaves(got), leaves(expected)
    assert len(got) == len(expected) > 0
    for g, x in zip(got, expected):
        assert g.shape == x.shape and g.dtype == x.dtype, (g.shape, x.shape)
        assert g.stride() == x.stride()
        if exact or not x.is_floating_point():
            assert torch.equal(g, x), (g, x)
        else:
            assert (g - x).abs().max() <= 1e-5 * x.abs().max() + 1e-6, (g - x).abs().max()


def made(*shape, dtype=torch.float32):
    return torch.randint(-9, 9, shape).to(dtype)


# ---- one collective between two programs ----


@case
def sums(r):
    for op in ("sum", "avg", "max", "min", "product"):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            if op != "avg" or dtype is torch.float32:
                x = made(3, 4, dtype=dtype)
                r.same(lambda x, op=op: funcol.all_reduce(x * 2, op, r.all) + 1, x, whole=op == "sum")


@case
def gathers(r):
    for axis in (0, 1):
        r.same(lambda x: funcol.all_gather_tensor(x + 1, axis, r.all) * 2, made(3, 4), whole=True)
        r.same(lambda x: funcol.all_gather_tensor((x + 1).t(), axis, r.all) * 2, made(3, 4), whole=True)


@case
def scatters(r):
    for axis in (0, 1):
        x = made(2 * r.world, 3 * r.world)
        r.same(lambda x: funcol.reduce_scatter_tensor(x + 1, "sum", axis, r.all) * 2, x, whole=True)


@case
def exchanges(r):
    r.same(lambda x: funcol.all_to_all_single(x + 1, None, None, r.all) * 2, made(2 * r.world, 3))
    # unequal: rank r sends i rows to rank i, so that rank 0 receives none
    send, receive = [i + (r.world == 1) for i in range(r.world)], [r.rank + (r.world == 1)] * r.world
    r.same(lambda x: funcol.all_to_all_single(x + 1, receive, send, r.all) * 2, made(sum(send), 3))
    turned = [(i + 1) % r.world for i in range(r.world)]
    r.same(lambda x: funcol.permute_tensor(x + 1, turned, r.all) * 2, made(12))


@case
def broadcasts(r):
    r.same(lambda x: funcol.broadcast(x + 1, r.world - 1, r.all) * 2, made(3, 4))


@case
def several_at_once(r):
    r.same(lambda x, y: funcol.all_reduce_coalesced([x + 1, y * 2], "sum", r.all), made(3, 4), made(5))
    r.same(lambda x, y: funcol.all_gather_into_tensor_coalesced([x + 1, y * 2], r.all), made(3, 4), made(5))


@case
def in_place(r):
    """As torch.distributed's own functions do it."""

    def fn(x):
        y = x + 1
        dist.all_reduce(y)
        parts = y.new_empty(r.world * y.shape[0], y.shape[1])
        dist.all_gather_into_tensor(parts, y * 2)
        dist.all_reduce(x)
        return parts + 1, y - 1

    r.same(fn, made(3, 4))


@case
def groups(r):
    r.same(lambda x: funcol.all_reduce(x * 2, "sum", r.alone) + 1, made(3, 4))
    r.same(lambda x: funcol.all_gather_tensor(x * 2, 0, r.alone) + 1, made(3, 4))
    if r.rank < max(1, r.world - 1):
        r.same(lambda x: funcol.all_reduce(x * 2, "sum", r.first) + 1, made(3, 4))


# ---- order ----


@case
def order_of_independent_collectives(r):
    """Two that do not depend on each other, of the same shape: processes that swap them add wrong numbers.  What rank 0
    does beside makes its programs other ones."""

    def fn(x, y):
        a = x * 2
        first = ops.all_reduce(a, "sum", r.all.group_name)
        b = y - 1
        second = ops.all_reduce(b, "sum", r.all.group_name)
        if r.rank == 0:
            return ops.wait_tensor(second) * 3 + a, ops.wait_tensor(first) + 1
        return ops.wait_tensor(second) * 3 + a, ops.wait_tensor(first)

    r.same(fn, made(3, 4), made(3, 4))

    def other(x, y):
        if r.rank == 0:
            a, b = x * 2, y - 1
            first, second = funcol.all_reduce(a, "sum", r.all), funcol.all_reduce(b, "sum", r.all)
            return first + second * a
        a = x * 2
        first = funcol.all_reduce(a, "sum", r.all)
        b = first.sin() * 0 + y - 1
        second = funcol.all_reduce(b, "sum", r.all)
        return first + second * a

    r.same(other, made(3, 4), made(3, 4))


@case
def order_of_random_numbers(r):
    def fn(x, y):
        a = x * 0.125
        first = torch.bernoulli(torch.sigmoid(a))
        second = torch.bernoulli(torch.sigmoid(y * 0.25))
        return second * 3 + a, first

    r.same(fn, made(9, 40), made(9, 40))


@case
def known_at_compile_time(r):
    """What depends on no argument is a collective, too, in each call."""
    r.same(lambda x: x + funcol.all_reduce(torch.full((3, 4), float(r.rank)), "sum", r.all), made(3, 4))
    r.same(lambda x: x + funcol.all_gather_tensor(torch.arange(4.0) + r.rank, 0, r.all)[:4], made(3, 4))


@case
def compiled_beside_eager(r):
    """One process compiles, the others do not, which it must be told."""

    def fn(x, y):
        a = funcol.all_reduce(x * 2, "sum", r.all)
        b = funcol.all_reduce(y - 1, "max", r.all)
        return a * 2, b + x

    x, y = made(3, 4), made(3, 4)
    expected = fn(x, y)
    options = backend.Options(threads=1, collectives=False)
    fast = torch.compile(fn, backend=backend.mpk, options=options) if r.rank == 0 else fn
    for _ in range(2):
        compare(fast(x, y), expected, True)


@case
def nothing_to_receive(r):
    """A result without elements: the others wait for what is sent."""

    def fn(x):
        receive, send = ([x.shape[0]] * r.world, [0] * r.world) if r.rank == 0 else ([0] * r.world, [0] * r.world)
        send[0] = x.shape[0]
        return ops.wait_tensor(ops.all_to_all_single(x + 1, receive, send, r.all.group_name)) * 2

    r.same(fn, made(2, 3), dynamic=False)


# ---- what is still under way ----


@case
def views_before_the_wait(r):
    def fn(x):
        y = ops.all_reduce(x + 1, "sum", r.all.group_name)
        return ops.wait_tensor(y.view(-1)) * 2

    def other(x):
        y = ops.all_gather_into_tensor(x + 1, r.world, r.all.group_name)
        z = y.view(-1, 8).t()[1:]
        w = ops.wait_tensor(y)
        return z * 2, w + 1

    x = made(1024, 1024)
    r.same(fn, x)
    r.same(other, x)


@case
def results_under_way(r):
    """Results that the caller waits for, and arguments that come before they are there."""
    fast = torch.compile(lambda x: funcol.all_reduce(x + 1, "sum", r.all), backend=backend.mpk)
    view = torch.compile(lambda x: ops.all_reduce(x + 1, "sum", r.all.group_name).view(-1), backend=backend.mpk)
    read = torch.compile(lambda x: x.view(-1, 4) * 2 + 1, backend=backend.mpk)
    for _ in range(3):
        x = made(1024, 1024)
        expected = funcol.all_reduce(x + 1, "sum", r.all)
        compare(fast(x), expected, True)
        compare(ops.wait_tensor(view(x)), expected.view(-1), True)
        compare(read(funcol.all_reduce(x + 1, "sum", r.all)), expected.view(-1, 4) * 2 + 1, True)


@case
def argument_that_changes(r):
    """A cache that is gathered and then written."""

    def fn(cache, x):
        before = funcol.all_gather_tensor(cache, 0, r.all) * 2  # eager, too, waits before it writes
        cache[1:2].copy_(x)
        cache.add_(funcol.all_reduce(x, "sum", r.all))
        return before, cache + 1

    r.same(fn, made(4, 3), made(1, 3))


@case
def caches(r):
    """Each layer's cache is written by the program that makes its new rows, and not copied."""

    def fn(a, b, x, at):
        for cache in a, b:
            cache.index_copy_(0, at, x)
            x = funcol.all_reduce(x + cache.sum(0), "sum", r.all)
        return x

    reports = r.same(fn, made(64, 3), made(64, 3), made(1, 3), torch.tensor([r.rank]))
    kinds = [program.describe()["kinds"] for report in reports for program in report.programs]
    if r.world > 1:
        layer = {"add": 2, "collect_sum": 2, "copy": 1, "index_put": 2, "post": 2, "reduce": 2}
        assert kinds == [layer], kinds
        return
    assert kinds == [{"add": 1, "index_put": 1, "reduce": 1}] * 2, kinds
    assert all(len(program.addresses) == 4 for program in reports[0].programs)  # with one result


# ---- layers ----


class Block(nn.Module):
    """Columns, then rows, of a product each."""

    def __init__(self, r, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        self.norm, self.group = nn.LayerNorm(width), r.all

    def forward(self, x):
        return self.norm(x + funcol.all_reduce(self.down(torch.relu(self.up(x))), "sum", self.group))


@case
def layers(r):
    net = nn.Sequential(Block(r, 24, 16), Block(r, 24, 20)).eval()
    reports = r.same(lambda x: net(x), torch.randn(5, 24), exact=False, whole=True)
    assert [len(report.programs) for report in reports] == [1 if r.world > 1 else 3], reports
    fast = torch.compile(net, backend=backend.mpk, dynamic=True, options=backend.Options(threads=1))
    for n in (3, 7, 4):
        x = torch.randn(n, 24)
        compare(fast(x), net(x), False)


@case
def dtensors(r):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (r.world,))
    net = nn.Sequential(nn.Linear(24, 16 * r.world), nn.GELU(), nn.Linear(16 * r.world, 24)).eval()
    for p in net.parameters():
        dist.broadcast(p, 0)
    x = torch.randn(5, 24)
    dist.broadcast(x, 0)
    expected = net(x)
    net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compare(net(x), expected, False)
    r.same(lambda x: net(x), x, exact=False, whole=True)


@case
def transformers_tp_plan(r):
    import transformers
    if 4 % r.world:
        return  # Transformers wants as many KV heads for each process
    transformers.logging.set_verbosity_error()
    for name in ("llama", "mixture"):
        folder = r.folder / name
        whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, tp_plan="auto").eval()
        tokens = torch.randint(0, 250, (1, 9))
        dist.broadcast(tokens, 0)
        expected = whole(tokens).logits
        compare(net(tokens).logits, expected, False)
        reports = []
        fast = torch.compile(net, backend=backend.mpk, options=backend.Options(reports=reports))
        for _ in range(2):
            compare(fast(tokens).logits, expected, False)
        if name == "llama" and r.world > 1:
            kinds = [program.describe()["kinds"] for report in reports for program in report.programs]
            assert len(kinds) == 1 and kinds[0]["post"] >= 4, kinds


def run(rank, world, folder, seed):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=SECONDS))
    r, found, only = Ranks(rank, world, folder), {}, sys.argv[4:]
    for i, function in enumerate(cases):
        if only and function.__name__ not in only:
            continue
        torch._dynamo.reset()
        torch.manual_seed(seed + 1000 * i + rank)  # each its own numbers
        random.seed(seed + 1000 * i + rank)
        try:
            with torch.no_grad():
                function(r)
            found[function.__name__] = None
        except Exception:  # the test is told; the others find this process gone, since they are out of step
            found[function.__name__] = traceback.format_exc()
            break
    (folder / f"{world}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main():
    world, folder, seed = int(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    rank, codes = forks.fork([folder / f"{world}-{rank}.log" for rank in range(world)])
    if rank is None:
        sys.exit(any(codes))
    run(rank, world, folder, seed)


if __name__ == "__main__":
    main()
