"""Files that mpk quantize writes, opened by llama.cpp: llama-cpp-python loads every type and gives the same tokens.

llama.cpp rounds activations to 8 bits or bf16 where mpk is told to keep fp32, so logits differ a little.  Their
difference is bounded, and a token may differ only where the margin between the two is smaller than that bound.

Needs what ./dev bench builds and installs, diskcache for one, which llama-cpp-python imports; or another folder of
that layout:

    MPK_LLAMA_CPP    holds llama_cpp_python-*/ and build/bin/libllama.so or build-avx2/bin/libllama.so
                     (default: .cache/llama.cpp)
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy
import pytest
import torch

import support
import tiny

RANDOM = support.seed()
FOLDER = Path(os.environ.get("MPK_LLAMA_CPP", support.ROOT / ".cache" / "llama.cpp"))
TYPES = ["q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_0", "q4_k_s", "q4_k_m", "q4_1", "q5_0", "q5_k_s", "q5_k_m", "q5_1",
         "q6_k", "q8_0", "f16", "bf16", "f32"]
PROMPT = "The three laws of thermodynamics are"
TOKENS = 24


def what_is_missing(package, library):
    if not package:
        yield f"{FOLDER}/llama_cpp_python-*, the source of llama-cpp-python"
    if not library:
        yield f"{FOLDER}/build*/bin/libllama.so, a built llama.cpp"
    if not importlib.util.find_spec("diskcache"):
        yield "the Python package diskcache"


@pytest.fixture(scope="module")
def llama_cpp():
    package = next(FOLDER.glob("llama_cpp_python-*"), None)
    library = next(FOLDER.glob("build*/bin/libllama.so"), None)
    missing = list(what_is_missing(package, library))
    if missing:
        pytest.skip(f"missing: {'; '.join(missing)}. ./dev bench --formats Q4_1 --rounds 1 brings all of it")
    os.environ["LLAMA_CPP_LIB_PATH"] = str(library.parent)
    sys.path.append(str(package))
    import llama_cpp
    return llama_cpp


def logits_of(llama_cpp, file, tokens):
    """float32 [T, V], as its KV cache of f32 and one thread give them."""
    model = llama_cpp.Llama(str(file), n_ctx=512, n_batch=512, logits_all=True, n_threads=1, n_threads_batch=1,
                            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, verbose=False)
    model.eval(tokens)
    found = numpy.array(model.scores[:len(tokens)])
    model.close()
    return found


def generate(file, tokens, path):
    """The tokens that mpk gives, greedily, and never ends before."""
    requests, answers = path / "requests.jsonl", path / "answers.jsonl"
    requests.write_text(json.dumps({"tokens": tokens, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True})
                        + "\n")
    support.mpk("batch", file, requests, "-o", answers, "--activations=f32", "--device=cpu", "--context=256")
    return json.loads(answers.read_text())["tokens"]


def check(llama_cpp, file, prompt, path, bound):
    """The answers to one prompt; bound: of the difference, as a part of the range of the logits."""
    chosen = generate(file, prompt, path)
    assert len(chosen) == TOKENS
    tokens = [*prompt, *chosen]
    theirs = logits_of(llama_cpp, file, tokens)
    ours = support.score(file, tokens, path, "--activations=f32", "--device=cpu", "--context=256")
    bound *= numpy.ptp(ours)
    assert abs(theirs - ours).max() <= bound
    same = 0
    for i, token in enumerate(chosen):
        row = theirs[len(prompt) - 1 + i]
        same += row.argmax() == token
        assert row.max() - row[token] <= 2 * bound, i
    return same


def bound_of(kind):
    """f32 and f16 multiply fp32 or f16 activations; bf16 rounds them to 8 bits of mantissa, the others to 8 bits."""
    return {"f32": 1e-4, "f16": 5e-3}.get(kind, 4e-2)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Rows of 256, so that K types keep their blocks; and rows of 64, where they take others."""
    path = tmp_path_factory.mktemp("wide")
    more = {"wide": dict(hidden_size=256, intermediate_size=512), "narrow": dict(hidden_size=64, intermediate_size=96)}
    return {name: tiny.model(path / name, torch.Generator().manual_seed(RANDOM.randrange(2**31)), **options)
            for name, options in more.items()}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["wide", "narrow"])
@pytest.mark.draws(8)
def test_made_up_weights(llama_cpp, wide, name, kind, tmp_path):
    file = tmp_path / "model.gguf"
    support.mpk("quantize", wide[name], "-o", file, "--type", kind, "-q")
    prompt = [RANDOM.randrange(250) for _ in range(9)]
    check(llama_cpp, file, prompt, tmp_path, bound_of(kind))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """SmolLM2-135M-Instruct as F32, made by unpacking its Q4_1."""
    file = tmp_path_factory.mktemp("smol") / "f32.gguf"
    support.mpk("quantize", support.DEMO_MODEL, "-o", file, "--type", "f32", "-q")
    yield file
    file.unlink()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.draws(2)
def test_smollm2(llama_cpp, unpacked, kind, tmp_path):
    """Real margins: all tokens are the same, or nearly."""
    file = tmp_path / "model.gguf"
    support.mpk("quantize", unpacked, "-o", file, "--type", kind, "-q")
    prompt = [int(t) for t in support.mpk("tokenize", file, "-p", PROMPT)[0].split()]
    same = check(llama_cpp, file, prompt, tmp_path, bound_of(kind))
    print(f"{kind}: {same} of {TOKENS} tokens the same")
    file.unlink()
