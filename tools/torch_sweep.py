#!/usr/bin/env python3
"""Compile one small model of each architecture of Transformers, and of torchvision, and compare it with eager.

usage: torch_sweep.py [--out FILE.jsonl] [--write FILE.md] [--table-only] [--seconds N] [--again STATUS] [--list]
       [NAME...]

A name is a model type of Transformers (`bert`) or `torchvision/NAME` (`torchvision/resnet18`).  Without names, all that
are installed are taken, in a random order that is always the same.  Configurations are made small by the names of their
fields (SMALL); inputs follow from the names of the arguments of `forward`, and the first that eager takes are used.
torchvision's models are whole, with random weights and one image of 224 x 224.
Each model runs on the CPU in fp32, one thread, in a process of its own with a limit of N seconds (300); the process is
a fork of this one, which has imported the libraries.  Times are processor time, the least of calls of both in turns.
A line of JSON for each is appended to FILE.jsonl (bench/results/torch-models.jsonl), and what has a line there is left
out the next time, so a sweep can be interrupted and resumed; at its end the last line of each name is kept.  --again
runs those of one status once more.  --write makes the table docs/torch-models.md of all lines, with --table-only of
those that are there.  --list prints the names.  Exit code 1 if anything is wrong.
"""

import argparse
import collections
import copy
import importlib.util
import inspect
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED = 42
ROUNDS = 5
TOLERANCE = 1e-3  # of the largest element of a result
STATUSES = {
    "agreed": "one program for each graph that Dynamo captured",
    "partly": "agreed with eager; PyTorch runs some operators",
    "wrong": "a result differs from eager's",
    "refused": "an exception that eager does not raise",
    "slow": "not done within the limit, eager included",
    "not built": "no small configuration, or no inputs that eager takes",
}

# Fields of configurations, of their parts too, and what they become where a configuration has them.
LAYERS = """num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_encoder_layers
    num_decoder_layers num_hidden_groups depth""".split()
SMALL = {
    **dict.fromkeys(LAYERS, 2),
    **dict.fromkeys(
        "hidden_size d_model n_embd dim embed_dim embedding_size encoder_hidden_size decoder_hidden_size".split(), 64
    ),
    **dict.fromkeys(
        """intermediate_size ffn_dim n_inner d_ff encoder_ffn_dim decoder_ffn_dim moe_intermediate_size
        shared_expert_intermediate_size dim_feedforward""".split(),
        96,
    ),
    **dict.fromkeys(
        """num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads
        num_encoder_attention_heads num_decoder_attention_heads""".split(),
        4,
    ),
    **dict(num_key_value_heads=2, head_dim=16, d_kv=16, vocab_size=100, max_position_embeddings=128, n_positions=128),
    **dict(num_experts=4, num_local_experts=4, n_routed_experts=4, moe_num_experts=4, num_experts_per_tok=2),
    **dict(n_group=2, topk_group=1, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8),
    **dict(v_head_dim=16, num_queries=8, num_query_tokens=8, projection_dim=32, first_k_dense_replace=1),
    **dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, tie_word_embeddings=True),
    **dict(prediction_length=4),
}
# What is left as it is if the above is refused: more each time, in the end all but the numbers of layers.
WITHOUT = [
    (),
    ("num_key_value_heads",),
    ("num_key_value_heads", "head_dim"),
    tuple(name for name in SMALL if name not in (*LAYERS, "prediction_length")),
    tuple(SMALL),
]
MOST_PARAMETERS = 400_000_000


# ---- small models ----


def fields(kind):
    """Names that a configuration takes, and the configuration as it is by default."""
    config = kind()
    return {*vars(config), *inspect.signature(kind.__init__).parameters}, config


def small_values(kind, without):
    names, config = fields(kind)
    values = {name: value for name, value in SMALL.items() if name in names and name not in without}
    values = {name: v for name, v in values.items() if not isinstance(getattr(config, name, None), (list, tuple))}
    if isinstance(getattr(config, "depths", None), (list, tuple)):
        values["depths"] = [1] * len(config.depths)
    for name, value in vars(config).items():
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and name not in SMALL:
            values[name] = min(value, 99)
    for name, part in (getattr(kind, "sub_configs", None) or {}).items():
        part = type(getattr(config, name)) if getattr(config, name, None) is not None else part
        if part.__name__ not in ("AutoConfig", "PretrainedConfig", "PreTrainedConfig"):
            kind_of_part = {"model_type": part.model_type} if name == "backbone_config" else {}
            values[name] = {**small_values(part, without), **kind_of_part}
    return values


