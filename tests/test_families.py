"""The files of families that differ from Llama: GGUF as llama.cpp's converter writes it, and as `mpk quantize` does;
several peers; a draft model.  tests/test_models.py compares their logits with Transformers."""

import json

import gguf
import numpy
import pytest
import safetensors.torch
import tokenizers
import torch
import transformers

import serving
import support
import tiny
from families import FAMILIES, gemma_keys, make, tensors_of, values_of, write
from test_models import GEMMA3, GROWING, choose_tokens, context_for, logits_of, longrope, shape

RANDOM = support.seed()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.draws(3)
def test_gguf(name, tmp_path):
    """A converter's file has the logits of the folder; our own has the same tensors and keys; q8_0 is near."""
    model, config, architecture, own = make(name)
    values, tensors = values_of(config, own), tensors_of(model, config, architecture)
    theirs = write(tmp_path / "theirs.gguf", architecture, values, tensors)
    folder = support.save(model, tmp_path / "folder")
    tokens = [RANDOM.randrange(config.vocab_size) for _ in range(90)]
    options = context_for(config, tokens)
    expected = support.score(folder, tokens, tmp_path, *options)
    found = support.score(theirs, tokens, tmp_path, *options)
    assert numpy.abs(found - expected).max() <= 1e-6 * numpy.abs(expected).max()
    support.mpk("quantize", folder, "-o", tmp_path / "ours.gguf", "--type", "f32")
    assert numpy.array_equal(expected, support.score(tmp_path / "ours.gguf", tokens, tmp_path, *options))
    ours = gguf.GGUFReader(tmp_path / "ours.gguf")
    assert {t.name: t.data.shape for t in ours.tensors} == {n: t.shape for n, t in tensors.items()}
    for t in ours.tensors:
        assert numpy.array_equal(t.data, tensors[t.name]), t.name
    for key, value in values.items():
        found = ours.fields[f"{architecture}.{key}"].contents()
        assert found == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6)), key
    for source in (folder, theirs):
        support.mpk("quantize", source, "-o", tmp_path / "small.gguf", "--type", "q8_0")
        small = support.score(tmp_path / "small.gguf", tokens, tmp_path, "--activations", "f32", *options)
        assert (small - expected).std() < 0.5 * expected.std()  # rows in another order: 1.4


def test_gating_that_is_not_said(tmp_path):
    """Files of GLM-4.7-Flash have biases for the choice of experts, and need not say that shares are sigmoids."""
    model, config, architecture, own = make("glm4-moe-lite")
    del own["expert_gating_func"]
    path = write(tmp_path / "model.gguf", architecture, values_of(config, own), tensors_of(model, config, architecture))
    folder = support.save(model, tmp_path / "folder")
    tokens = [RANDOM.randrange(config.vocab_size) for _ in range(60)]
    assert numpy.array_equal(support.score(path, tokens, tmp_path), support.score(folder, tokens, tmp_path))


def test_contexts_end_with_the_first_chunk(tmp_path):
    """Llama 4's layers see chunks of the context: longer contexts are refused, and the default is no longer."""
    model, _, _, _ = make("llama4")
    folder = support.save(model, tmp_path / "folder")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention_chunk_size": 64}))
    tokens = [RANDOM.randrange(211) for _ in range(64)]
    short = support.score(folder, tokens, tmp_path, "--context", 64)
    assert numpy.array_equal(short, support.score(folder, tokens, tmp_path))
    told = support.mpk("score", folder, "--tokens", tmp_path / "ids.txt", "--context", 65, code=1)[1]
    assert "see chunks of 64 tokens: contexts of more, here 65, are not supported" in told
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_experts_per_tok": 2}))
    told = support.mpk("score", folder, "--tokens", tmp_path / "ids.txt", code=1)[1]
    assert '"num_experts_per_tok" 2 is not supported in a llama4 model' in told
    support.mpk("quantize", folder, "-o", tmp_path / "out.gguf", "--type", "f32", code=1)


