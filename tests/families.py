"""The families of models that differ from Llama: a small configuration of each, and its GGUF file as llama.cpp's
converter writes it."""

import gguf
import numpy
import torch
import transformers

import support
from test_models import (GEMMA3, GGUF_NAMES, GROWING, HALF, MSCALE, TYPES5, YARN, experts, latent, longrope,
                         randomise_biases, shape)

RANDOM = support.seed()

# Per family: a configuration that GGUF can describe, and a function from it to the file's own keys.
SIZES = {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
         "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
         "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
         "vocab_size": "vocab_size"}


def phi3_keys(config):
    rope = config.rope_parameters
    keys = {"attention.sliding_window": config.sliding_window} if config.sliding_window else {}
    if rope["rope_type"] == "longrope":
        factor = config.max_position_embeddings / config.original_max_position_embeddings
        keys |= {"rope.scaling.original_context_length": config.original_max_position_embeddings,
                 "rope.scaling.attn_factor": (1 + numpy.log(factor) / numpy.log(64)) ** 0.5}
    return keys


def gemma_keys(config):
    keys = {"attention.sliding_window": config.sliding_window}
    if config.attn_logit_softcapping:
        keys |= {"attn_logit_softcapping": config.attn_logit_softcapping,
                 "final_logit_softcapping": config.final_logit_softcapping}
    if "full_attention" in config.rope_parameters:
        keys |= {"rope.scaling.factor": config.rope_parameters["full_attention"]["factor"],
                 "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"]}
    return keys


def gpt_oss_keys(config):
    rope = config.rope_parameters
    return {"attention.sliding_window": config.sliding_window, "expert_count": config.num_local_experts,
            "expert_used_count": config.num_experts_per_tok, "expert_feed_forward_length": config.intermediate_size,
            "rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"]}


def ministral_keys(config):
    rope = config.rope_parameters
    return {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
            "attention.temperature_scale": rope["llama_4_scaling_beta"]}


def expert_keys(config):
    size = getattr(config, "moe_intermediate_size", config.intermediate_size)
    n = getattr(config, "num_local_experts", None) or config.num_experts
    keys = {"expert_count": n, "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": size}
    if hasattr(config, "shared_expert_intermediate_size"):
        keys |= {"expert_shared_feed_forward_length": config.shared_expert_intermediate_size}
    if hasattr(config, "logits_scaling"):
        keys |= {"embedding_scale": config.embedding_multiplier, "attention.scale": config.attention_multiplier,
                 "residual_scale": config.residual_multiplier, "logit_scale": config.logits_scaling}
    return keys


def routed_keys(config):
    """Those of DeepSeek's experts, as the converter of GLM-4.5 writes them."""
    return {"expert_count": getattr(config, "n_routed_experts", 0) or config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_shared_count": getattr(config, "n_shared_experts", 0) or config.num_shared_experts,
            "leading_dense_block_count": getattr(config, "first_k_dense_replace", 1),
            "expert_weights_scale": config.routed_scaling_factor, "expert_gating_func": 2}


def ernie_keys(config):
    return {"expert_count": config.moe_num_experts, "expert_used_count": config.moe_k,
            "expert_feed_forward_length": config.moe_intermediate_size, "interleave_moe_layer_step": 1,
            "expert_shared_count": config.moe_num_shared_experts, "leading_dense_block_count": 1}


def latent_keys(config):
    """As the converter writes them: keys and values of one head are what is cached."""
    keys = {"attention.head_count_kv": 1, "attention.kv_lora_rank": config.kv_lora_rank,
            "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
            "attention.value_length": config.kv_lora_rank,
            "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
            "attention.value_length_mla": config.v_head_dim, "rope.dimension_count": config.qk_rope_head_dim,
            **routed_keys(config), "expert_gating_func": 1 if config.model_type == "deepseek_v2" else 2}
    if config.norm_topk_prob:
        keys |= {"expert_weights_norm": True}
    if config.q_lora_rank:
        keys |= {"attention.q_lora_rank": config.q_lora_rank}
    if (config.n_group or 1) > 1:
        keys |= {"expert_group_count": config.n_group, "expert_group_used_count": config.topk_group}
    rope = config.rope_parameters
    if rope["rope_type"] == "yarn":
        keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
                 "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
                 "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"]}
    return keys