def build(kind, config):
    """With random weights, unless these are too many; some models cannot be built without memory to count them."""
    import torch

    try:
        with torch.device("meta"):
            n = sum(p.numel() for p in kind(copy.deepcopy(config)).parameters())
    except (RuntimeError, NotImplementedError):
        n = 0
    if n > MOST_PARAMETERS:
        raise ValueError(f"{n} parameters are too many")
    torch.manual_seed(SEED)
    return kind(config).eval()


def transformers_model(name, without):
    import transformers
    from transformers.models.auto import configuration_auto, modeling_auto

    kind = configuration_auto.CONFIG_MAPPING[name]
    config = kind(**small_values(kind, without))
    for table in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_MAPPING_NAMES"):
        found = getattr(modeling_auto, table).get(name)
        found = found[0] if isinstance(found, (list, tuple)) else found
        if found:
            return build(getattr(transformers, found), config), config
    raise ValueError("no model class is registered for it")


def size_of_images(config):
    for part in (config, *(getattr(config, name, None) for name in ("vision_config", "backbone_config"))):
        size = getattr(part, "image_size", None)
        if size:
            return tuple(size[-2:]) if isinstance(size, (list, tuple)) else (size, size)
    return 64, 64


def patches(config):
    """One image of 4 x 4 patches, as the vision towers of language models take it."""
    import torch

    size = getattr(config, "patch_size", 0)
    channels = getattr(config, "in_channels", getattr(config, "num_channels", 3))
    if not isinstance(size, int) or not isinstance(channels, int):
        return
    grid = torch.tensor([[1, 4, 4]])
    for times in {getattr(config, "temporal_patch_size", 1), 1}:
        flat = torch.randn(16, channels * times * size * size)
        for image in ({"hidden_states": flat}, {"pixel_values": flat}):
            yield from ({**image, name: grid} for name in ("grid_thw", "image_grid_thw"))


def candidates(net, config):
    """Arguments to try, one set after the other."""
    import torch

    names = inspect.signature(net.forward).parameters
    given = {"use_cache": False} if "use_cache" in names else {}
    ids = torch.randint(3, 99, (1, 12))
    tokens = {"input_ids": ids} if "input_ids" in names else {}
    if "decoder_input_ids" in names:
        tokens["decoder_input_ids"] = ids
    height, width = size_of_images(config)
    channels = getattr(config, "num_channels", 3)
    images = {"pixel_values": torch.randn(1, channels if isinstance(channels, int) else 3, height, width)}
    mels = next((getattr(config, n) for n in ("num_mel_bins", "input_feat_per_channel") if hasattr(config, n)), 80)
    frames = 2 * getattr(config, "max_source_positions", 50)
    sounds = [{"input_values": torch.randn(1, 4000)}, {"input_features": torch.randn(1, mels, frames)}]
    sounds += [{"input_features": torch.randn(1, 100, mels)}, {"input_values": torch.randn(1, 256, mels)}]
    sounds += [{name: torch.randn(1, 1, 4000)} for name in ("input_values", "input_features")]
    videos = {"pixel_values_videos": torch.randn(1, getattr(config, "num_frames", 8), 3, height, width)}
    decoder = {name: tokens[name] for name in ("decoder_input_ids",) if name in tokens}
    boxes = {**tokens, "bbox": torch.randint(0, 99, (1, 12, 4)).sort(-1)[0]}
    for one in (
        *(tokens, images, {**tokens, **images}, *sounds, *({**s, **decoder} for s in sounds), videos, boxes),
        *patches(config),
    ):
        if one and set(one) <= set(names):
            yield {**one, **given}


