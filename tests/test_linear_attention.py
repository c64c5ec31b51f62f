"""Models with linear attention (Qwen3-Next, Qwen3.5), whose requests carry state from token to token: the same answer
however its tokens come into steps, whatever ran in the slot before, on several peers, from images and GGUF files; and
what such models refuse.  tests/test_models.py compares their logits with Transformers."""

import json
import re

import numpy
import pytest
import torch
import transformers

import support
import tiny
from families import ROUTED, halves, write
from test_models import choose_tokens, delta, experts, logits_of, make, shape

RANDOM = support.seed()
VOCABULARY = 250


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six layers: an attention that sees all after two linear ones, and heads of values that share keys."""
    options = dict(num_hidden_layers=6, head_dim=16, tie_word_embeddings=False,
                   layer_types=["linear_attention", "linear_attention", "full_attention"] * 2, **delta(2, 4, 16, 8))
    path = tmp_path_factory.mktemp("delta") / "model"
    path.mkdir()
    t = tiny.tokenizer(path)
    config = transformers.Qwen3_5TextConfig(**shape(32, 4, 2, ffn=48, vocab=t.get_vocab_size(), layers=6), **{
        k: v for k, v in options.items() if k != "num_hidden_layers"})
    net = support.randomise(transformers.Qwen3_5ForCausalLM(config),
                            torch.Generator().manual_seed(RANDOM.randrange(2**31)))
    return support.save(net.eval(), path)


def batch(folder, requests, tmp_path, *options):
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    _, words = support.mpk("batch", folder, path, "-o", out, *options)
    return [json.loads(line) for line in out.read_text().splitlines()], words


def draw_requests(n):
    prefix = [RANDOM.randrange(VOCABULARY) for _ in range(70)]
    requests = []
    for i in range(n):
        tokens = [RANDOM.randrange(VOCABULARY) for _ in range(RANDOM.randrange(1, 90))]
        requests.append({"tokens": (prefix if i % 3 == 0 else []) + tokens, "max_tokens": RANDOM.randrange(1, 30),
                         "temperature": 1.0 if i % 2 else 0, "seed": i, "ignore_eos": True})
    return requests


def test_tokens_are_those_of_transformers(folder, tmp_path):
    """Token by token: each of a greedy answer is the best of the logits that Transformers has there."""
    net = transformers.Qwen3_5ForCausalLM.from_pretrained(folder)
    requests = [dict(r, temperature=0) for r in draw_requests(6)]
    answers, _ = batch(folder, requests, tmp_path, "--kv", "f32", "--max-batch", 3)
    for r, a in zip(requests, answers):
        rows = logits_of(net, r["tokens"] + a["tokens"])[len(r["tokens"]) - 1:-1]
        chosen = rows[numpy.arange(len(rows)), a["tokens"]]
        assert len(a["tokens"]) == r["max_tokens"]
        assert (rows.max(1) - chosen <= 5e-4 * (rows.max() - rows.min())).all()


def test_neither_steps_nor_company_change_an_answer(folder, tmp_path):
    """Texts are cut anywhere, slots are taken again, requests are put back and fed from their beginning."""
    requests = draw_requests(24)
    alone, words = batch(folder, requests, tmp_path, "--max-batch", 1)
    assert "0 of 0 tokens of prompts from the prefix cache" in words
    for options in (["--max-batch", 8], ["--max-batch", 5, "--step-tokens", 8], ["--max-batch", 24, "--threads", 3],
                    ["--max-batch", 6, "--kv-tokens", 320, "--step-tokens", 32]):
        order = list(range(len(requests)))
        RANDOM.shuffle(order)
        answers, words = batch(folder, [requests[i] for i in order], tmp_path, *options)
        assert "0 of 0 tokens of prompts from the prefix cache" in words
        for i, a in zip(order, answers):
            assert a["tokens"] == alone[i]["tokens"], (options, i)


def test_answers_with_a_form(folder, tmp_path):
    """A token is fed only when the mask of the next draw is there, since none can be fed again: the same answers alone,
    in company, and where many masks are made at once."""
    form = "[a-f]{3,9}-[0-9]{2,30}"
    requests = [dict(r, regex=form, max_tokens=40, ignore_eos=False, temperature=1.0) for r in draw_requests(12)]
    requests[3::4] = [{k: v for k, v in r.items() if k != "regex"} for r in requests[3::4]]
    alone, _ = batch(folder, requests, tmp_path, "--max-batch", 1)
    company, _ = batch(folder, requests, tmp_path, "--max-batch", 12, "--threads", 3)
    for r, a, b in zip(requests, alone, company):
        assert a["tokens"] == b["tokens"] and a["tokens"]
        assert "regex" not in r or a["finish_reason"] == "length" or re.fullmatch(form, a["text"]), a


def test_several_answers_to_one_prompt(folder, tmp_path):
    """They share no page, and each is what it is alone."""
    r = dict(draw_requests(1)[0], temperature=1.0, seed=5, max_tokens=12)
    (several,), _ = batch(folder, [dict(r, n=3)], tmp_path)
    single, _ = batch(folder, [dict(r, seed=5 + i) for i in range(3)], tmp_path)
    assert [a["tokens"] for a in several["answers"]] == [a["tokens"] for a in single]


@pytest.mark.parametrize("peers", [2, 3, 4])
@pytest.mark.draws(1)
def test_peers(folder, tmp_path, peers):
    """Heads of values are cut; where keys are fewer than peers, several have the same."""
    tokens = [RANDOM.randrange(VOCABULARY) for _ in range(60)]
    one = support.score(folder, tokens, tmp_path)
    several = support.score(folder, tokens, tmp_path, "--gpus", peers)
    assert numpy.abs(several - one).max() <= 1e-4 * numpy.abs(one).max()


def test_image(folder, tmp_path):
    tokens = [RANDOM.randrange(VOCABULARY) for _ in range(50)]
    support.mpk("compile", folder, "-o", tmp_path / "model.mpk")
    assert numpy.array_equal(support.score(folder, tokens, tmp_path), support.score(tmp_path / "model.mpk", tokens,
                                                                                    tmp_path))
    _, words = support.mpk("run", tmp_path / "model.mpk", "-p", "the", "--speculate=ngram", code=1)
    assert "models with linear attention cannot speculate" in words


def test_speculation_is_refused(folder, tmp_path):
    _, words = support.mpk("run", folder, "-p", "the", "--speculate=ngram", code=1)
    assert "models with linear attention cannot speculate" in words
    _, words = support.mpk("run", folder, "-p", "the", "--draft-model", folder, code=1)
    assert "models with linear attention cannot speculate" in words


def change_config(folder, path, **changes):
    """The folder with other members in its configuration; None: without."""
    path.mkdir()
    for f in folder.iterdir():
        (path / f.name).write_bytes(f.read_bytes())
    config = {k: v for k, v in {**tiny.config_of(folder), **changes}.items() if v is not None}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("changes, words", [
    ({"attn_output_gate": False}, '"attn_output_gate" false is not supported'),
    ({"layer_types": None, "full_attention_interval": 0}, '"full_attention_interval" is 0'),
    ({"layer_types": ["linear_attention"] * 6}, "all of whose layers have linear attention"),
    ({"layer_types": ["linear_attention", "mamba"] * 3}, 'layer 1 is "mamba"'),
    ({"layer_types": ["full_attention"]}, '"layer_types" is not a list of 6 names'),
    ({"linear_num_value_heads": 3}, "3 value heads of linear attention cannot share 2 key heads"),
    ({"linear_key_head_dim": 512}, "key size of linear attention is 512"),
    ({"linear_conv_kernel_dim": 1}, "covers 1 tokens, expected 2 to 8"),
    ({"linear_value_head_dim": 16}, "rows, expected"),
])
@pytest.mark.draws(4)
def test_configurations_that_are_refused(folder, tmp_path, changes, words):
    _, said = support.mpk("score", change_config(folder, tmp_path / "model", **changes), "--tokens", "-",
                          "--logits", tmp_path / "x.npy", code=1, stdin=b"1 2 3")
    assert words in said


def test_model_that_also_reads_images(folder, tmp_path):
    """It holds the model of text as "text_config", and names its weights otherwise."""
    import safetensors.torch
    tokens = [RANDOM.randrange(VOCABULARY) for _ in range(40)]
    expected = support.score(folder, tokens, tmp_path)
    held = change_config(folder, tmp_path / "held")
    text = tiny.config_of(folder)
    (held / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    weights = {n.replace("model.", "model.language_model.", 1): t
               for n, t in safetensors.torch.load_file(folder / "model.safetensors").items()}
    weights["model.visual.merger.norm.weight"] = torch.ones(3)
    safetensors.torch.save_file(weights, held / "model.safetensors")
    assert numpy.array_equal(expected, support.score(held, tokens, tmp_path))


# ---- GGUF ----

CASES = {
    "qwen35": ("Qwen3_5Text", shape(64, 4, 2, 32, layers=4, **delta(2, 6, 16, 8))),
    "qwen35moe": ("Qwen3_5MoeText", experts(64, 4, 1, 32, layers=4, n=8, of_token=3, size=40,
                                            shared_expert_intermediate_size=48, **delta(2, 4, 16, 16))),
    "qwen3next": ("Qwen3Next", experts(64, 4, 2, 32, layers=4, n=8, of_token=3, size=40,
                                       shared_expert_intermediate_size=48, **delta(2, 4, 16, 32))),
}
PARTS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "mlp.gate": "ffn_gate_inp",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
         **{k.replace("experts", "expert"): v for k, v in ROUTED.items() if "shared" in k},
         "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
         "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_ba": "ssm_ba",
         "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"}


def tile(t, groups, heads, size, axis=0, first=0):
    """Heads of values that share a key head, neighbours in checkpoints, become every `groups`-th one; entries before
    `first` stay."""
    t = numpy.moveaxis(t, axis, 0)
    values = t[first:].reshape(groups, heads // groups, size, *t.shape[1:]).swapaxes(0, 1)
    return numpy.moveaxis(numpy.concatenate([t[:first], values.reshape(t[first:].shape)]), 0, axis)


def ungroup(config, t):
    """The rows of in_proj_qkvz, which lie by key heads, as q, k and v, and z."""
    G, K = config.linear_num_key_heads, config.linear_key_head_dim
    run = config.linear_num_value_heads // G * config.linear_value_head_dim
    parts = numpy.split(t.reshape(G, -1, t.shape[1]), [K, 2 * K, 2 * K + run], 1)
    q, k, v, z = (p.reshape(-1, t.shape[1]) for p in parts)
    return numpy.concatenate([q, k, v]), z


def tensors_of(model, config, tiled):
    """As llama.cpp's converter writes them: norms with their 1, -exp(A_log), heads of values in another order."""
    out = {}
    G, H, V = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    first = 2 * G * config.linear_key_head_dim
    orders = {"in_proj_qkv": (V, 0, first), "in_proj_z": (V,), "in_proj_a": (1,), "in_proj_b": (1,), "A_log": (1,),
              "dt_bias": (1,), "conv1d": (V, 0, first), "out_proj": (V, 1)}
    for name, t in model.state_dict().items():
        t = t.numpy()
        layer, _, part = name.removesuffix(".weight").removeprefix("model.layers.").partition(".")
        whole = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm",
                 "lm_head.weight": "output"}.get(name)
        kind = part.rpartition(".")[2]
        if name.endswith("norm.weight") and "linear_attn" not in name:
            t = t + numpy.float32(1)
        if kind == "conv1d":
            t = t[:, 0]
        if tiled and part.startswith("linear_attn.") and kind in orders:
            t = tile(t, G, H, *orders[kind])
        if ".experts." in part:
            out |= {f"blk.{layer}.{k}": v for k, v in halves(kind, t).items()}
        elif kind == "A_log":
            out[f"blk.{layer}.ssm_a"] = -numpy.exp(t)
        elif kind == "dt_bias":
            out[f"blk.{layer}.ssm_dt.bias"] = t
        elif kind == "in_proj_qkvz":
            out[f"blk.{layer}.attn_qkv.weight"], out[f"blk.{layer}.attn_gate.weight"] = ungroup(config, t)
        else:
            out[f"{whole or f'blk.{layer}.{PARTS[part]}'}.weight"] = t[0] if kind == "shared_expert_gate" else t
    return {name: numpy.ascontiguousarray(t) for name, t in out.items()}


