"""Processes that share collectives: what tests/test_torch_collectives.py and tests/test_torch_nccl.py start.

usage: torch_ranks.py WORLD FOLDER SEED [--device cuda] [--apart] [CASE...].  In each of WORLD processes each case runs
eager and compiled on fresh data; what differs, or is raised, goes to FOLDER/WORLD-RANK.json by the case's name, its
standard error to FOLDER/WORLD-RANK.log.  All processes run the cases in the same order.

On the CPU they talk over gloo, are forked, and end at the first case that fails.  With --device cuda each has a GPU of
its own and they talk over NCCL; with that or --apart they are started and watched, and others go on after a case that
fails (tests/apart.py).  Then FOLDER/WORLD.json has what all say: {CASE: [of each rank, null or a text]}.
"""

import argparse
import copy
import datetime
import functools
import json
import os
import pathlib
import random
import sys
import time
import traceback

import apart
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
# On GPUs, where a process that waits is not told that another has ended: of a collective, and of a whole case.
GPU_SECONDS, CASE_SECONDS = 120, 240
cases = []


def case_of(*devices):
    """Of both devices or of one.  A case that is asked for by name runs on whatever device."""

    def note(function):
        function.devices = devices
        cases.append(function)
        return function

    return note


case, gpu_case, cpu_case = case_of("cpu", "cuda"), case_of("cuda"), case_of("cpu")


def cases_of(device, only=()):
    return [f.__name__ for f in cases if (f.__name__ in only if only else device in f.devices)]


class Ranks:
    """This process, its device and groups, and the comparison with eager."""

    def __init__(self, rank, world, folder, device):
        self.rank, self.world, self.folder, self.device = rank, world, folder, device
        self.all = dist.group.WORLD
        # made by all processes, in the same order: this process's alone, and all but the last process
        alone = [dist.new_group([r]) for r in range(world)]
        self.alone, self.first = alone[rank], dist.new_group(list(range(max(1, world - 1))))

    @property
    def on_gpu(self):
        return self.device.type == "cuda"

    @property
    def exchanges(self):
        """Do programs run the collectives that they can?"""
        return self.world > 1 and not self.on_gpu

    def compiled(self, fn, reports=None, collectives=True, **more):
        threads = 0 if self.on_gpu else random.choice((1, 2))
        options = backend.Options(threads=threads, reports=reports, collectives=collectives)
        return torch.compile(fn, backend=backend.mpk, options=options, **more)

    def same(self, fn, *arguments, exact=True, whole=None, **more):
        """fn compiled gives what eager gives, twice, and changes its arguments as eager does; the reports.  whole: is
        it one program with its collectives, if there are several processes, on the CPU?"""
        torch._dynamo.reset()  # it compiles one piece of code a few times only
        reports, arguments = [], [a.to(self.device) for a in arguments]
        fast = self.compiled(fn, reports, **more)
        for _ in range(2):
            mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
            with torch.random.fork_rng([self.device] if self.on_gpu else []):
                expected = fn(*theirs)
            got = fast(*mine)
            compare([got, mine], [expected, theirs], exact)
        assert any(report.programs for report in reports)
        if whole is not None and self.exchanges:
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
            relative = 1e-4 if x.is_cuda else 1e-5  # sums of products in another order
            assert (g - x).abs().max() <= relative * x.abs().max() + 1e-6, (g - x).abs().max()


def near(got, eager, exact, of_rows=torch.max):
    """Is got as near to what higher precision gives as eager is, within a factor of two and a rounding of the result?
    of_rows: which of the largest differences of the rows counts."""
    assert got.shape == eager.shape and got.dtype == eager.dtype and got.device == eager.device
    mine, theirs = (of_rows((y.double() - exact).abs().flatten(0, -2).amax(-1)).item() for y in (got, eager))
    largest = exact.abs().max().item()
    assert theirs < 0.1 * largest, f"eager differs by {theirs} of {largest}"
    rounding = max(torch.finfo(got.dtype).eps, 1e-5) * largest
    assert mine <= 2 * theirs + rounding, f"off by {mine} of {largest}; eager by {theirs}"


def alike(got, expected):
    """Of two that were computed in the same way: what was read before a collective had ended is far off."""
    assert (got - expected).abs().max() <= 0.02 * expected.abs().max(), (got - expected).abs().max()


def made(*shape, dtype=torch.float32):
    return torch.randint(-9, 9, shape).to(dtype)