def import_torchvision():
    """A torchvision whose operators were built for CUDA does not load them beside a PyTorch for the CPU.  It then asks
    for the names of two, which no model here calls."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


def torchvision_model(name):
    import torch
    import torchvision

    return torchvision.models.get_model(name, weights=None).eval(), [{"x": torch.randn(1, 3, 224, 224)}]


def models_of(name):
    """(model, arguments) to try."""
    import torch

    if name.startswith("torchvision/"):
        torch.manual_seed(SEED)
        net, sets = torchvision_model(name.removeprefix("torchvision/"))
        yield from ((net, arguments) for arguments in sets)
        return
    for without in WITHOUT:
        torch.manual_seed(SEED)
        try:
            net, config = transformers_model(name, without)
        except Exception as problem:
            yield None, problem
            continue
        yield from ((net, arguments) for arguments in candidates(net, config))


# ---- one model ----


def results(value):
    import torch

    value = dict(value) if hasattr(value, "keys") else value
    return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def difference(got, expected):
    """The largest difference of two lists of tensors, as a part of the largest element of each; infinite if they are of
    different kinds."""
    import torch

    if [(t.shape, t.dtype) for t in got] != [(t.shape, t.dtype) for t in expected]:
        return float("inf")
    worst = 0.0
    for g, e in zip(got, expected):
        if not e.numel():
            continue
        g, e = g.double(), e.double()
        same = (g == e) | (g.isnan() & e.isnan())
        apart = torch.where(same, 0.0, (g - e).abs()).max() / e.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-30)
        worst = max(worst, float("inf") if apart.isnan() else apart.item())
    return worst


def seconds_of(call):
    """Of processor time, which another load on the machine changes least."""
    begin = time.process_time()
    value = call()
    return value, time.process_time() - begin


def least_seconds(calls):
    """The least that each of the calls took, in ROUNDS rounds of all in turns."""
    return [min(times) for times in zip(*([seconds_of(call)[1] for call in calls] for _ in range(ROUNDS)))]


def brief(problem):
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {' '.join(lines[:2])[:200]}"


def try_eager(name):
    """A model, its arguments, and what eager makes of them."""
    import torch

    reason = "no inputs"
    for net, arguments in models_of(name):
        try:
            if net is None:
                raise arguments
            torch.manual_seed(SEED)
            for p in net.parameters():  # routers that begin as zeros have only ties to choose from
                if p.ndim > 1 and not p.any():
                    torch.nn.init.normal_(p, std=0.02)
            return net, arguments, results(net(**arguments)), ""
        except Exception as problem:
            reason = brief(problem)
    return None, None, None, reason


def results_of_dynamo(net, arguments):
    """What PyTorch makes of Dynamo's own graph, which may differ from eager."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(SEED)
    return results(torch.compile(net, backend="eager")(**arguments))


def run_one(name):
    """The row of a model."""
    import torch

    from mpk import backend

    net, arguments, expected, reason = try_eager(name)
    if net is None:
        return {"status": "not built", "reason": reason}
    reports = []
    fn = torch.compile(net, backend=backend.mpk, options=backend.Options(threads=1, reports=reports))
    try:
        torch.manual_seed(SEED)
        value, first = seconds_of(lambda: fn(**arguments))
    except Exception as problem:
        return {"status": "refused", "reason": brief(problem)}
    apart = difference(results(value), expected)
    traced = ""
    if not apart <= TOLERANCE:
        traced_to = results_of_dynamo(net, arguments)
        if difference(traced_to, expected) > TOLERANCE:
            traced, apart = "as Dynamo's own graph, which differs from eager", difference(results(value), traced_to)
    again, eager = least_seconds([lambda: fn(**arguments), lambda: net(**arguments)])
    left = {kind: why for r in reports for kind, why in r.fallbacks.items()}
    row = {
        "status": "wrong" if not apart <= TOLERANCE else "partly" if left else "agreed",
        "reason": ", ".join(sorted(left)) or traced,
        "inputs": sorted(arguments),
        "graphs": len(reports),
        "programs": sum(len(r.programs) for r in reports),
    }
    return row | {"difference": apart, "first_s": first, "call_ms": again * 1e3, "eager_ms": eager * 1e3}


# ---- all of them ----


