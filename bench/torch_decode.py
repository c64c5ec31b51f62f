#!/usr/bin/env python3
"""One decode step of a Hugging Face model on a GPU: eager, torch.compile(mode="reduce-overhead"), backend="mpk".

    bench/torch_decode.py [--tokens N] [--prompt N] [--window N] [--dtype D] [--ways eager,inductor,mpk] [--profile]
                          MODEL ...

MODEL: a folder with a config.json (models/qwen3-0.6b); weights are random, the same for all ways.  Batch 1, a static
cache of `window` positions that all ways write in place, greedy.  For each way: milliseconds a token, the median of
five loops behind one that compiles; launches by the host in a step; how many tokens are those of eager, and where they
part, by how much eager prefers its own (random weights make near ties); seconds that the first step took, and for mpk
how many of them were its own.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import transformers

import rivals

LOOPS = 5
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")


def count_launches(step):
    """Calls of the driver or the runtime that launch a kernel or a graph."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        step()
        torch.cuda.synchronize()
    return sum(e.count for e in profile.key_averages() if e.key.startswith(LAUNCHES))


def measure(net, step, cache, prompt, n):
    """(tokens, ms a token of each loop, seconds of the first step, launches)"""
    times, tokens, first = [], [], None
    for _ in range(LOOPS + 1):
        cache.reset()
        place = torch.zeros(1, dtype=torch.long, device="cuda")
        token = rivals.call_model(net, prompt, cache, place).clone()
        place += prompt.shape[1]
        if first is None:
            first = rivals.seconds("cuda", lambda: step(token.clone(), cache, place))
        out = torch.empty(1 + n, dtype=torch.long, device="cuda")
        out[:1].copy_(token.view(-1))

        def loop():
            for i in range(n):
                token.copy_(step(token, cache, place))
                out[i + 1 : i + 2].copy_(token.view(-1))
                place.add_(1)

        times.append(rivals.seconds("cuda", loop) * 1e3 / n)
        tokens = out.tolist()
    return tokens, times[1:], first, count_launches(lambda: step(token, cache, place))


def eager(net, *_):
    return lambda *a: rivals.call_model(net, *a)


def inductor(net, *_):
    fast = torch.compile(lambda *a: rivals.call_model(net, *a), mode="reduce-overhead")

    def step(*arguments):
        torch.compiler.cudagraph_mark_step_begin()
        return fast(*arguments)

    return step


def mpk(net, reports, profile):
    from mpk import backend

    options = backend.Options(profile=profile, reports=reports)
    return torch.compile(lambda *a: rivals.call_model(net, *a), backend=backend.mpk, options=options)


WAYS = {"eager": eager, "inductor": inductor, "mpk": mpk}


def preference(net, prompt, tokens, other):
    """By how much eager's logit of the last of `tokens` exceeds that of `other`, in standard deviations of all."""
    ids = torch.cat([prompt, torch.tensor([tokens[:-1]], device="cuda", dtype=prompt.dtype)], 1)
    logits = net(input_ids=ids, logits_to_keep=1).logits[0, -1].float()
    return ((logits[tokens[-1]] - logits[other]) / logits.std()).item()


def run(model, options):
    net = rivals.random_model(model, "cuda", options.dtype)
    prompt = rivals.random_tokens(net, "cuda", 1, options.prompt)
    cache = transformers.StaticCache(config=net.config, max_cache_len=options.window)
    expected = None
    for way in options.ways.split(","):
        torch._dynamo.reset()
        reports = []
        tokens, times, first, launches = measure(
            net, WAYS[way](net, reports, options.profile), cache, prompt, options.tokens
        )
        expected = expected or tokens
        same = next((i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b), len(expected))
        row = {
            "model": pathlib.Path(model).name,
            "way": way,
            "ms": round(statistics.median(times), 4),
            "least": round(min(times), 4),
            "launches": launches,
            "same_tokens": f"{same} of {len(expected)}",
            "first_s": round(first, 2),
        }
        if reports:
            row["programs"] = sum(len(r.programs) for r in reports)
            row["fallbacks"] = sorted({name for r in reports for name in r.fallbacks})
            row["own_s"] = round(sum(r.seconds for r in reports), 2)
            made = [program.describe() for r in reports for program in r.programs]
            row["made"] = [{**m, "copied": len(m["copied"])} for m in made]
            if options.profile:
                row["profile"] = [program.profile() for r in reports for program in r.programs]
        if same < len(expected):
            row["preference"] = round(preference(net, prompt, expected[: same + 1], tokens[same]), 4)
        print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--window", type=int, default=1096)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--profile", action="store_true", help="of mpk: where the last step's time went; costs some")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_decode: PyTorch finds no GPU")
    if options.prompt + options.tokens + 2 > options.window:
        parser.error("prompt and tokens do not fit the window")
    print(f"PyTorch {torch.__version__}, Transformers {transformers.__version__}, {torch.cuda.get_device_name(0)}, "
          f"{time.strftime('%Y-%m-%d')}")
    with torch.no_grad():
        for model in options.models:
            run(model, options)


if __name__ == "__main__":
    main()
