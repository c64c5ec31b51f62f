#!/usr/bin/env python3
"""A kernel for each regime beside one kernel for all, on a GPU: first that the new one is right, then how fast both
are.

    bench/regimes.py --old DIR --new DIR [--out FOLDER] [--models NAME ...]

DIR holds bin/mpk and lib (its libraries), that of --new maybe bin/check_cuda.  Right means: operators and models of
check_cuda; and logits of a text of 700 tokens in steps of 512 (the kernel for prompts, which hands over to the one for
streams and back) beside those of the same weights in steps of 16, in which no product of many tokens takes part, for
both programs.  Then prompts and decoding take turns between the two programs.  Everything is printed and written to
FOLDER/regimes.json as it comes.
"""
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parent.parent
ITEMS = ["linear", "logits", "attention", "rope_kv", "qwen3-bf16", "llama-bf16", "qwen3-bf16-graph",
         "qwen3-bf16-invariant", "qwen3-bf16-small"]
PROMPTS = [100, 512, 2048, 8192]
DECODE = [1, 16, 64]


def run(folder, *words, seconds=200):
    """What it prints, or None with the reason on standard output."""
    env = dict(os.environ, LD_LIBRARY_PATH=f"{folder}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}")
    command = [f"{folder}/bin/mpk", *map(str, words)]
    try:
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command)}: more than {seconds} s", flush=True)
        return None
    if done.returncode:
        print(f"{' '.join(command)}: {done.returncode}: {done.stderr[-600:]}", flush=True)
        return None
    return done.stdout


def logits(folder, model, tokens, step, out):
    ids, to = out / "ids.txt", out / "logits.npy"
    ids.write_text(" ".join(map(str, tokens)))
    if run(folder, "score", f"models/{model}", "--random-weights", 1, "--device", "cuda", "--tokens", ids, "--logits",
           to, "--step-tokens", step, "-q") is None:
        return None
    found = numpy.load(to)
    to.unlink()
    return found


def divergence(a, b):
    """Mean and largest KL of rows of b from a, and how many have the same largest entry."""
    def log_softmax(x):
        x = x.astype(numpy.float64) - x.max(-1, keepdims=True)
        return x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))
    kl = [float((numpy.exp(p) * (p - log_softmax(b[i:i + 1]))).sum())
          for i in range(len(a)) for p in [log_softmax(a[i:i + 1])]]
    return numpy.mean(kl), max(kl), float((a.argmax(-1) == b.argmax(-1)).mean())


def keep(o, table, name, value):
    table[name] = value
    (o.out / "regimes.json").write_text(json.dumps(table, indent=1) + "\n")


def check_logits(o, model, table):
    tokens = numpy.random.default_rng(o.seed).integers(0, 100000, 700)
    for name, folder in (("old", o.old), ("new", o.new)):
        few, many = (logits(folder, model, tokens, step, o.out) for step in (16, 512))
        if few is None or many is None:
            continue
        mean, most, same = divergence(few, many)
        keep(o, table, f"kl {model} {name}", [mean, most, same])
        print(f"{model} {name}: KL of steps of 512 from steps of 16: mean {mean:.3e}, most {most:.3e}, "
              f"same argmax {same:.1%}", flush=True)


def bench(o, model, table, prompt, generate, batch, key):
    for name, folder in (("old", o.old), ("new", o.new)):
        text = run(folder, "bench", f"models/{model}", "--random-weights", 1, "--device", "cuda", "-p", prompt, "-n",
                   generate, "-b", batch, "-r", 3, "--context", max(4096, prompt + 64), "--json", "-q")
        found = json.loads(text) if text else {key: None}
        ms = found[key]["median"] if found[key] else None
        keep(o, table, f"{model} p{prompt} n{generate} b{batch} {name}", ms)
        cold = "" if found.get("kernel_cached", True) else f", compiled in {found['compile_ms'] / 1000:.1f} s"
        print(f"{model} prompt {prompt} generate {generate} batch {batch} {name}: {ms} ms{cold}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--old", type=Path, required=True)
    p.add_argument("--new", type=Path, required=True)
    p.add_argument("--out", type=Path, default=Path("/tmp"))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--models", nargs="*", default=["qwen3-0.6b", "qwen3-8b"])
    o = p.parse_args()
    o.old, o.new, o.out = o.old.resolve(), o.new.resolve(), o.out.resolve()
    table = {}
    if (o.new / "bin/check_cuda").exists():
        env = dict(os.environ, LD_LIBRARY_PATH=f"{o.new}/lib")
        done = subprocess.run([o.new / "bin/check_cuda", *ITEMS], env=env, timeout=240, check=False)
        keep(o, table, "check_cuda", done.returncode)
    for model in o.models:
        check_logits(o, model, table)
        for prompt in PROMPTS:
            bench(o, model, table, prompt, 1, 1, "first_token_ms")
        for batch in DECODE:
            bench(o, model, table, 64, 256, batch, "ms_per_token")
    return table.get("check_cuda", 0)


if __name__ == "__main__":
    sys.exit(main())