def test_latents_whole(tmp_path):
    """Older GGUF files of DeepSeek hold the weights of keys and values as one, and other lengths; in blocks keys are
    unpacked."""
    model, config, architecture, own = make("deepseek3")
    folder = support.save(model, tmp_path / "folder")
    tokens = [RANDOM.randrange(config.vocab_size) for _ in range(60)]
    expected = support.score(folder, tokens, tmp_path)
    older = {k: v for k, v in own.items() if not k.endswith("_mla")} | {
        "attention.key_length": own["attention.key_length_mla"],
        "attention.value_length": own["attention.value_length_mla"],
        "attention.head_count_kv": config.num_attention_heads}
    tensors = tensors_of(model, config, architecture)
    for name in [name for name in tensors if "attn_k_b" in name]:
        keys, values = tensors.pop(name), tensors.pop(name.replace("k_b", "v_b"))
        whole = numpy.concatenate([keys.swapaxes(1, 2), values], 1)
        tensors[name.replace("k_b", "kv_b")] = whole.reshape(-1, config.kv_lora_rank)
    path = write(tmp_path / "whole.gguf", architecture, values_of(config, older), tensors)
    assert numpy.array_equal(expected, support.score(path, tokens, tmp_path))
    blocks, types = dict(tensors), {}
    for name in [name for name in tensors if "attn_kv_b" in name]:
        types[name] = gguf.GGMLQuantizationType.Q8_0
        blocks[name] = gguf.quants.quantize(tensors[name], types[name])
        tensors[name] = gguf.quants.dequantize(blocks[name], types[name])
    files = [write(tmp_path / "blocks.gguf", architecture, values_of(config, older), blocks, types=types),
             write(tmp_path / "plain.gguf", architecture, values_of(config, older), tensors)]
    found, expected = (support.score(f, tokens, tmp_path, "--activations", "f32") for f in files)
    # the median: f16's rounding of keys may send a token to another expert
    assert 0 < numpy.median(numpy.abs(found - expected)) < 2e-3 * expected.std()


def four_bits(values, sizes):
    """Random 4-bit numbers as gpt-oss's folders hold them, two a byte, and scales; and what they stand for."""
    numbers = values.integers(0, 16, (*sizes[:-1], sizes[-1] // 32, 32)).astype(numpy.uint8)
    scales = values.integers(121, 124, numbers.shape[:-1]).astype(numpy.uint8)
    table = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], numpy.float32)
    real = numpy.where(numbers & 8, -1, 1) * table[numbers & 7] * numpy.exp2(scales[..., None] - 127.0)
    return numbers[..., ::2] | numbers[..., 1::2] << 4, scales, real.reshape(sizes).astype(numpy.float32)


def test_experts_in_4_bits(tmp_path):
    """gpt-oss as it is published: a folder with blocks and scales, and a GGUF file with MXFP4."""
    model, config, architecture, own = make("gpt-oss")
    values = numpy.random.default_rng(RANDOM.randrange(2**31))
    n, d, f = config.num_local_experts, config.hidden_size, config.intermediate_size
    packed = {}
    for i, layer in enumerate(model.model.layers):
        for part, rows, columns in (("gate_up_proj", 2 * f, d), ("down_proj", d, f)):
            blocks, scales, real = four_bits(values, (n, rows, columns))
            name = f"model.layers.{i}.mlp.experts.{part}"
            packed |= {f"{name}_blocks": torch.from_numpy(blocks), f"{name}_scales": torch.from_numpy(scales)}
            getattr(layer.mlp.experts, part).data.copy_(torch.from_numpy(real).swapaxes(1, 2))
    tokens = [RANDOM.randrange(config.vocab_size) for _ in range(70)]
    expected = logits_of(model, tokens)
    size = expected.max() - expected.min()
    folder = support.save(model, tmp_path / "folder")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights = {k: t for k, t in weights.items() if not k.endswith(("gate_up_proj", "down_proj"))} | packed
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    written = json.loads((folder / "config.json").read_text())

    def say(method):
        (folder / "config.json").write_text(json.dumps({**written, "quantization_config": {"quant_method": method}}))

    say("mxfp4")
    found = support.score(folder, tokens, tmp_path, "--activations", "f32")
    assert numpy.abs(found - expected).max() < 1e-4 * size
    tensors = tensors_of(model, config, architecture)
    types = {k: gguf.GGMLQuantizationType.MXFP4 for k in tensors if "_exps.weight" in k}
    file = write(tmp_path / "4.gguf", architecture, values_of(config, own),
                 {k: gguf.quants.quantize(t, types[k]) if k in types else t for k, t in tensors.items()}, types=types)
    assert numpy.array_equal(found, support.score(file, tokens, tmp_path, "--activations", "f32"))
    narrow = support.score(file, tokens, tmp_path)
    assert 0 < (narrow - expected).std() < 0.2 * expected.std()  # a token may go to another expert
    ids = tmp_path / "ids.txt"
    say("aqlm")
    assert '"aqlm" is not supported' in support.mpk("score", folder, "--tokens", ids, code=None)[1]
    say("mxfp4")
    del weights["model.layers.1.mlp.experts.down_proj_scales"]
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    told = support.mpk("score", folder, "--tokens", ids, code=None)[1]
    assert "model.layers.1.mlp.experts.down_proj_scales is missing" in told


