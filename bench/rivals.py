#!/usr/bin/env python3
"""What bench/paper.py puts beside mpk: PyTorch, vLLM and SGLang, each measurement a process of its own.

    bench/rivals.py '{"what": "eager", "model": "models/qwen3-0.6b", "batch": 1, ...}'

Input: one JSON object, {"what": NAME, and that function's arguments}; output: one JSON object on the last line.
Weights are random everywhere: time does not depend on them.  A decode step is timed over the whole loop, from after
the prompt to the last token, with one synchronisation at either end: the rival is never slowed by being watched.
"""
import inspect
import json
import statistics
import sys
import time


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def synchronise(device):
    import torch
    if device != "cpu":
        torch.cuda.synchronize()


def seconds(device, work):
    """How long `work` takes, the device's part included."""
    synchronise(device)
    begin = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - begin


def random_model(model, device, dtype="bfloat16"):
    """The architecture of a config.json with Transformers' own initial weights, made where they are used."""
    import torch
    import transformers
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(model)
    with torch.device(device):
        net = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    # Transformers of some versions want to be told where in the cache a token goes
    net.takes_places = "cache_position" in inspect.signature(net.forward).parameters
    return net.to(device).eval()


def random_tokens(net, device, *shape):
    import torch
    return torch.randint(net.config.vocab_size, shape, device=device)


# ---- PyTorch ----

