#!/usr/bin/env python3
"""Measured results as JSON: measure them, write docs/results.md from them, compare two of them.

    bench/measured.py measure --mpk build/mpk --out bench/results/decode-h200.json --bandwidth 4.4
    bench/measured.py page                    write docs/results.md from bench/results/*.json
    bench/measured.py page --check            fail if that page is not what they give
    bench/measured.py compare OLD.json NEW.json

A file holds what one system did on one machine in one run:

    {"system": "mpk", "machine": "NVIDIA H200", "date": "2026-11-23", "commit": "abc1234", "note": "...",
     "bytes_per_s": 4.4e12,                   bandwidth that `light` is computed with
     "decode":  [{"model", "batch", "prompt", "generate", "ms", "least", "most", "command"}],
     "prompts": [{"model", "tokens", "ms", "command"}],
     "ablation": [{"model", "batch", "prompt", "generate", "ms": {variant: ms}}],     optional; of bench/paper.py
     "cpu": [{"format", "what", "llama_cpp", "mpk", "ratio", "wanted",                optional; of bench/llama.py
              "mpk_ISA"}],                                                            of its --also ISA
     "kl": [{"format", "llama_cpp", "mpk"}]}                                          optional; of bench/kl.py --into

`ms` of a decode row is the median time of a step, of a prompt row the time from submission to the first token.  `light`
is the least time in which a step's bytes can be read (docs/performance.md); at large batches operations may need more.
"""
import argparse
import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

from paper import ROOT, Model, find_commit, find_json

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "results.md"
BATCHES = [1, 4, 8, 16, 32, 64, 128, 256]
MATRIX = {"qwen3-0.6b": BATCHES, "llama-3.2-1b": [1, 16, 64], "qwen3-1.7b": [1, 16, 64], "qwen3-8b": BATCHES,
          "qwen3-30b-a3b": [1, 4, 8, 16, 32]}
PROMPTS = {"qwen3-0.6b": [64, 512, 2048, 8192], "qwen3-8b": [64, 512, 2048, 8192], "qwen3-30b-a3b": [512, 2048]}


# ---- measure ----

