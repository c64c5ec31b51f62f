"""mpk quantize --calibrate: errors weigh by the mean squares of what Transformers multiplies the weights by in fp32,
for every matrix of a layer; and --report: what mpk perplexity says of the file."""

import json
import re

import gguf
import numpy
import pytest
import safetensors.numpy
import torch
import transformers

import support
import tiny

RANDOM = support.seed()
WINDOW = 256  # the tiny models' trained context
LAYERS = 6
FAMILIES = {"Llama": {}, "Qwen2": {}, "Qwen3": dict(head_dim=16), "Qwen3Moe": dict(
    head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)}
GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down", "mlp.experts.gate_proj": "ffn_gate_exps",
              "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps"}


def make(folder, family, **more):
    """A checkpoint whose products have inputs of very different size from column to column."""
    tiny.model(folder, torch.Generator().manual_seed(RANDOM.randrange(2**31)), family, hidden_size=64,
               intermediate_size=96, num_hidden_layers=LAYERS, **FAMILIES[family], **more)
    draw = numpy.random.default_rng(RANDOM.randrange(2**31))
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    for name, w in weights.items():
        shape = w.shape if name.endswith("layernorm.weight") else (*w.shape[:-1], 1)
        if re.search(r"(layernorm|v_proj|up_proj)\.weight", name):
            w *= numpy.exp(1.2 * draw.normal(0, 1, shape).clip(-2, 2)).astype(w.dtype)
    safetensors.numpy.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_text():
    words = ["the", "hen", "in", "a", "tower", "other", "1", "x = y;", "über", "\n", "then", "thin"]
    return " ".join(RANDOM.choice(words) for _ in range(700))


def windows_of(folder, text):
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    rows = [ids[i:i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW)]
    for row in rows:
        row[0] = ids[0]
    return torch.tensor(rows)


def expert_squares(net, weights, layer, x, add):
    """Each expert sees the tokens that go to it."""
    of = f"model.layers.{layer}.mlp."
    choice = torch.topk(x @ weights[of + "gate.weight"].T, net.config.num_experts_per_tok).indices
    for e in range(net.config.num_experts):
        rows = x[(choice == e).any(1)]
        part = [weights[f"{of}experts.{e}.{name}_proj.weight"] for name in ("gate", "up")]
        inner = torch.nn.functional.silu(rows @ part[0].T) * (rows @ part[1].T)
        for name, values in (("gate", rows), ("up", rows), ("down", inner)):
            add(f"{layer}.mlp.experts.{name}_proj", values, e)


def mean_squares(folder, windows):
    """(layer and name, expert) -> the mean square of each column's input."""
    net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = {name: torch.tensor(w) for name, w in safetensors.numpy.load_file(folder / "model.safetensors").items()}
    sums, counts = {}, {}

    def add(name, x, expert=0):
        x = x.detach().double().reshape(-1, x.shape[-1])
        sums[name, expert] = sums.get((name, expert), 0) + (x**2).sum(0)
        counts[name, expert] = counts.get((name, expert), 0) + len(x)
    for name, module in net.named_modules():
        short = name.removeprefix("model.layers.")
        if isinstance(module, torch.nn.Linear) and short.split(".", 1)[-1] in GGUF_NAMES:
            module.register_forward_hook(lambda m, x, y, short=short: add(short, x[0]))
        elif re.fullmatch(r"\d+\.mlp", short) and hasattr(module, "experts"):
            module.register_forward_hook(lambda m, x, y, layer=short.split(".")[0]: expert_squares(
                net, weights, layer, x[0].reshape(-1, x[0].shape[-1]), add))
    with torch.no_grad():
        for row in windows:
            net(row[None])
    return {key: (sums[key] / max(counts[key], 1)).numpy() for key in sums if counts[key]}


def tensors_of(path):
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


