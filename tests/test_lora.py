"""Adapters (LoRA): what mpk merges, against the same weights merged here in fp64 and run by Transformers in fp32, and
against PEFT itself where it is installed."""

import json
import re
import shutil
import subprocess
import warnings

import gguf
import numpy
import pytest
import safetensors.torch
import torch
import transformers

import support
import test_quantized_folders as quantised_folders
import tiny
from test_families import HELD
from test_models import experts, latent, randomise_biases, shape

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(2)
RANDOM = support.seed()
GENERATOR = torch.Generator().manual_seed(RANDOM.randrange(2**31))

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
JOINED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
LATENT = ("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj",
          "self_attn.o_proj", "mlp.gate_proj")
EXPERTS = tuple(f"mlp.experts.{e}.{part}" for e in (0, 2, 5) for part in ("gate_proj", "up_proj", "down_proj"))

# Per case: family, sizes, modules of each layer that have an update.
CASES = {
    "llama": ("Llama", shape(64, 4, 2), ATTENTION + MLP),
    "llama-biases": ("Llama", shape(64, 4, 2, attention_bias=True, mlp_bias=True), ATTENTION + MLP),
    "qwen2": ("Qwen2", shape(64, 4, 2), ATTENTION + MLP),
    "qwen3": ("Qwen3", shape(80, 4, 2, 48), ("self_attn.q_proj", "self_attn.v_proj")),
    "mistral": ("Mistral", shape(64, 4, 2, sliding_window=11), ATTENTION),
    "phi3": ("Phi3", shape(96, 6, 2, ffn=80, pad_token_id=0), JOINED),
    "gemma2": ("Gemma2", shape(96, 4, 2, 40, layers=3, sliding_window=13, query_pre_attn_scalar=40), ATTENTION + MLP),
    "starcoder2": ("Starcoder2", shape(64, 4, 2), ATTENTION + ("mlp.c_fc", "mlp.c_proj")),
    "cohere": ("Cohere", shape(64, 4, 2, logit_scale=0.7), ATTENTION + MLP),
    "granite": ("Granite", shape(64, 4, 2), ATTENTION),
    "glm4": ("Glm4", shape(64, 4, 2, 32, pad_token_id=0, attention_bias=True), ATTENTION + JOINED[2:]),
    "qwen3moe": ("Qwen3Moe", experts(64, 4, 2, 16, n=6, of_token=2, size=48, norm_topk_prob=True), ATTENTION),
    "qwen3moe-experts": ("Qwen3Moe", experts(64, 4, 2, 16, n=6, of_token=2, size=48, norm_topk_prob=True), EXPERTS),
    "deepseek": ("DeepseekV3", latent(64, 4, (32, 64), 32, 16, 32, n=8, of_token=3, size=32, n_shared_experts=1,
                                      first_k_dense_replace=3, n_group=4, topk_group=2, norm_topk_prob=False), LATENT),
    "deepseek-v2": ("DeepseekV2", latent(64, 4, (None, 32), 32, 16, 24, n=8, of_token=3, size=32, n_shared_experts=2,
                                         first_k_dense_replace=3),
                    ("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.o_proj", "mlp.up_proj")),
    "gpt-oss": ("GptOss", shape(64, 4, 2, 16, layers=3, ffn=96, num_local_experts=6, num_experts_per_tok=2,
                                sliding_window=13, pad_token_id=0), ATTENTION),
}


def make(family, options, dtype="float32"):
    config = getattr(transformers, family + "Config")(attn_implementation="eager", **options)
    model = getattr(transformers, family + "ForCausalLM")(config)
    randomise_biases(support.randomise(model, GENERATOR), GENERATOR)
    return model.to(getattr(torch, dtype)).eval()


def normal(*sizes):
    return torch.randn(*sizes, generator=GENERATOR)