FAMILIES = {
    "deepseek2": ("DeepseekV2", latent(64, 4, (None, 32), 32, 16, 24, n=8, of_token=3, size=32, n_shared_experts=2,
                                       first_k_dense_replace=1), "deepseek2", latent_keys),
    "deepseek3": ("DeepseekV3", latent(64, 4, (32, 64), 32, 16, 32, n=16, of_token=3, size=32, n_shared_experts=1,
                                       first_k_dense_replace=2, n_group=4, topk_group=2, routed_scaling_factor=2.5,
                                       norm_topk_prob=False, rope_parameters=MSCALE), "deepseek2", latent_keys),
    "glm4-moe-lite": ("Glm4MoeLite", latent(64, 4, (32, 64), 32, 16, 32, n=8, of_token=3, size=32), "deepseek2",
                      latent_keys),
    "phi3": ("Phi3", shape(96, 6, 2, ffn=80, sliding_window=13, pad_token_id=0), "phi3", phi3_keys),
    "phi3-long": ("Phi3", shape(256, 2, 1, rope_parameters=longrope(48, partial_rotary_factor=0.75), pad_token_id=0,
                                original_max_position_embeddings=64), "phi3", phi3_keys),
    "gemma": ("Gemma", shape(64, 4, 1, 32, hidden_act="gelu"), "gemma", lambda config: {}),
    "gemma2": ("Gemma2", shape(96, 4, 2, 40, layers=3, sliding_window=13, query_pre_attn_scalar=40,
                               attn_logit_softcapping=1.5, final_logit_softcapping=3.0), "gemma2", gemma_keys),
    "gemma3": ("Gemma3Text", shape(64, 4, 2, 32, layers=7, sliding_window=13, query_pre_attn_scalar=32,
                                   rope_parameters=GEMMA3), "gemma3", gemma_keys),
    "olmo2": ("Olmo2", shape(64, 4, 2), "olmo2", lambda config: {}),
    "smollm3": ("SmolLM3", shape(64, 4, 2, layers=5, pad_token_id=0, bos_token_id=1, eos_token_id=2), "smollm3",
                lambda config: {}),
    "granite": ("Granite", shape(64, 4, 2, embedding_multiplier=12.0, attention_multiplier=0.3,
                                 residual_multiplier=0.22, logits_scaling=8.0), "granite",
                lambda config: {"embedding_scale": 12.0, "attention.scale": 0.3, "residual_scale": 0.22,
                                "logit_scale": 8.0}),
    "gpt-oss": ("GptOss", shape(64, 4, 2, 16, layers=3, ffn=96, num_local_experts=6, num_experts_per_tok=2,
                                sliding_window=13, rope_parameters={**YARN, "truncate": False}, pad_token_id=0),
                "gpt-oss", gpt_oss_keys),
    "cohere": ("Cohere", shape(64, 4, 2, logit_scale=0.7), "command-r", lambda config: {"logit_scale": 0.7}),
    "cohere2": ("Cohere2", shape(64, 4, 2, layers=5, sliding_window=13, logit_scale=0.7), "cohere2",
                lambda config: {"logit_scale": 0.7, "attention.sliding_window": 13}),
    "starcoder2": ("Starcoder2", shape(64, 4, 2), "starcoder2", lambda config: {}),
    "olmo3": ("Olmo3", shape(64, 4, 2, layers=5, sliding_window=13, rope_parameters={
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}), "olmo2",
              lambda config: {"attention.sliding_window": 13, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                              "rope.scaling.original_context_length": 64}),
    "seed-oss": ("SeedOss", shape(64, 4, 2, 16, attention_out_bias=True), "seed_oss", lambda config: {}),
    "ernie4-5": ("Ernie4_5", shape(64, 4, 2, 32, use_bias=True, tie_word_embeddings=False), "ernie4_5",
                 lambda config: {}),
    "hunyuan": ("HunYuanDenseV1", shape(64, 4, 2, 16), "hunyuan-dense", lambda config: {}),
    "exaone4": ("Exaone4", shape(64, 4, 2, layers=5, sliding_window=13), "exaone4",
                lambda config: {"attention.sliding_window": 13}),
    "exaone4-no-window": ("Exaone4", shape(64, 4, 2, sliding_window=None, layer_types=["full_attention"] * 2),
                          "exaone4", lambda config: {}),
    "glm4": ("Glm4", shape(64, 4, 2, 32, pad_token_id=0, rope_parameters={
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}), "glm4", lambda config: {}),
    "glm4-moe": ("Glm4Moe", shape(64, 4, 2, 32, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
                                  use_qk_norm=True, attention_bias=True, norm_topk_prob=False, pad_token_id=0),
                 "glm4moe", routed_keys),
    "olmoe": ("Olmoe", shape(64, 4, 2, ffn=96, num_experts=8, num_experts_per_tok=3), "olmoe", expert_keys),
    "qwen2moe": ("Qwen2Moe", experts(64, 4, 2, n=8, of_token=3, size=96, shared_expert_intermediate_size=160),
                 "qwen2moe", expert_keys),
    "minimax-m2": ("MiniMaxM2", shape(64, 4, 2, 32, layers=3, ffn=32, num_local_experts=8, num_experts_per_tok=3,
                                      rope_parameters=HALF), "minimax-m2",
                   lambda config: {**expert_keys(config), "expert_gating_func": 2}),
    "exaone-moe": ("ExaoneMoe", experts(64, 4, 2, 32, n=8, of_token=3, size=32, layers=5, sliding_window=13,
                                        layer_types=TYPES5), "exaone-moe",
                   lambda config: {**routed_keys(config), "attention.sliding_window": 13,
                                   "expert_weights_norm": True}),
    "dots1": ("Dots1", shape(64, 4, 2, 32, layers=3, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
                             moe_intermediate_size=32, first_k_dense_replace=1, norm_topk_prob=True), "dots1",
              lambda config: {**routed_keys(config), "expert_weights_norm": True}),
    "solar-open": ("SolarOpen", shape(64, 4, 2, 32, n_routed_experts=8, num_experts_per_tok=3,
                                      moe_intermediate_size=32), "glm4moe",
                   lambda config: {**routed_keys(config), "expert_weights_norm": True,
                                   "leading_dense_block_count": 0}),
    "ernie4-5-moe": ("Ernie4_5_Moe", shape(64, 4, 2, 32, layers=4, moe_num_experts=8, moe_k=3,
                                           moe_intermediate_size=32), "ernie4_5-moe", ernie_keys),
    "hunyuan-moe": ("HunYuanMoEV1", shape(64, 4, 2, 32, ffn=96, num_experts=8, moe_topk=3), "hunyuan-moe",
                    lambda config: {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 96,
                                    "expert_shared_count": 1, "expert_shared_feed_forward_length": 96}),
    "arcee": ("Arcee", shape(64, 4, 2, mlp_bias=True), "arcee", lambda config: {}),
    "nemotron": ("Nemotron", shape(64, 4, 2, 32), "nemotron", lambda config: {}),
    "stablelm": ("StableLm", shape(128, 4, 2, use_qkv_bias=True), "stablelm",
                 lambda config: {"use_parallel_residual": False}),
    "stablelm-parallel": ("StableLm", shape(128, 4, 4, use_parallel_residual=True), "stablelm",
                          lambda config: {"use_parallel_residual": True}),
    "phi": ("Phi", shape(128, 4, 2), "phi2", lambda config: {}),
    "olmo": ("Olmo", shape(64, 4, 2), "olmo", lambda config: {}),
    "gpt-neox": ("GPTNeoX", shape(128, 4, 4), "gptneox", lambda config: {"use_parallel_residual": True}),
    "llama4": ("Llama4Text", shape(64, 4, 2, 32, layers=4, ffn=32, intermediate_size_mlp=96, num_local_experts=8,
                                   interleave_moe_layer_step=2), "llama4",
               lambda config: {"expert_count": 8, "expert_used_count": 1, "expert_feed_forward_length": 32,
                               "feed_forward_length": 96, "interleave_moe_layer_step": 2}),
    "ministral3": ("Ministral3", shape(64, 4, 2, 16, pad_token_id=0, rope_parameters={
        **GROWING, "mscale": 1.0, "mscale_all_dim": 1.0}), "mistral3", ministral_keys),
    "granitemoe": ("GraniteMoe", shape(64, 4, 2, ffn=96, num_local_experts=6, num_experts_per_tok=2,
                                       embedding_multiplier=12.0, attention_multiplier=0.3, residual_multiplier=0.22,
                                       logits_scaling=8.0), "granitemoe", expert_keys),
}
ROUTED = {"mlp.gate.e_score_correction": "exp_probs_b", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
          "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp"}