def test_layers_with_a_window_in_gguf(tmp_path):
    """A file may list them; one that cannot be told from the family's rule is not written."""
    types = ["full", "sliding", "sliding", "full"]
    config = transformers.Gemma3TextConfig(attn_implementation="eager", layer_types=[f"{t}_attention" for t in types],
                                           **shape(64, 4, 2, 32, layers=4, sliding_window=13, query_pre_attn_scalar=32,
                                                   rope_parameters=GEMMA3))
    model = transformers.Gemma3ForCausalLM(config)
    support.randomise(model, torch.Generator().manual_seed(RANDOM.randrange(2**31))).eval()
    file = write(tmp_path / "model.gguf", "gemma3", values_of(config, gemma_keys(config)),
                 tensors_of(model, config, "gemma3"),
                 {"attention.sliding_window_pattern": [t == "sliding" for t in types]})
    folder = support.save(model, tmp_path / "folder")
    tokens = [RANDOM.randrange(config.vocab_size) for _ in range(60)]
    expected = support.score(folder, tokens, tmp_path)
    assert numpy.array_equal(support.score(file, tokens, tmp_path), expected)
    told = support.mpk("quantize", folder, "-o", tmp_path / "out.gguf", "--type", "f32", code=1)[1]
    assert "cannot say which layers have a window of 13 tokens" in told


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.draws(2)
def test_peers(name, tmp_path):
    model, config, _, _ = make(name)
    folder = support.save(model, tmp_path / "folder")
    tokens = [RANDOM.randrange(config.vocab_size) for _ in range(70)]
    one = support.score(folder, tokens, tmp_path)
    for peers in (2, 3):
        several = support.score(folder, tokens, tmp_path, "--gpus", peers)
        assert numpy.abs(several - one).max() <= 2e-5 * numpy.abs(one).max()


def test_a_model_that_also_reads_images(tmp_path):
    """Gemma 3 with its encoder of images: the text model alone is loaded, from either spelling of names and of rope."""
    text = shape(64, 4, 2, 32, layers=7, sliding_window=13, query_pre_attn_scalar=20, rope_parameters=GEMMA3)
    vision = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=28,
                  patch_size=14)
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4,
                                       image_token_index=9, boi_token_index=7, eoi_token_index=8, eos_token_id=[1, 6],
                                       attn_implementation="eager")
    model = transformers.Gemma3ForConditionalGeneration(config)
    support.randomise(model, torch.Generator().manual_seed(RANDOM.randrange(2**31))).eval()
    folder = support.save(model, tmp_path / "model")
    tokens = [RANDOM.randrange(10, 211) for _ in range(60)]
    expected = logits_of(model, tokens)
    found = support.score(folder, tokens, tmp_path)
    assert numpy.abs(found - expected).max() < 1e-4 * (expected.max() - expected.min())
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert any("vision_tower" in name for name in weights)
    renamed = {name.replace("model.language_model.", "X.").replace("language_model.model.", "X."): t
               for name, t in weights.items()}
    assert sum(name.startswith("X.") for name in renamed) > 70
    old = json.loads((folder / "config.json").read_text())
    rope = old["text_config"].pop("rope_parameters")
    old["text_config"] |= {"rope_theta": rope["full_attention"]["rope_theta"], "rope_local_base_freq": 1e4,
                           "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window_pattern": 6}
    del old["text_config"]["layer_types"]
    (folder / "config.json").write_text(json.dumps(old))
    for head in ("model.language_model.", "language_model.model."):
        safetensors.torch.save_file({name.replace("X.", head): t for name, t in renamed.items()},
                                    folder / "model.safetensors")
        assert numpy.array_equal(found, support.score(folder, tokens, tmp_path))
    support.mpk("quantize", folder, "-o", tmp_path / "text.gguf", "--type", "f32", code=None)
    del old["text_config"]
    (folder / "config.json").write_text(json.dumps(old))
    assert '"text_config" is missing' in support.mpk("inspect", folder, code=None)[1]