def values_of(config):
    values = {"block_count": config.num_hidden_layers, "context_length": 512, "embedding_length": config.hidden_size,
              "attention.head_count": config.num_attention_heads,
              "attention.head_count_kv": config.num_key_value_heads, "attention.key_length": config.head_dim,
              "attention.value_length": config.head_dim, "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
              "rope.freq_base": float(config.rope_parameters["rope_theta"]),
              "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
              "full_attention_interval": 4, "ssm.conv_kernel": config.linear_conv_kernel_dim,
              "ssm.state_size": config.linear_key_head_dim, "ssm.group_count": config.linear_num_key_heads,
              "ssm.time_step_rank": config.linear_num_value_heads,
              "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim}
    if hasattr(config, "num_experts"):
        return values | {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok,
                         "expert_feed_forward_length": config.moe_intermediate_size,
                         "expert_shared_feed_forward_length": config.shared_expert_intermediate_size}
    return values | {"feed_forward_length": config.intermediate_size}


@pytest.mark.parametrize("architecture", CASES)
@pytest.mark.draws(1)
def test_gguf(architecture, tmp_path):
    """A converter's file has the logits of Transformers; on several peers too, where heads do not lie by groups."""
    model, config = make(architecture, CASES)
    values = values_of(config)
    if architecture == "qwen3next":
        values["feed_forward_length"] = config.intermediate_size
    path = write(tmp_path / "model.gguf", architecture, values,
                 tensors_of(model, config, architecture != "qwen3next"))
    tokens = choose_tokens(model, config, 80)
    found, expected = support.score(path, tokens, tmp_path, "--kv", "f32"), logits_of(model, tokens)
    assert numpy.abs(found - expected).max() < 5e-4 * (expected.max() - expected.min())
    several = support.score(path, tokens, tmp_path, "--kv", "f32", "--gpus", 2)
    assert numpy.abs(several - found).max() <= 1e-4 * numpy.abs(found).max()
    _, words = support.mpk("quantize", path, "-o", tmp_path / "small.gguf", "--type", "q8_0", code=1)
    assert "models with linear attention are read, and cannot be written" in words
