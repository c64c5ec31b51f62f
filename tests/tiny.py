"""A model of a few kilobytes with a tokenizer, for tests of everything but accuracy."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors


def tokenizer(folder, extra=(), special=(), marks=()):
    """A byte-level BPE with all bytes, a few merges and the special tokens <s> </s>, and others; marks: added tokens
    that are not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate(alphabet)}
    merges = []
    for a, b in [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "a"), ("Ġ", "the"), *extra]:
        merges.append((a, b))
        vocabulary[a + b] = len(vocabulary)
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<s>", "</s>", *special])
    t.add_tokens([AddedToken(m, normalized=False) for m in marks])
    t.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    t.save(str(folder / "tokenizer.json"))
    return t


def model(folder, generator=None, family="Llama", special=(), marks=(), change=None, **more):
    """A model of two layers as a Hugging Face folder; the tokenizer's vocabulary decides its size.  change: called
    with the network before it is saved."""
    import torch
    import transformers

    import support
    folder.mkdir(parents=True, exist_ok=True)
    t = tokenizer(folder, special=special, marks=marks)
    options = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
                   intermediate_size=48,
                   vocab_size=t.get_vocab_size(), max_position_embeddings=256, bos_token_id=t.token_to_id("<s>"),
                   eos_token_id=t.token_to_id("</s>"), tie_word_embeddings=True)
    config = getattr(transformers, family + "Config")(**{**options, **more})
    net = getattr(transformers, family + "ForCausalLM")(config)
    support.randomise(net, generator or torch.Generator().manual_seed(1))
    if change:
        with torch.no_grad():
            change(net)
    support.save(net, folder)
    return folder


def mixture(folder, **more):
    """The same with a mixture of experts, Qwen3-MoE."""
    return model(folder, family="Qwen3Moe", **{**dict(head_dim=8, num_experts=6, num_experts_per_tok=2,
                                                      moe_intermediate_size=40, norm_topk_prob=True), **more})


def config_of(folder):
    return json.loads((folder / "config.json").read_text())