def weight_of(model, module):
    """The weight of a module, of an expert of a stack as its matrix."""
    state = dict(model.named_parameters())
    head, found, rest = module.partition(".experts.")
    if not found:
        return state[module + ".weight"]
    expert, part = rest.split(".")
    if part == "down_proj":
        return state[f"{head}.experts.down_proj"][int(expert)]
    both = state[f"{head}.experts.gate_up_proj"][int(expert)]
    return both[: both.shape[0] // 2] if part == "gate_proj" else both[both.shape[0] // 2:]


class Adapter:
    """An adapter under construction: tensors of a PEFT folder, and the updates that they stand for, in fp64."""

    def __init__(self, model, rank=4, alpha=6.0, dtype=torch.float32, **config):
        self.model, self.rank, self.dtype = model, rank, dtype
        self.tensors, self.updates = {}, {}
        self.config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha,
                       "bias": "none", "fan_in_fan_out": False, "target_modules": None, **config}

    def factor(self, rank, alpha=None):
        alpha = self.config["lora_alpha"] if alpha is None else alpha
        return alpha / (rank**0.5 if self.config.get("use_rslora") else rank)

    def add(self, module, rank=None, alpha=None):
        rank, w = rank or self.rank, weight_of(self.model, module)
        a = (normal(rank, w.shape[1]) / w.shape[1] ** 0.5).to(self.dtype)
        b = (normal(w.shape[0], rank) * 0.3).to(self.dtype)
        self.tensors |= {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
        self.updates[module] = self.factor(rank, alpha) * (b.double() @ a.double())
        return self

    def embed(self, module="model.embed_tokens"):
        w = weight_of(self.model, module)
        a, b = normal(self.rank, w.shape[0]) * 0.2, normal(w.shape[1], self.rank) * 0.2
        self.tensors |= {f"base_model.model.{module}.lora_embedding_A": a,
                         f"base_model.model.{module}.lora_embedding_B": b}
        self.updates[module] = self.factor(self.rank) * (b.double() @ a.double()).T
        return self

    def layers(self, modules, **options):
        for i in range(self.model.config.num_hidden_layers):
            for module in modules:
                self.add(f"model.layers.{i}.{module}", **options)
        return self

    def save(self, folder):
        folder.mkdir()
        self.config["target_modules"] = sorted({name.split(".")[-3] for name in self.tensors})
        (folder / "adapter_config.json").write_text(json.dumps(self.config))
        safetensors.torch.save_file({k: v.contiguous() for k, v in self.tensors.items()},
                                    folder / "adapter_model.safetensors")
        return folder


def merged(model, *scaled):
    """The model with the updates of adapters added in fp64, each (adapter, scale), and rounded to its dtype."""
    copy = type(model)(model.config).to(next(model.parameters()).dtype)
    copy.load_state_dict(model.state_dict())
    sums = {}
    for adapter, scale in scaled:
        for module, update in adapter.updates.items():
            sums[module] = sums.get(module, 0) + scale * update
    with torch.no_grad():
        for module, update in sums.items():
            w = weight_of(copy, module)
            w.copy_((w.double() + update).to(w.dtype))
    return copy.eval()


def choose_tokens(model, n=60):
    return [RANDOM.randrange(model.config.vocab_size) for _ in range(n)]


def logits_of(model, tokens):
    with torch.no_grad():
        return model.float()(torch.tensor([tokens])).logits[0].numpy()


def near(found, expected, allowed=1e-5):
    difference = numpy.abs(found - expected).max() / numpy.ptp(expected)
    assert difference <= allowed, difference
    return difference


def lora(*words):
    return [f"--lora={word}" for word in words]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.draws(4)
def test_families(name, tmp_path):
    """A PEFT folder over the checkpoint and over its GGUF file, and the adapter as a GGUF file over both."""
    family, options, modules = CASES[name]
    model = make(family, options)
    adapter = Adapter(model).layers(modules)
    tokens = choose_tokens(model)
    folder, path = support.save(model, tmp_path / "base"), adapter.save(tmp_path / "lora")
    context = ["--context", 128]
    base = support.score(folder, tokens, tmp_path, *context)
    found = support.score(folder, tokens, tmp_path, *context, *lora(path))
    expected = logits_of(merged(model, (adapter, 1)), tokens)
    near(found, expected)
    assert numpy.abs(expected - base).max() > 1e-2 * numpy.ptp(base), "the adapter changes nothing"
    support.mpk("quantize", folder, "-o", tmp_path / "base.gguf", "--type", "f32")
    over_file = [] if "self_attn.kv_b_proj" in modules else [tmp_path / "base.gguf"]  # which holds it in parts
    as_file = convert(tmp_path / "base.gguf", adapter, tmp_path / "lora.gguf")
    for model_path in over_file:
        assert numpy.array_equal(support.score(model_path, tokens, tmp_path, *context, *lora(path)), found)
    for model_path in [folder, *over_file]:
        near(support.score(model_path, tokens, tmp_path, *context, *lora(as_file)), expected)


def turned(t, heads):
    """Rows as llama.cpp's converter puts them for rope over neighbours."""
    return t.reshape(heads, 2, -1, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)


NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up",
         "mlp.c_proj": "ffn_down", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_b_proj": "attn_kv_b"}
TURNED = ("llama", "granite", "smollm3")  # those that the converter turns; others are so in the checkpoint


def stacks(tensors, n):
    """Updates of n experts as GGUF adapters hold them: a stack for each layer and part, zeros where there is none."""
    out = {}
    for name, t in tensors.items():
        layer, _, rest = name.partition(".mlp.experts.")
        expert, part, end = rest.split(".", 2)
        key = f"blk.{layer.rpartition('.')[2]}.ffn_{part.removesuffix('_proj')}_exps.weight.lora_{end[5].lower()}"
        out.setdefault(key, numpy.zeros((n, *t.shape), numpy.float32))[int(expert)] = t.numpy()
    return out


def convert(base, adapter, path, type=None, **values):
    """The adapter as llama.cpp's converter writes it for the model in the file `base`; type: of its tensors."""
    architecture = gguf.GGUFReader(base).fields["general.architecture"].contents()
    config = adapter.model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", adapter.config["lora_alpha"])
    for key, value in values.items():
        writer.add_string(key, value)
    tensors = {k: v for k, v in adapter.tensors.items() if ".experts." not in k}
    of_experts = {k: v for k, v in adapter.tensors.items() if ".experts." in k}
    for name, t in stacks(of_experts, config.num_experts if of_experts else 0).items():
        writer.add_tensor(name, t)
    for name, t in tensors.items():
        module, _, end = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        t = t.float().numpy()
        if module == "model.embed_tokens":
            whole, t = "token_embd", t.T if end.endswith("A") else t
        elif module == "lm_head":
            whole = "output"
        else:
            layer, _, part = module.removeprefix("model.layers.").partition(".")
            whole = f"blk.{layer}.{NAMES[part]}"
            if architecture in TURNED and end == "lora_B" and part.endswith(("q_proj", "k_proj")):
                heads = config.num_attention_heads if part.endswith("q_proj") else config.num_key_value_heads
                t = turned(t, heads)
        t = numpy.ascontiguousarray(t)
        writer.add_tensor(f"{whole}.weight.lora_{end[-1].lower()}", gguf.quants.quantize(t, type) if type else t,
                          raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", ["Mistral3", "Qwen2_5_VL", "Qwen3VL"])
def test_text_models_that_others_hold(family, tmp_path):
    """Modules have the names of the model that holds the text model, or of the text model alone."""
    text, vision = HELD[family]
    rope = {"rope_type": "default", "rope_theta": 1e4, **({"mrope_section": [2, 3, 3]} if "VL" in family else {})}
    config = getattr(transformers, family + "Config")(
        text_config={**shape(64, 4, 2, rope_parameters=rope), **text}, tie_word_embeddings=False,
        vision_config=dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, **vision),
        attn_implementation="eager")
    model = getattr(transformers, family + "ForConditionalGeneration")(config)
    support.randomise(model, GENERATOR).eval()
    adapter = Adapter(model)
    for i in range(2):
        adapter.add(f"model.language_model.layers.{i}.self_attn.q_proj")
        adapter.add(f"model.language_model.layers.{i}.mlp.down_proj")
    tokens = [RANDOM.randrange(10, 211) for _ in range(60)]
    folder, held = support.save(model, tmp_path / "model"), adapter.save(tmp_path / "held")
    adapter.tensors = {k.replace("model.language_model.", "model."): v for k, v in adapter.tensors.items()}
    alone = adapter.save(tmp_path / "alone")
    support.mpk("quantize", folder, "-o", tmp_path / "base.gguf", "--type", "f32")
    expected = logits_of(merged(model, (adapter, 1)), tokens)
    for base in (folder, tmp_path / "base.gguf"):
        for path in (held, alone):
            near(support.score(base, tokens, tmp_path, *lora(path)), expected, 1e-4)


def test_names_of_mixtral(tmp_path):
    """Experts by the names of checkpoints and by those of other families, over a folder and a GGUF file."""
    model = make("Mixtral", shape(64, 4, 2, num_local_experts=4, num_experts_per_tok=2, sliding_window=None))
    adapter = Adapter(model).layers(("self_attn.k_proj", "mlp.experts.0.gate_proj", "mlp.experts.3.up_proj",
                                     "mlp.experts.3.down_proj"))
    folder, path, tokens = support.save(model, tmp_path / "base"), adapter.save(tmp_path / "lora"), choose_tokens(model)
    names = {"mlp.experts": "block_sparse_moe.experts", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for old, new in names.items():
        adapter.tensors = {name.replace(old, new): t for name, t in adapter.tensors.items()}
    other = adapter.save(tmp_path / "other")
    support.mpk("quantize", folder, "-o", tmp_path / "base.gguf", "--type", "f32")
    expected = logits_of(merged(model, (adapter, 1)), tokens)
    for base in (folder, tmp_path / "base.gguf"):
        for each in (path, other):
            near(support.score(base, tokens, tmp_path, *lora(each)), expected)


@pytest.mark.parametrize("type", ["F16", "BF16", "Q8_0"])
@pytest.mark.draws(1)
def test_types_of_gguf_adapters(type, tmp_path):
    """Those that llama.cpp's converter writes."""
    model, type = make("Llama", shape(64, 4, 2)), gguf.GGMLQuantizationType[type]
    adapter = Adapter(model, rank=32, alpha=8)
    for module in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"):
        adapter.add(module)
        rounded = []
        for end in ("A", "B"):
            t = adapter.tensors[f"base_model.model.{module}.lora_{end}.weight"].numpy()
            rounded.append(torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(t, type), type)).double())
        adapter.updates[module] = adapter.factor(32) * (rounded[1] @ rounded[0])
    folder, tokens = support.save(model, tmp_path / "base"), choose_tokens(model)
    support.mpk("quantize", folder, "-o", tmp_path / "base.gguf", "--type", "f32")
    path = convert(tmp_path / "base.gguf", adapter, tmp_path / "lora.gguf", type)
    for base in (folder, tmp_path / "base.gguf"):
        near(support.score(base, tokens, tmp_path, *lora(path)), logits_of(merged(model, (adapter, 1)), tokens))