WRAPPED = {"pre_feedforward_layernorm": "ffn_norm", "post_attention_layernorm": "post_attention_norm",
           "post_feedforward_layernorm": "post_ffw_norm"}
PARTS = {"phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}, "gemma2": WRAPPED, "gemma3": WRAPPED,
         "olmo2": WRAPPED, "exaone4": WRAPPED, "seed_oss": {"post_attention_layernorm": "post_attention_norm"},
         "hunyuan-dense": {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
         "starcoder2": {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
         "glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
                  "mlp.gate_up_proj": "ffn_up"},
         "qwen2moe": {"mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
                      "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp"},
         "granitemoe": {"block_sparse_moe.router": "ffn_gate_inp"},
         "exaone-moe": {**ROUTED, "mlp.e_score_correction": "exp_probs_b"}, "dots1": ROUTED,
         "ernie4_5-moe": {**ROUTED, "mlp.gate.moe_statics.e_score_correction": "exp_probs_b"},
         "hunyuan-moe": {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
                         "mlp.gate.wg": "ffn_gate_inp", "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
                         "mlp.shared_mlp.up_proj": "ffn_up_shexp", "mlp.shared_mlp.down_proj": "ffn_down_shexp"},
         "phi2": {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
         "gptneox": {"attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
                     "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"},
         "llama4": {"mlp.router": "ffn_gate_inp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
                    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp"},
         "minimax-m2": {"mlp.e_score_correction": "exp_probs_b"},
         "glm4moe": {"post_attention_layernorm": "post_attention_norm", **ROUTED},
         "deepseek2": {"self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
                       "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
                       "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
                       **ROUTED},
         "gpt-oss": {"self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp",
                                       "post_attention_layernorm": "post_attention_norm"}}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "model.final_layernorm": "output_norm", "model.final_layer_norm": "output_norm"}
REORDERED = ("granite", "granitemoe", "smollm3", "mistral3", "arcee", "olmo")
MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def make(name):
    family, options, architecture, keys = FAMILIES[name]
    config = getattr(transformers, family + "Config")(attn_implementation="eager", **options)
    model = getattr(transformers, family.removesuffix("Text") + "ForCausalLM")(config)
    generator = torch.Generator().manual_seed(RANDOM.randrange(2**31))
    randomise_biases(support.randomise(model, generator), generator)
    return model.eval(), config, architecture, keys(config)


def head_of(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def epsilon_of(config):
    """The key of the norms' epsilon: families with layer norms have another."""
    if hasattr(config, "rms_norm_eps"):
        return {"attention.layer_norm_rms_epsilon": config.rms_norm_eps}
    names = ("layer_norm_eps", "norm_epsilon", "norm_eps")
    return {"attention.layer_norm_epsilon": next((getattr(config, n) for n in names if hasattr(config, n)), 1e-5)}


def values_of(config, own):
    """The keys that every reader wants, and those of the family."""
    head, rope = head_of(config), config.rope_parameters
    rope = rope.get("full_attention", rope)
    sizes = {"num_key_value_heads": config.num_attention_heads, **config.to_dict()}
    return {**{key: sizes[name] for key, name in SIZES.items() if name in sizes},
            "attention.key_length": head, "attention.value_length": head,
            "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1.0)),
            "rope.freq_base": float(rope["rope_theta"]), **epsilon_of(config), **own}


def interleaved(name, t):
    """The parts of one of gpt-oss's tensors of all experts, by name, with rows of weights as GGUF holds them."""
    is_bias = name.endswith("_bias")
    t = t if is_bias else t.swapaxes(1, 2)
    parts = ({"ffn_gate_exps": t[:, ::2], "ffn_up_exps": t[:, 1::2]} if name.startswith("gate_up_proj")
             else {"ffn_down_exps": t})
    return {f"{k}.{'bias' if is_bias else 'weight'}": numpy.ascontiguousarray(v) for k, v in parts.items()}


def halves(name, t):
    """Likewise of other families, whose gate comes before up."""
    if name == "down_proj":
        return {"ffn_down_exps.weight": t}
    return {f"ffn_{k}_exps.weight": numpy.ascontiguousarray(v) for k, v in zip(("gate", "up"), numpy.split(t, 2, 1))}


def heads_apart(config, t):
    """The weights that make keys of latents, transposed, and those that make values."""
    keys, values = numpy.split(t.reshape(config.num_attention_heads, -1, t.shape[1]), [config.qk_nope_head_dim], 1)
    return {"attn_k_b.weight": numpy.ascontiguousarray(keys.swapaxes(1, 2)),
            "attn_v_b.weight": numpy.ascontiguousarray(values)}


def tensors_of(model, config, architecture):
    """Names and contents as llama.cpp's converter makes them: for rope over neighbours rows of q and k in another
    order, and norms of Gemma with their 1 added."""
    out = {}
    parts = {**GGUF_NAMES, **MLP, **PARTS.get(architecture, {})}
    for name, t in model.state_dict().items():
        t = t.numpy()
        for old, new in (("gpt_neox.", "model."), ("embed_in", "embed_tokens"), ("embed_out", "lm_head"),
                         ("feed_forward", "mlp")):
            name = name.replace(old, new)
        if "query_key_value" in name:
            t = t.reshape(config.num_attention_heads, 3, head_of(config), -1).swapaxes(0, 1).reshape(t.shape)
        layer, _, part = name.removesuffix(".weight").removeprefix("model.layers.").partition(".")
        if ".experts." in part:
            t = t.swapaxes(1, 2) if architecture == "llama4" else t
            halve = interleaved if architecture == "gpt-oss" else halves
            out |= {f"blk.{layer}.{k}": v for k, v in halve(part.rpartition(".")[2], t).items()}
            continue
        if part == "self_attn.kv_b_proj":
            out |= {f"blk.{layer}.{k}": v for k, v in heads_apart(config, t).items()}
            continue
        part = part.replace("correction_bias", "correction.bias")
        t = t[0] if "moe_statics" in part else t
        end = "bias" if part == "bias" or part.endswith(".bias") else "weight"
        part = part.removesuffix(".bias")
        if architecture.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
            t = t + numpy.float32(1)
        if architecture in REORDERED and part.endswith(("q_proj", "k_proj")):
            t = t.reshape(-1, 2, head_of(config) // 2, t.shape[1]).swapaxes(1, 2).reshape(t.shape)
        whole = WHOLE.get(name.rpartition(".")[0])
        if not (name == "lm_head.weight" and config.tie_word_embeddings):
            out[f"{whole or f'blk.{layer}.{parts[part]}'}.{end}"] = numpy.ascontiguousarray(t)
    rope = config.rope_parameters
    for key in ("short", "long"):
        if f"{key}_factor" in rope:
            out[f"rope_factors_{key}.weight"] = numpy.array(rope[f"{key}_factor"], numpy.float32)
    return out


def write(path, architecture, values, tensors, lists=None, types=None):
    """The file as the gguf package writes it."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        kinds = {int: writer.add_uint32, str: writer.add_string, bool: writer.add_bool}
        put = kinds.get(type(value), writer.add_float32)
        put(f"{architecture}.{key}", value)
    for key, value in (lists or {}).items():
        writer.add_array(f"{architecture}.{key}", value)
    for name, t in tensors.items():
        writer.add_tensor(name, t, raw_dtype=(types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
