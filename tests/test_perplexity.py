"""mpk perplexity against Transformers in fp32, window by window: perplexity, its error, and KL divergences."""

import json

import numpy
import pytest
import torch
import transformers

import support
import tiny

RANDOM = support.seed()
TEXT = "".join(RANDOM.choice(["the ", "in a ", "then ", "thing", "\n", "é", "12 ", "is ", "x, "]) for _ in range(120))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("perplexity")
    text = path / "text.txt"
    text.write_text(TEXT)
    return (*[tiny.model(path / name, torch.Generator().manual_seed(RANDOM.randrange(2**31))) for name in "ab"], text)


def losses(folder, window, step, scored):
    """Log probabilities [windows, scored, V] in fp32, and the tokens that came."""
    ids = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).encode(TEXT)
    net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logs, tokens = [], []
    for start in range(0, len(ids) - window + 1, step):
        part = [ids[0], *ids[start + 1:start + window]]  # <s> in place of the first
        with torch.no_grad():
            rows = torch.log_softmax(net(torch.tensor([part])).logits[0].double(), -1)
        logs.append(rows[-scored - 1:-1])
        tokens.append(part[-scored:])
    return torch.stack(logs).numpy(), numpy.array(tokens)


def measure(*arguments):
    return json.loads(support.mpk("perplexity", *arguments, "--json")[0])


@pytest.mark.parametrize("window, stride", [(32, 0), (50, 0), (33, 7), (70, 69)])
def test_perplexity(models, window, stride):
    a, _, text = models
    logs, tokens = losses(a, window, stride or window, stride or window - window // 2 - 1)
    loss = -numpy.take_along_axis(logs, tokens[..., None], -1).ravel()
    found = measure(a, "-f", text, "-c", window, *(["--stride", stride] if stride else []))
    assert found["windows"] == len(tokens) and found["scored"] == loss.size
    assert found["perplexity"] == pytest.approx(numpy.exp(loss.mean()), rel=1e-5)
    error = numpy.exp(loss.mean()) * loss.std() / (loss.size - 1) ** 0.5
    assert found["error"] == pytest.approx(error, rel=1e-4)


def test_divergence(models):
    a, b, text = models
    (p, tokens), (q, _) = losses(b, 40, 40, 19), losses(a, 40, 40, 19)
    kl = (numpy.exp(p) * (p - q)).sum(-1).ravel()
    found = measure(a, "-f", text, "-c", 40, "--kl", b)
    assert found["kl"]["mean"] == pytest.approx(kl.mean(), rel=1e-4)
    assert found["kl"]["most"] == pytest.approx(kl.max(), rel=1e-4)
    assert found["kl"]["median"] == pytest.approx(numpy.sort(kl)[kl.size // 2], rel=1e-4)
    assert found["same_top"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean(), abs=1.01 / kl.size)
    loss = -numpy.take_along_axis(p, tokens[..., None], -1)
    assert found["base_perplexity"] == pytest.approx(numpy.exp(loss.mean()), rel=1e-5)
    same = measure(a, "-f", text, "-c", 40, "--kl", a)
    assert same["kl"]["most"] < 1e-9 and same["same_top"] == 1


def test_first_windows_and_words(models):
    a, _, text = models
    out, errors = support.mpk("perplexity", a, "-f", "-", "-c", "32", "--windows", "2", stdin=TEXT.encode())
    assert out.startswith(b"windows 2 of 32 tokens\nscored 30\nperplexity ") and b" +- " in out and not errors


@pytest.mark.parametrize("options, needle", [
    (["-c", "32", "--stride", "32"], "less than a window"), (["-c", "3"], "-c|--window"), ([], "less than a window"),
    (["-c", "32", "--kl", "/nonexistent"], "/nonexistent")])
def test_what_cannot_be_measured_is_told(models, options, needle):
    a, _, text = models
    if not options:
        short = text.with_name("short.txt")
        short.write_text("the thing")
        text = short
    out, errors = support.mpk("perplexity", a, "-f", text, *options, code=None)
    assert out == b"" and errors.startswith("mpk: ") and any(word in errors for word in needle.split("|"))


def test_logits_that_are_no_numbers_are_told(models, tmp_path):
    """Of the model and of the base, also where the logit of one token alone is spoilt: not as a divergence of 0."""
    a, _, text = models

    def spoil(net):
        net.lm_head.weight[RANDOM.randrange(net.config.vocab_size), 0] = float("nan")
    seed = torch.Generator().manual_seed(RANDOM.randrange(2**31))
    bad = tiny.model(tmp_path / "bad", seed, change=spoil, tie_word_embeddings=False)
    for model, more in ((bad, []), (bad, ["--kl", a]), (a, ["--kl", bad])):
        out, errors = support.mpk("perplexity", model, "-f", text, "-c", 32, *more, code=1)
        assert out == b"" and errors.count("\n") == 1, errors
        assert f"{bad}: the logits before token 17 of window 1 are not finite numbers" in errors, errors


def test_a_quantised_file_against_its_model(tmp_path):
    """KL falls with the bits; a base of another vocabulary is refused."""
    folder = tiny.model(tmp_path / "model", torch.Generator().manual_seed(RANDOM.randrange(2**31)), hidden_size=64,
                        intermediate_size=96)
    (tmp_path / "text.txt").write_text(TEXT)
    means = []
    for kind in ("q4_0", "q5_1", "q8_0", "f32"):
        support.mpk("quantize", folder, "-o", tmp_path / "x.gguf", "--type", kind)
        found = measure(tmp_path / "x.gguf", "-f", tmp_path / "text.txt", "-c", 64, "--kl", folder,
                        "--activations", "f32")
        means.append(found["kl"]["mean"])
    assert means[0] > means[1] > means[2] > means[3] and means[3] < 1e-9
