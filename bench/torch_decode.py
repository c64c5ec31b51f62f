#!/usr/bin/env python3
"""One decode step of a Hugging Face model on a GPU: backend="mpk", torch.compile(mode="reduce-overhead"), eager.

    bench/torch_decode.py [--tokens N] [--loops N] [--prompt N] [--window N] [--dtype D] [--ways mpk,inductor,eager]
                          [--limit S] [--profile] MODEL ...

MODEL: a folder with a config.json (models/qwen3-0.6b); weights are random, the same for all ways.  Batch 1, a static
cache of `window` positions that all ways write in place, greedy.  One line of JSON for each way, as soon as it is
known: milliseconds a token, the median of the loops after one that compiles (eager: of one); launches by the host in
a step; what a call takes the host, in microseconds; seconds that the first step took, and for mpk how many of them
were its own and what the backend itself takes of a call.

Random weights make near ties, so tokens that differ tell little.  Each way is therefore also fed the same tokens,
whatever it chooses, and its choices are judged by the same model in float32: `picks` is how many are float32's,
`regret` by how much float32 prefers its own to them, mean and largest, in standard deviations of the logits.
"""

import argparse
import copy
import json
import pathlib
import signal
import statistics
import sys
import time

import torch
import transformers

import rivals

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch")
KERNEL = "mpk_kernel"  # each run is a launch, by cuGraphLaunch, whether or not the profiler notes that
CALLS = 40  # that the host may run ahead of the GPU while it is timed


class Session:
    """A model, its cache, and the tokens that all ways are fed."""

    def __init__(self, model, options):
        self.net = rivals.random_model(model, "cuda", options.dtype)
        self.prompt = rivals.random_tokens(self.net, "cuda", 1, options.prompt)
        self.forced = rivals.random_tokens(self.net, "cuda", 1, options.tokens)
        self.cache = transformers.StaticCache(config=self.net.config, max_cache_len=options.window)
        self.reference = self.in_float32()

    def in_float32(self):
        """Logits after each of the forced tokens [tokens, vocabulary], float32."""
        net = copy.deepcopy(self.net).float()
        ids = torch.cat([self.prompt, self.forced], 1)
        logits = net(input_ids=ids, logits_to_keep=self.forced.shape[1], use_cache=False).logits[0].clone()
        del net
        torch.cuda.empty_cache()
        return logits

    def start(self):
        """The first token after the prompt and its place, by eager."""
        self.cache.reset()
        place = torch.zeros(1, dtype=torch.long, device="cuda")
        token = rivals.call_model(self.net, self.prompt, self.cache, place).clone()
        return token, place.add_(self.prompt.shape[1])

    def generate(self, step, n, forced=None):
        """n tokens [n] that a way chooses, each fed to the next step unless others are forced; ms a token."""
        token, place = self.start()
        out = torch.empty(n, dtype=torch.long, device="cuda")

        def loop():
            for i in range(n):
                if forced is not None:
                    token.copy_(forced[:, i : i + 1])
                out[i : i + 1].copy_(step(token, self.cache, place).view(-1))
                if forced is None:
                    token.copy_(out[i])
                place.add_(1)

        spent = rivals.seconds("cuda", loop)
        return out, spent * 1e3 / n

    def judge(self, choices):
        """How good float32 finds these choices after the forced tokens."""
        best = self.reference.max(-1)
        taken = self.reference.gather(-1, choices[:, None])[:, 0]
        regret = (best.values - taken) / self.reference.std(-1)
        return {
            "picks": f"{(best.indices == choices).sum().item()} of {len(choices)}",
            "regret": [round(regret.mean().item(), 5), round(regret.max().item(), 4)],
        }


