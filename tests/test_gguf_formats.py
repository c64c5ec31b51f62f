"""Files whose weights are in every block format of GGUF: logits against Transformers in fp32 with the same weights, as
the gguf package unpacks them."""

import gguf
import numpy
import pytest
import torch
import transformers

import support

RANDOM = support.seed()
FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "IQ1_S",
           "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS", "TQ1_0", "TQ2_0"]
# Where the f16 scale (and minimum) of a block lie; 0 if not given.
SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2),
          "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "IQ1_M": ()}
CONFIG = transformers.Qwen3Config(
    vocab_size=300, hidden_size=512, intermediate_size=768, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, head_dim=64, max_position_embeddings=512, tie_word_embeddings=False)
LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{LAYER[part]}.weight"


def random_blocks(kind, rows, columns, deviation):
    """Blocks of random bits, rows x bytes, whose scales give the weights about this standard deviation; and the
    weights."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = numpy.frombuffer(RANDOM.randbytes(rows * columns // elements * size), numpy.uint8).reshape(-1, size).copy()

    def put(scale):
        for i, at in enumerate(SCALES.get(kind.name, (0,))):
            minimum = i and kind.name in ("Q4_1", "Q5_1")  # added, where the others subtract it
            half = numpy.float16(-8 * scale if minimum else scale)
            blocks[:, at:at + 2] = numpy.frombuffer(half.tobytes(), numpy.uint8)
        if kind.name == "MXFP4":
            blocks[:, 0] = int(numpy.clip(numpy.round(numpy.log2(scale)) + 127, 1, 254))
        if kind.name == "IQ1_M":
            word = int(numpy.float16(scale).view(numpy.uint16))
            for i in range(4):
                blocks[:, 49 + 2 * i] = (blocks[:, 49 + 2 * i] & 15) | (word >> 4 * i & 15) << 4
        return gguf.quants.dequantize(blocks.reshape(rows, -1), kind).astype(numpy.float32)

    weights = put(deviation / put(1.0).std())
    return blocks.reshape(rows, -1), weights


def write(path, kind, model):
    """Every matrix becomes random blocks, in the file and in the model; every vector stays."""
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_key_length(CONFIG.head_dim)
    writer.add_value_length(CONFIG.head_dim)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_freq_base(CONFIG.rope_parameters["rope_theta"])
    for name, t in model.state_dict().items():
        if t.ndim == 1:
            writer.add_tensor(gguf_name(name), t.numpy())
            continue
        blocks, weights = random_blocks(kind, *t.shape, t.shape[1] ** -0.5)
        t.copy_(torch.from_numpy(weights))
        writer.add_tensor(gguf_name(name), blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.draws(8)
def test_format(name, tmp_path):
    torch.manual_seed(RANDOM.randrange(2**31))
    with torch.no_grad():
        model = transformers.Qwen3ForCausalLM(CONFIG).eval()
        write(tmp_path / "model.gguf", gguf.GGMLQuantizationType[name], model)
        tokens = [RANDOM.randrange(CONFIG.vocab_size) for _ in range(40)]
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    spread = expected.max() - expected.min()
    exact = support.score(tmp_path / "model.gguf", tokens, tmp_path, "--kv", "f32", "--activations", "f32")
    assert numpy.abs(exact - expected).max() < 1e-4 * spread
    narrow = support.score(tmp_path / "model.gguf", tokens, tmp_path, "--kv", "f32", "--activations", "i8")
    assert 0 < numpy.abs(narrow - expected).max() < 0.05 * spread
