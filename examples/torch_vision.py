"""A vision transformer, compiled: torch_vision.py"""

import time

import torch
import transformers

import mpk


def main():
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=96,
        num_attention_heads=4,
        num_hidden_layers=4,
        intermediate_size=192,
        image_size=64,
        patch_size=8,
        num_labels=10,
    )
    model = transformers.ViTForImageClassification(config).eval()
    image = torch.randn(1, 3, 64, 64)
    compiled = torch.compile(model, backend="mpk")
    with torch.no_grad():
        expected, got = model(image).logits, compiled(image).logits
        for name, fn in (("eager", model), ("mpk", compiled)):
            start = time.perf_counter()
            for _ in range(20):
                fn(image)
            print(f"{name:6} {(time.perf_counter() - start) / 20 * 1e3:.2f} ms")
    print(mpk.explain(model, image))
    return (got - expected).abs().max() <= 1e-4 * expected.abs().max()


if __name__ == "__main__":
    raise SystemExit(0 if main() else "the results differ")