# ---- ways of training ----

LLAMA = ("Llama", shape(64, 4, 2))


def rslora(a):
    a.config["use_rslora"] = True
    a.layers(ATTENTION)


def patterns(a):
    """Ranks and factors of their own: by the end of a name, by a regular expression, by a whole name."""
    a.config |= {"rank_pattern": {"q_proj": 7, r"model\.layers\.1\.mlp\..*_proj": 3},
                 "alpha_pattern": {r"layers\.\d+\.mlp.up_proj": 20, "model.layers.0.self_attn.q_proj": 2.5}}
    for i in range(2):
        a.add(f"model.layers.{i}.self_attn.q_proj", rank=7, alpha=2.5 if i == 0 else None)
        a.add(f"model.layers.{i}.self_attn.k_proj")
        for part in MLP:
            a.add(f"model.layers.{i}.{part}", rank=3 if i else 4, alpha=20 if "up" in part else None)


def some_layers(a):
    a.config["layers_to_transform"] = [1]
    a.add("model.layers.1.mlp.down_proj")


def dora(a):
    """Rows of W + update get the lengths that the adapter says."""
    a.config["use_dora"] = True
    a.layers(("self_attn.v_proj", "mlp.down_proj"))
    for module, update in a.updates.items():
        w = weight_of(a.model, module).detach().double()
        magnitude = w.norm(dim=1) * (1 + 0.3 * torch.rand(w.shape[0], generator=GENERATOR))
        a.tensors[f"base_model.model.{module}.lora_magnitude_vector"] = magnitude.float()
        both = w + update
        a.updates[module] = magnitude.float().double()[:, None] * both / both.norm(dim=1, keepdim=True) - w


