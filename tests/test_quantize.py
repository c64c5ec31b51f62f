"""mpk quantize: the old formats bit for bit as the gguf package packs them, K formats within their error, and files
that say all that the model is: mpk computes the same from them, the gguf package reads them."""

import json
import re
import shutil

import gguf
import numpy
import pytest
import safetensors.numpy
import torch
import transformers

import support
import tiny

RANDOM = support.seed()
TYPES = gguf.GGMLQuantizationType
SIZES = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=96,
             vocab_size=263, max_position_embeddings=256)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MIXTURE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True, head_dim=16)
MODELS = {
    "llama-tied": ("Llama", dict(tie_word_embeddings=True)),
    "llama-biases": ("Llama", dict(tie_word_embeddings=False, attention_bias=True, mlp_bias=True)),
    "llama-llama3": ("Llama", dict(rope_parameters=LLAMA3)),
    "llama-linear": ("Llama", dict(rope_parameters=LINEAR)),
    "llama-yarn": ("Llama", dict(rope_parameters=YARN)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=False)),
    "qwen3": ("Qwen3", dict(head_dim=24, tie_word_embeddings=True)),
    "mistral-window": ("Mistral", dict(sliding_window=11)),
    "mixtral": ("Mixtral", dict(num_local_experts=8, num_experts_per_tok=2)),
    "qwen3moe": ("Qwen3Moe", MIXTURE),
}
NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def make(folder, family="Llama", **more):
    """A random checkpoint in fp32 without a tokenizer."""
    config = getattr(transformers, family + "Config")(**{**SIZES, **more})
    net = getattr(transformers, family + "ForCausalLM")(config)
    generator = torch.Generator().manual_seed(RANDOM.randrange(2**31))
    return support.save(support.randomise(net, generator), folder)


def quantize(model, output, kind, *options):
    support.mpk("quantize", model, "-o", output, "--type", kind, *options)
    return gguf.GGUFReader(output)


def hf_name(name):
    stem, last = name.rsplit(".", 1)
    layer = re.match(r"blk\.(\d+)\.(.*)", stem)
    return (f"model.layers.{layer[1]}.{NAMES[layer[2]]}" if layer else NAMES[stem]) + "." + last


