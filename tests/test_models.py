"""Whole models against Hugging Face Transformers in fp32: random checkpoints of every family, odd shapes included.

Bars: fp32 weights, largest difference of a logit under 1e-4 of the logits' range; bf16 weights, mean KL from fp32 no
more than 1.5 times that of PyTorch's own bf16.
"""

import json
import struct
import warnings

import numpy
import pytest
import torch
import transformers

import support

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(2)
RANDOM = support.seed()

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
GROWING = {**YARN, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.4}
TYPES5 = [f"{t}_attention" for t in ("sliding", "sliding", "sliding", "full", "sliding")]
HALF = {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}
GEMMA3 = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}


def longrope(n, **more):
    """Divisors for n pairs: near 1 for short contexts, rising for long ones."""
    return {"rope_type": "longrope", "rope_theta": 10000.0,
            "short_factor": [1 + RANDOM.random() / 4 for _ in range(n)],
            "long_factor": [1 + 40 * i / n + RANDOM.random() for i in range(n)], **more}


def shape(hidden, heads, kv, head=None, layers=2, ffn=None, vocab=211, **more):
    return dict(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv, num_hidden_layers=layers,
                intermediate_size=ffn or hidden * 2 + 24, vocab_size=vocab, max_position_embeddings=512,
                **({"head_dim": head} if head else {}), **more)


def experts(*sizes, n, of_token, size, **more):
    return shape(*sizes, num_experts=n, num_experts_per_tok=of_token, moe_intermediate_size=size, **more)


def latent(hidden, heads, latents, plain, rotated, value, n, of_token, size, layers=3, ffn=None, vocab=211, **more):
    """Latent attention and routed experts: sizes of latents of queries (None: without) and of what is cached, of the
    two parts of a key and of a value, then of experts."""
    return shape(hidden, heads, heads, layers=layers, ffn=ffn, vocab=vocab, q_lora_rank=latents[0],
                 kv_lora_rank=latents[1], qk_nope_head_dim=plain, qk_rope_head_dim=rotated, v_head_dim=value,
                 n_routed_experts=n, num_experts_per_tok=of_token, moe_intermediate_size=size, **more)


def delta(keys, heads, key, value, **more):
    """Linear attention: heads of keys and of values, and their sizes."""
    return dict(linear_num_key_heads=keys, linear_num_value_heads=heads, linear_key_head_dim=key,
                linear_value_head_dim=value, **more)