def quantize(folder, path, kind, *options):
    return support.mpk("quantize", folder, "-o", path, "--type", kind, "-q", *options)[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.draws(1)
def test_errors_weigh_by_what_columns_multiply(family, tmp_path):
    """Weighted by the mean squares that Transformers finds, the error falls by more than weighted by those of other
    columns: in the geometric mean over the matrices of a kind."""
    folder, text = make(tmp_path / "model", family), make_text()
    (tmp_path / "text").write_text(text)
    squares = mean_squares(folder, windows_of(folder, text))
    quantize(folder, tmp_path / "whole.gguf", "f32")
    quantize(folder, tmp_path / "plain.gguf", "q4_0")
    quantize(folder, tmp_path / "out.gguf", "q4_0", "--calibrate", tmp_path / "text")
    whole, plain, out = (tensors_of(tmp_path / f"{name}.gguf") for name in ("whole", "plain", "out"))
    seen, ratios = set(), {}
    for (name, expert), mean in squares.items():
        layer, short = name.split(".", 1)
        key = f"blk.{layer}.{GGUF_NAMES[short]}.weight"
        pick = (lambda w: w[expert]) if "experts" in short else (lambda w: w)

        def error(found, by):
            return ((pick(found[key]).astype(float) - pick(whole[key])) ** 2 @ by).sum()
        own, others = (error(out, by) / error(plain, by) for by in (mean, numpy.roll(mean, 7)))
        ratios.setdefault(short, []).append(numpy.log([own, own / others]))
        seen.add(key)
    matrices = {name for name, w in whole.items() if name.startswith("blk.") and w.ndim > 1 and "gate_inp" not in name}
    assert seen == matrices
    for kind, logs in ratios.items():
        own, ratio = numpy.exp(numpy.mean(logs, 0))
        assert own < 0.88 and ratio < 0.88, (kind, own, ratio)


def test_threads_change_no_bit(tmp_path):
    folder = make(tmp_path / "model", "Qwen3Moe")
    (tmp_path / "text").write_text(make_text())
    files = [tmp_path / f"{n}.gguf" for n in (1, 2, 5)]
    for n, file in zip((1, 2, 5), files):
        out = quantize(folder, file, "q4_1", "--calibrate", tmp_path / "text", "--threads", n, "--json", "--windows", 2)
        assert json.loads(out)["calibration_tokens"] == 2 * WINDOW
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()


def test_from_python(tmp_path):
    import mpk
    folder, text = make(tmp_path / "model", "Llama"), make_text()
    (tmp_path / "text").write_text(text)
    quantize(folder, tmp_path / "a.gguf", "q5_1", "--calibrate", tmp_path / "text")
    report = mpk.quantize(folder, tmp_path / "b.gguf", "q5_1", calibration=text)
    assert report["calibration_tokens"] == len(windows_of(folder, text)) * WINDOW
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    with pytest.raises(mpk.ArgumentError, match="less than a window of 256"):
        mpk.quantize(folder, tmp_path / "c.gguf", "q5_1", calibration="the hen")


@pytest.mark.parametrize("context", (1024, 200))
def test_report_is_that_of_perplexity(context, tmp_path):
    """In windows of 512 tokens, or of the model's whole context if that is less."""
    folder = make(tmp_path / "model", "Llama", max_position_embeddings=context)
    (tmp_path / "text").write_text(make_text())
    options = ("--report", tmp_path / "text", "--windows", 1)
    lines = quantize(folder, tmp_path / "out.gguf", "q4_0", *options, "--json").decode().splitlines()
    expected, _ = support.mpk("perplexity", tmp_path / "out.gguf", "-f", tmp_path / "text", "--kl", folder,
                              "-c", min(context, 512), "--windows", 1, "--json", "-q")
    assert json.loads(lines[0])["bytes"] and json.loads(lines[1]) == json.loads(expected)
    assert json.loads(lines[1])["kl"]["mean"] > 0
    words = quantize(folder, tmp_path / "out.gguf", "q4_0", *options).decode()
    assert re.search(r"tensors: .*\nwindows 1 of [0-9]+ .*perplexity of the base .*\nKL divergence", words, re.S)


def test_what_cannot_be_read_is_told(tmp_path):
    folder = make(tmp_path / "model", "Llama")
    (tmp_path / "short").write_text("the hen")
    (tmp_path / "text").write_text(make_text())
    out = tmp_path / "x.gguf"

    def refused(*arguments, needle):
        _, errors = support.mpk("quantize", *arguments, "-q", code=1)
        assert errors.startswith("mpk: ") and re.search(needle, errors), errors
        assert not out.exists()
    to = ("-o", out, "--type", "q4_0", "--calibrate")
    refused(folder, *to, tmp_path / "short", needle="has [0-9]+ tokens, less than a window of 256")
    refused(folder, *to, tmp_path / "none", needle="No such file")
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights["model.layers.1.input_layernorm.weight"][3] = 1e30
    safetensors.numpy.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, *to, tmp_path / "text", needle="not finite or beyond")
    (folder / "tokenizer.json").unlink()
    refused(folder, *to, tmp_path / "text", needle="tokenizer")
