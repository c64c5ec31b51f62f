#!/usr/bin/env python3
"""The tables and figures of the paper's evaluation (section 6), for what this machine has, in one command.

    bench/paper.py --mpk build/mpk                        everything; hours on a GPU with all rivals
    bench/paper.py --quick                                the smallest model, few runs
    bench/paper.py --only latency ablation --models qwen3-8b --time-budget 500
    bench/paper.py --only --from a/paper.json b/paper.json    tables and figures of what was measured before

Input: an mpk, and configurations (models/NAME or any folder with a config.json); weights are made up.  Output: tables,
paper.json and, with matplotlib, figures as PNG in --out.  docs/performance.md says what each number means.

Every measurement is a process of its own with a time limit: what fails is a row "failed: why", and the rest goes on.
The variants of one row run in turn, --rounds times; what takes long to start (PyTorch, vLLM, SGLang) runs in the first
round only.  Figures are medians of runs, beside them the least and the most.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import paper_figures
import paper_tables

ROOT = Path(__file__).resolve().parent.parent
MODELS = ["qwen3-0.6b", "llama-3.2-1b", "qwen3-1.7b", "qwen3-8b"]
H100_BYTES_PER_S = 3.15e12
LEAST_SECONDS = 5  # of a time budget, for another measurement to begin
RIVALS = {"eager": "PyTorch eager", "compiled": "torch.compile", "vllm": "vLLM", "sglang": "SGLang"}
MOST_TOKENS = {"eager": 128, "compiled": 256}  # what takes long is measured over fewer, at a shorter context
GRAPHS = {"graph": ["--mode=graph"], "graph-pdl": ["--mode=graph-pdl"]}
ABLATIONS = {"mpk": [], "no-preload": ["--no-preload"], "no-descriptor-prefetch": ["--no-descriptor-prefetch"],
             "no-carriers": ["--no-carriers"], **GRAPHS}
# Who waits for what, and who hands out tasks: events and launch policies differ only where counters are waited for, so
# without carriers.  Graphs with JIT tasks never carry; the paper's policy is the hybrid one.
COUNTERS = ["--no-carriers"]
LAUNCHES = {"launch=aot": ["--launch=aot"], **{f"launch={name},no-carriers": [f"--launch={name}", *COUNTERS]
                                               for name in ("aot", "paper", "jit")}}
MECHANISMS = {**LAUNCHES, **{name.replace(",", ",coarse-events,", 1) if "," in name else f"{name},coarse-events":
                             [*words, "--coarse-events"] for name, words in LAUNCHES.items()}}
VARIANTS = list({**ABLATIONS, **MECHANISMS})
JIT_TOKENS = 96  # at unequal lengths a step of JIT tasks takes tens of milliseconds; more than steps that read prompts


# ---- models ----

class Model:
    """A configuration, and what a step of it must read."""

    def __init__(self, word):
        folder = ROOT / "models" / word
        self.folder = folder if (folder / "config.json").exists() else Path(word)
        self.name = self.folder.name
        try:
            self.config = json.loads((self.folder / "config.json").read_text())
        except OSError as error:
            sys.exit(f"paper.py: {word} is neither in models/ nor a folder with a config.json: {error}")
        c = self.config
        self.layers, self.hidden, heads = c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"]
        self.kv_heads = c.get("num_key_value_heads", heads)
        self.head = c.get("head_dim") or self.hidden // heads
        self.vocabulary = c["vocab_size"]
        attention = self.hidden * self.head * (2 * heads + 2 * self.kv_heads)
        self.experts = c.get("num_experts") or c.get("num_local_experts") or 0
        self.of_token = c.get("num_experts_per_tok") or 0
        every, dense = c.get("decoder_sparse_step") or 1, c.get("mlp_only_layers") or []
        self.mixed = sum(i not in dense and (i + 1) % every == 0 for i in range(self.layers)) if self.experts else 0
        self.expert = 3 * self.hidden * (c.get("moe_intermediate_size") or c["intermediate_size"])
        plain = (self.layers - self.mixed) * 3 * self.hidden * c["intermediate_size"]
        routers = self.mixed * self.experts * self.hidden
        self.weights = self.layers * attention + plain + routers + self.vocabulary * self.hidden

    def active_experts(self, tokens):
        """How many experts of a layer some token of a step goes to, if each takes any of them as likely."""
        return self.experts * (1 - (1 - self.of_token / self.experts) ** tokens) if self.experts else 0

    def bytes_of_step(self, contexts, hit=None):
        """bf16: every matrix once, of experts the active ones, and the KV cache of each request.

        hit: experts of a layer that some token went to, if that was measured.  The few rows of the embedding are not
        counted.
        """
        experts = self.mixed * self.expert * (self.active_experts(len(contexts)) if hit is None else hit)
        return 2 * (self.weights + experts) + 4 * self.layers * self.kv_heads * self.head * sum(contexts)


# ---- running ----

def find_json(text):
    """The JSON object that a text is, or else its last line that is one; None if there is none."""
    for part in [text, *reversed(text.splitlines())]:
        if part.lstrip().startswith("{"):
            try:
                return json.loads(part)
            except ValueError:
                pass
    return None


def why(code, words):
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return f"exit {code}: {lines[-1][:300]}" if lines else f"exit {code} without a word"


def run_group(command, seconds, env):
    """Exit code, output and errors of a command; when the time is over it ends with all that it has started."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", env=env, start_new_session=True) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, out, errors