MSCALE = {**YARN, "mscale": 0.8, "mscale_all_dim": 0.8}
CASES = {
    "llama-tied": ("Llama", shape(64, 4, 2, tie_word_embeddings=True)),
    "llama-untied": ("Llama", shape(64, 4, 4)),
    "llama-odd-320-5-1": ("Llama", shape(320, 5, 1, vocab=1003)),
    "llama-head-16": ("Llama", shape(96, 6, 2, 16)),
    "llama-head-48": ("Llama", shape(144, 3, 1, 48)),
    "llama-head-80": ("Llama", shape(160, 2, 2, 80)),
    "llama-head-96": ("Llama", shape(192, 2, 1, 96)),
    "llama-head-128": ("Llama", shape(256, 2, 1, 128, ffn=100)),
    "llama-attention-bias": ("Llama", shape(64, 4, 2, attention_bias=True)),
    "llama-mlp-bias": ("Llama", shape(64, 4, 2, mlp_bias=True, attention_bias=True)),
    "llama-rope-llama3": ("Llama", shape(64, 4, 2, rope_parameters=LLAMA3)),
    "llama-rope-linear": ("Llama", shape(64, 4, 2, rope_parameters=LINEAR)),
    "llama-rope-yarn": ("Llama", shape(64, 4, 2, rope_parameters=YARN)),
    "llama-theta": ("Llama", shape(64, 4, 2, rope_parameters={"rope_type": "default", "rope_theta": 1234567.0})),
    "llama-epsilon": ("Llama", shape(64, 4, 2, rms_norm_eps=0.01)),
    "llama-gelu": ("Llama", shape(64, 4, 2, hidden_act="gelu")),
    "llama-vocab-1003": ("Llama", shape(48, 3, 3, vocab=1003, ffn=77)),
    "llama-one-layer": ("Llama", shape(32, 2, 1, layers=1)),
    "llama-deep": ("Llama", shape(32, 2, 1, layers=9)),
    "qwen2-tied": ("Qwen2", shape(64, 4, 2, tie_word_embeddings=True)),
    "qwen2-untied": ("Qwen2", shape(128, 2, 1)),
    "qwen2-odd": ("Qwen2", shape(320, 5, 1, vocab=1003)),
    "qwen2-yarn": ("Qwen2", shape(64, 4, 2, rope_parameters=YARN)),
    "qwen2-window": ("Qwen2", shape(64, 4, 2, layers=4, use_sliding_window=True, sliding_window=13,
                                    max_window_layers=2)),
    "qwen3-tied": ("Qwen3", shape(64, 4, 2, 32, tie_word_embeddings=True)),
    "qwen3-head-apart": ("Qwen3", shape(80, 4, 2, 48)),
    "qwen3-head-128": ("Qwen3", shape(64, 3, 1, 128)),
    "qwen3-odd": ("Qwen3", shape(320, 5, 1, 64, vocab=1003)),
    "qwen3-yarn": ("Qwen3", shape(64, 4, 2, 16, rope_parameters=YARN)),
    "qwen3-bias": ("Qwen3", shape(64, 4, 2, 16, attention_bias=True)),
    "mistral-window": ("Mistral", shape(64, 4, 2, sliding_window=11)),
    "mistral-no-window": ("Mistral", shape(64, 4, 2, sliding_window=None)),
    "mistral-head": ("Mistral", shape(96, 4, 2, 40, sliding_window=29)),
    "qwen3moe": ("Qwen3Moe", experts(64, 4, 2, 16, n=8, of_token=2, size=48, norm_topk_prob=True)),
    "qwen3moe-not-normalised": ("Qwen3Moe", experts(64, 4, 2, 16, n=13, of_token=5, size=33, norm_topk_prob=False)),
    "qwen3moe-sparse-step": ("Qwen3Moe", experts(48, 3, 1, 16, n=5, of_token=5, size=40, layers=5, norm_topk_prob=True,
                                                 decoder_sparse_step=2, mlp_only_layers=[3])),
    "qwen3moe-many": ("Qwen3Moe", experts(320, 5, 1, 64, n=128, of_token=8, size=56, vocab=1003, norm_topk_prob=True,
                                          tie_word_embeddings=True)),
    "qwen3moe-window": ("Qwen3Moe", experts(64, 4, 2, 16, n=4, of_token=1, size=64, use_sliding_window=True,
                                            sliding_window=13, attention_bias=True)),
    "qwen3moe-gelu": ("Qwen3Moe", experts(64, 4, 2, 16, n=4, of_token=3, size=64, hidden_act="gelu_pytorch_tanh")),
    "phi3": ("Phi3", shape(64, 4, 4, pad_token_id=0)),
    "phi3-grouped-window": ("Phi3", shape(96, 6, 2, ffn=77, sliding_window=13, pad_token_id=0)),
    "phi3-short": ("Phi3", shape(64, 4, 2, rope_parameters=longrope(8), pad_token_id=0,
                                 original_max_position_embeddings=256)),
    "phi3-long": ("Phi3", shape(160, 2, 1, rope_parameters=longrope(40), pad_token_id=0,
                                original_max_position_embeddings=64)),
    "phi3-partial-tied": ("Phi3", shape(256, 2, 1, rope_parameters=longrope(48, partial_rotary_factor=0.75), vocab=1003,
                                        original_max_position_embeddings=64, tie_word_embeddings=True, pad_token_id=0)),
    "gemma": ("Gemma", shape(64, 4, 1, 32)),
    "gemma2": ("Gemma2", shape(96, 4, 2, 40, layers=4, sliding_window=13, query_pre_attn_scalar=24,
                               attn_logit_softcapping=1.5, final_logit_softcapping=3.0)),
    "gemma2-no-caps": ("Gemma2", shape(64, 2, 1, 48, layers=3, vocab=1003, sliding_window=31, query_pre_attn_scalar=48,
                                       attn_logit_softcapping=None, final_logit_softcapping=None, ffn=77)),
    "gemma3": ("Gemma3Text", shape(64, 4, 2, 32, layers=7, sliding_window=13, query_pre_attn_scalar=20,
                                   rope_parameters=GEMMA3)),
    "gemma3-types": ("Gemma3Text", shape(48, 2, 2, 16, layers=4, sliding_window=9, tie_word_embeddings=False,
                                         layer_types=[f"{w}_attention" for w in ("full", "sliding", "full", "full")])),
    "olmo2": ("Olmo2", shape(64, 4, 2)),
    "olmo2-bias": ("Olmo2", shape(96, 6, 6, ffn=77, vocab=1003, attention_bias=True, rms_norm_eps=0.01)),
    "smollm3": ("SmolLM3", shape(64, 4, 2, layers=5, pad_token_id=0, bos_token_id=1, eos_token_id=2)),
    "smollm3-layers": ("SmolLM3", shape(96, 3, 1, layers=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                        no_rope_layers=[0, 1, 0], tie_word_embeddings=False, attention_bias=True)),
    "granite": ("Granite", shape(64, 4, 2, embedding_multiplier=12.0, attention_multiplier=0.3,
                                 residual_multiplier=0.22, logits_scaling=8.0)),
    "granite-ones": ("Granite", shape(96, 6, 2, vocab=1003, attention_bias=True, mlp_bias=True,
                                      tie_word_embeddings=True)),
    "gptoss": ("GptOss", shape(64, 4, 2, 16, layers=3, num_local_experts=6, num_experts_per_tok=2, sliding_window=13,
                               rope_parameters={**YARN, "truncate": False}, pad_token_id=0)),
    "gptoss-plain": ("GptOss", shape(96, 6, 2, 40, ffn=77, vocab=1003, num_local_experts=5, num_experts_per_tok=5,
                                     rope_parameters={"rope_type": "default", "rope_theta": 1e4}, swiglu_limit=0.9,
                                     attention_bias=False, pad_token_id=0, sliding_window=31,
                                     layer_types=["full_attention", "sliding_attention"])),
    "cohere": ("Cohere", shape(64, 4, 2)),
    "cohere-odd": ("Cohere", shape(96, 3, 1, ffn=77, vocab=1003, attention_bias=True, tie_word_embeddings=False,
                                   logit_scale=0.7, layer_norm_eps=0.01)),
    "cohere2": ("Cohere2", shape(64, 4, 2, layers=5, sliding_window=13)),
    "cohere2-types": ("Cohere2", shape(96, 3, 1, ffn=77, vocab=1003, sliding_window=9, logit_scale=1.0,
                                       layer_types=["full_attention", "sliding_attention"])),
    "starcoder2": ("Starcoder2", shape(64, 4, 2, sliding_window=13)),
    "starcoder2-plain": ("Starcoder2", shape(96, 3, 1, ffn=77, vocab=1003, use_bias=False, norm_epsilon=0.01,
                                             tie_word_embeddings=False)),
    "starcoder2-silu": ("Starcoder2", shape(64, 2, 2, hidden_act="silu")),
    "olmo3": ("Olmo3", shape(64, 4, 2, layers=5, sliding_window=13)),
    "olmo3-yarn": ("Olmo3", shape(96, 3, 1, ffn=77, vocab=1003, sliding_window=31, rope_parameters={
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
        layer_types=["full_attention", "sliding_attention"])),
    "seed-oss": ("SeedOss", shape(64, 4, 2, 16)),
    "seed-oss-biases": ("SeedOss", shape(96, 3, 1, 40, ffn=77, vocab=1003, attention_out_bias=True, mlp_bias=True,
                                         tie_word_embeddings=True)),
    "seed-oss-plain": ("SeedOss", shape(64, 2, 2, attention_bias=False, head=48)),
    "ernie4-5": ("Ernie4_5", shape(64, 4, 2, 16)),
    "ernie4-5-bias": ("Ernie4_5", shape(96, 3, 1, 40, ffn=77, vocab=1003, use_bias=True, tie_word_embeddings=False)),
    "hunyuan": ("HunYuanDenseV1", shape(64, 4, 2, 16)),
    "hunyuan-alpha": ("HunYuanDenseV1", shape(96, 3, 1, 32, ffn=77, vocab=1003, attention_bias=True, rope_parameters={
        "rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0})),
    "exaone4": ("Exaone4", shape(64, 4, 2, layers=5, sliding_window=13)),
    "exaone4-no-window": ("Exaone4", shape(96, 3, 1, ffn=77, vocab=1003, sliding_window=None, rope_parameters=LLAMA3,
                                           tie_word_embeddings=True, layer_types=["full_attention"] * 2)),
    "glm4": ("Glm4", shape(64, 4, 2, 16, pad_token_id=0)),
    "glm4-odd": ("Glm4", shape(96, 3, 1, 40, ffn=77, vocab=1003, attention_bias=False, tie_word_embeddings=True,
                               pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 1e4,
                                                                "partial_rotary_factor": 0.3})),
    "olmoe": ("Olmoe", shape(64, 4, 2, num_experts=8, num_experts_per_tok=3)),
    "olmoe-normalised": ("Olmoe", shape(96, 3, 3, ffn=77, vocab=1003, num_experts=5, num_experts_per_tok=2,
                                        norm_topk_prob=True, attention_bias=True)),
    "qwen2moe": ("Qwen2Moe", experts(64, 4, 2, n=8, of_token=3, size=48, shared_expert_intermediate_size=104)),
    "qwen2moe-sparse-step": ("Qwen2Moe", experts(96, 3, 1, n=5, of_token=2, size=40, layers=4, vocab=1003, ffn=77,
                                                 norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[3],
                                                 shared_expert_intermediate_size=33, tie_word_embeddings=True)),
    "granitemoe": ("GraniteMoe", shape(64, 4, 2, num_local_experts=6, num_experts_per_tok=2, embedding_multiplier=12.0,
                                       attention_multiplier=0.3, residual_multiplier=0.22, logits_scaling=8.0)),
    "granitemoe-ones": ("GraniteMoe", shape(96, 6, 2, ffn=77, vocab=1003, num_local_experts=5, num_experts_per_tok=3,
                                            attention_bias=True, tie_word_embeddings=True)),
    "deepseek2-lite": ("DeepseekV2", latent(64, 4, (None, 32), 16, 8, 24, n=8, of_token=3, size=40, n_shared_experts=2,
                                            first_k_dense_replace=1, rope_parameters=MSCALE)),
    "deepseek2-groups": ("DeepseekV2", latent(96, 3, (33, 40), 24, 16, 17, n=12, of_token=4, size=33, ffn=77,
                                              vocab=1003, n_shared_experts=1, n_group=4, topk_group=2,
                                              topk_method="group_limited_greedy", routed_scaling_factor=16.0,
                                              attention_bias=True)),
    "deepseek3": ("DeepseekV3", latent(64, 4, (40, 32), 16, 8, 24, n=16, of_token=3, size=40, n_shared_experts=1,
                                       first_k_dense_replace=2, n_group=4, topk_group=2, routed_scaling_factor=2.5,
                                       rope_parameters={**MSCALE, "mscale": 1.0})),
    "deepseek3-one-group": ("DeepseekV3", latent(96, 6, (None, 48), 16, 32, 8, n=7, of_token=2, size=64, vocab=1003,
                                                 n_shared_experts=2, first_k_dense_replace=0, n_group=1, topk_group=1,
                                                 norm_topk_prob=False, tie_word_embeddings=True)),
    "glm4-moe-lite": ("Glm4MoeLite", latent(64, 4, (40, 32), 16, 8, 24, n=8, of_token=3, size=40,
                                            routed_scaling_factor=1.8)),
    "glm4-moe-lite-layers": ("Glm4MoeLite", latent(96, 6, (None, 48), 24, 16, 8, n=6, of_token=2, size=64, ffn=77,
                                                   vocab=1003, n_shared_experts=2, norm_topk_prob=False,
                                                   mlp_layer_types=["sparse", "dense", "sparse"],
                                                   tie_word_embeddings=True)),
    "glm4moe": ("Glm4Moe", shape(64, 4, 2, 32, layers=3, n_routed_experts=12, num_experts_per_tok=3, pad_token_id=0,
                                 moe_intermediate_size=40, n_group=3, topk_group=2, use_qk_norm=True,
                                 routed_scaling_factor=2.5, attention_bias=True)),
    "glm4moe-air": ("Glm4Moe", shape(96, 3, 1, 40, layers=3, ffn=77, vocab=1003, n_routed_experts=5,
                                     num_experts_per_tok=2, moe_intermediate_size=64, n_shared_experts=2,
                                     first_k_dense_replace=0, attention_bias=False, pad_token_id=0, rope_parameters={
                                         "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.3})),
    "qwen3-5": ("Qwen3_5Text", shape(64, 4, 2, 32, layers=4, **delta(2, 4, 16, 16))),
    "qwen3-5-odd": ("Qwen3_5Text", shape(96, 3, 1, 40, layers=3, ffn=77, vocab=1003, tie_word_embeddings=True,
                                         attention_bias=True, linear_conv_kernel_dim=3, layer_types=[
                                             "full_attention", "linear_attention", "linear_attention"],
                                         **delta(3, 3, 24, 40))),
    "qwen3-next": ("Qwen3Next", experts(64, 4, 2, 32, layers=4, n=8, of_token=3, size=40,
                                        shared_expert_intermediate_size=48, **delta(2, 4, 16, 32))),
    "qwen3-next-dense": ("Qwen3Next", experts(96, 6, 2, 16, layers=5, n=5, of_token=2, size=40, ffn=77, vocab=1003,
                                              shared_expert_intermediate_size=33, mlp_only_layers=[1],
                                              norm_topk_prob=False, **delta(1, 3, 32, 8))),
    "qwen3-5-moe": ("Qwen3_5MoeText", experts(64, 4, 1, 32, layers=4, n=8, of_token=3, size=40,
                                              shared_expert_intermediate_size=48, **delta(4, 8, 16, 16))),
    "minimax-m2": ("MiniMaxM2", shape(64, 4, 2, 32, layers=3, num_local_experts=12, num_experts_per_tok=3, ffn=40,
                                      rope_parameters=HALF)),
    "minimax-m2-rotary": ("MiniMaxM2", shape(96, 3, 1, 40, ffn=77, vocab=1003, num_local_experts=5,
                                             num_experts_per_tok=2, rotary_dim=24, tie_word_embeddings=True)),
    "ministral3": ("Ministral3", shape(64, 4, 2, 16, pad_token_id=0, rope_parameters={
        **GROWING, "mscale": 1.0, "mscale_all_dim": 1.0})),
    "ministral3-odd": ("Ministral3", shape(96, 3, 1, 40, ffn=77, vocab=1003, pad_token_id=0, tie_word_embeddings=True,
                                           sliding_window=31, rope_parameters={
                                               **GROWING, "original_max_position_embeddings": 7})),
    "exaone-moe": ("ExaoneMoe", experts(64, 4, 2, 16, n=8, of_token=3, size=40, layers=5, sliding_window=13,
                                        layer_types=TYPES5)),
    "exaone-moe-unrotated": ("ExaoneMoe", experts(96, 3, 1, n=12, of_token=2, size=64, ffn=77, vocab=1003, n_group=3,
                                                  topk_group=2, norm_topk_prob=False, sliding_window=31,
                                                  num_shared_experts=2, layer_types=["full_attention"] * 2,
                                                  mlp_layer_types=["sparse", "dense"])),
    "dots1": ("Dots1", shape(64, 4, 2, 16, layers=3, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
                             moe_intermediate_size=40, first_k_dense_replace=1, norm_topk_prob=True,
                             routed_scaling_factor=2.5)),
    "dots1-window": ("Dots1", shape(96, 3, 1, ffn=77, vocab=1003, layers=4, n_routed_experts=5, num_experts_per_tok=2,
                                    n_shared_experts=2, moe_intermediate_size=64, attention_bias=True,
                                    sliding_window=13, max_window_layers=2)),
    "solar-open": ("SolarOpen", shape(64, 4, 2, 16, n_routed_experts=8, num_experts_per_tok=3,
                                      moe_intermediate_size=40, routed_scaling_factor=2.5)),
    "solar-open-odd": ("SolarOpen", shape(96, 3, 1, 40, vocab=1003, n_routed_experts=6, num_experts_per_tok=2,
                                          moe_intermediate_size=64, attention_bias=True, n_group=2, topk_group=1,
                                          rope_parameters=YARN, tie_word_embeddings=True)),
    "ernie4-5-moe": ("Ernie4_5_Moe", shape(64, 4, 2, 16, layers=4, moe_num_experts=8, moe_k=3,
                                           moe_intermediate_size=40)),
    "ernie4-5-moe-odd": ("Ernie4_5_Moe", shape(96, 3, 1, layers=5, ffn=77, vocab=1003, moe_num_experts=5, moe_k=2,
                                               moe_intermediate_size=64, moe_num_shared_experts=0,
                                               moe_layer_start_index=0, moe_layer_end_index=3, moe_layer_interval=2,
                                               tie_word_embeddings=False)),
    "hunyuan-moe": ("HunYuanMoEV1", shape(64, 4, 2, 16, num_experts=8, moe_topk=3)),
    "hunyuan-moe-odd": ("HunYuanMoEV1", shape(96, 3, 1, 32, ffn=77, vocab=1003, num_experts=5, moe_topk=[2, 2],
                                              attention_bias=True, tie_word_embeddings=True)),
    "arcee": ("Arcee", shape(64, 4, 2)),
    "arcee-biases": ("Arcee", shape(96, 3, 1, 40, ffn=77, vocab=1003, attention_bias=True, mlp_bias=True,
                                    rope_parameters=YARN, tie_word_embeddings=True)),
    "nemotron": ("Nemotron", shape(64, 4, 2, 32)),
    "nemotron-biases": ("Nemotron", shape(96, 3, 1, 40, ffn=77, vocab=1003, attention_bias=True, mlp_bias=True,
                                          partial_rotary_factor=0.3, norm_eps=0.01)),
    "stablelm": ("StableLm", shape(128, 4, 2)),
    "stablelm-parallel": ("StableLm", shape(96, 3, 1, ffn=77, vocab=1003, use_qkv_bias=True, layer_norm_eps=0.01,
                                            use_parallel_residual=True, partial_rotary_factor=0.5,
                                            tie_word_embeddings=True)),
    "phi": ("Phi", shape(128, 4, 4)),
    "phi-odd": ("Phi", shape(96, 3, 1, ffn=77, vocab=1003, hidden_act="gelu", partial_rotary_factor=0.25)),
    "olmo": ("Olmo", shape(64, 4, 2)),
    "olmo-odd": ("Olmo", shape(96, 3, 1, ffn=77, vocab=1003, attention_bias=True, tie_word_embeddings=True)),
    "gpt-neox": ("GPTNeoX", shape(128, 4, 4)),
    "gpt-neox-odd": ("GPTNeoX", shape(96, 3, 3, ffn=77, vocab=1003, use_parallel_residual=False, layer_norm_eps=0.01,
                                      attention_bias=False, hidden_act="gelu_new", tie_word_embeddings=True,
                                      rope_parameters={"rope_type": "default", "rope_theta": 500.0,
                                                       "partial_rotary_factor": 1.0})),
    "llama4": ("Llama4Text", shape(64, 4, 2, 16, layers=5, ffn=40, intermediate_size_mlp=96, num_local_experts=6,
                                   attention_chunk_size=512, floor_scale=16, attn_scale=0.4)),
    "llama4-layers": ("Llama4Text", shape(96, 3, 1, 40, layers=4, ffn=77, vocab=1003, intermediate_size_mlp=128,
                                          num_local_experts=5, interleave_moe_layer_step=2, use_qk_norm=False,
                                          no_rope_layers=[0, 1, 1, 0], attention_chunk_size=512, floor_scale=50,
                                          attention_bias=True, rope_parameters={**LLAMA3, "high_freq_factor": 1.0})),
    "mixtral": ("Mixtral", shape(64, 4, 2, num_local_experts=8, num_experts_per_tok=2)),
    "mixtral-window": ("Mixtral", shape(96, 4, 2, 40, num_local_experts=3, num_experts_per_tok=3, sliding_window=11)),
    "mixtral-odd": ("Mixtral", shape(160, 5, 1, ffn=77, vocab=1003, num_local_experts=7, num_experts_per_tok=1)),
}


def make(name, cases=CASES):
    family, options = cases[name]
    generator = torch.Generator().manual_seed(RANDOM.randrange(2**31))
    config = getattr(transformers, family + "Config")(attn_implementation="eager", experts_implementation="eager",
                                                      **options)
    model = getattr(transformers, family.removesuffix("Text") + "ForCausalLM")(config)
    return randomise_biases(support.randomise(model, generator), generator).eval(), config


def randomise_biases(model, generator):
    """What experts are chosen by has biases, which are no parameters."""
    for name, b in [*model.named_buffers(), *((n, p.data) for n, p in model.named_parameters())]:
        if name.endswith("e_score_correction_bias"):
            b.copy_(0.3 * torch.rand(b.shape, generator=generator))
    return model


def context_for(config, tokens):
    """Options for the context in which mpk takes the divisors of longrope that Transformers takes for these tokens."""
    original = config.rope_parameters.get("original_max_position_embeddings", 0)
    is_short = config.rope_parameters.get("rope_type") == "longrope" and len(tokens) <= original
    return ["--context", original] if is_short else []


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def gap(values, n):
    """How far the n largest entries of rows are from the others, at least."""
    best = values.topk(min(n + 1, values.shape[-1])).values
    return (best[:, n - 1] - best[:, -1]).min() if best.shape[-1] > n else 1.0


def bias_of(mixture):
    """What experts are chosen by has it; None: they have none."""
    for part in (mixture.gate, mixture, getattr(mixture.gate, "moe_statics", None)):
        if hasattr(part, "e_score_correction_bias"):
            return part.e_score_correction_bias
    return None


def experts_of_token(config):
    """How many experts a token goes to; None: there are none."""
    for name in ("num_experts_per_tok", "moe_topk"):
        if hasattr(config, name):
            n = getattr(config, name)
            return n[0] if isinstance(n, list) else n
    return None


def is_decided(model, config, routers):
    """Are all experts and groups of experts chosen by a margin?"""
    layers = (model.model if hasattr(model, "model") else model.base_model).layers
    mixtures = [layer.mlp for layer in layers if hasattr(getattr(layer, "mlp", None), "gate")]
    for i, r in enumerate(routers):
        r = r.float()
        bias = bias_of(mixtures[i]) if mixtures else None
        if bias is not None:
            r = (r.softmax(-1) if config.model_type.startswith("ernie") else r.sigmoid()) + bias
        groups = getattr(config, "n_group", None) or 1
        if groups > 1:
            parts = r.view(len(r), groups, -1)
            rated = parts.topk(2 if bias is not None else 1).values.sum(-1)
            if gap(rated, config.topk_group) < 1e-5:
                return False
            kept = torch.zeros_like(rated).scatter(1, rated.topk(config.topk_group).indices, 1.0)
            r = parts.masked_fill(kept[..., None] == 0, -torch.inf).view(r.shape)
        if gap(r, experts_of_token(config)) < 1e-5:
            return False
    return True


def choose_tokens(model, config, n):
    """Tokens that no router of the model is undecided about: another order of a sum must not send one elsewhere."""
    while True:
        tokens = [RANDOM.randrange(config.vocab_size) for _ in range(n)]
        if not experts_of_token(config):
            return tokens
        with torch.no_grad():
            routers = model(torch.tensor([tokens]), output_router_logits=True).router_logits
        if is_decided(model, config, routers):
            return tokens


def log_softmax(x):
    x = x.astype(numpy.float64)
    x = x - x.max(-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))


def mean_kl(reference, other):
    p, q = log_softmax(reference), log_softmax(other)
    return float((numpy.exp(p) * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.draws(14)
def test_fp32(name, tmp_path):
    model, config = make(name)
    folder = support.save(model, tmp_path / "model")
    tokens = choose_tokens(model, config, RANDOM.randrange(70, 140))
    expected = logits_of(model, tokens)
    found = support.score(folder, tokens, tmp_path, "--kv", "f32", *context_for(config, tokens))
    assert found.shape == expected.shape and found.dtype == numpy.float32
    difference = numpy.abs(found - expected).max() / (expected.max() - expected.min())
    print(f"{name}: {difference:.2e} of the range")
    # linear attention divides keys by their length, however small it is: Transformers' own fp32 is as far from fp64
    assert difference < (5e-4 if hasattr(config, "linear_num_key_heads") else 1e-4)


@pytest.mark.parametrize("name", ["llama-tied", "llama-head-80", "qwen2-untied", "qwen3-odd", "mistral-window",
                                  "qwen3moe", "mixtral", "phi3", "gemma2", "gemma3", "gptoss", "deepseek2-lite"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.draws(5)
def test_half(name, dtype, tmp_path):
    model, config = make(name)
    folder = support.save(model, tmp_path / "model", dtype)
    # Loaded again, since Module.to() also rounds the angles of rope, which from_pretrained keeps in fp32.
    load = transformers.AutoModelForCausalLM.from_pretrained
    half, whole = (load(folder, dtype=d, attn_implementation="eager").eval() for d in (getattr(torch, dtype),
                                                                                      torch.float32))
    tokens = choose_tokens(whole, config, 100)
    half, expected = logits_of(half, tokens), logits_of(whole, tokens)
    found = support.score(folder, tokens, tmp_path)
    ours, theirs = mean_kl(expected, found), mean_kl(expected, half)
    print(f"{name} {dtype}: mean KL {ours:.2e}, PyTorch {theirs:.2e}")
    assert ours <= 1.5 * theirs


def test_sharded_checkpoint_and_both_spellings(tmp_path):
    """The same weights in shards, and under the older spelling of rope and dtype, give the same bits."""
    model, config = make("llama-rope-llama3")
    tokens = [RANDOM.randrange(config.vocab_size) for _ in range(60)]
    whole = support.save(model, tmp_path / "whole")
    shards = support.save(model, tmp_path / "shards", shard="50KB")
    assert (shards / "model.safetensors.index.json").exists()
    first = support.score(whole, tokens, tmp_path)
    assert numpy.array_equal(first, support.score(shards, tokens, tmp_path))
    path = whole / "config.json"
    old = json.loads(path.read_text())
    rope = old.pop("rope_parameters")
    old["rope_theta"] = rope.pop("rope_theta")
    old["rope_scaling"] = rope
    old["torch_dtype"] = old.pop("dtype")
    path.write_text(json.dumps(old))
    assert numpy.array_equal(first, support.score(whole, tokens, tmp_path))


@pytest.mark.parametrize("name", ["qwen3moe-sparse-step", "mixtral"])
def test_experts_however_they_are_stored(name, tmp_path):
    """One tensor for each expert (what Transformers writes), in shards, or all in one: the same bits."""
    import safetensors.torch
    model, config = make(name)
    tokens = [RANDOM.randrange(config.vocab_size) for _ in range(60)]
    whole = support.save(model, tmp_path / "whole")
    assert any(".experts.0." in n for n in safetensors.torch.load_file(whole / "model.safetensors"))
    first = support.score(whole, tokens, tmp_path)
    shards = support.save(model, tmp_path / "shards", shard="100KB")
    assert (shards / "model.safetensors.index.json").exists()
    assert numpy.array_equal(first, support.score(shards, tokens, tmp_path))
    together = {n: t.contiguous() for n, t in model.state_dict().items()}
    assert any(n.endswith(".experts.gate_up_proj") for n in together)
    safetensors.torch.save_file(together, whole / "model.safetensors")
    assert numpy.array_equal(first, support.score(whole, tokens, tmp_path))


def write_gguf(path, architecture, values, tensors):
    """A GGUF file of these integers and floats, and of float32 tensors."""
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values) + 1)
    out += text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    for key, value in values.items():
        kind = struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
        out += text(f"{architecture}.{key}") + kind
    data = b""
    for name, t in tensors.items():
        out += text(name) + struct.pack("<I", t.ndim) + struct.pack(f"<{t.ndim}Q", *reversed(t.shape))
        out += struct.pack("<IQ", 0, len(data))
        data += t.tobytes() + bytes(-t.nbytes % 32)
    path.write_bytes(out + bytes(-len(out) % 32) + data)
    return path


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
              "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"}


def gguf_tensors(model, config, interleaved):
    """The tensors as llama.cpp's converter names and stacks them; interleaved: rows of q and k for pairs that are
    neighbours."""
    out = {}
    for name, t in model.state_dict().items():
        t = t.numpy()
        if name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
            short = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}
            out[short.get(name, "output") + ".weight"] = t
            continue
        layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
        if interleaved and part.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if part.endswith("q_proj") else config.num_key_value_heads
            t = t.reshape(heads, 2, -1, t.shape[1]).swapaxes(1, 2).reshape(t.shape)
        if part == "mlp.experts.gate_up_proj":
            out[f"blk.{layer}.ffn_gate_exps.weight"], out[f"blk.{layer}.ffn_up_exps.weight"] = (
                numpy.ascontiguousarray(half) for half in numpy.split(t, 2, axis=1))
        elif part == "mlp.experts.down_proj":
            out[f"blk.{layer}.ffn_down_exps.weight"] = t
        else:
            out[f"blk.{layer}.{GGUF_NAMES[part]}.weight"] = numpy.ascontiguousarray(t)
    return out


@pytest.mark.parametrize("name, architecture", [("qwen3moe", "qwen3moe"), ("mixtral-odd", "llama")])
def test_experts_in_gguf(name, architecture, tmp_path):
    model, config = make(name)
    values = {"block_count": config.num_hidden_layers, "context_length": 512, "embedding_length": config.hidden_size,
              "feed_forward_length": config.intermediate_size, "attention.head_count": config.num_attention_heads,
              "attention.head_count_kv": config.num_key_value_heads,
              "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
              "rope.freq_base": float(config.rope_parameters["rope_theta"]),
              "expert_used_count": config.num_experts_per_tok, "expert_count": config.num_local_experts}
    if architecture == "qwen3moe":
        values |= {"expert_feed_forward_length": config.moe_intermediate_size, "attention.key_length": config.head_dim,
                   "attention.value_length": config.head_dim}
    path = write_gguf(tmp_path / "model.gguf", architecture, values,
                      gguf_tensors(model, config, architecture == "llama"))
    tokens = choose_tokens(model, config, 80)
    found = support.score(path, tokens, tmp_path, "--kv", "f32")
    expected = logits_of(model, tokens)
    assert numpy.abs(found - expected).max() < 1e-4 * (expected.max() - expected.min())
    folder = support.save(model, tmp_path / "folder")
    assert numpy.array_equal(found, support.score(folder, tokens, tmp_path, "--kv", "f32"))


@pytest.mark.parametrize("name", [
    "qwen3-odd", "llama-mlp-bias", "mistral-window", "qwen3moe-sparse-step", "gemma2", "granite", "olmo2", "gptoss",
    "hunyuan", "glm4", "exaone4", "qwen2moe", "granitemoe", "cohere2", "starcoder2", "olmo3-yarn", "deepseek2-lite",
    "deepseek3", "minimax-m2", "ministral3", "llama4", "nemotron", "gpt-neox", "olmo", "qwen3-5", "qwen3-next"])
@pytest.mark.draws(10)
def test_all_fusions_agree(name, tmp_path):
    """The operators that the compiler fuses compute what the plain ones do: the same bits with reference bodies, whose
    reductions have one order, and the same up to rounding with the fast ones."""
    model, config = make(name)
    folder = support.save(model, tmp_path / name, "bfloat16")
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = choose_tokens(whole, config, 75)
    reference = {"MPK_ISA": "none"}
    plain = support.score(folder, tokens, tmp_path, "--ops", "none", env=reference)
    assert numpy.array_equal(plain, support.score(folder, tokens, tmp_path, "--ops", "full", env=reference)), name
    for ops in ["full", "none"]:
        fast = support.score(folder, tokens, tmp_path, "--ops", ops)
        allowed = 1e-4 if hasattr(config, "linear_num_key_heads") else 1e-5  # as in test_fp32
        assert numpy.abs(fast - plain).max() < allowed * (plain.max() - plain.min()), (name, ops)