def import_libraries():
    """Before the forks, so that it is done once; one thread, so that there is none that a fork would lack."""
    os.environ.setdefault("MPK_LIBRARY", str(ROOT / "build" / "libmpk.so"))
    sys.path.insert(0, str(ROOT / "python"))
    import torch

    if importlib.util.find_spec("torchvision"):
        import_torchvision()
    import transformers.models.auto.modeling_auto

    import mpk.backend  # noqa: F401

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def installed():
    names = []
    if importlib.util.find_spec("torchvision"):
        torchvision = import_torchvision()  # before Transformers, which imports it too
        names += [f"torchvision/{name}" for name in torchvision.models.list_models(module=torchvision.models)]
    from transformers.models.auto import configuration_auto, modeling_auto

    tables = (modeling_auto.MODEL_MAPPING_NAMES, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    return names + sorted(n for n in configuration_auto.CONFIG_MAPPING_NAMES if any(n in table for table in tables))


def shuffled(names):
    """So that a part of a sweep is a sample of all."""
    random.Random(SEED).shuffle(names)
    return names


def run_child(name, path):
    """In a process of its own: the row as JSON, or why there is none."""
    try:
        row = run_one(name)
    except Exception as problem:
        row = {"status": "refused", "reason": brief(problem)}
    path.write_text(json.dumps(row))


def run_apart(name, seconds):
    """run_one in a fork of this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "row"
        child = multiprocessing.get_context("fork").Process(target=run_child, args=(name, path))
        child.start()
        child.join(seconds)
        if child.is_alive():
            child.kill()
            child.join()
            return {"status": "slow", "reason": f"more than {seconds} s"}
        if path.exists():
            return json.loads(path.read_text())
    return {"status": "refused", "reason": f"the process ended with {child.exitcode}"}


def rows_of(path):
    """The last row of each name."""
    if not path.exists():
        return {}
    return {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}


def keep_last(path):
    rows = rows_of(path)
    path.write_text("".join(json.dumps(rows[name]) + "\n" for name in sorted(rows)))


def sweep(names, path, seconds):
    path.parent.mkdir(parents=True, exist_ok=True)
    import_libraries()
    with path.open("a") as file:
        for at, name in enumerate(names):
            row = {"name": name, **run_apart(name, seconds)}
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{at + 1}/{len(names)} {name}: {row['status']} {row['reason']}", flush=True)
    keep_last(path)


def speed(rows, library):
    """What a call takes, as a part of what eager's takes."""
    ratios = sorted(
        row["call_ms"] / row["eager_ms"]
        for row in rows
        if "call_ms" in row and row["name"].startswith("torchvision/") == (library == "torchvision")
    )
    if not ratios:
        return f"| {library} | 0 | | |"
    return f"| {library} | {len(ratios)} | {statistics.median(ratios):.2f} | {ratios[-1]:.2f} |"


def table(rows, n_installed):
    """docs/torch-models.md."""
    import torch
    import transformers

    counts = collections.Counter(row["status"] for row in rows)
    lines = [
        "# Models of PyTorch",
        "",
        "Written by `./dev torch-sweep` from [its results](../bench/results/torch-models.jsonl), with",
        f"PyTorch {torch.__version__} and Transformers {transformers.__version__}:",
        "a model with random weights of each architecture, fp32, on the CPU, one thread; one call compared with eager.",
        "Those of Transformers are small, those of torchvision whole.",
        f"Results agree if they differ by at most {TOLERANCE:g} of their largest element.",
        f"{len(rows)} of {max(n_installed, len(rows))} have been tried, in an order drawn at random.",
        "The command goes on where it was interrupted.",
        "",
        "| status | models | meaning |",
        "|---|---|---|",
        *(f"| {status} | {counts[status]} | {meaning} |" for status, meaning in STATUSES.items()),
        "",
        "Processor time of a call, as a part of eager's:",
        "",
        "| library | models | median | most |",
        "|---|---|---|---|",
        speed(rows, "torchvision"),
        speed(rows, "Transformers"),
        "",
        "graphs: pieces that Dynamo captured; programs: what a call runs; difference: the largest, as a part of the",
        "largest element. torchvision's models are whole; times of Transformers' small ones say how much a call costs,",
        "not how fast products are.",
        "",
        "| model | status | graphs | programs | difference | call / eager, ms | why |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: r["name"]):
        facts = [str(row.get("graphs", "")), str(row.get("programs", ""))]
        facts.append(f"{row['difference']:.0e}" if "difference" in row else "")
        facts.append(f"{row['call_ms']:.1f} / {row['eager_ms']:.1f}" if "call_ms" in row else "")
        reason = row["reason"].replace("|", "/").replace("\n", " ")
        lines.append(f"| `{row['name']}` | {row['status']} | {' | '.join(facts)} | {reason} |")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results" / "torch-models.jsonl")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--again", choices=STATUSES)
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    given = parser.parse_args()
    if given.list:
        print("\n".join(installed()))
        return 0
    before = rows_of(given.out)
    done = {name for name, row in before.items() if row["status"] != given.again}
    names = [] if given.table_only else given.names or shuffled(installed())
    names = [name for name in names if name not in done]
    if names:
        sweep(names, given.out, given.seconds)
    rows = list(rows_of(given.out).values())
    if given.write:
        given.write.write_text(table(rows, len(installed())))
    return int(any(row["status"] == "wrong" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