class Bench:
    """Options, results so far, and the clock."""

    def __init__(self, options):
        self.options = options
        self.begin = time.monotonic()
        self.models = [Model(word) for word in options.models]
        self.rows = []
        self.skipped = 0
        self.weights_of = {}
        self.work = Path(options.work or tempfile.mkdtemp(prefix="mpk-paper-"))
        self.work.mkdir(parents=True, exist_ok=True)
        self.facts = {"options": {k: str(v) for k, v in vars(options).items()}, "seed": options.seed}
        self.bytes_per_s = options.bandwidth * 1e12 if options.bandwidth else None

    def seconds_left(self):
        budget = self.options.time_budget
        return budget - (time.monotonic() - self.begin) if budget else float("inf")

    def run(self, command, env=None):
        """The JSON object that a command prints, or {"failed": why}."""
        command = [str(word) for word in command]
        if self.options.dry_run:
            print("  " + " ".join(command), flush=True)
            return {"failed": "dry run"}
        if self.seconds_left() < LEAST_SECONDS:
            self.skipped += 1
            return {"failed": "no time left"}
        limit = min(self.options.timeout, self.seconds_left())
        try:
            code, out, errors = run_group(command, limit, {**os.environ, **(env or {})})
        except subprocess.TimeoutExpired:
            return {"failed": f"not done in {limit:.0f} s"}
        except OSError as error:
            return {"failed": str(error)}
        result = find_json(out) if code == 0 else None
        return result if result is not None else {"failed": why(code, errors or out)}

    def mpk(self, model, *more, env=None, weights=None):
        """mpk bench of a model; weights: a folder with files, else they are made up."""
        source = [weights] if weights else [model.folder, "--random-weights=1"]
        result = self.run([self.options.mpk, "bench", *source, "--device", self.options.device, "--json", "-q", *more,
                           *self.options.mpk_option], env)
        if "device" in result:
            self.facts.setdefault("device", result["device"])
        return result

    def chosen(self, variants):
        """Those of name -> words that --variants leaves."""
        return {name: words for name, words in variants.items() if name in self.options.variants}

    def python_of(self, what):
        return {"vllm": self.options.vllm_python, "sglang": self.options.sglang_python}.get(what, sys.executable)

    def rival(self, what, **arguments):
        words = {"what": what, "device": self.options.device.replace("auto", "cuda"), **arguments}
        return self.run([self.python_of(what), ROOT / "bench" / "rivals.py", json.dumps(words)])

    def take_turns(self, variants, value, rounds=None):
        """Variants: name -> (command, is slow to start); value(result) -> {"median", "least", "most"}.  Gives name ->
        the same over all rounds, or {"failed"}."""
        taken, failed = {name: [] for name in variants}, {}
        for i in range(rounds or self.options.rounds):
            for name, (command, slow) in variants.items():
                if name in failed or slow and i:
                    continue
                result = command()
                got = None if "failed" in result else value(result)
                if got:
                    taken[name].append(got)
                else:
                    failed[name] = result.get("failed", "no step had the whole batch, or all came too fast")
        return {name: {"median": statistics.median(t["median"] for t in got), "least": min(t["least"] for t in got),
                       "most": max(t["most"] for t in got)} if got else {"failed": failed[name]}
                for name, got in taken.items()}

    def add(self, section, **row):
        self.rows.append({"section": section, **row})
        self.save()

    def save(self):
        if self.options.dry_run:
            return
        self.options.out.mkdir(parents=True, exist_ok=True)
        file = self.options.out / "paper.json"
        part = file.with_suffix(".part")
        part.write_text(json.dumps({**self.facts, "bytes_per_s": self.bytes_per_s, "rows": self.rows}, indent=1) + "\n")
        part.replace(file)

    def light_ms(self, model, contexts, hit=None):
        return model.bytes_of_step(contexts, hit) / self.bytes_per_s * 1e3 if self.bytes_per_s else None

    def weights(self, model):
        """A folder with random bf16 weights of this model, made once; {"failed"} if that is not possible."""
        if model.name not in self.weights_of:
            folder = self.work / f"{model.name}-weights"
            made = {"folder": str(folder)} if (folder / "config.json").exists() else self.rival(
                "weights", model=str(model.folder), folder=str(folder), seed=self.options.seed)
            self.weights_of[model.name] = made
        return self.weights_of[model.name]