# ---- one collective between two programs ----


@case
def sums(r):
    for op in ("sum", "avg", "max", "min", "product"):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            if dtype is torch.float32 or op in ("sum", "max") or op != "avg" and not r.on_gpu:
                x = made(3, 4, dtype=dtype)
                r.same(lambda x, op=op: funcol.all_reduce(x * 2, op, r.all) + 1, x, whole=op == "sum")


@case
def gathers(r):
    for axis in (0, 1):
        r.same(lambda x: funcol.all_gather_tensor(x + 1, axis, r.all) * 2, made(3, 4), whole=True)
        if not r.on_gpu:  # NCCL takes dense tensors only
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
    here = r.device
    r.same(lambda x: x + funcol.all_reduce(torch.full((3, 4), float(r.rank), device=here), "sum", r.all), made(3, 4))
    r.same(lambda x: x + funcol.all_gather_tensor(torch.arange(4.0, device=here) + r.rank, 0, r.all)[:4], made(3, 4))


@case
def compiled_beside_eager(r):
    """One process compiles, the others do not, which it must be told."""

    def fn(x, y):
        a = funcol.all_reduce(x * 2, "sum", r.all)
        b = funcol.all_reduce(y - 1, "max", r.all)
        return a * 2, b + x

    x, y = made(3, 4).to(r.device), made(3, 4).to(r.device)
    expected = fn(x, y)
    fast = r.compiled(fn, collectives=False) if r.rank == 0 else fn
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
        x = made(1024, 1024).to(r.device)
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
    if r.exchanges:
        layer = {"add": 2, "collect_sum": 2, "copy": 1, "index_put": 2, "post": 2, "reduce": 2}
        assert kinds == [layer], kinds
        return
    assert len(kinds) == 2 and (r.on_gpu or kinds == [{"add": 1, "index_put": 1, "reduce": 1}] * 2), kinds
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
    net = nn.Sequential(Block(r, 24, 16), Block(r, 24, 20)).eval().to(r.device)
    reports = r.same(lambda x: net(x), torch.randn(5, 24), exact=False, whole=True)
    assert [len(report.programs) for report in reports] == [1 if r.exchanges else 3], reports
    fast = r.compiled(net, dynamic=True)
    for n in (3, 7, 4):
        x = torch.randn(n, 24).to(r.device)
        compare(fast(x), net(x), False)


@case
def dtensors(r):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh(r.device.type, (r.world,))
    net = nn.Sequential(nn.Linear(24, 16 * r.world), nn.GELU(), nn.Linear(16 * r.world, 24)).eval().to(r.device)
    for p in net.parameters():
        dist.broadcast(p, 0)
    x = torch.randn(5, 24).to(r.device)
    dist.broadcast(x, 0)
    expected = net(x)
    half, plan = copy.deepcopy(net).bfloat16(), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    net = parallelize_module(net, mesh, plan)
    compare(net(x), expected, False)
    r.same(lambda x: net(x), x, exact=False, whole=True)
    half, x = parallelize_module(half, mesh, plan), x.bfloat16()
    fast = r.compiled(half)
    before = fast(x)
    for p in half[2].parameters():
        p.mul_(2)
    assert torch.equal(fast(x), 2 * before)  # a copy of a weight is made again


@cpu_case
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


# ---- on GPUs: what hangs where kernels of several GPUs wait for each other, and layers in bf16 ----


@gpu_case
def programs_beside_collectives(r):
    """Programs are queued while a collective holds SMs of this GPU and waits for the other process, which comes late;
    and while one of another group is behind it."""
    fast = r.compiled(lambda x: torch.relu(x @ x) + 1)
    other = dist.new_group(list(range(r.world)))
    for turn in range(12):
        x = made(256, 256).to(r.device)
        sums = [made(1 << 20).to(r.device) for _ in range(3)]
        for s in sums:
            dist.broadcast(s, 0)
        doubled = [s * r.world for s in sums]
        before = fast(x)
        if turn % r.world == r.rank and r.on_gpu:
            torch.cuda._sleep(10**8)  # cycles of the GPU: 50 ms
        under_way = [dist.all_reduce(s, group=g, async_op=True) for s, g in zip(sums, (r.all, other, r.all))]
        meanwhile = fast(x)
        for work in under_way:
            work.wait()
        compare([before, meanwhile, *sums], [torch.relu(x @ x) + 1] * 2 + doubled, True)


