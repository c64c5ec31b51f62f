#!/usr/bin/env python3
"""General operators on the CPU: PyTorch eager and backend="mpk", one thread each, interleaved.

    bench/torch_ops.py [--seconds S] [--kinds] [NAME ...]

NAME: part of a name of a row below; none: all.  Prints for each the least that a call of eager and of mpk took in
milliseconds, which another load on the machine changes least, their ratio, and the largest difference relative to the
largest entry of eager's result.  Both are timed in one process, call by call in turns for S seconds.  --kinds also
prints the operators that the program consists of.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import mpk
import mpk.backend

torch.set_num_threads(1)
torch.manual_seed(0)


def rows():
    """Name, function and arguments of each row."""
    x = torch.randn
    return {
        "conv2d 64 3x3 on 56x56": (nn.Conv2d(64, 64, 3, padding=1), (x(1, 64, 56, 56),)),
        "conv1d 512 to 512, 3 on 1500": (nn.Conv1d(512, 512, 3, padding=1), (x(1, 512, 1500),)),
        "depthwise 7x7": (nn.Conv2d(96, 96, 7, padding=3, groups=96), (x(1, 96, 28, 28),)),
        "patch 16x16": (nn.Conv2d(3, 96, 16, stride=16), (x(1, 3, 224, 224),)),
        "group_norm": (nn.GroupNorm(32, 320), (x(1, 320, 32, 32),)),
        "layer_norm 3000x512": (nn.LayerNorm(512), (x(3000, 512),)),
        "gelu of 10^6": (F.gelu, (x(1000, 1000),)),
        "softmax 1000x1500": (lambda a: F.softmax(a, -1), (x(1000, 1500),)),
        "attention of 1500": (F.scaled_dot_product_attention, tuple(x(1, 8, 1500, 64) for _ in range(3))),
        "bilinear": (
            lambda a: F.interpolate(a, scale_factor=2, mode="bilinear", align_corners=False),
            (x(1, 64, 64, 64),),
        ),
        "conv2d strided 3x3": (nn.Conv2d(64, 128, 3, stride=2, padding=1), (x(1, 64, 56, 56),)),
        "conv2d 1x1": (nn.Conv2d(256, 64, 1), (x(1, 256, 56, 56),)),
        "max_pool 3x3": (nn.MaxPool2d(3, 2, 1), (x(1, 64, 112, 112),)),
        "avg_pool to 1x1": (nn.AdaptiveAvgPool2d(1), (x(1, 512, 14, 14),)),
        "relu of a sum": (lambda a, b: F.relu(a + b), (x(1, 256, 56, 56), x(1, 256, 56, 56))),
        "batch_norm": (nn.BatchNorm2d(64).eval(), (x(1, 64, 112, 112),)),
        "silu times": (lambda a, b: F.silu(a) * b, (x(1000, 1000), x(1000, 1000))),
        "tanh, exp, log": (lambda a: torch.log(torch.exp(torch.tanh(a)) + 1), (x(1000, 1000),)),
        "mean over rows": (lambda a: a.mean(-1), (x(3000, 512),)),
        "sum over columns": (lambda a: a.sum(0), (x(3000, 512),)),
        "transposed copy": (lambda a: a.transpose(1, 2).contiguous() + 1, (x(8, 500, 250),)),
        "bmm": (torch.matmul, (x(8, 300, 64), x(8, 64, 300))),
    }


def milliseconds(f, args):
    start = time.perf_counter()
    f(*args)
    return (time.perf_counter() - start) * 1e3


def measure(f, args, seconds, kinds):
    """The least of eager and mpk, and the largest difference."""
    torch._dynamo.reset()
    if kinds:
        print(mpk.explain(f, *args))
    with torch.no_grad():
        ours = torch.compile(f, backend=mpk.backend.mpk, options={"threads": 1})
        expected, got = f(*args), ours(*args)
        times = ([], [])
        end = time.perf_counter() + seconds
        while len(times[0]) < 5 or time.perf_counter() < end:
            times[0].append(milliseconds(f, args))
            times[1].append(milliseconds(ours, args))
    worst = ((expected - got).abs().max() / expected.abs().max()).item()
    return min(times[0]), min(times[1]), worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--kinds", action="store_true")
    options = parser.parse_args()
    ratios = []
    print(f"{'':30} {'eager ms':>9} {'mpk ms':>9} {'ratio':>6} {'difference':>10}")
    for name, (f, args) in rows().items():
        if options.names and not any(part in name for part in options.names):
            continue
        eager, ours, worst = measure(f, args, options.seconds, options.kinds)
        ratios.append(ours / eager)
        print(f"{name:30} {eager:9.3f} {ours:9.3f} {ratios[-1]:6.2f} {worst:10.1e}", flush=True)
    print(f"{'median':30} {'':9} {'':9} {statistics.median(ratios):6.2f}")


if __name__ == "__main__":
    main()