def in_file_order(name, weight, heads):
    """The rows of q and k as files of the Llama architecture have them."""
    if "attn_q." not in name and "attn_k." not in name:
        return weight
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A model with zeros, equal numbers, large and tiny ones among its weights; and its weights."""
    folder = make(tmp_path_factory.mktemp("odd") / "model")
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    for name, w in weights.items():
        if w.ndim == 2:
            blocks = w.reshape(-1, 32)
            for i in RANDOM.sample(range(len(blocks)), 12):
                blocks[i] *= RANDOM.choice([0, 1e-6, 1e-20, 300])
            blocks[RANDOM.randrange(len(blocks))] = -0.75
            blocks[RANDOM.randrange(len(blocks)), ::2] *= -1
            w += 0  # -0 becomes 0: which of both numpy takes for the least depends on its vectors
    safetensors.numpy.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, weights


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_old_formats_have_the_bits_of_the_gguf_package(odd, tmp_path, kind):
    folder, weights = odd
    file = quantize(folder, tmp_path / "out.gguf", kind.lower())
    seen = set()
    for t in file.tensors:
        w = weights[hf_name(t.name)]
        w = in_file_order(t.name, w, SIZES["num_key_value_heads" if "attn_k" in t.name else "num_attention_heads"])
        if w.ndim == 1:
            assert t.tensor_type == TYPES.F32
        elif t.name == "output.weight" and kind[0] == "Q":
            assert t.tensor_type == TYPES.Q8_0  # of q6_k, which rows of 64 have no room for
        else:
            assert t.tensor_type == TYPES[kind]
        expected = gguf.quants.quantize(w, t.tensor_type)
        assert t.data.tobytes() == expected.tobytes(), t.name
        seen.add(hf_name(t.name))
    assert seen == set(weights)


def relative_error(file, weights, heads=SIZES["num_attention_heads"]):
    """Squared error over squares, by the type of the tensors."""
    sums = {}
    for t in file.tensors:
        if t.tensor_type == TYPES.F32 or "attn_k" in t.name:
            continue
        w = in_file_order(t.name, weights[hf_name(t.name)], heads).astype(numpy.float64)
        off = gguf.quants.dequantize(t.data, t.tensor_type) - w
        one = sums.setdefault(t.tensor_type.name, [0, 0])
        one[0] += (off**2).sum()
        one[1] += (w**2).sum()
    return {name: a / b for name, (a, b) in sums.items()}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("wide") / "model", hidden_size=256, intermediate_size=512,
                  num_hidden_layers=8, tie_word_embeddings=False)
    return folder, safetensors.numpy.load_file(folder / "model.safetensors")


def test_k_formats_lose_less_than_the_old_ones(wide, tmp_path):
    folder, weights = wide
    error = {kind: relative_error(quantize(folder, tmp_path / f"{kind}.gguf", kind), weights)
             for kind in ("q4_1", "q5_1", "q8_0", "q2_k", "q3_k_s", "q4_k_s", "q5_k_s", "q6_k")}
    assert error["q4_k_s"]["Q4_K"] < 0.9 * error["q4_1"]["Q4_1"]
    assert error["q5_k_s"]["Q5_K"] < 0.9 * error["q5_1"]["Q5_1"]
    assert error["q8_0"]["Q8_0"] < error["q6_k"]["Q6_K"] < 4e-4
    assert error["q2_k"]["Q2_K"] < 0.08 and error["q3_k_s"]["Q3_K"] < 0.024


def types_of(file):
    return {t.name: t.tensor_type.name for t in file.tensors}


def test_mixes_choose_as_llama_cpp(wide, tmp_path):
    """Of eight layers: the first and the last, and of those between every third."""
    folder, _ = wide
    kinds = types_of(quantize(folder, tmp_path / "m.gguf", "q4_k_m"))
    more = [i for i in range(8) if kinds[f"blk.{i}.attn_v.weight"] == "Q6_K"]
    assert more == [0, 3, 6, 7] == [i for i in range(8) if kinds[f"blk.{i}.ffn_down.weight"] == "Q6_K"]
    assert kinds["output.weight"] == "Q6_K" and kinds["token_embd.weight"] == "Q4_K"
    assert kinds["blk.1.attn_q.weight"] == kinds["blk.1.attn_v.weight"] == "Q4_K"
    kinds = types_of(quantize(folder, tmp_path / "s.gguf", "Q4_K_S"))
    assert [kinds[f"blk.{i}.attn_v.weight"] for i in range(8)] == ["Q5_K"] * 4 + ["Q4_K"] * 4
    kinds = types_of(quantize(folder, tmp_path / "2.gguf", "q2_k"))
    assert kinds["blk.0.attn_v.weight"] == kinds["blk.5.ffn_down.weight"] == kinds["blk.5.attn_output.weight"] == "Q3_K"
    kinds = types_of(quantize(folder, tmp_path / "3.gguf", "q3_k_m"))
    assert [kinds[f"blk.{i}.attn_v.weight"] for i in range(3)] == ["Q5_K", "Q5_K", "Q4_K"]


def test_rows_that_hold_no_blocks_take_another_type(tmp_path):
    folder = make(tmp_path / "model", hidden_size=64, intermediate_size=72, tie_word_embeddings=True)
    for kind, other in [("q2_k", "Q4_0"), ("q3_k_m", "Q4_0"), ("q4_k_s", "Q5_0"), ("q5_k_s", "Q5_1"), ("q6_k", "Q8_0")]:
        kinds = types_of(quantize(folder, tmp_path / "out.gguf", kind))
        assert kinds["blk.1.attn_q.weight"] == other
        assert kinds["blk.1.ffn_down.weight"] == "F16"  # 72 is no multiple of 32 either
        assert kinds["token_embd.weight"] == "Q8_0"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.draws(4)
def test_the_file_is_the_model(name, tmp_path):
    """Logits from the file in fp32 are those from the folder; so are those of a file made from the file."""
    family, more = MODELS[name]
    folder = make(tmp_path / "model", family, **more)
    tokens = [RANDOM.randrange(SIZES["vocab_size"]) for _ in range(24)]
    expected = support.score(folder, tokens, tmp_path)
    quantize(folder, tmp_path / "a.gguf", "f32")
    quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "f32")
    for file in ("a.gguf", "b.gguf"):
        found = support.score(tmp_path / file, tokens, tmp_path)
        assert abs(found - expected).max() <= 1e-5 * numpy.ptp(expected)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_the_tokenizer_and_the_template_come_along(tmp_path):
    folder = tiny.model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<s>{{ m.content }}{% endfor %}")
    file = quantize(folder, tmp_path / "out.gguf", "q8_0")
    assert file.fields["tokenizer.chat_template"].contents() == (folder / "chat_template.jinja").read_text()
    assert file.fields["tokenizer.ggml.add_bos_token"].contents() is True
    text = "The other day, in the   morning:\n\n\tit's 12345 — “naïve” 世界 🙂</s>"
    ids = [support.mpk("tokenize", m, "--add-special", "-p", text)[0] for m in (folder, tmp_path / "out.gguf")]
    assert ids[0] == ids[1]
    back = [support.mpk("tokenize", m, "--decode", "-p", ids[0].decode())[0] for m in (folder, tmp_path / "out.gguf")]
    assert back[0] == back[1]


def test_a_sentencepiece_vocabulary_keeps_its_merges(tmp_path):
    """As Llama 2's tokenizer.json: merges become scores."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    folder = tiny.model(tmp_path / "model")
    vocabulary = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)])}
    for c in "▁abcdehilnorstuw":
        vocabulary[c] = len(vocabulary)
    merges = [("t", "h"), ("▁", "th"), ("h", "e"), ("▁th", "e"), ("i", "n"), ("▁", "t"), ("o", "n"), ("▁", "a"),
              ("e", "r")]
    for a, b in merges:
        vocabulary.setdefault(a + b, len(vocabulary))
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    t.save(str(folder / "tokenizer.json"))
    file = quantize(folder, tmp_path / "out.gguf", "f32")
    assert file.fields["tokenizer.ggml.model"].contents() == "llama"
    for text in ("the hen in the tower", "another on  the road\n", "Zürich, in there", "in"):
        ids = support.mpk("tokenize", tmp_path / "out.gguf", "--add-special", "-p", text)[0]
        assert list(map(int, ids.split())) == t.encode(text).ids