PIXTRAL = dict(model_type="pixtral", num_attention_heads=2, patch_size=14, image_size=28)
HELD = {
    "Mistral3": (dict(model_type="mistral", head_dim=16, sliding_window=None), PIXTRAL),
    "Llama4": (dict(model_type="llama4_text", head_dim=16, intermediate_size_mlp=96, num_local_experts=4),
               dict(num_attention_heads=2, image_size=28, patch_size=14, vision_output_dim=32, projector_input_dim=32,
                    projector_output_dim=32)),
    "Mistral3-3": (dict(model_type="ministral3", head_dim=16, tie_word_embeddings=True, rope_parameters={
        **GROWING, "mscale": 1.0, "mscale_all_dim": 1.0}), PIXTRAL),
    "Qwen2_5_VL": (dict(use_sliding_window=False), dict(depth=1, num_heads=2, out_hidden_size=64)),
    "Qwen2VL": (dict(tie_word_embeddings=True), dict(depth=1, num_heads=2, embed_dim=32)),
    "Qwen3VLMoe": (dict(head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                        mlp_only_layers=[1], tie_word_embeddings=False),
                   dict(depth=1, num_heads=2, out_hidden_size=64, deepstack_visual_indexes=[0])),
    "Qwen3VL": (dict(head_dim=16), dict(depth=1, num_heads=2, out_hidden_size=64, deepstack_visual_indexes=[0])),
}


def lie_by_columns(folder):
    """The weights of experts as they are published: all in one tensor, transposed."""
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    names = [name for name in weights if ".experts." in name]
    assert len(names) == 2 and weights[names[0]].dim() == 3
    turned = {name: weights[name].swapaxes(1, 2).contiguous() for name in names}
    safetensors.torch.save_file(weights | turned, folder / "model.safetensors")


@pytest.mark.parametrize("family", HELD)
def test_text_models_that_others_hold(family, tmp_path):
    """The text model under "text_config" alone; members of older files of Qwen2-VL lie beside those for images."""
    text, vision = HELD[family]
    rope = {"rope_type": "default", "rope_theta": 1e4}
    if "VL" in family:
        rope["mrope_section"] = [2, 3, 3]
    text = {**shape(64, 4, 2, rope_parameters=rope), **text}
    family = family.partition("-")[0]
    config = getattr(transformers, family + "Config")(
        text_config=text, vision_config=dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, **vision),
        tie_word_embeddings=text.get("tie_word_embeddings", False), attn_implementation="eager")
    model = getattr(transformers, family + "ForConditionalGeneration")(config)
    support.randomise(model, torch.Generator().manual_seed(RANDOM.randrange(2**31))).eval()
    folder = support.save(model, tmp_path / "model")
    tokens = [RANDOM.randrange(10, 211) for _ in range(60)]
    expected = logits_of(model, tokens)
    found = support.score(folder, tokens, tmp_path, "--kv", "f32")
    assert numpy.abs(found - expected).max() < 1e-4 * (expected.max() - expected.min())
    support.mpk("quantize", folder, "-o", tmp_path / "out.gguf", "--type", "f32")
    assert numpy.array_equal(found, support.score(tmp_path / "out.gguf", tokens, tmp_path, "--kv", "f32"))
    if family == "Qwen3VLMoe":
        lie_by_columns(folder)
        assert numpy.array_equal(found, support.score(folder, tokens, tmp_path, "--kv", "f32"))
    whole = json.loads((folder / "config.json").read_text())
    held = whole.pop("text_config")
    if family.startswith("Qwen2"):
        rope = held.pop("rope_parameters")
        old = {**held, "rope_theta": rope["rope_theta"],
               "rope_scaling": {**rope, "type": "mrope", "rope_type": "mrope"}}
        (folder / "config.json").write_text(json.dumps({**old, **whole}))
        assert numpy.array_equal(found, support.score(folder, tokens, tmp_path, "--kv", "f32"))
    held["model_type"] = "gpt2"
    (folder / "config.json").write_text(json.dumps({**whole, "text_config": held}))
    assert 'of the type "gpt2" is not supported' in support.mpk("inspect", folder, code=None)[1]


