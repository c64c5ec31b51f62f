#!/usr/bin/env python3
"""Calls of PyTorch models that are no LLM on a GPU: backend="mpk", torch.compile(mode="reduce-overhead"), eager.

    bench/torch_calls.py [--ways mpk,inductor,eager] [--dtypes bf16,f16] [--loops N] [--jobs N] [NAME ...]

NAME: a row of MODELS, default all; weights and inputs are random, the same for all ways.  One line of JSON for each
row and way: milliseconds a call (the median of the loops, each of CALLS calls one after the other), the largest
difference from eager in float32 as a part of its largest value, seconds of the first call.  Rows are processes of their
own: `jobs` of them compile side by side, but only one at a time is timed.
"""

import argparse
import concurrent.futures
import copy
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

CALLS = 20
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def mlp(batch):
    from torch import nn
    import torch

    layers = [part for _ in range(8) for part in (nn.Linear(4096, 4096), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(batch, 4096),), {}


def encoder():
    from torch import nn
    import torch

    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), (torch.randn(1, 128, 768),), {}


def ids(n):
    import torch

    return {"input_ids": torch.randint(3, 9000, (1, n))}


def bert():
    import transformers as t

    return t.BertModel(t.BertConfig()), (), ids(128)


def vit():
    import torch
    import transformers as t

    return t.ViTModel(t.ViTConfig()), (), {"pixel_values": torch.randn(1, 3, 224, 224)}


def t5():
    import transformers as t

    return t.T5EncoderModel(t.T5Config()), (), ids(64)


def gpt2():
    import transformers as t

    return t.GPT2Model(t.GPT2Config(use_cache=False)), (), ids(64)


def resnet():
    import torch
    import torchvision

    return torchvision.models.resnet18(), (torch.randn(1, 3, 224, 224),), {}


MODELS = {
    "mlp": lambda: mlp(1),
    "mlp64": lambda: mlp(64),
    "encoder": encoder,
    "bert": bert,
    "vit": vit,
    "t5": t5,
    "gpt2": gpt2,
    "resnet18": resnet,
}


def first(value):
    """The first tensor of a model's result."""
    import torch

    return next(v for v in torch.utils._pytree.tree_leaves(dict(value) if hasattr(value, "keys") else value)
                if isinstance(v, torch.Tensor))


def compiled(net, way):
    import torch

    if way == "mpk":
        from mpk import backend

        return torch.compile(net, backend=backend.mpk)
    return torch.compile(net, mode="reduce-overhead") if way == "inductor" else net


def milliseconds(call, loops):
    import torch

    times = []
    for _ in range(loops):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / CALLS * 1e3)
    return statistics.median(times)


def measure(name, way, dtype, loops, lock):
    import torch

    torch.manual_seed(1)
    net, args, kwargs = MODELS[name]()
    net = net.eval().cuda()
    cast = torch.utils._pytree.tree_map_only(torch.Tensor, lambda v: v.cuda(), (args, kwargs))
    with torch.no_grad():
        reference = first(copy.deepcopy(net)(*cast[0], **cast[1])).float()
        kind = getattr(torch, DTYPES[dtype])
        net = net.to(kind)
        args, kwargs = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda v: v.to(kind) if v.is_floating_point() else v, cast)
        fn = compiled(net, way)
        start = time.perf_counter()
        got = first(fn(*args, **kwargs)).float()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        error = ((got - reference).abs().max() / reference.abs().max()).item()
        with open(lock, "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            for _ in range(3):
                fn(*args, **kwargs)
            ms = milliseconds(lambda: fn(*args, **kwargs), loops)
    return {"model": name, "way": way, "dtype": dtype, "ms": round(ms, 4), "error": round(error, 5),
            "first_s": round(seconds, 1)}


def run_apart(name, way, dtype, options, lock):
    """The row by a process of its own; a failure is a row too."""
    command = [sys.executable, __file__, "--one", name, way, dtype, "--loops", str(options.loops), "--lock", lock]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return lines[-1] if lines else json.dumps(
        {"model": name, "way": way, "dtype": dtype, "failed": done.stderr.strip()[-400:]})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--ways", default="mpk,inductor,eager")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--loops", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, way, dtype = options.one
        print(json.dumps(measure(name, way, dtype, options.loops, options.lock)), flush=True)
        return
    with tempfile.NamedTemporaryFile() as lock, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        rows = [pool.submit(run_apart, name, way, dtype, options, lock.name)
                for dtype in options.dtypes.split(",") for name in options.names or MODELS
                for way in options.ways.split(",")]
        for row in concurrent.futures.as_completed(rows):
            print(row.result(), flush=True)


if __name__ == "__main__":
    main()
