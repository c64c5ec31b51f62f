"""Hugging Face models of a few kilobytes and plain modules, for the tests of the PyTorch backend."""

import torch
import transformers as t
from torch import nn

SMALL = dict(
    hidden_size=64,
    num_attention_heads=4,
    num_hidden_layers=2,
    intermediate_size=96,
    vocab_size=100,
    max_position_embeddings=64,
)
GROUPED = dict(**SMALL, num_key_value_heads=2)
HEADS = dict(**GROUPED, head_dim=16)
VISION = dict(
    hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=96, image_size=32, patch_size=8
)
TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)


def token_ids(batch=2, n=10):
    return {"input_ids": torch.randint(3, 99, (batch, n))}


def image():
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


DECODERS = {
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**GROUPED)),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**GROUPED)),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**HEADS)),
    "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**GROUPED, sliding_window=None)),
    "gemma2": lambda: t.Gemma2ForCausalLM(t.Gemma2Config(**HEADS, sliding_window=8)),
    "gemma3": lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**HEADS, sliding_window=8)),
    "phi3": lambda: t.Phi3ForCausalLM(t.Phi3Config(**GROUPED, pad_token_id=0)),
    "gpt2": lambda: t.GPT2LMHeadModel(
        t.GPT2Config(n_embd=64, n_head=4, n_layer=2, vocab_size=100, n_positions=64, **TOKENS)
    ),
    "gpt_neox": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**SMALL)),
    "opt": lambda: t.OPTForCausalLM(
        t.OPTConfig(
            hidden_size=64,
            num_attention_heads=4,
            num_hidden_layers=2,
            ffn_dim=96,
            vocab_size=100,
            max_position_embeddings=64,
            word_embed_proj_dim=64,
        )
    ),
    "falcon": lambda: t.FalconForCausalLM(
        t.FalconConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=100)
    ),
    "mixtral": lambda: t.MixtralForCausalLM(t.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(
        t.Qwen3MoeConfig(**HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    ),
}
COMPLEX = {  # rope by complex numbers
    "llama4": lambda: t.Llama4ForCausalLM(
        t.Llama4TextConfig(
            **HEADS, intermediate_size_mlp=96, num_local_experts=4, num_experts_per_tok=1, pad_token_id=0
        )
    ),
    "deepseek_v2": lambda: t.DeepseekV2ForCausalLM(
        t.DeepseekV2Config(
            **SMALL,
            num_key_value_heads=4,
            moe_intermediate_size=32,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            kv_lora_rank=16,
            q_lora_rank=24,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=16,
            first_k_dense_replace=1,
            n_group=2,
            topk_group=1,
            topk_method="greedy",
        )
    ),
}
OTHERS = {
    "bert": lambda: (t.BertModel(t.BertConfig(**SMALL)), token_ids()),
    "roberta": lambda: (t.RobertaModel(t.RobertaConfig(**SMALL)), token_ids()),
    "t5_encoder": lambda: (
        t.T5EncoderModel(t.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=100)),
        token_ids(),
    ),
    "vit": lambda: (t.ViTModel(t.ViTConfig(**VISION)), image()),
    "clip": lambda: (
        t.CLIPModel(
            t.CLIPConfig(
                text_config=dict(**SMALL, **TOKENS | {"eos_token_id": 99}), vision_config=VISION, projection_dim=32
            )
        ),
        {**token_ids(), **image()},
    ),
    "whisper_encoder": lambda: (
        t.WhisperModel(
            t.WhisperConfig(
                d_model=64,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=96,
                decoder_ffn_dim=96,
                vocab_size=100,
                max_source_positions=20,
                num_mel_bins=16,
                decoder_start_token_id=1,
                **TOKENS,
            )
        ).get_encoder(),
        {"input_features": torch.randn(2, 16, 40)},
    ),
}


def model(name):
    """(model, arguments by name, the model's own) with weights from the current seed."""
    if name in DECODERS:
        return DECODERS[name]().eval(), {**token_ids(), "use_cache": False}
    net, arguments = OTHERS[name]()
    return net.eval(), arguments


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(n_out),
            nn.ReLU(),
            nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(n_out),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


class Unrolled(nn.Module):
    """An LSTM cell, step by step."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(12, 24), nn.Linear(24, 5)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 24)
        out = []
        for i in range(x.shape[1]):
            h, c = self.cell(x[:, i], (h, c))
            out.append(self.head(h))
        return torch.stack(out, 1)


MODULES = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 16), nn.LayerNorm(16)),
        torch.randn(3, 16),
    ),
    "transformer_encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
        torch.randn(2, 7, 32),
    ),
    "lstm": lambda: (Unrolled(), torch.randn(2, 6, 12)),
    "resnet": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            Block(8, 8, 1),
            Block(8, 16, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        ),
        torch.randn(2, 3, 32, 32),
    ),
}