def bandwidth(device):
    """Bytes a second of the device's memory: the better of a copy (read and written) and a sum (read)."""
    import torch
    size = 4 << 30 if device != "cpu" else 1 << 27
    x = torch.zeros(size // 4, dtype=torch.float32, device=device)
    y = torch.empty_like(x)
    copies, sums = [], []
    for _ in range(10):
        copies.append(seconds(device, lambda: y.copy_(x)))
        sums.append(seconds(device, lambda: x.sum()))
    return {"bytes_per_s": max(2 * size / min(copies), size / min(sums)), "copy": 2 * size / min(copies),
            "sum": size / min(sums), "torch": torch.__version__}


def call_model(net, tokens, cache, first):
    """One forward pass of tokens [batch, n] at positions from `first` (a tensor of one element)."""
    import torch
    places = first + torch.arange(tokens.shape[1], device=tokens.device)
    more = {"cache_position": places} if net.takes_places else {}
    return net(input_ids=tokens, position_ids=places[None], past_key_values=cache, use_cache=True, logits_to_keep=1,
               **more).logits[:, -1:].argmax(-1)


def decode(net, device, step, new_cache, batch, prompt, generate, runs):
    """Milliseconds of a decode step for each run; the first run, which compiles, is not counted."""
    import torch
    times = []
    for _ in range(runs + 1):
        cache, place = new_cache(), torch.zeros(1, dtype=torch.long, device=device)
        token = call_model(net, random_tokens(net, device, batch, prompt), cache, place).clone()
        place += prompt

        def loop():
            for _ in range(generate):
                token.copy_(step(token, cache, place))
                place.add_(1)
        times.append(seconds(device, loop) * 1e3 / generate)
    return {"step_ms": spread(times[1:]), "generate": generate}


def eager(model, device, batch, prompt, generate, runs):
    import torch
    import transformers
    with torch.inference_mode():
        net = random_model(model, device)
        return decode(net, device, lambda *a: call_model(net, *a),
                      lambda: transformers.DynamicCache(config=net.config), batch, prompt, generate, runs)


def compiled(model, device, batch, prompt, generate, runs):
    """torch.compile(mode="reduce-overhead"): CUDA graphs, with a static cache."""
    import torch
    import transformers
    with torch.no_grad():
        net = random_model(model, device)
        fast = torch.compile(lambda *a: call_model(net, *a), mode="reduce-overhead")
        cache = transformers.StaticCache(config=net.config, max_cache_len=prompt + generate + 8)

        def emptied():
            cache.reset()
            return cache

        def step(*arguments):
            torch.compiler.cudagraph_mark_step_begin()
            return fast(*arguments)
        result = decode(net, device, step, emptied, batch, prompt, generate, runs)
        counted = torch._dynamo.utils.counters
        return {**result, "graph_breaks": sum(counted["graph_break"].values()),
                "cudagraph_skips": counted["inductor"]["cudagraph_skips"]}


def prompt(model, device, tokens, runs):
    """Milliseconds until a prompt of so many tokens has its first token, eager."""
    import torch
    import transformers
    times = []
    with torch.inference_mode():
        net = random_model(model, device)
        for _ in range(runs + 2):
            ids = random_tokens(net, device, 1, tokens)
            place = torch.zeros(1, dtype=torch.long, device=device)
            cache = transformers.DynamicCache(config=net.config)
            times.append(1e3 * seconds(device, lambda: call_model(net, ids, cache, place).tolist()))
    return {"first_token_ms": spread(times[2:])}


def linear(device, rows, columns, batch, runs):
    """Milliseconds of one product [batch, columns] x [columns, rows], as the vendor's library does it."""
    import torch
    with torch.inference_mode():
        w = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
        x = torch.randn(batch, columns, device=device, dtype=torch.bfloat16)

        def several():
            for _ in range(20):
                torch.nn.functional.linear(x, w).argmax(-1)
        several()
        return {"step_ms": spread([seconds(device, several) * 1e3 / 20 for _ in range(runs)])}


# ---- correctness ----

def weights(model, device, folder, seed):
    """Write random weights in bf16 that keep the size of activations: errors are neither hidden nor blown up."""
    import torch
    net = random_model(model, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, p in net.named_parameters():
            r = torch.randn(p.shape, generator=generator, device=device, dtype=torch.float32)
            p.copy_(1 + 0.2 * r if "norm" in name else r * (0.2 if p.dim() == 1 else p.shape[-1] ** -0.5))
    net.save_pretrained(folder)
    return {"folder": folder}


def true_logits(folder, device, dtype, ids):
    import torch
    import transformers
    torch.set_float32_matmul_precision("highest")
    net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
    with torch.inference_mode():
        return net(torch.tensor([ids], device=device)).logits[0].float()


def compare(true, other, ids):
    """Of logits [T, V]: mean KL divergence, mean distance of the tokens' log-likelihoods, share of equal maxima."""
    import torch
    p, q = true.double().log_softmax(-1), other.double().log_softmax(-1)
    next_ids = torch.tensor(ids[1:], device=true.device)[:, None]
    nll = [-x[:-1].gather(1, next_ids)[:, 0] for x in (p, q)]
    return {"kl": (p.exp() * (p - q)).sum(-1).mean().item(), "nll": nll[1].mean().item(),
            "true_nll": nll[0].mean().item(), "nll_distance": (nll[0] - nll[1]).abs().mean().item(),
            "argmax": (true.argmax(-1) == other.argmax(-1)).float().mean().item()}


def logits(folder, device, ids, files):
    """Files: name -> .npy of logits [T, V]; each, and eager bf16, against eager fp32."""
    import numpy
    import torch
    true = true_logits(folder, device, "float32", ids)
    result = {"eager bf16": compare(true, true_logits(folder, device, "bfloat16", ids), ids)}
    for name, file in files.items():
        other = torch.from_numpy(numpy.load(file)).to(device)
        result[name] = compare(true, other, ids)
    return {"against_fp32": result}


# ---- serving systems, by their offline interfaces ----

def difference(ask, generate, runs):
    """ms a step from two lengths of answer: start, prompt and end cancel."""
    short = 8
    ask(short), ask(generate)
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        ask(short)
        middle = time.perf_counter()
        ask(generate)
        times.append((time.perf_counter() - middle - (middle - begin)) * 1e3 / (generate - short))
    return {"step_ms": spread(times), "generate": generate}


def vllm(model, device, batch, prompt, generate, runs):
    del device
    from vllm import LLM, SamplingParams
    llm = LLM(model=model, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_num_seqs=batch,
              max_model_len=prompt + generate + 8, enable_prefix_caching=False)
    prompts = [{"prompt_token_ids": [7 + i + t for t in range(prompt)]} for i in range(batch)]

    def ask(n):
        llm.generate(prompts, SamplingParams(temperature=0, ignore_eos=True, max_tokens=n, detokenize=False),
                     use_tqdm=False)
    return difference(ask, generate, runs)


def sglang(model, device, batch, prompt, generate, runs):
    del device
    from sglang import Engine
    engine = Engine(model_path=model, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
                    max_running_requests=batch, cuda_graph_max_bs=batch, context_length=prompt + generate + 8,
                    disable_radix_cache=True, log_level="error")
    prompts = [[7 + i + t for t in range(prompt)] for i in range(batch)]

    def ask(n):
        engine.generate(input_ids=prompts, sampling_params={"temperature": 0, "ignore_eos": True, "max_new_tokens": n})
    result = difference(ask, generate, runs)
    engine.shutdown()
    return result


WHAT = {f.__name__: f for f in (bandwidth, eager, compiled, prompt, linear, weights, logits, vllm, sglang)}


def main():
    if len(sys.argv) != 2 or not sys.argv[1].startswith("{"):
        sys.exit(__doc__.strip())
    wanted = json.loads(sys.argv[1])
    print("\n" + json.dumps(WHAT[wanted.pop("what")](**wanted)), flush=True)


# vLLM starts processes that import this file again.
if __name__ == "__main__":
    main()
