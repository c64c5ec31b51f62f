"""A Hugging Face model by from_config, compiled, generating with a static cache: torch_generate.py

The cache lies in PyTorch's memory and the compiled step writes it in place: each token is one launch.
"""

import torch
import transformers

import mpk


def main():
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_hidden_layers=2,
        intermediate_size=256,
        vocab_size=500,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    step = torch.compile(model, backend="mpk")
    prompt = torch.randint(0, 500, (1, 8))

    def generate(forward, n=16):
        cache, tokens = transformers.StaticCache(config=config, max_cache_len=32), []
        logits = model(prompt, past_key_values=cache).logits
        for i in range(n):
            tokens.append(logits[:, -1:].argmax(-1))
            position = torch.full((1, 1), prompt.shape[1] + i)
            logits = forward(tokens[-1], past_key_values=cache, position_ids=position).logits
        return torch.cat(tokens, 1)[0].tolist()

    with torch.no_grad():
        ours, theirs = generate(step), generate(model)
    print("compiled:", *ours)
    print("eager:   ", *theirs)
    print(mpk.explain(model, prompt, use_cache=False))
    return ours == theirs


if __name__ == "__main__":
    raise SystemExit(0 if main() else "the tokens differ")