def step_ms(result):
    return result["step_ms"]


def experts_hit(b, model, words):
    """Experts of a layer that the last step hit, of a run of its own, as counting takes time; None: no mixture, or it
    failed."""
    counted = b.mpk(model, *words, "--experts").get("experts") if model.experts else None
    return counted and counted["hit"]


# ---- sections ----

def correctness(b):
    """Teacher-forced logits of random weights: ours and eager bf16 against eager fp32, the same weights for all."""
    for model in b.models:
        made = b.weights(model)
        ids = [(7 + 7919 * t) % model.vocabulary for t in range(b.options.score_tokens)]
        ids_file, files = b.work / "ids.txt", {}
        ids_file.write_text(" ".join(map(str, ids)))
        failed = {"mpk": made["failed"]} if "failed" in made else {}
        # tokens a step: the code for one token, for a batch, and for prompts
        for step in [] if failed else b.options.score_steps:
            file = b.work / f"logits-{step}.npy"
            done = b.run([b.options.mpk, "score", made["folder"], "--device", b.options.device, "--tokens", ids_file,
                          "--logits", file, "--step-tokens", step, "--json", "-q", *b.options.mpk_option])
            if "failed" in done:
                failed[f"mpk {step}"] = done["failed"]
            else:
                files[f"mpk {step}"] = str(file)
        compared = b.rival("logits", folder=made["folder"], ids=ids, files=files) if files else made
        if "failed" in compared:
            failed["Transformers"] = compared["failed"]
        b.add("correctness", model=model.name, tokens=len(ids), results=compared.get("against_fp32", {}),
              failed=failed)
        for file in files.values():
            os.unlink(file)


def decode_words(b, batch, *more):
    return ["--prompt", b.options.prompt, "--generate", b.options.generate, "--batch", batch, "--runs", b.options.runs,
            *more]


def latency(b):
    """ms a decode step (figure "end to end"): ours, the same code as a CUDA graph, and the rivals."""
    for model in b.models:
        for batch in b.options.batches:
            variants = {name: (lambda more=more: b.mpk(model, *decode_words(b, batch, *more)), False)
                        for name, more in b.chosen({"mpk": [], **GRAPHS}).items()}
            for what in b.options.rivals:
                arguments = dict(model=str(model.folder), batch=batch, prompt=b.options.prompt,
                                 runs=min(b.options.runs, 3),
                                 generate=min(b.options.generate, MOST_TOKENS.get(what, b.options.generate)))
                variants[RIVALS[what]] = (lambda what=what, a=arguments: b.rival(what, **a), True)
            contexts = [b.options.prompt + b.options.generate / 2] * batch
            hit = experts_hit(b, model, decode_words(b, batch))
            b.add("latency", model=model.name, batch=batch, experts_hit=hit, light_ms=b.light_ms(model, contexts, hit),
                  ms=b.take_turns(variants, step_ms))