def run_bench(o, model, *more):
    """The JSON of one `mpk bench`, and its command; None with a message on standard error if it failed."""
    command = [str(o.mpk), "bench", str(ROOT / "models" / model), "--random-weights", "1", "--device", "cuda", "-r",
               str(o.runs), "--json", *map(str, more)]
    shown = " ".join(["mpk", "bench", f"models/{model}", *command[3:]])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=o.seconds)
    except subprocess.TimeoutExpired:
        print(f"{shown}: more than {o.seconds} s", file=sys.stderr)
        return None, shown
    result = find_json(done.stdout)
    if done.returncode or not result:
        print(f"{shown}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None, shown
    return result, shown


def save(o, record):
    """Keep what is there after each row: a run that is cut off loses nothing."""
    o.out.write_text(json.dumps(record, indent=1) + "\n")


def measure(o):
    record = {"system": "mpk", "machine": None, "date": datetime.date.today().isoformat(),
              "commit": o.commit or (find_commit() or "")[:7], "note": o.note, "bytes_per_s": o.bandwidth * 1e12,
              "decode": [], "prompts": []}
    for model in o.models:
        for batch in MATRIX[model]:
            result, command = run_bench(o, model, "-b", batch, "-n", o.generate)
            if result and result["step_ms"]:
                step = result["step_ms"]
                record["machine"] = result["device"]
                record["decode"].append({"model": model, "batch": batch, "prompt": 64, "generate": o.generate,
                                         "ms": step["median"], "least": step["least"], "most": step["most"],
                                         "command": command})
                print(f"{model} batch {batch}: {step['median']:.3f} ms", flush=True)
                save(o, record)
        for tokens in PROMPTS.get(model, []) if not o.no_prompts else []:
            result, command = run_bench(o, model, "-p", tokens, "-n", 1, "--context", max(4096, tokens + 64))
            if result:
                first = result["first_token_ms"]["median"]
                record["machine"] = result["device"]
                record["prompts"].append({"model": model, "tokens": tokens, "ms": first, "command": command})
                print(f"{model} prompt {tokens}: {first:.2f} ms", flush=True)
                save(o, record)


# ---- the page ----

def load():
    return [(path, json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json"))]


def light_ms(record, row):
    context = row["prompt"] + row["generate"] / 2
    return Model(row["model"]).bytes_of_step([context] * row["batch"]) / record["bytes_per_s"] * 1e3


def cells(values):
    return "| " + " | ".join(values) + " |"


def decode_table(record):
    """Rows of one system: a line for each model and answer's length, a column for each batch."""
    batches = sorted({row["batch"] for row in record["decode"]})
    kinds = list(dict.fromkeys((row["model"], row["prompt"], row["generate"]) for row in record["decode"]))
    yield cells(["model", "prompt, generated", *(f"batch {b}" for b in batches)])
    yield cells(["---"] * (2 + len(batches)))
    for kind in kinds:
        found = {row["batch"]: row for row in record["decode"]
                 if (row["model"], row["prompt"], row["generate"]) == kind}
        words = []
        for batch in batches:
            row = found.get(batch)
            lit = f" ({row['ms'] / light_ms(record, row):.2f})" if row and record.get("bytes_per_s") else ""
            words.append(f"{row['ms']:.3f}{lit}" if row else "")
        yield cells([kind[0], f"{kind[1]}, {kind[2]}", *words])


def prompt_table(record):
    sizes = sorted({row["tokens"] for row in record["prompts"]})
    yield cells(["model", *(f"{n:,} tokens" for n in sizes)])
    yield cells(["---"] * (1 + len(sizes)))
    for model in dict.fromkeys(row["model"] for row in record["prompts"]):
        found = {row["tokens"]: row["ms"] for row in record["prompts"] if row["model"] == model}
        yield cells([model, *(f"{found[n]:.1f}" if n in found else "" for n in sizes)])


def ablation_table(record):
    """A line for each variant of `bench/paper.py --only ablation unequal`, a column for each workload."""
    rows = record["ablation"]
    yield cells(["variant", *(f"{row['model']}, batch {row['batch']}, prompts {row['prompt']}" for row in rows)])
    yield cells(["---"] * (1 + len(rows)))
    for variant in dict.fromkeys(name for row in rows for name in row["ms"]):
        yield cells([variant, *(f"{row['ms'][variant]:.3f}" if variant in row["ms"] else "" for row in rows)])


def cpu_table(record):
    """A line for each format, three columns for each kind of row of bench/llama.py, one more for mpk's rate with other
    instructions, and two for divergences."""
    divergences = {row["format"]: row for row in record.get("kl", [])}
    kinds = list(dict.fromkeys(row["what"] for row in record["cpu"]))
    also = sorted({key for row in record["cpu"] for key in row if key.startswith("mpk_")})
    kl_words = ["KL: llama.cpp", "mpk"] if divergences else []
    yield cells(["weights", *(word for kind in kinds for word in (f"{kind}: llama.cpp", "mpk", "",
                                                                  *(f"mpk, {key[4:]}" for key in also))), *kl_words])
    yield cells(["---"] * (1 + (3 + len(also)) * len(kinds) + len(kl_words)))
    for name in dict.fromkeys(row["format"] for row in record["cpu"]):
        found = {row["what"]: row for row in record["cpu"] if row["format"] == name}
        words = []
        for kind in kinds:
            row = found.get(kind, {})
            words += [f"{row['llama_cpp']:.1f}", f"{row['mpk']:.1f}", f"{row['ratio']:.2f}"] if row else [""] * 3
            words += [f"{row[key]:.1f}" if key in row else "" for key in also]
        if divergences:
            row = divergences.get(name)
            words += [f"{row['llama_cpp']:.1e}", f"{row['mpk']:.1e}"] if row else [""] * 2
        yield cells([name, *words])


def heading(path, record):
    return f"{record['system']}, {record['date']}: {path.stem}"


def anchor(title):
    """The name that GitHub gives to a heading: lower case, punctuation dropped, a dash for each space."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def section(path, record):
    yield f"### {heading(path, record)}"
    yield ""
    source = f"[{path.name}](../bench/results/{path.name})"
    commit = f", commit {record['commit']}" if record.get("commit") else ""
    yield f"{source}{commit}. {record.get('note') or ''}".rstrip()
    if record["decode"]:
        lit = (f"; in brackets the multiple of light at {record['bytes_per_s'] / 1e12:g} TB/s"
               if record.get("bytes_per_s") else "")
        yield from ["", f"Decoding: ms a step, median{lit}.", "", *decode_table(record)]
    if record["prompts"]:
        yield from ["", "Prompts: ms from submission to the first token, batch 1.", "", *prompt_table(record)]
    if record.get("ablation"):
        yield from ["", f"Ablations: ms a step, median, by `{record['command']}`.", "", *ablation_table(record)]
    if record.get("cpu"):
        yield from ["", "Tokens/s of both systems, then mpk's rate divided by llama.cpp's; more is better. mpk ran its "
                    f"{record['isa']} code. Command: `{record['command']}`.", "", *cpu_table(record)]
    if record.get("kl"):
        yield from ["", "KL: divergence from fp32 activations with the same weights, nats a token (bench/kl.py); less "
                    "is better."]
    yield ""


INTRODUCTION = """# Results

`bench/measured.py page` writes this page from the files in `bench/results`. [performance.md](performance.md) says how
figures are taken. Every GPU row is bf16, random weights and greedy decoding. *Light* is the least time in which memory
can deliver the bytes of a step; a figure in brackets is the measured time divided by it. Less is better unless a table
says otherwise. Compare only rows of one kind of machine. Each machine's sections run from the newest day to the
oldest, those of one day by the name of their files; so the first ones show the present state and the rest is history.
"""


def page(o):
    machines = {}
    for path, record in sorted(load(), key=lambda entry: (entry[1]["date"], entry[0].name), reverse=True):
        machines.setdefault(record["machine"], []).append((path, record))
    lines = [INTRODUCTION]
    for machine, entries in sorted(machines.items()):
        lines += [f"- {machine}", *(f"  - [{heading(*entry)}](#{anchor(heading(*entry))})" for entry in entries)]
    lines.append("")
    for machine, entries in sorted(machines.items()):
        lines += [f"## {machine}", ""]
        for path, record in entries:
            lines += section(path, record)
    text = "\n".join(lines)
    if not o.check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit(f"{PAGE.relative_to(ROOT)} is out of date: run bench/measured.py page")


# ---- compare ----

def rows_of(record):
    for row in record["decode"]:
        yield f"{row['model']} batch {row['batch']} ({row['prompt']}, {row['generate']})", row["ms"]
    for row in record["prompts"]:
        yield f"{row['model']} prompt {row['tokens']}", row["ms"]


def compare(o):
    old, new = (dict(rows_of(json.loads(path.read_text()))) for path in (o.old, o.new))
    for name in [n for n in old if n in new]:
        print(f"{name:44} {old[name]:9.3f} {new[name]:9.3f}  {new[name] / old[name]:6.3f}")
    for name in sorted(old.keys() ^ new.keys()):
        print(f"{name:44} only in {o.old if name in old else o.new}")


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = p.add_subparsers(dest="verb", required=True)
    m = verbs.add_parser("measure")
    m.add_argument("--mpk", type=Path, default=ROOT / "build" / "mpk")
    m.add_argument("--out", type=Path, required=True)
    m.add_argument("--bandwidth", type=float, required=True, metavar="TB/s", help="of the machine, for light")
    m.add_argument("--models", nargs="+", default=list(MATRIX), choices=list(MATRIX))
    m.add_argument("--generate", type=int, default=256)
    m.add_argument("--runs", type=int, default=3)
    m.add_argument("--seconds", type=int, default=120, help="limit of one run")
    m.add_argument("--no-prompts", action="store_true")
    m.add_argument("--commit", help="where there is no git")
    m.add_argument("--note", default="")
    c = verbs.add_parser("page")
    c.add_argument("--check", action="store_true")
    d = verbs.add_parser("compare")
    d.add_argument("old", type=Path)
    d.add_argument("new", type=Path)
    o = p.parse_args(arguments)
    {"measure": measure, "page": page, "compare": compare}[o.verb](o)


if __name__ == "__main__":
    main()