def embeddings(a):
    a.embed().add("lm_head").layers(("self_attn.q_proj",))


def replaced(a, name, key=None):
    old = dict(a.model.named_parameters())[name].detach()
    a.tensors[f"base_model.model.{key or name}"] = new = normal(*old.shape) / 8
    a.updates[name] = new.double() - old.double()


def whole(a):
    """Tensors that were trained as a whole, under the names that versions of PEFT give them."""
    a.config |= {"modules_to_save": ["lm_head", "embed_tokens", "norm"], "bias": "all"}
    a.layers(("self_attn.o_proj",))
    replaced(a, "lm_head.weight")
    replaced(a, "model.norm.weight")
    replaced(a, "model.embed_tokens.weight", "model.embed_tokens.base_layer.weight")
    replaced(a, "model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.q_proj.base_layer.bias")
    replaced(a, "model.layers.0.mlp.up_proj.bias")


WAYS = {"rslora": (rslora, {}), "patterns": (patterns, {}), "layers": (some_layers, {}), "dora": (dora, {}),
        "embeddings": (embeddings, {}), "half": (lambda a: a.layers(ATTENTION), {"dtype": torch.float16}),
        "brain": (lambda a: a.layers(MLP), {"dtype": torch.bfloat16, "rank": 9, "alpha": 3}),
        "whole": (whole, {})}


def apply_whole(model, adapter):
    """merged, where updates may also be of parameters by their whole names."""
    names = dict(model.named_parameters())
    parameters = {k: adapter.updates.pop(k) for k in list(adapter.updates) if k in names}
    copy = merged(model, (adapter, 1))
    with torch.no_grad():
        for name, update in parameters.items():
            p = dict(copy.named_parameters())[name]
            p.copy_(p.double() + update)
    return copy


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.draws(5)
def test_ways(way, tmp_path):
    """What adapters say in different ways, over a folder and a GGUF file."""
    fill, options = WAYS[way]
    model = make("Llama", shape(64, 4, 2, **({"attention_bias": True, "mlp_bias": True} if way == "whole" else {})))
    adapter = Adapter(model, **options)
    fill(adapter)
    tokens = choose_tokens(model)
    folder, path = support.save(model, tmp_path / "base"), adapter.save(tmp_path / "lora")
    expected = logits_of(apply_whole(model, adapter), tokens)
    found = support.score(folder, tokens, tmp_path, *lora(path))
    near(found, expected)
    support.mpk("quantize", folder, "-o", tmp_path / "base.gguf", "--type", "f32")
    assert numpy.array_equal(support.score(tmp_path / "base.gguf", tokens, tmp_path, *lora(path)), found)


@pytest.mark.parametrize("end", ["embed_tokens", "lm_head"])
@pytest.mark.parametrize("kind", ["folder", "gguf"])
@pytest.mark.draws(2)
def test_tied_heads(end, kind, tmp_path):
    """Only the one that the adapter names changes."""
    model = make("Llama", shape(64, 4, 2, tie_word_embeddings=True))
    apart = make("Llama", shape(64, 4, 2, tie_word_embeddings=False))
    apart.load_state_dict({**model.state_dict(), "lm_head.weight": model.state_dict()["model.embed_tokens.weight"]})
    adapter = Adapter(apart)
    adapter.embed() if end == "embed_tokens" else adapter.add("lm_head")
    tokens = choose_tokens(model)
    base, path = support.save(model, tmp_path / "base"), adapter.save(tmp_path / "lora")
    if kind == "gguf":
        support.mpk("quantize", base, "-o", tmp_path / "base.gguf", "--type", "f32")
        base = tmp_path / "base.gguf"
        as_file = convert(base, adapter, tmp_path / "lora.gguf")
    else:
        as_file = path
    expected = logits_of(merged(apart, (adapter, 1)), tokens)
    for same in (f"{path}:0", f"{as_file}:0"):
        assert numpy.array_equal(support.score(base, tokens, tmp_path, *lora(same)),
                                 support.score(base, tokens, tmp_path))
        inspected = json.loads(support.mpk("inspect", base, "--json", *lora(same))[0])
        assert inspected["model"]["tied_embeddings"]
    near(support.score(base, tokens, tmp_path, *lora(path)), expected)
    near(support.score(base, tokens, tmp_path, *lora(as_file)), expected)
    adapter.config["ensure_weight_tying"] = True
    both = adapter.save(tmp_path / "both")
    errors = support.mpk("score", base, "--tokens", tmp_path / "ids.txt", *lora(both), code=1)[1]
    assert "wants embedding and head to change together" in errors
    support.mpk("quantize", base, "-o", tmp_path / "merged.gguf", "--type", "f32", *lora(path))
    near(support.score(tmp_path / "merged.gguf", tokens, tmp_path), expected)


