"""Folders whose weights were quantised after training, in the layouts of their writers: logits against Transformers
with the weights that numbers and scales stand for, in fp32."""

import json
import warnings

import numpy
import pytest
import safetensors.torch
import torch
import transformers

import support

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(2)
RANDOM = support.seed()
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # rows of eight in a word, from the lowest bits on


def words(numbers, bits):
    """[.., n] unsigned numbers -> i32 [.., ceil(n bits / 32)], the first in the lowest bits."""
    n = numbers.shape[-1]
    padded = numpy.zeros((*numbers.shape[:-1], -(-n * bits // 32) * 32 // bits), dtype=numpy.uint64)
    padded[..., :n] = numbers
    a_word = 32 // bits
    padded = padded.reshape(*padded.shape[:-1], -1, a_word)
    shifts = numpy.arange(a_word, dtype=numpy.uint64) * bits
    return torch.from_numpy((padded << shifts).sum(-1).astype(numpy.uint32).view(numpy.int32).copy())


def awq_words(numbers):
    """[.., n] -> i32 [.., n / 8]"""
    eights = numbers.reshape(*numbers.shape[:-1], -1, 8)[..., AWQ_ORDER]
    return words(eights.reshape(numbers.shape), 4)


def by_groups(w, group, bits, symmetric, dtype=torch.float16, groups=None):
    """Numbers [N, K], scales and zero points [N, K / group], and what they stand for.  groups: of each column."""
    n, k = w.shape
    groups = torch.arange(k) // group if groups is None else groups
    count = int(groups.max()) + 1
    scales = torch.zeros(n, count, dtype=dtype)
    zeros = torch.zeros(n, count)
    for g in range(count):
        part = w[:, groups == g]
        if symmetric:
            scales[:, g] = (part.abs().amax(1) / (2 ** (bits - 1) - 1)).to(dtype)
            zeros[:, g] = 2 ** (bits - 1)
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales[:, g] = ((high - low) / (2**bits - 1)).to(dtype)
            zeros[:, g] = (-low / scales[:, g].float()).round().clamp(1, 2**bits - 1)
    s, z = scales.float()[:, groups], zeros[:, groups]
    q = (w / s + z).round().clamp(0, 2**bits - 1)
    return q.numpy().astype(numpy.uint64), scales, zeros.numpy().astype(numpy.uint64), (q - z) * s


def shuffled(k, group):
    return (torch.arange(k) // group)[torch.tensor(RANDOM.sample(range(k), k))]


def gptq(bits=4, group=32, symmetric=True, ordered=False, version=1, bias=False):
    def pack(stem, w):
        groups = shuffled(w.shape[1], group) if ordered else None
        q, scales, zeros, value = by_groups(w, group, bits, symmetric, groups=groups)
        parts = {"qweight": words(q, bits).T.contiguous(),
                 "qzeros": words(zeros.T - (1 if version == 1 else 0), bits),
                 "scales": scales.T.contiguous(),
                 "g_idx": (torch.arange(w.shape[1]) // group if groups is None else groups).to(torch.int32)}
        if bias:
            parts["bias"] = torch.zeros(w.shape[0], dtype=torch.float16)
        return parts, value
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": ordered, "sym": symmetric,
            **({"checkpoint_format": "gptq_v2"} if version == 2 else {})}, pack


def awq(group=32):
    def pack(stem, w):
        q, scales, zeros, value = by_groups(w, group, 4, False)
        return {"qweight": awq_words(q.T.copy()), "qzeros": awq_words(zeros.T.copy()),
                "scales": scales.T.contiguous()}, value
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}, pack


def compressed(format, **weights):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}


def packed(bits=4, group=32, symmetric=True, ordered=False, dtype=torch.float16):
    def pack(stem, w):
        group_size = group or w.shape[1]
        groups = shuffled(w.shape[1], group_size) if ordered else None
        q, scales, zeros, value = by_groups(w, group_size, bits, symmetric, dtype, groups)
        parts = {"weight_packed": words(q, bits), "weight_scale": scales, "weight_shape": torch.tensor(w.shape)}
        if not symmetric:
            parts["weight_zero_point"] = words(zeros.T.copy(), bits).T.contiguous()
        if ordered:
            parts["weight_g_idx"] = groups.to(torch.int32)
        return parts, value
    return compressed("pack-quantized", num_bits=bits, type="int", symmetric=symmetric, group_size=group), pack


def int8(symmetric=True, dtype=torch.float32):
    def pack(stem, w):
        q, scales, zeros, value = by_groups(w, w.shape[1], 8, symmetric, dtype)
        parts = {"weight": torch.from_numpy((q.astype(numpy.int64) - 128).astype(numpy.int8)), "weight_scale": scales}
        if not symmetric:
            parts["weight_zero_point"] = torch.from_numpy((zeros.astype(numpy.int64) - 128).astype(numpy.int8))
        return parts, value
    return compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=symmetric), pack


def fp8(rows, columns, name="weight_scale", dtype=torch.float32, config=None, of_inputs="input_scale"):
    """A scale for so many rows and columns; None: for all of them."""
    def pack(stem, w):
        r, c = rows or w.shape[0], columns or w.shape[1]
        shape = (-(-w.shape[0] // r), -(-w.shape[1] // c))
        scales = torch.zeros(shape, dtype=dtype)
        for i in range(shape[0]):
            for j in range(shape[1]):
                scales[i, j] = (w[i * r:(i + 1) * r, j * c:(j + 1) * c].abs().max() / 448).to(dtype)
        wide = scales.float().repeat_interleave(r, 0).repeat_interleave(c, 1)[:w.shape[0], :w.shape[1]]
        q = (w / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
        alone = scales.reshape(()) if not rows and not columns else scales
        return {"weight": q, name: alone, of_inputs: torch.tensor([0.5])}, q.float() * wide
    return config or {"quant_method": "fp8", "weight_block_size": [rows, columns]}, pack


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def fp4(group, config, ends, powers=False):
    """E2M1, two numbers a byte.  ends: of the numbers, and of the scale of all (None: there is none; it multiplies, or
    if it is called global divides)."""
    def pack(stem, w):
        n, k = w.shape
        parts = w.reshape(n, k // group, group)
        wanted = parts.abs().amax(2) / 6
        whole = torch.tensor(1.0) if powers else wanted.max() / 448
        if powers:
            exponents = (wanted.log2().ceil() + 127).clamp(0, 254)
            stored, scales = exponents.to(torch.uint8), torch.exp2(exponents - 127)
        else:
            stored = (wanted / whole).to(torch.float8_e4m3fn)
            scales = stored.float() * whole
        ratio = parts / scales.clamp(min=1e-30)[..., None]
        index = (ratio.abs()[..., None] - E2M1).abs().argmin(-1)
        value = E2M1[index] * ratio.sign() * scales[..., None]
        q = (index + 8 * (ratio < 0)).reshape(n, k).to(torch.uint8)
        found = {ends[0]: q[:, 0::2] | q[:, 1::2] << 4, "weight_scale": stored}
        if ends[1]:
            found[ends[1]] = (1 / whole if "global" in ends[1] else whole).reshape(())
        return found, value.reshape(n, k)
    return config, pack


def bits_and_bytes(group, nested):
    """A table of 16 values, two numbers a byte, the first in the high bits; groups go on from row to row."""
    def pack(stem, w):
        table = torch.sort(2 * torch.rand(16, generator=torch.Generator().manual_seed(RANDOM.randrange(2**31))) - 1)[0]
        flat = w.reshape(-1)
        groups = torch.arange(len(flat)) // group
        scales = torch.zeros(int(groups[-1]) + 1).scatter_reduce(0, groups, flat.abs(), "amax")
        parts = {"weight.quant_map": table, "weight.absmax": scales}
        state = {"quant_type": "nf4", "blocksize": group, "dtype": "float32", "shape": list(w.shape)}
        if nested:
            offset, steps = float(scales.mean()), torch.linspace(-1, 1, 256)
            runs = torch.arange(len(scales)) // 4
            most = torch.zeros(int(runs[-1]) + 1).scatter_reduce(0, runs, (scales - offset).abs(), "amax")
            index = ((scales - offset)[:, None] - steps * most[runs][:, None]).abs().argmin(1)
            parts.update({"weight.absmax": index.to(torch.uint8), "weight.nested_absmax": most,
                          "weight.nested_quant_map": steps})
            state.update({"nested_blocksize": 4, "nested_dtype": "float32", "nested_offset": offset})
            scales = steps[index] * most[runs] + offset
        wide = scales[groups]
        q = ((flat / wide.clamp(min=1e-30))[:, None] - table).abs().argmin(1).to(torch.uint8)
        text = json.dumps(state).encode()
        parts.update({"weight": (q[0::2] << 4 | q[1::2])[:, None],
                      "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(text), dtype=torch.uint8)})
        return parts, (table[q.long()] * wide).reshape(w.shape)
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, pack


def bits_and_bytes_8():
    def pack(stem, w):
        most = w.abs().amax(1)
        q = (w / most[:, None] * 127).round()
        parts = {"weight": q.to(torch.int8), "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return parts, q * most[:, None] / 127
    return {"quant_method": "bitsandbytes", "load_in_8bit": True}, pack


EXACT, ROUNDED = 1e-4, 5e-3  # of the logits' range; Q4_1 rounds scale times zero point to f16
FP8_CHANNEL = compressed("float-quantized", num_bits=8, type="float", strategy="channel")
SCHEMES = {
    "gptq": (gptq(), EXACT),
    "gptq-zeros": (gptq(symmetric=False), ROUNDED),
    "gptq-v2-zeros": (gptq(symmetric=False, version=2), ROUNDED),
    "gptq-ordered": (gptq(group=16, ordered=True), EXACT),
    "gptq-groups-of-16": (gptq(group=16), EXACT),
    "gptq-8": (gptq(bits=8, group=32, bias=True), EXACT),
    "gptq-2": (gptq(bits=2, symmetric=False), ROUNDED),
    "awq": (awq(), ROUNDED),
    "awq-groups-of-8": (awq(group=8), EXACT),
    "packed-4": (packed(), EXACT),
    "packed-4-zeros-bf16": (packed(symmetric=False, dtype=torch.bfloat16), ROUNDED),
    "packed-4-ordered": (packed(group=16, ordered=True), EXACT),
    "packed-8-rows": (packed(bits=8, group=None), EXACT),
    "int8": (int8(), EXACT),
    "int8-bf16": (int8(dtype=torch.bfloat16), EXACT),
    "int8-zeros": (int8(symmetric=False), EXACT),
    "fp8": (fp8(None, None, config={"quant_method": "fp8", "activation_scheme": "static"}), EXACT),
    "fp8-ministral": (fp8(None, None, "weight_scale_inv", torch.bfloat16, {
        "quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}, "activation_scale"), EXACT),
    "fp8-blocks": (fp8(48, 40, "weight_scale_inv"), EXACT),
    "table": (bits_and_bytes(64, False), EXACT),
    "table-nested": (bits_and_bytes(48, True), EXACT),
    "bytes": (bits_and_bytes_8(), EXACT),
    "fp8-modelopt": (fp8(None, None, config={"quant_method": "modelopt", "quant_algo": "FP8"}), EXACT),
    "nvfp4": (fp4(16, compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16),
                  ("weight_packed", "weight_global_scale")), EXACT),
    "nvfp4-modelopt": (fp4(16, {"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}},
                           ("weight", "weight_scale_2")), EXACT),
    "mxfp4": (fp4(32, compressed("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32),
                  ("weight_packed", None), powers=True), EXACT),
    "fp8-rows": (fp8(1, None, dtype=torch.bfloat16, config=FP8_CHANNEL), EXACT),
}
FAMILIES = {
    "ministral3": ("Ministral3", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                      intermediate_size=96)),
    "minimax-m2": ("MiniMaxM2", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                     intermediate_size=96, num_local_experts=4, num_experts_per_tok=4)),
    "llama": ("Llama", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)),
    "qwen2": ("Qwen2", dict(hidden_size=96, num_attention_heads=3, num_key_value_heads=1, intermediate_size=160)),
    "phi3": ("Phi3", dict(hidden_size=64, num_attention_heads=2, num_key_value_heads=1, intermediate_size=96,
                          pad_token_id=0)),
    "mixture": ("Qwen3Moe", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                                 intermediate_size=96, num_experts=6, num_experts_per_tok=2,
                                 moe_intermediate_size=64)),
    # latent attention, whose matrices of keys and values are taken apart by heads
    "latents": ("DeepseekV3", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=4, intermediate_size=96,
                                   q_lora_rank=40, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                                   v_head_dim=24, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                                   n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1)),
}


def is_quantised(name, w):
    return w.dim() == 2 and ".layers." in name and "proj" in name.split(".")[-2]


def write(folder, family, scheme, generator):
    """A quantised folder, and one of the weights that it stands for."""
    name, options = FAMILIES[family]
    config = getattr(transformers, name + "Config")(**options, num_hidden_layers=2, vocab_size=211,
                                                    max_position_embeddings=256)
    net = support.randomise(getattr(transformers, name + "ForCausalLM")(config), generator)
    quantised, plain = folder / "quantised", folder / "plain"
    support.save(net, plain)
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    packed_tensors = {}
    said, pack = scheme
    for key, w in list(tensors.items()):
        if not is_quantised(key, w):
            packed_tensors[key] = w
            continue
        stem = key.removesuffix(".weight")
        parts, tensors[key] = pack(stem, w.float())
        if "bias" in parts and stem + ".bias" in tensors:
            del parts["bias"]
        packed_tensors.update({f"{stem}.{end}": t for end, t in parts.items()})
    quantised.mkdir()
    safetensors.torch.save_file(packed_tensors, quantised / "model.safetensors")
    safetensors.torch.save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((plain / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps({**text, "quantization_config": said}))
    return quantised, plain


def check(tmp_path, family, scheme, allowed):
    generator = torch.Generator().manual_seed(RANDOM.randrange(2**31))
    quantised, plain = write(tmp_path, family, scheme, generator)
    net = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    tokens = [RANDOM.randrange(211) for _ in range(12)]
    with torch.no_grad():
        expected = net(torch.tensor([tokens])).logits[0].numpy()
    got = support.score(quantised, tokens, tmp_path, "--activations=f32")
    worst = numpy.abs(got - expected).max() / numpy.ptp(expected)
    assert worst < allowed, f"{worst:.2e} of the logits' range"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.draws(10)
def test_a_scheme(scheme, tmp_path):
    check(tmp_path, "llama", *SCHEMES[scheme])


@pytest.mark.parametrize("family, scheme", [("qwen2", "awq"), ("qwen2", "gptq-8"), ("phi3", "gptq-zeros"),
                                            ("phi3", "fp8-rows"), ("ministral3", "fp8-ministral"),
                                            ("minimax-m2", "fp8-blocks"), ("mixture", "packed-4"),
                                            ("mixture", "fp8-blocks"),
                                            ("mixture", "awq"), ("latents", "fp8-blocks"), ("latents", "packed-4")])
@pytest.mark.draws(5)
def test_a_family(family, scheme, tmp_path):
    said, allowed = SCHEMES[scheme]
    # of latents' blocks the part that makes keys is unpacked to f16 (src/load/latent.c)
    check(tmp_path, family, said, ROUNDED if family == "latents" and scheme == "packed-4" else allowed)