def ablation(b):
    """What each mechanism of the runtime and the compiler is worth (paper 6.6); carriers on and off by events fine and
    coarse by launch policy."""
    for model in b.models:
        for batch in b.options.batches[::max(1, len(b.options.batches) - 1)]:
            variants = {name: (lambda more=more: b.mpk(model, *decode_words(b, batch, *more)), False)
                        for name, more in b.chosen({**ABLATIONS, **MECHANISMS}).items()}
            b.add("ablation", model=model.name, batch=batch, ms=b.take_turns(variants, step_ms))


def unequal(b):
    """Requests whose contexts differ, by launch policy: what JIT launch is for (paper 5.2)."""
    batch, generate = max(b.options.batches), b.options.unequal_generate
    for model in b.models:
        seen = {}

        def measured(name, more, model=model, seen=seen):
            tokens = min(generate, JIT_TOKENS) if "launch=jit" in name else generate
            result = b.mpk(model, "--prompt", b.options.contexts, "--seed", b.options.seed, "--batch", batch,
                           "--generate", tokens, "--runs", min(b.options.runs, 3), *more)
            seen["prompts"] = result.get("prompts", seen.get("prompts"))
            return result
        variants = {name: (lambda name=name, more=more: measured(name, more), False)
                    for name, more in b.chosen({"mpk": [], **LAUNCHES, **GRAPHS}).items()}
        ms = b.take_turns(variants, step_ms)
        prompts = seen.get("prompts")
        light = b.light_ms(model, [n + generate / 2 for n in prompts]) if prompts else None
        b.add("unequal", model=model.name, batch=batch, seed=b.options.seed, prompts=prompts, light_ms=light, ms=ms)


def prompts(b):
    """Time until a prompt has its first token, beside eager in the same run."""
    for model in b.models:
        for tokens in b.options.prompts:
            ours = ["--prompt", tokens, "--generate", 1, "--batch", 1, "--runs", max(5, b.options.runs)]
            variants = {"mpk": (lambda: b.mpk(model, *ours), False)}
            if "eager" in b.options.rivals:
                variants["PyTorch eager"] = (lambda: b.rival("prompt", model=str(model.folder), tokens=tokens,
                                                             runs=b.options.runs), False)

            def first(result):
                t = result["first_token_ms"]
                return {"least": t.get("p10"), "most": t.get("p90"), **t}
            b.add("prompts", model=model.name, tokens=tokens, experts_hit=experts_hit(b, model, ours),
                  ms=b.take_turns(variants, first))


def start(b):
    """Compiling for all batch sizes, cold and from the cache; from opening files with weights to the first token."""
    for model in b.models:
        words = ["--prompt", b.options.prompt, "--generate", 4, "--batch", 16, "--runs", 1]
        with tempfile.TemporaryDirectory(dir=b.work) as cache:
            cold = b.mpk(model, *words, env={"MPK_CACHE": cache})
            cached = b.mpk(model, *words, env={"MPK_CACHE": cache})
            made = b.weights(model) if b.options.start_weights else {}
            first = b.mpk(model, *words, env={"MPK_CACHE": cache}, weights=made["folder"]) if "folder" in made else made
        b.add("start", model=model.name, cold=cold, cached=cached, with_weights=first)


def schedule(b):
    """Where the time of one step goes, by kind of operator, and what scheduling takes of it (paper 6.6)."""
    for model in b.models:
        for batch in b.options.batches[::max(1, len(b.options.batches) - 1)]:
            words = ["--prompt", b.options.prompt, "--generate", 64, "--batch", batch, "--runs", 1, "--profile"]
            b.add("schedule", model=model.name, batch=batch, result=b.mpk(model, *words))