def test_gate_of_the_shared_expert_as_a_vector(tmp_path):
    """Converters have written the one row of the gate without its first axis."""
    model, config, architecture, own = make("qwen2moe")
    tensors, tokens = tensors_of(model, config, architecture), choose_tokens(model, config, 60)
    files = [write(tmp_path / f"{i}.gguf", architecture, values_of(config, own),
                   {k: t[0] if i and "gate_inp_shexp" in k else t for k, t in tensors.items()}) for i in range(2)]
    first, second = (support.score(f, tokens, tmp_path) for f in files)
    assert numpy.array_equal(first, second)


SERVED = {
    "Phi3": dict(pad_token_id=0, rope_parameters=longrope(4), original_max_position_embeddings=64),
    "Gemma2": dict(head_dim=16, sliding_window=13, query_pre_attn_scalar=20, attn_logit_softcapping=2.0,
                   final_logit_softcapping=5.0, pad_token_id=0),
    "Olmo2": dict(pad_token_id=0),
    "SmolLM3": dict(pad_token_id=0, no_rope_layers=[1, 0]),
    "Granite": dict(embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.5, logits_scaling=2.0),
    "HunYuanDenseV1": dict(pad_token_id=0, head_dim=16),
    "Exaone4": dict(pad_token_id=0, sliding_window=13, layer_types=["sliding_attention", "full_attention"]),
    "Glm4": dict(pad_token_id=0, head_dim=16),
    "Cohere2": dict(pad_token_id=0, sliding_window=13, layer_types=["sliding_attention", "full_attention"]),
    "Starcoder2": dict(pad_token_id=0, sliding_window=13),
    "GPTNeoX": dict(num_key_value_heads=4),
    "MiniMaxM2": dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, rotary_dim=8),
    "Qwen2Moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                     shared_expert_intermediate_size=64),
}


@pytest.mark.parametrize("family", SERVED)
@pytest.mark.draws(2)
def test_requests(family, tmp_path):
    """Answers are the same alone and in company, with drafts of the text and of a draft model, and over HTTP."""
    folder = tiny.model(tmp_path / "model", family=family, **SERVED[family])
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    prompts = [[RANDOM.randrange(250) for _ in range(RANDOM.choice([1, 9, 64, 100]))] for _ in range(7)]
    path.write_text("".join(json.dumps({"tokens": p, "max_tokens": 40, "ignore_eos": True,
                                        "temperature": RANDOM.choice([0, 0.8]), "seed": i}) + "\n"
                            for i, p in enumerate(prompts)))
    answers = []
    for options in (["--max-batch", 1], ["--max-batch", 5], ["--max-batch", 3, "--draft-model", folder],
                    ["--max-batch", 2, "--speculate", "ngram:5:1", "--threads", 2]):
        support.mpk("batch", folder, path, "-o", out, *options)
        answers.append([json.loads(line) for line in out.read_text().splitlines()])
        assert len(answers[-1]) == len(prompts) and not any("error" in a for a in answers[-1])
        assert answers[-1] == answers[0], options
    (folder / "chat_template.jinja").write_text(serving.CHAT)
    with serving.Server(folder, "--threads", 2) as server:
        status, _, told = server.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "the other day"}], "max_tokens": 9})
        assert status == 200 and told["usage"]["completion_tokens"] >= 1