def test_values_that_we_do_not_know_are_kept(tmp_path):
    folder = make(tmp_path / "model")
    quantize(folder, tmp_path / "a.gguf", "f16")
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
    for field in reader.fields.values():
        if field.name not in ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)
    writer.add_array("someone.else", ["α", "", "b"])
    writer.add_uint64("someone.number", 2**63)
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = quantize(tmp_path / "b.gguf", tmp_path / "c.gguf", "q5_0")
    assert file.fields["someone.else"].contents() == ["α", "", "b"]
    assert file.fields["someone.number"].contents() == 2**63
    assert file.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q5_0


def test_a_type_that_is_there_already_is_copied(wide, tmp_path):
    folder, _ = wide
    quantize(folder, tmp_path / "a.gguf", "q4_k_m")
    quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "q4_k_m")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_report(odd, tmp_path):
    out, _ = support.mpk("quantize", odd[0], "-o", tmp_path / "x.gguf", "--type", "q4_0", "--json")
    report = json.loads(out)
    assert report["bytes"] == (tmp_path / "x.gguf").stat().st_size
    assert report["weights"] == sum(w.size for w in odd[1].values())
    assert report["tensors"] == {"f32": 5, "q4_0": 15, "q8_0": 1}
    out, _ = support.mpk("quantize", odd[0], "-o", tmp_path / "x.gguf", "--type", "q4_0")
    assert re.search(rb"x.gguf: 0\.\d MB, \d\.\d\d bits a weight; tensors: f32 5, q4_0 15, q8_0 1\n", out)