def linear(b):
    """The final linear layer of the largest model alone (paper figure "pipe ablation"): a model of one layer as small
    as can be with that vocabulary, less the same with a small vocabulary."""
    model = max(b.models, key=lambda m: m.hidden)
    small = {**model.config, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
             "intermediate_size": 64, "max_window_layers": 1, "tie_word_embeddings": False}
    small.pop("layer_types", None)
    parts = {}
    for name, vocabulary in (("whole", model.vocabulary), ("rest", 512)):
        folder = b.work / f"{model.name}-{name}"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**small, "vocab_size": vocabulary, "bos_token_id": 1,
                                                        "eos_token_id": 2}))
        parts[name] = Model(folder)
    for batch in b.options.batches:
        cases = b.chosen({"mpk": [], "no-preload": ["--no-preload"], **GRAPHS})
        variants = {(name, part): (lambda p=parts[part], more=more: b.mpk(p, *decode_words(b, batch, *more)), False)
                    for name, more in cases.items() for part in parts}
        variants[("cuBLAS", "whole")] = (lambda: b.rival("linear", rows=model.vocabulary, columns=model.hidden,
                                                         batch=batch, runs=b.options.runs), False)
        ms = b.take_turns(variants, step_ms)
        whole = {name: t for (name, part), t in ms.items() if part == "whole"}
        alone = {name: t["median"] - ms.get((name, "rest"), {"median": 0}).get("median", 0) for name, t in whole.items()
                 if "median" in t and "failed" not in ms.get((name, "rest"), {})}
        size = 2 * model.vocabulary * model.hidden
        b.add("linear", model=model.name, batch=batch, light_ms=size / b.bytes_per_s * 1e3 if b.bytes_per_s else None,
              ms=whole, alone_ms=alone)


def context(b):
    """A long context: one request, split over the whole device."""
    for model in b.models:
        length, generate = b.options.long_context, 64
        words = ["--prompt", length, "--generate", generate, "--batch", 1, "--runs", 3]
        variants = {name: (lambda more=more: b.mpk(model, *words, *more), False)
                    for name, more in b.chosen({"mpk": [], **GRAPHS}).items()}
        b.add("context", model=model.name, context=length, light_ms=b.light_ms(model, [length + generate / 2]),
              ms=b.take_turns(variants, step_ms))


def stages(b):
    """What each stage of the compiler makes of a model (paper table "compiler ablation"), by the paper's operators and
    by ours."""
    target = [] if b.options.device == "cpu" else ["--target", b.options.target]
    for model in b.models:
        for ops in ("paper", "full"):
            b.add("stages", model=model.name, ops=ops, result=b.run(
                [b.options.mpk, "inspect", model.folder, "--stats", "--json", "--batch", 1, f"--ops={ops}", *target]))


SECTIONS = {f.__name__: f for f in (correctness, stages, latency, ablation, unequal, prompts, start, schedule, linear,
                                    context)}


# ---- the command ----

def find_bandwidth(b):
    if b.bytes_per_s or b.options.device == "cpu":
        return
    measured = b.rival("bandwidth")
    b.facts["bandwidth"] = measured
    b.bytes_per_s = measured.get("bytes_per_s", H100_BYTES_PER_S)


def find_rivals(b):
    """Leave out, and say once, what is not installed."""
    look = "import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))"
    modules = {"eager": "transformers", "compiled": "transformers", "vllm": "vllm", "sglang": "sglang"}
    for what in list(b.options.rivals):
        if subprocess.run([b.python_of(what), "-c", look, modules[what]], stdin=subprocess.DEVNULL).returncode:
            b.options.rivals.remove(what)
            print(f"left out: {RIVALS[what]} ({b.python_of(what)} has no module {modules[what]})", file=sys.stderr)


def find_commit():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True) if shutil.which(
        "git") else None
    return done.stdout.strip() if done and done.returncode == 0 else None