def test_a_tokenizer_of_gemma(tmp_path):
    """BPE over characters with a mark for spaces and bytes for the rest, as Gemma's tokenizer.json; then in GGUF."""
    folder = tiny.model(tmp_path / "model", family="Gemma", head_dim=8, pad_token_id=0)
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\n", "\n\n"]
    vocabulary = {t: i for i, t in enumerate(words + [f"<0x{b:02X}>" for b in range(256)])}
    for c in "▁abcdehilnorstuw":
        vocabulary[c] = len(vocabulary)
    merges = [("t", "h"), ("h", "e"), ("th", "e"), ("▁", "the"), ("i", "n"), ("▁", "t"), ("o", "n"), ("▁", "▁"),
              ("\n", "\n"), ("e", "r"), ("▁", "a")]
    for a, b in merges:
        vocabulary.setdefault(a + b, len(vocabulary))
    t = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True,
                                                   byte_fallback=True))
    t.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    t.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    decoders = tokenizers.decoders
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens([w for w in words if w[0] == "<"])
    t.post_processor = tokenizers.processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    t.save(str(folder / "tokenizer.json"))
    support.mpk("quantize", folder, "-o", tmp_path / "out.gguf", "--type", "f32")
    for text in ("the hen in the tower", "another on  the road\n\nthe end", "Zürich, in there <end_of_turn>\n",
                 "<start_of_turn>user\n  the 世界 🙂<end_of_turn>", "in"):
        for model in (folder, tmp_path / "out.gguf"):
            ids = support.mpk("tokenize", model, "--add-special", "-p", text)[0]
            assert list(map(int, ids.split())) == t.encode(text).ids, (model.name, text)
            assert text in support.mpk("tokenize", model, "--decode", "-p", ids.decode())[0].decode()


O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