@gpu_case
def many_calls_ahead(r):
    """The host queues hundreds of programs and collectives before it waits, on two streams."""
    net = nn.Sequential(*[Block(r, 256, 128) for _ in range(4)]).eval().to(r.device, torch.bfloat16)
    wide = copy.deepcopy(net, {id(r.all): r.all}).double()
    fast, inputs = r.compiled(net), [torch.randn(16, 256).to(r.device, torch.bfloat16) for _ in range(3)]
    first = [fast(x) for x in inputs]
    for x, y in zip(inputs, first):
        near(y, net(x), wide(x.double()))
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()] if r.on_gpu else [None]
    for s in streams[1:]:
        s.wait_stream(streams[0])
    again = []
    for i in range(150):
        with torch.cuda.stream(streams[i % len(streams)]):
            again.append(fast(inputs[i % 3]))
    for s in streams[1:]:
        streams[0].wait_stream(s)
    for i, y in enumerate(again):
        alike(y, first[i % 3])


@gpu_case
def dtensor_attention(r):
    """Attention of DTensors, a part of the heads in each process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh(r.device.type, (r.world,))
    q, k, v = whole = [torch.randn(2, 4, 24, 64).to(r.device, torch.bfloat16) for _ in range(3)]
    for x in whole:
        dist.broadcast(x, 0)
    attend = torch.nn.functional.scaled_dot_product_attention
    parts = [distribute_tensor(x, mesh, [Shard(1)]) for x in whole]
    got = r.compiled(lambda q, k, v: attend(q, k, v, is_causal=True))(*parts)
    exact = attend(*(x.double() for x in whole), is_causal=True)
    near(got.full_tensor(), attend(q, k, v, is_causal=True), exact)


FAMILIES = {"Llama": {}, "Qwen3": {"head_dim": 32}, "Qwen3Moe": {"head_dim": 32, "moe_intermediate_size": 128}}


def make_models(folder):
    """Of random weights.  Where processes are a group, Transformers lets the first alone save what all have made."""
    heads = dict(hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=4)
    for family, more in FAMILIES.items():
        make = tiny.mixture if family == "Qwen3Moe" else functools.partial(tiny.model, family=family)
        make(folder / family, tie_word_embeddings=False, **heads, **more)


def shared_model(r, family):
    """(a model that the processes share, the same in f32 in each)."""
    import transformers
    transformers.logging.set_verbosity_error()
    load, dtype = transformers.AutoModelForCausalLM.from_pretrained, torch.bfloat16 if r.on_gpu else torch.float32
    whole = load(r.folder / family, dtype=dtype).eval().to(r.device).float()
    # of a single process Transformers leaves the weights where they are
    return load(r.folder / family, dtype=dtype, tp_plan="auto").eval().to(r.device), whole


def same_in_all(y):
    """After the last collective all processes compute the same."""
    first = y.clone()
    dist.broadcast(first, 0)
    alike(y, first)


def tokens_of(r, n):
    tokens = torch.randint(3, 250, (1, n)).to(r.device)
    dist.broadcast(tokens, 0)
    return tokens


def shared_prompts(r, family):
    net, whole = shared_model(r, family)
    reports = []
    fast = r.compiled(net, reports)
    for n in (9, 9, 40):
        tokens = tokens_of(r, n)
        exact, got = whole(tokens).logits.double(), fast(tokens).logits
        # of a mixture some tokens take another expert, where two are nearly as good
        near(got, net(tokens).logits, exact, torch.median if family == "Qwen3Moe" else torch.max)
        same_in_all(got)
    if r.rank == 0:
        left = {name for report in reports for name in report.fallbacks}
        print(f"{family}: {[len(report.programs) for report in reports]} programs; PyTorch runs {sorted(left)}")


@gpu_case
def tp_plan_llama(r):
    shared_prompts(r, "Llama")


@gpu_case
def tp_plan_qwen3(r):
    shared_prompts(r, "Qwen3")


@gpu_case
def tp_plan_mixture(r):
    shared_prompts(r, "Qwen3Moe")


@gpu_case
def tp_plan_decodes(r):
    """A prompt in eager, then steps of one token over a static cache, each process with its heads."""
    import transformers
    net, whole = shared_model(r, "Llama")
    fast, tokens = r.compiled(net), tokens_of(r, 14)
    exact = whole(tokens).logits.double()

    def steps(step):
        cache = transformers.StaticCache(config=net.config, max_cache_len=32)
        net(tokens[:, :6], past_key_values=cache, use_cache=True)
        position, found = torch.full((1, 1), 6, device=r.device), []
        for i in range(6, 14):
            y = step(tokens[:, i : i + 1], past_key_values=cache, use_cache=True, position_ids=position)
            found.append(y.logits)
            position.add_(1)
        return torch.cat(found, 1)

    got = steps(fast)
    near(got, steps(net), exact[:, 6:])
    same_in_all(got)


# ---- processes ----


def join_group(rank, world, folder, device, seconds):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), GLOO_SOCKET_IFNAME="lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method=f"file://{folder}/store-{world}",
                            rank=rank, world_size=world, timeout=datetime.timedelta(seconds=seconds))
    return Ranks(rank, world, folder, torch.device("cuda", rank) if device == "cuda" else torch.device("cpu"))


def problem_of(function, r, seed):
    """None, or the traceback of what it raises."""
    i = cases.index(function)
    torch._dynamo.reset()
    torch.manual_seed(seed + 1000 * i + r.rank)  # each its own numbers
    random.seed(seed + 1000 * i + r.rank)
    try:
        with torch.no_grad():
            function(r)
        if r.on_gpu:
            torch.cuda.synchronize()
        return None
    except Exception:
        return traceback.format_exc()


def run(o, rank):
    torch.set_num_threads(1)
    r, found = join_group(rank, o.world, o.folder, "cpu", SECONDS), {}
    for name in cases_of("cpu", o.cases):
        found[name] = problem_of(globals()[name], r, o.seed)
        if found[name]:  # the test is told; the others find this process gone, since they are out of step
            break
    (o.folder / f"{o.world}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def run_watched(o):
    torch.set_num_threads(1)
    notes = apart.Notes(o.folder / f"{o.world}-{o.rank}.json", o.rank, CASE_SECONDS)
    r = None
    for name in o.cases:
        notes.begin(name)
        r = r or join_group(o.rank, o.world, o.folder, o.device, GPU_SECONDS)
        problem = problem_of(globals()[name], r, o.seed)
        notes.end(name, problem)
        if problem:
            os._exit(1)  # what waits for the others would not let the process end
    notes.begin(apart.END)
    dist.destroy_process_group()
    notes.end(apart.END, None)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("world", type=int)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("seed", type=int)
    p.add_argument("cases", nargs="*", metavar="CASE", help="default: all of the device")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--apart", action="store_true", help="start and watch the processes, as on GPUs")
    p.add_argument("--rank", type=int, help="be this process of the group")
    o = p.parse_intermixed_args()
    unknown = set(o.cases) - {f.__name__ for f in cases}
    if unknown:
        p.error(f"no case {', '.join(sorted(unknown))}")
    if o.rank is not None:
        run_watched(o)
    elif o.apart or o.device == "cuda":
        sys.exit(start_and_watch(o))
    else:
        rank, codes = forks.fork([o.folder / f"{o.world}-{rank}.log" for rank in range(o.world)])
        if rank is None:
            sys.exit(any(codes))
        run(o, rank)


def start_and_watch(o):
    """Print what fails; did anything?"""
    begin = time.monotonic()

    def command(rank, names):
        if rank == 0:  # a store of an earlier group would answer for this one
            (o.folder / f"store-{o.world}").unlink(missing_ok=True)
        return [sys.executable, __file__, o.world, o.folder, o.seed, "--device", o.device, "--rank", rank, *names]

    o.folder.mkdir(parents=True, exist_ok=True)
    names = cases_of(o.device, o.cases)
    if any(name.startswith("tp_plan") for name in names) and not (o.folder / "Qwen3Moe" / "config.json").exists():
        make_models(o.folder)
    found = apart.run(command, o.world, names, o.folder, str(o.world), CASE_SECONDS)
    (o.folder / f"{o.world}.json").write_text(json.dumps(found))
    bad = [name for name, texts in found.items() if any(texts)]
    for rank in range(o.world) if bad else ():
        print(f"---- the end of {o.world}-{rank}.log:\n{(o.folder / f'{o.world}-{rank}.log').read_text()[-3000:]}")
    print(f"{len(found) - len(bad)} went well, {len(bad)} failed, {time.monotonic() - begin:.0f} s")
    return bool(bad)


if __name__ == "__main__":
    main()