def test_a_report_is_refused_before_the_work(odd, tmp_path):
    """A text that is too short, or is not there, leaves no file behind; one from standard input is read once."""
    folder = tiny.model(tmp_path / "model")
    short, file = tmp_path / "short.txt", tmp_path / "x.gguf"
    short.write_text("the thing")
    refused(folder, "-o", file, "--type", "q8_0", "--report", short, needle="short.txt.* less than a window of 256")
    refused(folder, "-o", file, "--type", "q8_0", "--report", tmp_path / "none", needle="No such file")
    assert not file.exists()
    out, _ = support.mpk("quantize", folder, "-o", file, "--type", "q8_0", "--report", "-", stdin=b"in the thing " * 80)
    assert file.exists() and b"KL divergence: mean" in out


def test_from_python(odd, tmp_path):
    import mpk
    support.mpk("quantize", odd[0], "-o", tmp_path / "a.gguf", "--type", "q4_1")
    report = mpk.quantize(odd[0], tmp_path / "b.gguf", "q4_1")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert report["bytes"] == (tmp_path / "b.gguf").stat().st_size
    with pytest.raises(mpk.ArgumentError, match="no type"):
        mpk.quantize(odd[0], tmp_path / "c.gguf", "int4")


def refused(*arguments, needle, code=1):
    out, errors = support.mpk("quantize", *arguments, code=code)
    assert out == b"" and errors.startswith("mpk: ") and errors.count("\n") == 1, errors
    assert re.search(needle, errors), errors


def test_what_cannot_be_written_is_told(odd, tmp_path):
    folder, weights = odd
    file = tmp_path / "model.gguf"
    quantize(folder, file, "f32")
    before = file.read_bytes()
    refused(file, "-o", file, "--type", "q8_0", needle="is a file of the model that is read")
    (tmp_path / "link.gguf").symlink_to(file)
    refused(file, "-o", tmp_path / "link.gguf", "--type", "q8_0", needle="is a file of the model that is read")
    refused(folder, "-o", folder / "model.safetensors", "--type", "q8_0", needle="is a file of the model that is read")
    assert file.read_bytes() == before
    refused(file, "-o", "/dev/full", "--type", "q8_0", needle="No space left on device")
    refused(file, "-o", tmp_path / "none" / "x.gguf", "--type", "q8_0", needle="No such file or directory")
    refused(file, "-o", tmp_path / "x.gguf", "--type", "q9", needle='no type "q9"; there are: f32, f16')
    refused(file, "-o", tmp_path / "x.gguf", needle="--type", code=2)
    refused(support.ROOT / "models" / "qwen3-0.6b", "-o", tmp_path / "x.gguf", "--type", "q8_0", needle="no weights")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.gguf", "model.gguf"]


def test_weights_that_are_no_numbers_are_told(odd, tmp_path):
    folder = shutil.copytree(odd[0], tmp_path / "model")
    for value, kind, needle in [(numpy.nan, "q4_k_m", "is not finite"), (numpy.inf, "bf16", "is not finite"),
                                (1e6, "f16", "too large for f16"), (1e9, "q4_0", "too large for q4_0")]:
        weights = {name: w.copy() for name, w in odd[1].items()}
        weights["model.layers.1.mlp.up_proj.weight"][7, 5] = value
        safetensors.numpy.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        refused(folder, "-o", tmp_path / "x.gguf", "--type", kind, needle=f"blk.1.ffn_up.weight, row 7.*{needle}")
    assert not list(tmp_path.glob("*.gguf*"))


def test_models_that_gguf_cannot_describe_are_told(tmp_path):
    folder = make(tmp_path / "gelu", hidden_act="gelu")
    refused(folder, "-o", tmp_path / "x.gguf", "--type", "f32", needle="activation is gelu")
    folder = make(tmp_path / "window", "Qwen2", use_sliding_window=True, sliding_window=13, max_window_layers=1)
    refused(folder, "-o", tmp_path / "x.gguf", "--type", "f32", needle="which layers have a window")