SMALL, LARGE = (rf"[\p{{{c}}}\p{{Lm}}\p{{Lo}}\p{{M}}]" for c in ("Ll", r"Lu}\p{Lt"))
ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
START = r"[^\r\n\p{L}\p{N}]?"
WORDS = {
    "gpt-4o": [O200K],
    "tekken": [rf"{START}{LARGE}*{SMALL}+|{START}{LARGE}+{SMALL}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{ENDS}"],
    "seed-coder": [rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{START}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{ENDS}"],
    "hunyuan-dense": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
                      r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
                      rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{ENDS}"],
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name, tmp_path):
    """GGUF's name for them is found by trial for a tokenizer that merges any two neighbours of some texts."""
    pre = tokenizers.pre_tokenizers
    bytes_only = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = ["HelloWorld it's IT'S fooBAR/\n//x 12345 naïveÉ  two\n\n three", "aB Bc'll XY'd//\r\n", "ABCdef GHI'Ve",
             "aは日a ÀÉb!\n", "of (x).y#z \u0301a"]
    vocabulary, merges = {c: i for i, c in enumerate(sorted(pre.ByteLevel.alphabet()))}, []
    for text in texts:
        letters = bytes_only.pre_tokenize_str(text)[0][0]
        for a, b in zip(letters, letters[1:]):
            if a + b not in vocabulary:
                vocabulary[a + b] = len(vocabulary)
                merges.append((a, b))
    t = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    t.pre_tokenizer = pre.Sequence([*(pre.Split(tokenizers.Regex(w), "isolated") for w in WORDS[name]), bytes_only])
    t.decoder = tokenizers.decoders.ByteLevel()
    folder = tiny.model(tmp_path / "model", vocab_size=len(vocabulary))
    t.save(str(folder / "tokenizer.json"))
    support.mpk("quantize", folder, "-o", tmp_path / "out.gguf", "--type", "f32")
    assert gguf.GGUFReader(tmp_path / "out.gguf").fields["tokenizer.ggml.pre"].contents() == name
    for text in [*texts, "fooBar'S BAZ's 1234/abc", "".join(RANDOM.choice("aB'sS /\n12é日は!(.") for _ in range(60))]:
        for model in (folder, tmp_path / "out.gguf"):
            ids = support.mpk("tokenize", model, "-p", text)[0]
            assert list(map(int, ids.split())) == t.encode(text).ids, (model.name, text)


CHANNELS = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>"]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def test_marks_of_mistral_are_text(tmp_path):
    """Its later models write calls and reasoning with special tokens, which otherwise have no text."""
    marks = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[INST]"]
    folder = tiny.model(tmp_path / "tiny", special=marks, max_position_embeddings=1024)
    (tmp_path / "template").write_text(
        serving.CHAT + "{% for m in messages %}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}"
        "[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{{ tools | tojson if tools }}")
    with serving.Server(folder, "--context", 1024, "--chat-template", tmp_path / "template") as server:
        ids = {m: server.post("/tokenize", {"content": m})["tokens"] for m in marks}
        assert all(len(i) == 1 for i in ids.values())
        assert [server.post("/detokenize", {"tokens": i})["content"] for i in ids.values()] == marks
        for first in ("[THINK]", "[TOOL_CALLS]"):
            bias = {str(ids["[THINK]"][0]): -100, str(ids["[/THINK]"][0]): 100, str(ids[first][0]): 100}
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 600, "tool_choice": "required",
                    "tools": [{**TOOL, "function": {"name": "add", "parameters": {
                        "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}}}],
                    "parallel_tool_calls": False, "logit_bias": bias, "return_token_ids": True}
            choice = server.post("/v1/chat/completions", body)["choices"][0]
            assert choice["finish_reason"] == "tool_calls" and choice["token_ids"][0] == ids[first][0]
            call = choice["message"]["tool_calls"][0]["function"]
            assert call["name"] == "add" and json.loads(call["arguments"])["a"] in (True, False)


@pytest.mark.parametrize("marks", [CHANNELS, CHANNELS[:2] + CHANNELS[3:]])
def test_marks_of_channels_are_text(marks, tmp_path):
    """Special tokens have no text, but for the marks of a vocabulary that has channels: then an answer's channels
    become reasoning, content and calls."""
    folder = tiny.model(tmp_path / "tiny", special=marks, max_position_embeddings=1024)
    known = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    (tmp_path / "template").write_text(serving.CHAT)
    with serving.Server(folder, "--context", 1024, "--chat-template", tmp_path / "template") as server:
        def text_of(mark):
            answer = server.complete(max_tokens=2, temperature=0, logit_bias={str(known.token_to_id(mark)): 100})
            return answer["choices"][0]["text"]

        assert text_of("<|return|>") == ""
        assert text_of("<|channel|>") == ("<|channel|>" * 2 if "<|message|>" in marks else "")

        def ask(answer, **more):
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 400, **more}
            pattern = "".join("\\" + c if c in "|{}.[]" else c for c in answer)
            return server.post("/v1/chat/completions", {**body, "structured_outputs": {"regex": pattern}})["choices"][0]

        thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
        message = ask(thought + "<|channel|>final<|message|>Yes")["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm", "Yes")
        choice = ask(thought + "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{}", tools=[TOOL])
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["reasoning_content"] == "hm"
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
        if "<|message|>" in marks:
            check_forms_in_channels(server, known)


def check_forms_in_channels(server, known):
    """A form binds the final message, calls that must come are messages to functions; reasoning may come before."""
    def ask(reasons, **more):
        bias = {str(known.token_to_id("<|end|>")): 100}
        template = serving.CHAT.replace("assistant:", "<|start|>assistant") + (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}<|start|>assistant to=functions."
            "{{ c.function.name }}<|channel|>commentary json<|message|>"
            "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}")
        template = "{{ tools | tojson if tools }}" + template
        if reasons:
            bias[str(known.encode("a", add_special_tokens=False).ids[0])] = 90  # analysis, not commentary or final
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 600, "chat_template": template,
                "logit_bias": bias, "temperature": 0, **more}
        return server.post("/v1/chat/completions", body)["choices"][0]

    tool = {**TOOL, "function": {"name": "add", "parameters": {
        "properties": {"k": {"type": "boolean"}}, "required": ["k"], "additionalProperties": False}}}
    for reasons in (False, True):
        choice = ask(reasons, structured_outputs={"choice": ["yes", "no"]}, return_token_ids=True)
        assert choice["message"]["content"] in ("yes", "no")
        assert not reasons or known.token_to_id("<|end|>") in choice["token_ids"]  # of an empty analysis
        choice = ask(reasons, tools=[tool], tool_choice="required")
        assert choice["finish_reason"] == "tool_calls", choice
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]).keys() == {"k"}
        strict = {**tool, "function": {**tool["function"], "strict": True}}
        message = ask(reasons, tools=[strict], structured_outputs={"choice": ["yes", "no"]})["message"]
        assert message.get("tool_calls") or message["content"] in ("yes", "no")