def measure(b):
    find_bandwidth(b)
    if not b.options.dry_run:
        find_rivals(b)
    b.facts.update(commit=find_commit(), began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    for name in SECTIONS:
        if name not in b.options.only:
            continue
        if b.options.dry_run:
            print(f"{name} (variants take {b.options.rounds} turns)", flush=True)
        else:
            print(f"[{time.monotonic() - b.begin:6.0f} s] {name}", file=sys.stderr, flush=True)
        if b.options.dry_run or b.seconds_left() > LEAST_SECONDS:
            SECTIONS[name](b)
        else:
            b.skipped += 1


def parse(arguments):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mpk", type=Path, default=ROOT / "build" / "mpk", help="the program to measure")
    p.add_argument("--out", type=Path, default=ROOT / ".cache" / "paper", help="folder of paper.json and the figures")
    p.add_argument("--only", nargs="*", choices=list(SECTIONS), metavar="NAME", default=list(SECTIONS),
                   help=f"of {', '.join(SECTIONS)}; no name: measure nothing")
    p.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL", help="names in models/, or folders")
    p.add_argument("--batches", nargs="+", type=int, default=[1, 4, 8, 16], metavar="N")
    p.add_argument("--rivals", nargs="*", choices=list(RIVALS), default=list(RIVALS), metavar="NAME",
                   help=f"of {', '.join(RIVALS)}; no name: none")
    p.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, metavar="NAME",
                   help=f"of mpk: {', '.join(VARIANTS)}; sections leave the others out")
    p.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    p.add_argument("--target", default="sm_90a", help="architecture of the table of the compiler's stages")
    p.add_argument("--prompt", type=int, default=64, metavar="N")
    p.add_argument("--generate", type=int, default=1024, metavar="N")
    p.add_argument("--runs", type=int, default=5, metavar="N", help="in one process, after one that warms up")
    p.add_argument("--rounds", type=int, default=2, metavar="N", help="how often the variants of a row take turns")
    p.add_argument("--prompts", nargs="+", type=int, default=[64, 2048], metavar="N", help="tokens, of section prompts")
    p.add_argument("--contexts", default="64-4096", metavar="A-B", help="of section unequal")
    p.add_argument("--unequal-generate", type=int, default=256, metavar="N",
                   help="answers long enough that all requests run at once")
    p.add_argument("--long-context", type=int, default=16384, metavar="N")
    p.add_argument("--score-tokens", type=int, default=256, metavar="N", help="of section correctness")
    p.add_argument("--score-steps", nargs="+", type=int, default=[1, 16, 64], metavar="N", help="tokens a step, there")
    p.add_argument("--start-weights", action="store_true",
                   help="section start also writes weights to files, and reads them")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--bandwidth", type=float, metavar="TB/s", help="of the light column; else measured")
    p.add_argument("--quick", action="store_true", help="Qwen3-0.6B, batch 1 and 16, few runs, shorter answers")
    p.add_argument("--time-budget", type=float, metavar="SECONDS", help="stop cleanly then, and print what there is")
    p.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="of one measurement")
    p.add_argument("--work", metavar="FOLDER", help="for weights, kept afterwards; else a temporary one")
    p.add_argument("--from", dest="earlier", nargs="+", type=Path, default=[], metavar="FILE",
                   help="results of earlier runs, for the tables and figures")
    p.add_argument("--mpk-option", action="append", default=[], metavar="WORD",
                   help="goes to every mpk that is measured")
    p.add_argument("--vllm-python", default=sys.executable, metavar="PATH", help="a Python that has vLLM")
    p.add_argument("--sglang-python", default=sys.executable, metavar="PATH", help="a Python that has SGLang")
    p.add_argument("--dry-run", action="store_true", help="print what would be run")
    options = p.parse_args(arguments)
    if options.quick:
        quick = dict(models=MODELS[:1], batches=[1, 16], runs=3, rounds=1, generate=256, long_context=4096)
        for name, value in quick.items():
            if getattr(options, name) == p.get_default(name):
                setattr(options, name, value)
    if not options.dry_run and options.only and not os.access(options.mpk, os.X_OK):
        p.error(f"{options.mpk}: no such program; build mpk first, or say --mpk PATH")
    return options


def main(arguments=None):
    options = parse(arguments)
    b = Bench(options)
    earlier = [json.loads(file.read_text()) for file in options.earlier]
    b.facts["earlier"] = [{key: value for key, value in one.items() if key != "rows"} for one in earlier]
    try:
        if options.only:
            measure(b)
    except KeyboardInterrupt:
        print("interrupted; this is what there is", file=sys.stderr)
    finally:
        if not options.work:
            shutil.rmtree(b.work, ignore_errors=True)
    if options.dry_run:
        return
    b.rows[:0] = [row for one in earlier for row in one["rows"]]
    b.save()
    for one in [*earlier, *([{**b.facts, "bytes_per_s": b.bytes_per_s}] if options.only else [])]:
        paper_tables.print_facts(one)
    paper_tables.print_tables(b.rows)
    if b.skipped:
        print(f"\nthe time budget of {options.time_budget:.0f} s is over: {b.skipped} measurements left out")
    said = paper_figures.draw(b.rows, options.out)
    print(f"\n{options.out / 'paper.json'}; {said}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that closes the pipe ends it without a word
    main()
