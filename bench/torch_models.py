#!/usr/bin/env python3
"""Calls of PyTorch models that are no LLM: backend="mpk", Inductor, eager; on a GPU or on the CPU.

    bench/torch_models.py [--device cuda|cpu] [--ways mpk,inductor,eager] [--dtypes bf16,f16] [--batches 1,8]
                          [--loops N] [--jobs N] [--profile] [NAME ...]

Inductor is torch.compile(mode="reduce-overhead") on a GPU and torch.compile() on the CPU, where all ways have the
threads that PyTorch takes (OMP_NUM_THREADS).
NAME: a row of MODELS, default all; weights and inputs are random, the same for all ways.  One line of JSON for each
row and way as it comes: milliseconds a call (the median of the loops, each of CALLS calls one after the other), the
largest difference from eager in float32 as a part of its largest value, seconds of the first call.  At the end the
table of all, with mpk's time over Inductor's.  Rows are processes of their own: `jobs` of them compile side by side,
and once all have, one after the other is timed.  On the CPU there is one process at a time.  profile: rows of
mpk also tell where a call's time goes, by kind of operator.
"""

import argparse
import concurrent.futures
import contextlib
import copy
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

CALLS = 20
WARM_SECONDS = 0.3  # of calls before those that are timed: a GPU that has waited for compilers has a low clock
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


# Each makes a model and its input for a batch of so many.
def mlp(batch, rows=1):
    from torch import nn
    import torch

    layers = [part for _ in range(8) for part in (nn.Linear(4096, 4096), nn.GELU())]
    return nn.Sequential(*layers), (torch.randn(batch * rows, 4096),), {}


def encoder(batch):
    from torch import nn
    import torch

    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), (torch.randn(batch, 128, 768),), {}


def ids(batch, n):
    import torch

    return {"input_ids": torch.randint(3, 9000, (batch, n))}


def image(batch, size=224):
    import torch

    return torch.randn(batch, 3, size, size)


def bert(batch):
    import transformers as t

    return t.BertModel(t.BertConfig()), (), ids(batch, 128)


def vit(batch):
    import transformers as t

    return t.ViTModel(t.ViTConfig()), (), {"pixel_values": image(batch)}


def t5(batch):
    import transformers as t

    return t.T5EncoderModel(t.T5Config()), (), ids(batch, 64)


def gpt2(batch):
    import transformers as t

    return t.GPT2Model(t.GPT2Config(use_cache=False)), (), ids(batch, 64)


def clip(batch):
    import transformers as t

    return t.CLIPTextModel(t.CLIPTextConfig()), (), ids(batch, 77)


def whisper(batch):
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    return WhisperEncoder(config), (torch.randn(batch, 80, 3000),), {}


def mamba(batch):
    """Four layers of Mamba-130M, 64 tokens: the scan is unrolled, so a graph of all 24 takes minutes to compile."""
    import transformers as t

    return t.MambaModel(t.MambaConfig(hidden_size=768, num_hidden_layers=4, use_cache=False)), (), ids(batch, 64)


def mamba_step(batch):
    """Mamba-130M, one token after others: the state of each layer is an input."""
    from torch import nn
    import torch

    class Layer(nn.Module):
        def __init__(self, d=768, inner=1536, states=16, rank=48, window=4):
            super().__init__()
            self.norm = nn.RMSNorm(d)
            self.enter, self.leave = nn.Linear(d, 2 * inner, bias=False), nn.Linear(inner, d, bias=False)
            self.conv = nn.Parameter(torch.randn(inner, window) / 2)
            self.conv_bias = nn.Parameter(torch.zeros(inner))
            self.select, self.widen = nn.Linear(inner, rank + 2 * states, bias=False), nn.Linear(rank, inner)
            self.decay, self.skip = nn.Parameter(torch.rand(inner, states)), nn.Parameter(torch.ones(inner))
            self.sizes = [rank, states, states]

        def forward(self, x, window, state):
            h, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
            window = torch.cat([window[..., 1:], h[..., None]], dim=-1)
            h = nn.functional.silu((window * self.conv).sum(-1) + self.conv_bias)
            step, into, out = self.select(h).split(self.sizes, dim=-1)
            step = nn.functional.softplus(self.widen(step))[..., None]
            state = torch.exp(-torch.exp(self.decay) * step) * state + step * into[:, None, :] * h[..., None]
            y = (state * out[:, None, :]).sum(-1) + self.skip * h
            return x + self.leave(y * nn.functional.silu(gate)), window, state

    class Step(nn.Module):
        def __init__(self, layers=24):
            super().__init__()
            self.layers, self.norm = nn.ModuleList(Layer() for _ in range(layers)), nn.RMSNorm(768)

        def forward(self, x, windows, states):
            left = []
            for layer, window, state in zip(self.layers, windows, states):
                x, window, state = layer(x, window, state)
                left += [window, state]
            return self.norm(x), left

    return Step(), (torch.randn(batch, 768), [torch.randn(batch, 1536, 4) for _ in range(24)],
                    [torch.randn(batch, 1536, 16) for _ in range(24)]), {}


