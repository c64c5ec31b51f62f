"""Several peers share a model: one peer's answers to rounding, the same bits in every run and company."""

import json

import numpy
import pytest
import torch

import support
import tiny

RANDOM = support.seed()
VOCABULARY = 4999
TOKENS = [RANDOM.randrange(250) for _ in range(70)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Shapes that do not divide: three KV heads, 50 of the feed-forward, an odd vocabulary; a mixture of experts."""
    folder = tmp_path_factory.mktemp("peers")
    return {
        "tied": tiny.model(folder / "tied", hidden_size=48, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
                           intermediate_size=50),
        "qwen3": tiny.model(folder / "qwen3", family="Qwen3", num_attention_heads=8, num_key_value_heads=2, head_dim=16,
                            tie_word_embeddings=False),
        "mixture": tiny.mixture(folder / "mixture"),
        "qwen2": tiny.model(folder / "qwen2", family="Qwen2", num_attention_heads=4, num_key_value_heads=1,
                            intermediate_size=44),
        "mistral": tiny.model(folder / "mistral", family="Mistral", hidden_size=40, num_attention_heads=10,
                              num_key_value_heads=5, head_dim=8, sliding_window=None, tie_word_embeddings=False),
        "mixtral": tiny.model(folder / "mixtral", family="Mixtral", num_local_experts=5, num_experts_per_tok=2,
                              intermediate_size=36, tie_word_embeddings=False),
    }


@pytest.mark.parametrize("name", ["tied", "qwen3", "mixture", "qwen2", "mistral", "mixtral"])
@pytest.mark.draws(2)
def test_logits_are_those_of_one_peer(models, name, tmp_path):
    one = support.score(models[name], TOKENS, tmp_path)
    for peers in (2, 3, 4, 8):
        several = support.score(models[name], TOKENS, tmp_path, "--gpus", peers)
        assert numpy.abs(several - one).max() <= 2e-5 * numpy.abs(one).max()
        again = support.score(models[name], TOKENS, tmp_path, "--gpus", peers, "--threads", 2 * peers)
        assert (several == again).all()


def narrow_experts(net):
    """Equal logits of the router: of equal ones the first experts are taken, so all tokens go to one peer's."""
    for name, p in net.named_parameters():
        if name.endswith("mlp.gate.weight"):
            p.zero_()


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("width", [40, 1])
@pytest.mark.draws(2)
def test_experts_that_peers_own(tmp_path, width, skewed):
    """Asked for; and where columns of experts cannot be cut, in any case.  All tokens to one peer, too."""
    folder = tiny.mixture(tmp_path / "model", num_experts=11, num_experts_per_tok=1 if skewed else 3,
                          moe_intermediate_size=width, change=narrow_experts if skewed else None)
    asked = ["--own-experts"] if width > 1 else []
    program = support.mpk("inspect", folder, "--program")[0]
    one = support.score(folder, TOKENS, tmp_path)
    for peers in (2, 3, 4, 8):
        cut = support.mpk("opt", f"--pass=simplify,shard:peers={peers}:own_experts={len(asked)}", "-", stdin=program)[0]
        assert f"experts.down_proj.weight[{11 * (peers - 1) // peers}:11/11]@{peers - 1}" in cut.decode()
        several = support.score(folder, TOKENS, tmp_path, "--gpus", peers, *asked)
        assert numpy.abs(several - one).max() <= 2e-5 * numpy.abs(one).max()
        again = support.score(folder, TOKENS, tmp_path, "--gpus", peers, "--threads", 2 * peers, *asked)
        assert (several == again).all()
        memory = [json.loads(support.mpk("inspect", folder, "--json", *words)[0])["memory"]
                  for words in ([], ["--gpus", peers, *asked])]
        assert memory[0]["weights_bytes"] <= memory[1]["weights_bytes"] <= 1.5 * memory[0]["weights_bytes"]


def test_an_image_keeps_whose_the_experts_are(models, tmp_path):
    image = tmp_path / "image"
    support.mpk("compile", models["mixture"], "-o", image, "--gpus", 2, "--threads", 2, "--own-experts")
    own = support.score(models["mixture"], TOKENS, tmp_path, "--gpus", 2, "--own-experts")
    assert (support.score(image, TOKENS, tmp_path) == own).all()
    support.mpk("inspect", image, "--gpus", 2, "--own-experts")
    assert "gpus is 1" in support.mpk("inspect", models["mixture"], "--own-experts", code=1)[1]
    support.mpk("compile", models["mixture"], "-o", image, "--gpus", 2, "--threads", 2)
    error = support.mpk("inspect", image, "--gpus", 2, "--own-experts", code=1)[1]
    assert "compiled without own_experts" in error


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A model whose sums have the same bits however they are grouped: each entry of what the output and down
    projections give is one product.  Its vocabulary, an odd number, is large enough to be cut."""
    def narrow(net):
        for name, p in net.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                kept = torch.tensor([RANDOM.randrange(p.shape[1]) for _ in range(p.shape[0])])
                p.zero_()
                p[torch.arange(p.shape[0]), kept] = torch.tensor([RANDOM.choice([-1.0, 0.5, 2.0]) for _ in kept])
    folder = tmp_path_factory.mktemp("exact")
    return tiny.model(folder / "model", hidden_size=64, num_attention_heads=8, num_key_value_heads=8,
                      intermediate_size=96, vocab_size=VOCABULARY, tie_word_embeddings=False, change=narrow)


def sampled_request(i):
    request = {"tokens": [RANDOM.randrange(250) for _ in range(RANDOM.choice([1, 5, 30]))], "seed": i,
               "max_tokens": 12, "temperature": RANDOM.choice([0, 0.7, 1.3]),
               "logprobs": RANDOM.choice([0, 5, 20])}
    rules = {"top_k": RANDOM.choice([1, 7, 300]), "top_p": RANDOM.choice([0.3, 0.9]), "min_p": 0.02, "typical_p": 0.6,
             "top_n_sigma": 1.5, "repetition_penalty": 1.4, "presence_penalty": 0.8, "frequency_penalty": 0.3,
             "logit_bias": {str(RANDOM.randrange(VOCABULARY)): RANDOM.choice([3, -100]) for _ in range(9)},
             "allowed_token_ids": RANDOM.sample(range(VOCABULARY), 50), "regex": "[a-m ]{3,9}(the|in)*",
             "prompt_logprobs": 3}
    for name in RANDOM.sample(sorted(rules), RANDOM.randrange(5)):
        if not {name, *request} >= {"regex", "allowed_token_ids"}:
            request[name] = rules[name]
    request["ignore_eos"] = "regex" not in request  # such an answer ends where its form does
    return request


@pytest.mark.parametrize("peers", [2, 3, 4, 8])
@pytest.mark.draws(2)
def test_sampling_is_that_of_one_peer(exact, tmp_path, peers):
    """From a vocabulary that the peers share: the same logits, so the same tokens and log probabilities to the bit."""
    program = support.mpk("inspect", exact, "--program")[0]
    cut = support.mpk("opt", f"--pass=simplify,shard:peers={peers}", "-", stdin=program)[0].decode()
    assert f"lm_head.weight[0:" in cut and f"/{VOCABULARY}]@{peers - 1}" in cut
    one, several = (support.score(exact, TOKENS, tmp_path, "--gpus", n) for n in (1, peers))
    assert (one == several).all() and one.shape[1] == VOCABULARY
    requests = [sampled_request(i) for i in range(12)]
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    answers = []
    for n in (1, peers):
        support.mpk("batch", exact, path, "-o", out, "--gpus", n, "--max-batch", 5)
        answers.append([json.loads(line) for line in out.read_text().splitlines()])
    assert not any("error" in a for a in answers[0]), answers[0]
    assert [a["tokens"] for a in answers[0]] == [a["tokens"] for a in answers[1]]
    assert answers[0] == answers[1]
    assert any(token > VOCABULARY // peers for a in answers[0] for token in a["tokens"])


def test_weights_are_shared(models):
    """Each peer holds its part alone: together they hold the model once, but for norms and the second embedding."""
    def weights(*options):
        report = json.loads(support.mpk("inspect", models["qwen3"], "--json", *options)[0])
        return report["memory"]["weights_bytes"]
    one, four = weights(), weights("--gpus", 4)
    assert one <= four <= 1.1 * one


def test_company_does_not_matter(models, tmp_path):
    def run(requests, *options):
        path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in requests))
        support.mpk("batch", models["mixture"], path, "-o", out, "--gpus", 2, *options)
        return [json.loads(line)["tokens"] for line in out.read_text().splitlines()]

    requests = [{"tokens": TOKENS[:RANDOM.randrange(1, 60)], "max_tokens": 12, "seed": i, "ignore_eos": True,
                 "temperature": 0.9} for i in range(6)]
    assert run(requests) == [run([r])[0] for r in requests] == run(requests, "--threads", 4, "--max-batch", 2)


def test_library_and_image(models, tmp_path):
    import mpk
    image = tmp_path / "image"
    with mpk.LLM(models["qwen3"], gpus=2, device="cpu", context_tokens=64) as llm:
        answer = llm.generate([TOKENS[:9]], mpk.SamplingParams(max_tokens=8))[0].token_ids
    with mpk.LLM(models["qwen3"], gpus=1, device="cpu", context_tokens=64) as llm:
        assert llm.generate([TOKENS[:9]], mpk.SamplingParams(max_tokens=8))[0].token_ids == answer
    support.mpk("compile", models["qwen3"], "-o", image, "--gpus", 2, "--threads", 2)
    one = support.score(image, TOKENS, tmp_path)
    assert (one == support.score(models["qwen3"], TOKENS, tmp_path, "--gpus", 2)).all()
    error = support.mpk("score", image, "-p", "x", "--gpus", 3, code=1)[1]
    assert "the image was compiled for 2 gpus, not for 3" in error


def test_profile_tells_of_waiting_for_peers(models):
    def profile(peers):
        options = ["--json", "--device", "cpu", "--profile", "-p", 5, "-n", 4, "-r", 1, "-b", 1]
        return json.loads(support.mpk("bench", models["qwen3"], "--gpus", peers, *options)[0])["profile"]

    one, three = profile(1), profile(3)
    assert one["waiting_for_peers"] == 0 < three["waiting_for_peers"] < 1
    kinds = {k["kind"]: k for k in three["kinds"]}  # two sums a layer on each peer; the last on peer 0 alone
    assert kinds["add_parts"]["operators"] == 3 * 3 + 1 and "add_parts" not in {k["kind"] for k in one["kinds"]}
    for p in one, three:
        assert p["tokens"] == 1 and p["clock_mhz"] == 1000 and abs(sum(k["share"] for k in p["kinds"]) - 1) < 1e-4
        assert all(k["longest_us"] >= k["body_us"] >= 0 for k in p["kinds"] if k["tasks"])


def test_what_is_refused(models):
    for options, code, needle in [
        (["--gpus", 17], 2, "--gpus: '17' is not a whole number from 1 to 16"),
        (["--gpus", 2, "--launch", "jit"], 1, "launch must be auto or aot"),
    ]:
        assert needle in support.mpk("run", models["qwen3"], "-p", "x", *options, code=code)[1]


def test_gpus_that_cannot_share_are_refused_at_once(models, tmp_path):
    """Before anything is compiled: without NVRTC that would fail with other words."""
    env = {"MPK_LIBCUDA": str(support.BUILD / "tests" / "libfake_cuda.so"), "MPK_CACHE": str(tmp_path),
           "MPK_NVRTC": "/nowhere/libnvrtc.so.13"}
    for gpus, words, needle in [
        (2, "gpus:2,links:0", "GPU 0 cannot reach the memory of GPU 1"),
        (3, "gpus:4,island:2", "GPU 0 cannot reach the memory of GPU 2"),
        (2, "gpus:2,atomics:0", "a program is shared over NVLink"),
        (2, "gpus:2,more:4096", "differ: a program is shared by GPUs of one kind"),
        (2, "gpus:1", "2 GPUs from cuda:0 on were asked for"),
        (2, "gpus:2", "/nowhere/libnvrtc.so.13"),
    ]:
        error = support.mpk("run", models["qwen3"], "-p", "x", "--device", "cuda", "--gpus", gpus, code=1,
                            env={**env, "MPK_FAKE_CUDA": words})[1]
        assert needle in error, error


def test_what_gpus_would_hold(models):
    """Compiled for GPUs that are not here."""
    plans = [json.loads(support.mpk("inspect", models["qwen3"], "--gpus", n, "--target", "sm_90a", "--json",
                                    env={"MPK_DEVICE": ""})[0]) for n in (1, 2)]
    assert plans[1]["memory"]["device"].startswith("2 x sm_90a")


def test_kernels_of_many_gpus_compile(tmp_path):
    """In f32 the ring has the most pages, and each GPU adds to what a worker keeps in shared memory."""
    if any(entry["subject"] == "nvrtc" and entry["found"].startswith("none")
           for entry in json.loads(support.mpk("doctor", "--json")[0])):
        pytest.skip("no NVRTC here")
    model = tiny.model(tmp_path / "model", family="Qwen3", hidden_size=192, num_attention_heads=8,
                       num_key_value_heads=8, head_dim=64, intermediate_size=320)
    image = tmp_path / "image"
    support.mpk("compile", model, "-o", image, "--target", "sm_90a", "--gpus", 8, "--max-batch", "1", "--step-tokens",
                "1")
    assert json.loads(support.mpk("inspect", image, "--json")[0])["memory"]["device"].startswith("8 x sm_90a")