def test_several(tmp_path):
    """Scales of any sign, several at once; a scale of 0 leaves the base's bits."""
    model = make(*LLAMA)
    one, two = Adapter(model).layers(ATTENTION), Adapter(model, rank=3, alpha=2).layers(("self_attn.q_proj", *MLP))
    tokens = choose_tokens(model)
    folder = support.save(model, tmp_path / "base")
    a, b = one.save(tmp_path / "a"), two.save(tmp_path / "b:2")
    base = support.score(folder, tokens, tmp_path)
    for words, scaled in ((f"{a}:0.5", [(one, 0.5)]), (f"{a}:-1.25", [(one, -1.25)]), (f"{b}", [(two, 1)]),
                          (f"{a} {b}", [(one, 1), (two, 1)]), (f"{a}:2 {b}:-0.5 {a}:-1", [(one, 1), (two, -0.5)])):
        near(support.score(folder, tokens, tmp_path, *lora(*words.split())), logits_of(merged(model, *scaled), tokens))
    assert numpy.array_equal(support.score(folder, tokens, tmp_path, *lora(f"{a}:0", f"{b}:-0.0")), base)


# ---- PEFT itself ----

PEFT = {
    "plain": dict(target_modules=["q_proj", "v_proj", "down_proj"]),
    "rslora": dict(target_modules="all-linear", use_rslora=True),
    "dora": dict(target_modules=["k_proj", "up_proj"], use_dora=True),
    "patterns": dict(target_modules=["q_proj", "k_proj", "gate_proj"], rank_pattern={"q_proj": 5},
                     alpha_pattern={r"layers\.1\.mlp\..*": 20}, layers_to_transform=[0, 1]),
    "embeddings": dict(target_modules=["embed_tokens", "lm_head", "o_proj"]),
    "whole": dict(target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"]),
    "biases": dict(target_modules=["q_proj", "o_proj"], bias="all"),
}


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("way", PEFT)
@pytest.mark.draws(8)
def test_peft(way, tied, tmp_path):
    """Folders that PEFT writes, against its own forward pass, in which updates stay apart from the weights."""
    peft = pytest.importorskip("peft")
    model = make("Llama", shape(64, 4, 2, attention_bias=True, tie_word_embeddings=tied))
    folder = support.save(model, tmp_path / "base")
    tokens = choose_tokens(model)
    trained = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, **PEFT[way]))
    with torch.no_grad():
        for name, p in trained.named_parameters():
            if "lora_B" in name or "lora_embedding" in name:
                p.copy_(normal(*p.shape) * 0.3)
            elif p.requires_grad:
                p.copy_(p + normal(*p.shape) * 0.1)
    trained.eval().save_pretrained(tmp_path / "lora")
    expected = logits_of(trained, tokens)
    near(support.score(folder, tokens, tmp_path, *lora(tmp_path / "lora")), expected)


# ---- dtypes ----