def unet_block(batch):
    """A stage of Stable Diffusion 1.5's U-Net at 320 channels of 64 x 64: a residual block of convolutions that adds
    the time's embedding, and a transformer that attends to itself and to 77 tokens of text."""
    from torch import nn
    import torch
    import torch.nn.functional as f

    class Attention(nn.Module):
        def __init__(self, d, of, heads=8):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(n, d, bias=False) for n in (d, of, of))
            self.o, self.heads = nn.Linear(d, d), heads

        def forward(self, x, of):
            q, k, v = (w(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                       for w, y in ((self.q, x), (self.k, of), (self.v, of)))
            return self.o(f.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self, d=320, time=1280, text=768):
            super().__init__()
            self.norms = nn.ModuleList(nn.GroupNorm(32, d, eps=1e-5) for _ in range(3))
            self.convs = nn.ModuleList(nn.Conv2d(d, d, 3, padding=1) for _ in range(2))
            self.time, self.enter, self.leave = nn.Linear(time, d), nn.Conv2d(d, d, 1), nn.Conv2d(d, d, 1)
            self.lines = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
            self.own, self.cross = Attention(d, d), Attention(d, text)
            self.widen, self.narrow = nn.Linear(d, 8 * d), nn.Linear(4 * d, d)

        def forward(self, x, time, text):
            h = self.convs[0](f.silu(self.norms[0](x))) + self.time(f.silu(time)).unflatten(1, (-1, 1, 1))
            x = x + self.convs[1](f.silu(self.norms[1](h)))
            h = self.enter(self.norms[2](x)).flatten(2).transpose(1, 2)
            y = self.lines[0](h)
            h = h + self.own(y, y)
            h = h + self.cross(self.lines[1](h), text)
            up, gate = self.widen(self.lines[2](h)).chunk(2, dim=-1)
            h = h + self.narrow(up * f.gelu(gate))
            return x + self.leave(h.transpose(1, 2).unflatten(2, x.shape[2:]))

    return Block(), (torch.randn(batch, 320, 64, 64), torch.randn(batch, 1280), torch.randn(batch, 77, 768)), {}


def llama_prefill(batch):
    """Llama 3.2 1B, a prompt of 512 tokens."""
    import transformers as t

    config = t.LlamaConfig(hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                           head_dim=64, intermediate_size=8192, vocab_size=128256, use_cache=False)
    return t.LlamaModel(config), (), ids(batch, 512)


def torchvision(name):
    def make(batch):
        import torchvision

        return getattr(torchvision.models, name)(), (image(batch),), {}

    return make


MODELS = {
    "mlp": mlp,
    "mlp64": lambda batch: mlp(batch, 64),
    "encoder": encoder,
    "bert": bert,
    "vit": vit,
    "t5": t5,
    "gpt2": gpt2,
    "resnet18": torchvision("resnet18"),
    "resnet50": torchvision("resnet50"),
    "convnext_t": torchvision("convnext_tiny"),
    "swin_t": torchvision("swin_t"),
    "clip_text": clip,
    "whisper": whisper,
    "mamba": mamba,
    "mamba_step": mamba_step,
    "unet_block": unet_block,
    "llama_prefill": llama_prefill,
}


def first(value):
    """The first tensor of a model's result."""
    import torch

    return next(v for v in torch.utils._pytree.tree_leaves(dict(value) if hasattr(value, "keys") else value)
                if isinstance(v, torch.Tensor))


def compiled(net, way, device):
    import torch

    if way == "mpk":
        from mpk import backend

        return torch.compile(net, backend=backend.mpk)
    if way == "inductor":
        return torch.compile(net, mode="reduce-overhead" if device == "cuda" else None)
    return net


def finish(device):
    """Wait for what runs on a GPU."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(call, loops, device):
    times = []
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_SECONDS:
        call()
        finish(device)
    for _ in range(loops):
        finish(device)
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        finish(device)
        times.append((time.perf_counter() - start) / CALLS * 1e3)
    return statistics.median(times)


def profiled(net):
    """net, with programs that note where their time goes, and the list that reports of them go to."""
    import torch
    from mpk import backend

    reports = []
    return torch.compile(net, backend=backend.mpk, options=backend.Options(profile=True, reports=reports)), reports


def told(reports):
    """Where the time of the last call went, most first."""
    kinds = [kind for r in reports for p in r.programs for kind in p.profile()["kinds"]]
    names = "kind", "body", "operators", "tasks", "sm_us", "wait_us", "body_us", "longest_us"
    return [{name: k[name] for name in names} for k in sorted(kinds, key=lambda k: -k["sm_us"])]


@contextlib.contextmanager
def held(path, how):
    """The lock of a file: rows that compile share one, and take one of `jobs` alone; the row that is timed has the
    first alone, so it waits for all that compile."""
    with open(path, "a") as f:
        fcntl.flock(f, how)
        yield


def measure(name, way, dtype, batch, options):
    with held(options.lock, fcntl.LOCK_SH), held(options.slot, fcntl.LOCK_EX):
        call, row, reports = prepare(name, way, dtype, batch, options)
    with held(options.lock, fcntl.LOCK_EX):
        row["ms"] = round(milliseconds(call, options.loops, options.device), 4)
        if reports is not None:
            call_profiled, reports = reports
            call_profiled()
            row["profile"] = told(reports)
    return row


def prepare(name, way, dtype, batch, options):
    """The call, compiled; its row; with a profile the call that notes where its time goes, and its reports."""
    import torch

    torch.manual_seed(1)
    net, args, kwargs = MODELS[name](int(batch))
    net = net.eval().to(options.device)
    cast = torch.utils._pytree.tree_map_only(torch.Tensor, lambda v: v.to(options.device), (args, kwargs))
    with torch.no_grad():
        reference = first(copy.deepcopy(net)(*cast[0], **cast[1])).float()
        kind = getattr(torch, DTYPES[dtype])
        net = net.to(kind)
        args, kwargs = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda v: v.to(kind) if v.is_floating_point() else v, cast)
        fn = compiled(net, way, options.device)
        start = time.perf_counter()
        got = first(fn(*args, **kwargs)).float()
        finish(options.device)
        seconds = time.perf_counter() - start
        error = ((got - reference).abs().max() / reference.abs().max()).item()

    def call():
        with torch.no_grad():
            fn(*args, **kwargs)

    for _ in range(3):
        call()
    row = {"model": name, "batch": int(batch), "way": way, "dtype": dtype, "ms": 0.0, "error": round(error, 5),
           "first_s": round(seconds, 1)}
    if not options.profile or way != "mpk":
        return call, row, None
    noted, reports = profiled(net)

    def call_noted():
        with torch.no_grad():
            noted(*args, **kwargs)
        finish(options.device)

    call_noted()
    return call, row, (call_noted, reports)


def run_apart(one, options, folder, i, running):
    """The row by a process of its own; a failure is a row too.  On a GPU the process ends when all rows have been
    timed, since one that gives its memory back slows down the others."""
    command = [sys.executable, __file__, "--one", *one, "--loops", str(options.loops), "--device", options.device,
               "--lock", f"{folder}/lock", "--slot", f"{folder}/slot{i % options.jobs}"]
    with open(f"{folder}/errors{i}", "w+") as errors:
        process = subprocess.Popen(command + ["--profile"] * options.profile, text=True, stderr=errors,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = next((line for line in process.stdout if line.startswith("{")), None)
        if options.device == "cuda":
            running.append(process)
        else:
            process.communicate()
        errors.seek(0)
        name, way, dtype, batch = one
        return json.loads(line) if line else {"model": name, "batch": int(batch), "way": way, "dtype": dtype,
                                              "failed": errors.read().strip()[-400:]}


def print_table(rows, ways):
    """A line for each model, batch and dtype: milliseconds of each way, mpk's over Inductor's; at the end their
    geometric mean."""
    kinds = {(r["model"], r["batch"], r["dtype"]): {} for r in rows}
    for r in rows:
        kinds[r["model"], r["batch"], r["dtype"]][r["way"]] = r.get("ms")
    ratios = []
    print(f"{'model':12} batch dtype " + "".join(f"{way:>10}" for way in ways) + "     ratio")
    for (model, batch, dtype), times in kinds.items():
        both = times.get("mpk"), times.get("inductor")
        ratios += [both[0] / both[1]] if all(both) else []
        print(f"{model:12} {batch:5} {dtype:5} "
              + "".join(f"{times[way]:10.3f}" if times.get(way) else f"{'-':>10}" for way in ways)
              + (f"{ratios[-1]:10.2f}" if all(both) else ""))
    if ratios:
        print(f"geometric mean of {len(ratios)} ratios: {statistics.geometric_mean(ratios):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ways", default="mpk,inductor,eager")
    parser.add_argument("--dtypes", default="bf16")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--loops", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    parser.add_argument("--slot", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options)), flush=True)
        sys.stdin.read()
        return
    ways, rows, running = options.ways.split(","), [], []
    asked = [(name, way, dtype, batch) for dtype in options.dtypes.split(",") for batch in options.batches.split(",")
             for name in options.names or MODELS for way in ways]
    at_once = 1 if options.device == "cpu" else len(asked)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        all_rows = [pool.submit(run_apart, one, options, folder, i, running) for i, one in enumerate(asked)]
        for row in concurrent.futures.as_completed(all_rows):
            rows.append(row.result())
            print(json.dumps(rows[-1]), flush=True)
        for process in running:
            process.communicate()
    print_table(rows, ways)


if __name__ == "__main__":
    main()
