"""SmolLM2-135M-Instruct from GGUF Q4_1 against Transformers in fp32 that loads the same file."""

import functools
import json
import warnings

import gguf
import numpy
import pytest
import torch
import transformers

import support

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.set_num_threads(2)

TEXT = """The history of computing is longer than the history of computers. Long before there were machines that could
follow a program, people used tables, rods and wheels to make arithmetic faster and less tiring, and to make its
errors rarer. In the seventeenth century Blaise Pascal built a machine of gears that could add and subtract; Gottfried
Leibniz improved on it so that it could multiply. Neither was reliable, and both were expensive. What they showed was
that a procedure which people thought of as an act of the mind could be carried out by moving parts. Charles Babbage
took the next step when he drew up plans for an engine that would not only calculate but choose what to calculate
next: it had a store for numbers, a mill to work on them, and cards to say what should be done. Ada Lovelace, who
translated and annotated a paper about it, described how such an engine could act upon things other than numbers, if
their relations could be expressed in its notation. The engine was never finished. A hundred years later relays, and
then vacuum tubes, made the same ideas practical, and within a generation the size of a machine fell from that of a
hall to that of a cupboard while its speed rose a thousandfold.
def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n
        a, b = b, a + b\n    return a\n The transistor changed the scale again. """
CAPITAL = [504, 3575, 282, 4649, 314]
ANSWER = [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33, 29, 34, 34, 216, 33, 34, 42, 33, 34,
          42, 37, 35, 30, 2]
PROMPTS = ["Once upon a time, in a small village by the sea,", "def quicksort(items):\n",
           "The three laws of thermodynamics are",
           "Q: What is the boiling point of water?\nA:", "import numpy as np\n\nx = np."]


@pytest.fixture(scope="module")
def reference():
    """Transformers reads the file twice, makes the table of names for each of its names, and takes each of 100,000
    strings through numpy.memmap: three quarters of the time to load it."""
    folder, name = support.DEMO_MODEL.parent, support.DEMO_MODEL.name
    with pytest.MonkeyPatch.context() as patch:
        for slow in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, slow, functools.cache(getattr(gguf, slow)))
        patch.setattr(numpy, "memmap", lambda path, **_: numpy.fromfile(path, numpy.uint8))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    return model.eval()


def tokens_of(text):
    out, _ = support.mpk("tokenize", support.DEMO_MODEL, "-p", text)
    return list(map(int, out.split()))


def generate(tokens, n, tmp_path, *options):
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    requests.write_text(json.dumps({"tokens": tokens, "max_tokens": n, "temperature": 0}) + "\n")
    support.mpk("batch", support.DEMO_MODEL, requests, "-o", answers, *options)
    return json.loads(answers.read_text())


def test_logits(reference, tmp_path):
    tokens = (tokens_of(TEXT) * 2)[:512]
    assert len(tokens) == 512
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    found = support.score(support.DEMO_MODEL, tokens, tmp_path, "--activations=f32")
    difference = numpy.abs(found - expected).max() / (expected.max() - expected.min())
    print(f"{difference:.2e} of the range")
    assert difference < 1e-3


def log_softmax(x):
    x = x.astype(numpy.float64) - x.max(-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))


def test_8_bit_activations(tmp_path):
    """The KL divergence of the default from fp32 activations is small, as bench/kl.py finds of llama.cpp's too, and
    every instruction set gives the same bits."""
    tokens = (tokens_of(TEXT) * 2)[:512]
    exact = log_softmax(support.score(support.DEMO_MODEL, tokens, tmp_path, "--activations=f32"))
    found = support.score(support.DEMO_MODEL, tokens, tmp_path)
    assert numpy.array_equal(found, support.score(support.DEMO_MODEL, tokens, tmp_path, "--activations=i8",
                                                  env={"MPK_ISA": "avx2"}))
    kl = (numpy.exp(exact) * (exact - log_softmax(found))).sum(-1)
    print(f"KL {kl.mean():.2e}, at most {kl.max():.2e}")
    assert 0 < kl.mean() < 5e-3


def test_known_answer(tmp_path):
    assert tokens_of("The capital of France is") == CAPITAL
    answer = generate(CAPITAL, 30, tmp_path, "--activations=f32")
    assert answer["tokens"] in (ANSWER, ANSWER[:-1])
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.draws(2)
def test_greedy(reference, prompt, tmp_path):
    """64 greedy tokens are the reference's as long as its first choice leads by more than 0.02."""
    tokens = tokens_of(prompt)
    found = generate(tokens, 64, tmp_path, "--activations=f32")["tokens"]
    with torch.no_grad():
        logits = reference(torch.tensor([tokens + found])).logits[0]
    assert found
    for i, token in enumerate(found):
        row = logits[len(tokens) - 1 + i]
        best = row.topk(2).values
        if best[0] - best[1] > 0.02:
            assert token == int(row.argmax()), f"token {i}"