def tensors_of(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def numbers(tensor):
    shape = tuple(int(n) for n in reversed(tensor.shape))
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounded_once(dtype, tmp_path):
    """Weights of 16 bits: the sum in more bits, rounded to the nearest of 16."""
    model = make("Qwen2", shape(64, 4, 2), dtype)
    adapter = Adapter(model, dtype=torch.bfloat16).layers(MLP)
    folder, path = support.save(model, tmp_path / "base", dtype), adapter.save(tmp_path / "lora")
    support.mpk("quantize", folder, "-o", tmp_path / "merged.gguf", "--type", "f32", *lora(f"{path}:0.75"))
    found, other = tensors_of(tmp_path / "merged.gguf"), 0
    for module, update in adapter.updates.items():
        layer, _, part = module.removeprefix("model.layers.").partition(".")
        w = weight_of(model, module).detach()
        expected = (w.double() + 0.75 * update).to(w.dtype)
        is_other = numbers(found[f"blk.{layer}.{NAMES[part]}.weight"]) != expected.float().numpy()
        near(numbers(found[f"blk.{layer}.{NAMES[part]}.weight"]), expected.float().numpy(), 2**-8)
        other += is_other.mean() / len(adapter.updates)
    assert other < 1e-3, f"{other} of the weights are rounded otherwise"  # sums near the middle of two


@pytest.mark.parametrize("type", ["q8_0", "q4_k_m", "q6_k"])
@pytest.mark.draws(1)
def test_blocks(type, tmp_path):
    """A weight in blocks becomes f16: what the blocks say and the update; others stay as they are."""
    model = make("Llama", shape(256, 4, 2, ffn=512))
    adapter = Adapter(model).layers(("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"))
    folder, path = support.save(model, tmp_path / "full"), adapter.save(tmp_path / "lora")
    base = tmp_path / "base.gguf"
    support.mpk("quantize", folder, "-o", base, "--type", type)
    tokens = choose_tokens(model)
    support.mpk("quantize", base, "-o", tmp_path / "merged.gguf", "--type", "f32", *lora(path))
    before, after = tensors_of(base), tensors_of(tmp_path / "merged.gguf")
    for name, t in after.items():
        part = {v: k for k, v in NAMES.items() if k in ATTENTION + MLP}.get(name.split(".")[-2])
        update = adapter.updates.get(f"model.layers.{name.split('.')[1]}.{part}")
        expected = numbers(before[name]).astype(numpy.float64)
        if update is None:
            assert numpy.array_equal(numbers(t), expected), name
            continue
        update = update.numpy()
        expected = (expected + (turned(update, 4) if part == "self_attn.q_proj" else update)).astype(numpy.float16)
        assert (numbers(t) != expected).mean() < 1e-3, name
        near(numbers(t), expected, 2**-10)
    found = support.score(base, tokens, tmp_path, "--activations=f32", *lora(path))
    near(found, support.score(tmp_path / "merged.gguf", tokens, tmp_path, "--activations=f32"), 1e-5)
    zero = support.score(base, tokens, tmp_path, *lora(f"{path}:0"))
    assert numpy.array_equal(zero, support.score(base, tokens, tmp_path))


MODULES = {"llama": ("self_attn.q_proj", "mlp.down_proj"), "phi3": ("self_attn.qkv_proj", "mlp.down_proj"),
           "mixture": ("self_attn.o_proj", "mlp.experts.2.up_proj"),  # of one expert, whose stack has one dtype
           "latents": ("self_attn.q_b_proj", "self_attn.kv_b_proj")}


@pytest.mark.parametrize("family, scheme", [("llama", "awq"), ("llama", "int8"), ("llama", "fp8-blocks"),
                                            ("phi3", "gptq-zeros"), ("mixture", "packed-4"), ("mixture", "fp8-rows"),
                                            ("latents", "packed-4")])
@pytest.mark.draws(3)
def test_quantised_folders(family, scheme, tmp_path):
    """Read as blocks or as numbers: merged in the dtype that config.json names."""
    said, allowed = quantised_folders.SCHEMES[scheme]
    folder, plain = quantised_folders.write(tmp_path, family, said, GENERATOR)
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    adapter = Adapter(model).layers(MODULES[family])
    tokens, path = choose_tokens(model), adapter.save(tmp_path / "lora")
    found = support.score(folder, tokens, tmp_path, "--activations=f32", *lora(path))
    near(found, logits_of(merged(model, (adapter, 1)), tokens), max(allowed, 1e-5))


# ---- where adapters are given ----

@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model with a tokenizer, an adapter of it and what it answers with the adapter and without."""
    root = tmp_path_factory.mktemp("small")
    folder = tiny.model(root / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    path = Adapter(model, alpha=16).layers(ATTENTION + MLP).save(root / "lora")
    plain, adapted = answer(folder), answer(folder, *lora(path))
    assert plain != adapted
    return folder, path, plain, adapted


def answer(model, *options):
    return support.mpk("run", model, "-p", "in the", "-n", 12, "--quiet", *options)[0]


def test_images(small, tmp_path):
    """An image names its adapters, and finds out if they change."""
    folder, path, plain, adapted = small
    copy = tmp_path / "lora"
    shutil.copytree(path, copy)
    support.mpk("compile", folder, "-o", tmp_path / "image", "--quiet", *lora(copy))
    support.mpk("compile", folder, "-o", tmp_path / "plain", "--quiet")
    assert answer(tmp_path / "image") == adapted and answer(tmp_path / "plain") == plain
    errors = support.mpk("run", tmp_path / "image", "-p", "a", *lora(copy), code=1)[1]
    assert "has the adapters that it was compiled with" in errors
    errors = support.mpk("compile", folder, "-o", copy / "adapter_model.safetensors", *lora(copy), code=1)[1]
    assert "is a file of the model that is read" in errors
    tensors = safetensors.torch.load_file(copy / "adapter_model.safetensors")
    list(tensors.values())[5][0, 0] += 1
    safetensors.torch.save_file(tensors, copy / "adapter_model.safetensors")
    assert "one of its adapters, has changed" in support.mpk("run", tmp_path / "image", "-p", "a", code=1)[1]
    shutil.rmtree(copy)
    assert "merging the adapter" in support.mpk("run", tmp_path / "image", "-p", "a", code=1)[1]


def test_verbs(small, tmp_path):
    """Verbs that read weights take adapters, peers of one model too."""
    folder, path, plain, adapted = small
    assert answer(folder, *lora(path), "--gpus", 2, "--threads", 2) == adapted
    assert answer(folder, f"--lora={path}:0") == plain
    text = tmp_path / "text"
    text.write_text("in the time of the thing " * 40)
    measure = ["perplexity", folder, "-f", text, "--json", "--window", 64, "--windows", 2]
    apart, same = (json.loads(support.mpk(*measure, *options)[0]) for options in (lora(path), ()))
    assert apart["perplexity"] != same["perplexity"]
    report = ["quantize", folder, "-o", tmp_path / "m.gguf", "--type", "f32", "--report", text, "--windows", 2]
    assert support.mpk(*report, *lora(path))[0].decode().count("KL")
    assert answer(tmp_path / "m.gguf") == adapted
    support.mpk("quantize", folder, "-o", tmp_path / "c.gguf", "--type", "q8_0", "--calibrate", text, *lora(path))
    sizes = [json.loads(support.mpk("inspect", folder, "--json", *options)[0]) for options in (lora(path), ())]
    assert sizes[0]["model"] == sizes[1]["model"]
    vectors = [support.mpk("embed", folder, "-p", "in the", *options)[0] for options in (lora(path), ())]
    assert vectors[0] != vectors[1]


def test_ranks(small, tmp_path):
    """Processes that share a model have the same adapters."""
    folder, path, plain, adapted = small
    meet = ["--gpus", "2", "--meet", str(tmp_path / "socket"), "--threads", "2"]
    for scale in ("1", "0.5"):
        rank = subprocess.Popen([support.MPK, "rank", folder, "--max-batch", "1", *meet, *lora(f"{path}:{scale}")],
                                stderr=subprocess.PIPE)
        run = support.mpk("run", folder, "-p", "in the", "-n", 12, "--quiet", *meet, *lora(path), code=None)
        errors = rank.communicate(timeout=60)[1].decode()
        if scale == "1":
            assert run[0] == adapted and rank.returncode == 0, (run, errors)
        else:
            assert "it has adapters" in run[1] and "it has adapters" in errors, (run, errors)


def test_python(small, tmp_path):
    import mpk
    folder, path, plain, adapted = small
    answers = []
    for adapters in ((), path, (path, 1), [path], [(str(path), 0.0)], [(path, 0.25), (path, 0.75)]):
        with mpk.LLM(folder, device="cpu", lora=adapters) as llm:
            answers.append(llm.generate("in the", mpk.SamplingParams(max_tokens=12))[0].text)
    assert answers[0] == answers[4] != answers[1]
    assert answers[1] == answers[2] == answers[3] == answers[5]
    assert mpk.quantize(folder, tmp_path / "merged.gguf", "f32", lora=[path])["weights"] > 0
    with mpk.LLM(tmp_path / "merged.gguf", device="cpu") as llm:
        assert llm.generate("in the", mpk.SamplingParams(max_tokens=12))[0].text == answers[1]
    with pytest.raises(mpk.Error, match="weights are random"):
        mpk.LLM(folder, random_weights=True, lora=path)
    with pytest.raises(mpk.Error, match="the scale of the adapter .* is nan"):
        mpk.LLM(folder, lora=(path, float("nan")))
    with pytest.raises(mpk.Error, match="n_adapters is 65, expected up to 64"):
        mpk.LLM(folder, lora=[path] * 65)


# ---- what is refused ----

def changed(**config):
    return lambda a: a.config.update(config)


def with_tensor(name, *sizes, dtype=torch.float32):
    return lambda a: a.tensors.update({f"base_model.model.{name}": torch.zeros(*sizes).to(dtype)})


def without(end):
    return lambda a: a.tensors.pop(next(name for name in a.tensors if name.endswith(end)))


Q0 = "model.layers.0.self_attn.q_proj"
REFUSED = {
    "ia3": (changed(peft_type="IA3"), r'"peft_type"\) is "IA3"'),
    "prompt": (changed(peft_type="PROMPT_TUNING"), '"PROMPT_TUNING"'),
    "loha": (changed(peft_type="LOHA"), '"LOHA"; LORA is supported'),
    "no-rank": (lambda a: a.config.pop("r"), 'no "r" or no "lora_alpha"'),
    "rank": (changed(r=5), "has the rank 4, but adapter_config.json says 5"),
    "pattern-rank": (changed(rank_pattern={"q_proj": 3}), r"q_proj.lora_B.weight|has the rank 4, but .* says 3"),
    "pattern": (changed(alpha_pattern={"(": 3}), "regular expression"),
    "pattern-text": (changed(alpha_pattern={"q_proj": "x"}), "the pattern q_proj has no number"),
    "parameters": (changed(target_parameters=["mlp.experts.down_proj"]), "target_parameters"),
    "replication": (changed(layer_replication=[[0, 1], [0, 1]]), "layer_replication"),
    "rows": (changed(trainable_token_indices=[3]), "trainable_token_indices"),
    "lora-bias": (changed(lora_bias=True), "lora_bias"),
    "blocks": (changed(use_bdlora={"nblocks": 2}), "use_bdlora"),
    "singular": (changed(kasa_config={"beta": 1}), "kasa_config"),
    "pissa": (changed(init_lora_weights="pissa_niter_4"), "training has changed"),
    "no-a": (without("lora_A.weight"), "has no tensor .*lora_A.weight"),
    "no-b": (without("lora_B.weight"), "has no tensor .*lora_B.weight"),
    "unknown": (with_tensor(f"{Q0}.hada_w1_a", 4, 64), r"q_proj.hada_w1_a of the adapter is not known here"),
    "token-adapter": (with_tensor("model.embed_tokens.token_adapter.trainable_tokens_delta", 4, 64),
                      "trainable_tokens_delta of the adapter is not known here"),
    "b-bias": (with_tensor(f"{Q0}.lora_B.bias", 64), "lora_B.bias of the adapter is not known here"),
    "magnitude": (with_tensor(f"{Q0}.lora_magnitude_vector", 64), '"use_dora"'),
    "no-magnitude": (changed(use_dora=True), "has no tensor .*lora_magnitude_vector"),
    "magnitude-shape": (lambda a: (changed(use_dora=True)(a), [with_tensor(
        name.removeprefix("base_model.model.").replace("lora_A.weight", "lora_magnitude_vector"), 3)(a)
        for name in list(a.tensors) if "lora_A" in name]), "not a number for each row"),
    "no-such-layer": (with_tensor("model.layers.2.mlp.up_proj.weight", 48, 64), "do not have"),
    "head-of-a-classifier": (with_tensor("score.weight", 3, 64), "for a weight score.weight"),
    "other-shape": (with_tensor("model.norm.weight", 63), "has another shape"),
    "integers": (with_tensor("model.norm.weight", 64, dtype=torch.int32), "has another shape or a dtype other"),
    "integers-a": (with_tensor(f"{Q0}.lora_A.weight", 4, 64, dtype=torch.int64), "is not a matrix of numbers"),
    "other-rank": (with_tensor(f"{Q0}.lora_B.weight", 64, 3), "differ in rank: 3 and 4"),
    "other-model": (lambda a: (with_tensor(f"{Q0}.lora_A.weight", 4, 60)(a), a.config.update(
        base_model_name_or_path="someone/else")), r"\[64, 60\].*of another model.*made for someone/else"),
    "infinite": (lambda a: a.tensors[f"base_model.model.{Q0}.lora_A.weight"].fill_(float("inf")),
                 r"row \d+, is not finite"),
    "nothing": (lambda a: a.tensors.clear(), "has no tensors"),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    model = make(*LLAMA)
    return model, support.save(model, tmp_path_factory.mktemp("llama") / "base")


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.draws(12)
def test_refused(why, llama, tmp_path):
    """By name, with what to do; also with a scale of 0."""
    model, folder = llama
    change, needle = REFUSED[why]
    adapter = Adapter(model).layers(("self_attn.q_proj",))
    change(adapter)
    path = adapter.save(tmp_path / "lora") if adapter.tensors else empty(adapter, tmp_path / "lora")
    (tmp_path / "ids").write_text("1 2")
    for scale in ("", ":0")[:1 if why == "infinite" else 2]:
        errors = support.mpk("score", folder, "--tokens", tmp_path / "ids", *lora(f"{path}{scale}"), code=1)[1]
        assert errors.count("\n") == 1 and errors.startswith("mpk: score: ")

        assert re.search(needle, errors), errors


def empty(adapter, folder):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(adapter.config))
    safetensors.torch.save_file({}, folder / "adapter_model.safetensors")
    return folder


def test_refused_together(llama, tmp_path):
    """What has no scale, and what leaves no room for a second adapter."""
    model, folder = llama
    lengths, plain, total = Adapter(model), Adapter(model).add(Q0), Adapter(model).add(Q0)
    lengths.config["use_dora"] = True
    lengths.add(Q0)
    lengths.tensors[f"base_model.model.{Q0}.lora_magnitude_vector"] = torch.ones(64)
    replaced(total, "model.norm.weight")
    a, b, c = (x.save(tmp_path / n) for x, n in ((lengths, "a"), (plain, "b"), (total, "c")))
    (tmp_path / "ids").write_text("1 2")
    for words, needle in (([f"{a}:2"], "of DoRA, which has no scale but 0 and 1, not 2"),
                          ([f"{c}:-1"], "trained whole, which has no scale but 0 and 1, not -1"),
                          ([a, b], "only one can be merged"), ([b, a], "only one can be merged"),
                          ([c, c], "only one can be merged")):
        assert needle in support.mpk("score", folder, "--tokens", tmp_path / "ids", *lora(*words), code=1)[1]
    support.mpk("score", folder, "--tokens", tmp_path / "ids", *lora(f"{a}:0", b, f"{c}:0"))


def test_refused_files(llama, tmp_path):
    """Folders and files that are no adapters, and GGUF adapters that are none of LoRA or of another architecture."""
    model, folder = llama
    adapter = Adapter(model).add(Q0)
    path = adapter.save(tmp_path / "lora")
    base = tmp_path / "base.gguf"
    support.mpk("quantize", folder, "-o", base, "--type", "f32")
    (tmp_path / "ids").write_text("1 2")
    (tmp_path / "empty").mkdir()
    pickled = tmp_path / "pickled"
    shutil.copytree(path, pickled)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    other = make("Qwen3", shape(64, 4, 2, 16))
    support.mpk("quantize", support.save(other, tmp_path / "other"), "-o", tmp_path / "other.gguf", "--type", "f32")
    for word, needle in (
            (tmp_path / "none", "none"), (tmp_path / "empty", "has no adapter_config.json"),
            (pickled, "is pickled; save the adapter as safetensors"), (folder, "has no adapter_config.json"),
            (path / "adapter_model.safetensors", "not a GGUF file"), (base, 'no adapter: its general.type is "model"'),
            (convert(tmp_path / "other.gguf", adapter, tmp_path / "q.gguf"), "qwen3, and the model is llama"),
            (convert(base, adapter, tmp_path / "alora.gguf", **{"adapter.alora.invocation_tokens": "x"}),
             "begins at certain tokens")):
        assert needle in support.mpk("score", folder, "--tokens", tmp_path / "ids", *lora(word), code=1)[1], word
    for model_path in (path, convert(base, adapter, tmp_path / "as.gguf")):
        assert "name the model that it was trained for" in support.mpk("run", model_path, "-p", "a", code=1)[1]
    assert "lora:x" in support.mpk("run", folder, "-p", "a", *lora(f"{path}:x"), code=1)[1]
    assert "lora:nan" in support.mpk("run", folder, "-p", "a", *lora(f"{path}:nan"), code=1)[1]
    assert "path is empty" in support.mpk("run", folder, "-p", "a", "--lora", ":2", code=2)[1]
