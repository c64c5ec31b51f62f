#!/usr/bin/env python3
"""Several GPUs beside one: the same answers, and how fast; with random weights, so that configurations are enough.

    python3 bench/peers.py --mpk build/mpk [--gpus 2] [--models qwen3-8b ...] [--batches 1 16] [--profile]

Input: models/.  Output: a line of JSON for the links, each check and each figure, as they come.  First all kernels are
compiled side by side.  For each model the logits of a text on one GPU and on N are compared with those of the CPU,
whose activations are fp32 (KL divergence from the CPU's, nats, mean over tokens).  N GPUs may be at most 1.5 times as
far from it as one, and must give the same bytes in two runs.  Then mpk bench runs on one GPU, on N, and on N that wait
for counters (--no-carriers); with --profile once more on N for where the time of a step goes.  Exit code 1 if a check
fails.  Standard library only; called by hand, on a machine with GPUs.
"""
import argparse
import array
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_RATIO = 1.5  # of the divergence on N GPUs to that on one


def run(mpk, *arguments, timeout):
    result = subprocess.run([mpk, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)
    if result.returncode:
        raise RuntimeError(f"mpk {' '.join(map(str, arguments))}: {result.stderr.strip()[-1000:]}")
    return result.stdout


def logits(options, model, where, folder):
    """Bytes of float32 [T, V], and V.  where: arguments that say which device."""
    ids, out = folder / "ids.txt", folder / "logits.npy"
    ids.write_text(" ".join(str(i * 7919 % 50000) for i in range(1, options.tokens + 1)))
    run(options.mpk, "score", ROOT / "models" / model, *where, "--tokens", ids, "--logits", out,
        timeout=options.timeout)
    data = out.read_bytes()
    head = 10 + int.from_bytes(data[8:10], "little")
    shape = data[10:head].decode().split("(")[1].split(")")[0].split(",")
    return data[head:], int(shape[1])


def log_shares(row):
    most = max(row)
    total = math.log(sum(math.exp(x - most) for x in row)) + most
    return [x - total for x in row]


def divergence(a, b, width):
    """Mean over rows of KL(a, b)."""
    a, b = array.array("f", a), array.array("f", b)
    rows = len(a) // width
    sums = 0.0
    for r in range(rows):
        p, q = log_shares(a[r * width:(r + 1) * width]), log_shares(b[r * width:(r + 1) * width])
        sums += sum(math.exp(x) * (x - y) for x, y in zip(p, q))
    return sums / rows


def check(options, model, folder):
    cpu = ["--random-weights", 1, "--device", "cpu", "--context", options.context]
    exact, width = logits(options, model, cpu, folder)
    one, _ = logits(options, model, engine(options, 1), folder)
    several, _ = logits(options, model, engine(options, options.gpus), folder)
    again, _ = logits(options, model, engine(options, options.gpus), folder)
    nats = [divergence(exact, x, width) for x in (one, several)]
    good = several == again and nats[1] <= MOST_RATIO * nats[0]
    print(json.dumps({"model": model, "check": "logits", "gpus": options.gpus, "kl_nats_of_one": nats[0],
                      "kl_nats": nats[1], "kl_nats_between": divergence(one, several, width),
                      "same_bits_twice": several == again, "good": good}), flush=True)
    return good


def engine(options, gpus):
    return ["--random-weights", 1, "--device", "cuda", "--gpus", gpus, "--context", options.context]


def bench(options, model, batch, gpus, *more, runs=3):
    text = run(options.mpk, "bench", ROOT / "models" / model, *engine(options, gpus), "-b", batch, "-n",
               options.generate, "-r", runs, "--json", "-q", *more, timeout=options.timeout)
    print(json.dumps({"model": model, "batch": batch, "gpus": gpus, "options": list(more), "bench": json.loads(text)}),
          flush=True)


def warm(options, folder):
    """Compile what the rest runs, all at once; whoever fails says so again below."""
    jobs = [subprocess.Popen([options.mpk, "compile", ROOT / "models" / model,
                              *map(str, engine(options, gpus)), "--max-batch", str(batch), "-q", "-o",
                              folder / f"{model}.{gpus}.{batch}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for model in options.models for gpus in (1, options.gpus) for batch in options.batches]
    for job in jobs:
        try:
            job.wait(options.timeout)
        except subprocess.TimeoutExpired:
            job.kill()


def measure(options, model):
    for batch in options.batches:
        bench(options, model, batch, 1)
        bench(options, model, batch, options.gpus)
        bench(options, model, batch, options.gpus, "--no-carriers")
        if options.profile:
            bench(options, model, batch, options.gpus, "--profile", runs=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpk", default=str(ROOT / "build" / "mpk"))
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=["qwen3-0.6b", "qwen3-1.7b", "qwen3-8b"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--tokens", type=int, default=32, help="of the text whose logits are compared")
    parser.add_argument("--generate", type=int, default=256)
    parser.add_argument("--context", type=int, default=512, help="tokens of prompt and answer")
    parser.add_argument("--check", action="store_true", help="compare logits only, no times")
    parser.add_argument("--profile", action="store_true", help="where the time of a step on N GPUs goes")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of one call of mpk")
    options = parser.parse_args()
    good = True
    rows = json.loads(run(options.mpk, "doctor", "--json", timeout=options.timeout))
    print(json.dumps({"doctor": [row for row in rows if row["subject"].startswith("gpu")]}), flush=True)
    with tempfile.TemporaryDirectory() as name:
        warm(options, pathlib.Path(name))
        for model in options.models:
            try:
                good &= check(options, model, pathlib.Path(name))
                if not options.check:
                    measure(options, model)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(json.dumps({"model": model, "error": str(error)}), flush=True)
                good = False
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