def count_launches(step):
    """Calls of the driver or the runtime that launch a kernel or a graph; mpk's kernels are counted where they run."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        step()
        torch.cuda.synchronize()
    return sum(e.count for e in profile.key_averages() if e.key.startswith(LAUNCHES) or e.key == KERNEL)


def host_microseconds(step):
    """What a call takes the host, which does not wait for the GPU."""
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            step()
        times.append((time.perf_counter() - begin) / CALLS * 1e6)
    torch.cuda.synchronize()
    return round(min(times), 1)


def backend_microseconds(step):
    """What of a call the backend itself takes, and what of that the launch."""
    from mpk import gpu

    whole, launch, times = gpu.GpuRunner.__call__, gpu.GpuRunner.launch, ([], [])

    def timed(fn, into):
        def call(*arguments):
            begin = time.perf_counter()
            result = fn(*arguments)
            into.append(time.perf_counter() - begin)
            return result

        return call

    gpu.GpuRunner.__call__, gpu.GpuRunner.launch = timed(whole, times[0]), timed(launch, times[1])
    try:
        host_microseconds(step)
    finally:
        gpu.GpuRunner.__call__, gpu.GpuRunner.launch = whole, launch
    return [round(statistics.median(t) * 1e6, 1) for t in times]


def eager(net, *_):
    return lambda *a: rivals.call_model(net, *a)


def inductor(net, *_):
    fast = torch.compile(lambda *a: rivals.call_model(net, *a), mode="reduce-overhead")

    def step(*arguments):
        torch.compiler.cudagraph_mark_step_begin()
        return fast(*arguments)

    return step


def mpk(net, reports, profile=False):
    from mpk import backend

    options = backend.Options(profile=profile, reports=reports)
    return torch.compile(lambda *a: rivals.call_model(net, *a), backend=backend.mpk, options=options)


WAYS = {"mpk": mpk, "inductor": inductor, "eager": eager}


def first_seconds(session, step):
    token, place = session.start()
    return rivals.seconds("cuda", lambda: step(token, session.cache, place))


def measure(session, way, options):
    """(tokens, the way's row)"""
    torch._dynamo.reset()
    reports = []
    step = WAYS[way](session.net, reports)
    first = first_seconds(session, step)
    loops = [session.generate(step, options.tokens) for _ in range(1 + (1 if way == "eager" else options.loops))]
    tokens, times = loops[-1][0].tolist(), [ms for _, ms in loops[1:]]
    row = {"ms": round(statistics.median(times), 4), "least": round(min(times), 4), "first_s": round(first, 2)}
    row |= session.judge(session.generate(step, options.tokens, session.forced)[0])
    token, place = session.start()

    def again():
        step(token, session.cache, place)

    row["host_us"] = host_microseconds(again)
    if reports:
        row["backend_us"], row["launch_us"] = backend_microseconds(again)
        row["programs"] = sum(len(r.programs) for r in reports)
        row["fallbacks"] = sorted({name for r in reports for name in r.fallbacks})
        row["own_s"] = round(sum(r.seconds for r in reports), 2)
        made = [program.describe() for r in reports for program in r.programs]
        row["made"] = [{**m, "copied": len(m["copied"])} for m in made]
    row["launches"] = count_launches(again)
    return tokens, row


def profile(session, options):
    """Where the time of mpk's last step went, by kind of operator, most first."""
    torch._dynamo.reset()
    reports = []
    step = mpk(session.net, reports, True)
    first_seconds(session, step)
    ms = session.generate(step, options.tokens)[1]
    kinds = [kind for r in reports for program in r.programs for kind in program.profile()["kinds"]]
    print(json.dumps({"profiled_ms": round(ms, 4)}), flush=True)
    for kind in sorted(kinds, key=lambda kind: -kind["sm_us"]):
        print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in kind.items()}), flush=True)


def within(limit, work):
    """work() unless it fails or takes longer than so many seconds: then the error's text."""

    def late(*_):
        raise TimeoutError(f"not ready after {limit} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    try:
        return work(), None
    except Exception as problem:
        return None, f"{type(problem).__name__}: {problem}"[:500]
    finally:
        signal.alarm(0)


def run(model, options):
    session = Session(model, options)
    chosen = {}
    for way in options.ways.split(","):
        done, problem = within(options.limit, lambda: measure(session, way, options))
        row = {"model": pathlib.Path(model).name, "way": way}
        if done is None:
            print(json.dumps(row | {"failed": problem}), flush=True)
            continue
        chosen[way], more = done
        print(json.dumps(row | more), flush=True)
    if "eager" in chosen:
        for way, tokens in chosen.items():
            same = next((i for i, (a, b) in enumerate(zip(tokens, chosen["eager"])) if a != b), len(tokens))
            print(json.dumps({"way": way, "same_tokens_as_eager": f"{same} of {len(tokens)}"}), flush=True)
    if options.profile:
        problem = within(options.limit, lambda: profile(session, options))[1]
        if problem:
            print(json.dumps({"profile": "failed", "why": problem}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--loops", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--window", type=int, default=1096)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--limit", type=int, default=600, help="seconds that a way may take, compiling included")
    parser.add_argument("--profile", action="store_true", help="after the ways: where the time of a step of mpk goes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_decode: PyTorch finds no GPU")
    if options.prompt + options.tokens + 2 > options.window:
        parser.error("prompt and tokens do not fit the window")
    print(
        f"PyTorch {torch.__version__}, Transformers {transformers.__version__}, {torch.cuda.get_device_name(0)}, "
        f"{time.strftime('%Y-%m-%d')}"
    )
    with torch.no_grad():
        for model in options.models:
            run(model, options)


if __name__ == "__main__":
    main()
