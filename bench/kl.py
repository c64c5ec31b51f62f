#!/usr/bin/env python3
"""What 8-bit activations cost in accuracy: KL divergence from the same weights with fp32 arithmetic, mpk beside
llama.cpp.

    bench/kl.py [--mpk build/mpk] [--chunks 4] [--formats Q4_1 Q8_0 ...] [--text FILE] [--kv f16|q8_0] [--json]
                [--no-amx] [--into bench/results/cpu-avx2.json]

For each format of SmolLM2-135M: mpk with --activations=i8 from mpk with --activations=f32, and llama.cpp's
llama-perplexity --kl-divergence from itself on a file of the same weights unpacked to F32.  Both take chunks of 512
tokens of the text and look at the second half of each; figures are means over these tokens, in nats.

With --kv it is what a KV cache of that dtype costs: each program on the file itself, from its own cache of f32.  --into
puts the figures beside the speeds that bench/llama.py has written there.  --no-amx takes a llama.cpp without AMX, as
there.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

import llama

CHUNK = 512
FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def logits(mpk, model, tokens, folder, option):
    ids, out = folder / "ids.txt", folder / "logits.npy"
    ids.write_text(" ".join(map(str, tokens)))
    llama.run(mpk, "score", model, "--tokens", ids, "--logits", out, "-t", 2, "-q", "--device=cpu", option)
    return numpy.load(out)[CHUNK // 2:].astype(numpy.float64)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))


def mpk_kl(mpk, model, chunks, folder, kv):
    found, ways = [], ("--kv=f32", f"--kv={kv}") if kv else ("--activations=f32", "--activations=i8")
    for tokens in chunks:
        p, q = (log_softmax(logits(mpk, model, tokens, folder, way)) for way in ways)
        found.append((numpy.exp(p) * (p - q)).sum(-1))
    return float(numpy.concatenate(found).mean())


def cache_of(dtype):
    return "-ctk", dtype, "-ctv", dtype


def llama_kl(programs, model, text, chunks, folder, kv):
    whole, base = folder / "whole.gguf", folder / "base.kld"
    if not kv:
        llama.run(programs / "llama-quantize", "--allow-requantize", model, whole, "F32")
    options = ("-f", text, "-c", CHUNK, "-b", CHUNK, "--chunks", chunks, "-t", 2, "-fa", "on" if kv else "off")
    llama.run(programs / "llama-perplexity", "-m", model if kv else whole, *options, *cache_of("f32"),
              "--kl-divergence-base", base)
    command = [programs / "llama-perplexity", "-m", model, *options, *cache_of(kv or "f32"), "--kl-divergence-base",
               base, "--kl-divergence"]
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    mean = re.search(r"Mean\s+KLD:\s+([0-9.eE+-]+)", done.stdout)
    if not mean:
        sys.exit(f"llama-perplexity gave no mean KLD:\n{done.stdout[-2000:]}")
    return float(mean[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mpk", default=llama.ROOT / "build" / "mpk")
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--text", type=Path, default=llama.ROOT / "docs" / "runtime.md")
    parser.add_argument("--kv", choices=["f16", "q8_0"])
    parser.add_argument("--no-amx", action="store_true", help="a llama.cpp without AMX")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--into", type=Path, help="results of bench/llama.py, which then hold these figures too")
    options = parser.parse_args()
    programs = llama.build_llama("llama-perplexity", amx=not options.no_amx)
    rows = []
    for kind, model in llama.make_models(programs, options.formats).items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tokens = [int(t) for t in llama.run(options.mpk, "tokenize", model, "-f", options.text).split()]
            chunks = [tokens[i * CHUNK:(i + 1) * CHUNK] for i in range(options.chunks)]
            row = {"format": kind, "mpk": mpk_kl(options.mpk, model, chunks, folder, options.kv),
                   "llama_cpp": llama_kl(programs, model, options.text, options.chunks, folder, options.kv)}
        rows.append(row)
        if not options.json:
            print(f"{kind:6} mpk {row['mpk']:.3e}  llama.cpp {row['llama_cpp']:.3e}", flush=True)
    if options.into:
        record = json.loads(options.into.read_text())
        options.into.write_text(json.dumps({**record, "kl": rows}, indent=1) + "\n")
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
