"""Vectors of texts, through every face, against the final hidden states of Transformers in fp32."""

import base64
import json
import re
import struct
import threading

import pytest
import torch
import transformers

import support
import tiny
from serving import Server

import mpk  # support knows where it is

RANDOM = support.seed()
FAMILIES = ("Llama", "Qwen3", "Mistral")


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    more = {"head_dim": 8} if request.param == "Qwen3" else {}
    return tiny.model(tmp_path_factory.mktemp("embed") / request.param, family=request.param, **more)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tiny.model(tmp_path_factory.mktemp("embed") / "served")
    with Server(folder, "--embeddings", "--max-batch", 3) as s:
        s.folder = folder
        yield s


def states(folder, ids):
    """[T, D] in fp32."""
    net = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return net(torch.tensor([ids])).last_hidden_state[0]


def unit(v):
    return v / v.norm()


def check(got, wanted):
    got = torch.tensor(got)
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= 2e-5 * wanted.abs().max(), (got - wanted).abs().max()


def random_ids(r, n):
    return [r.randrange(250) for _ in range(n)]


def test_against_transformers(folder):
    r = support.seed()
    with mpk.LLM(str(folder), device="cpu", embeddings=True, max_batch=2) as llm:
        texts = [random_ids(r, n) for n in (1, 2, r.randrange(3, 60), r.randrange(60, 200), 256)]
        wanted = [states(folder, ids) for ids in texts]
        for got, rows in zip(llm.embed(texts), wanted):
            check(got, unit(rows[-1]))
        for got, rows in zip(llm.embed(texts, pooling="mean"), wanted):
            check(got, unit(rows.mean(0)))
        for got, rows in zip(llm.embed(texts, normalize=False, dimensions=5), wanted):
            check(got, rows[-1][:5])
        check(llm.embed(texts[2], pooling="mean", dimensions=7)[0], unit(wanted[2].mean(0)[:7]))
        assert llm.embed(texts, pooling="mean") == llm.embed(texts, pooling="mean")


def test_many_texts_in_one_call(tmp_path):
    """More texts than places and than Python gives the library at a time, more hidden states than wait at a time."""
    r = support.seed()
    texts = [random_ids(r, r.choice((1, 2, 60, 255, 256))) for _ in range(270)]
    with mpk.LLM(str(tiny.model(tmp_path / "many")), device="cpu", embeddings=True, max_batch=100) as llm:
        for pooling in ("mean", "last"):
            together = llm.embed(texts, pooling=pooling)
            some = r.sample(range(len(texts)), 5)
            assert [together[i] for i in some] == [llm.embed(texts[i], pooling=pooling)[0] for i in some]
        assert llm.embed([]) == []
        with pytest.raises(mpk.Error, match="text 2: its 257 tokens"):
            llm.embed([[1], [2], [3] * 257, [4]])
        assert llm.embed(texts[:2]) == together[:2]


def test_others_use_the_engine_meanwhile(folder, monkeypatch):
    """While one thread embeds, another asks the same engine, and closes it: the first still gets its vectors."""
    llm, call, seen = mpk.LLM(str(folder), device="cpu", embeddings=True), mpk.llm.c.call, []
    wanted = llm.embed([[1, 2], [3]])

    def other():
        seen.append(llm.tokenize("in the"))
        seen.append(llm.embed([[3]]))
        llm.close()

    def meet(function, *arguments):
        if function is mpk.llm.c.lib.mpk_embed and not seen:
            seen.append("embeds")
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(60)
            assert not thread.is_alive(), "the other thread waits"
        return call(function, *arguments)

    monkeypatch.setattr(mpk.llm.c, "call", meet)
    assert llm.embed([[1, 2], [3]]) == wanted and seen[2] == wanted[1:]
    with pytest.raises(mpk.Error, match="closed"):
        llm.embed([[1]])


def test_refusals(folder):
    with mpk.LLM(str(folder), device="cpu", embeddings=True) as llm:
        for ids, more in (([], {}), ([1] * 257, {}), ([9999], {}), ([-1], {}), ([1], {"dimensions": 33}),
                          ([1], {"dimensions": 1 << 31}), ([1], {"pooling": "first"})):
            with pytest.raises(mpk.Error):
                llm.embed([ids], **more)
        with pytest.raises(mpk.Error, match="embeddings"):
            llm.generate([[1, 2]])
        assert len(llm.embed([[1]])[0]) == 32
    with mpk.LLM(str(folder), device="cpu") as llm, pytest.raises(mpk.Error, match="embeddings"):
        llm.embed([[1]])


def test_command_line(folder, tmp_path):
    words = ["in the", "a thing", "x"] * 45  # more than the command gives the library at a time
    (tmp_path / "texts").write_text("".join(w + "\n" for w in words))
    out, _ = support.mpk("embed", folder, "-f", tmp_path / "texts", "--pooling", "mean", "--dimensions", "9", "-q")
    rows = [json.loads(line) for line in out.splitlines()]
    with mpk.LLM(str(folder), device="cpu", embeddings=True) as llm:
        assert [pytest.approx(v, rel=1e-6) for v in llm.embed(words, pooling="mean", dimensions=9)] == rows
    one, _ = support.mpk("embed", folder, "-p", "in the", "--raw", "-q")
    assert len(json.loads(one)) == 32
    _, message = support.mpk("embed", folder, "-p", "a", "--dimensions", "33", code=1)
    assert "33 dimensions" in message


def test_lines_that_are_refused(tmp_path):
    """They are named by their number in the file, whatever the command gives the library at a time."""
    folder, texts = tiny.model(tmp_path / "model"), tmp_path / "texts"
    words = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(words | {"post_processor": None}))
    for line, told in (("", "line 70 has no tokens"), ("a " * 5000, "line 70: its .* more than the context of ")):
        texts.write_text("a\n" * 69 + line + "\na\n")
        assert re.search(told, support.mpk("embed", folder, "-f", texts, code=1)[1])
    assert "the text has no tokens" in support.mpk("embed", folder, "-p", "", code=1)[1]


def vector(reply, i=0):
    return reply["data"][i]["embedding"]


def test_openai_client(server):
    client = server.client()
    ids = server.post("/tokenize", {"prompt": "in the"})["tokens"]
    wanted = unit(states(server.folder, ids)[-1])
    for encoding in ("float", "base64", None):  # the client itself asks for base64
        more = {"encoding_format": encoding} if encoding else {}
        reply = client.embeddings.create(model=server.name, input=["in the", "a"], **more)
        value = reply.data[0].embedding
        if encoding == "base64":
            value = list(struct.unpack("<32f", base64.b64decode(value))) if isinstance(value, str) else value
        check(value, wanted)
        assert [d.index for d in reply.data] == [0, 1] and reply.usage.prompt_tokens == len(ids) + 2
    check(client.embeddings.create(model=server.name, input="in the", dimensions=4).data[0].embedding,
          unit(states(server.folder, ids)[-1][:4]))


def test_scores_and_ranks(server):
    words = ["in the", "the thing", "x y", "in the"]
    rows = [torch.tensor(vector(server.post("/v1/embeddings", {"input": w}))) for w in words]
    wanted = [float(rows[0] @ row) for row in rows]
    reply = server.post("/v1/score", {"text_1": words[0], "text_2": words})
    assert [d["score"] for d in reply["data"]] == [pytest.approx(w, abs=1e-5) for w in wanted]
    pairs = server.post("/v1/score", {"text_1": words[:2], "text_2": words[2:]})
    assert pairs["data"][1]["score"] == pytest.approx(float(rows[1] @ rows[3]), abs=1e-5)
    ranks = server.post("/v1/rerank", {"query": words[0], "documents": words, "top_n": 3})["results"]
    assert [r["index"] for r in ranks] == sorted(range(4), key=lambda i: (-round(wanted[i], 6), i))[:3]


def test_many_at_a_time(server):
    """More connections than places: each vector is that of its text alone."""
    r = support.seed()
    texts = [random_ids(r, r.randrange(1, 100)) for _ in range(12)]
    alone = [vector(server.post("/v1/embeddings", {"input": ids})) for ids in texts]
    together = [None] * len(texts)

    def ask(i):
        together[i] = vector(server.post("/v1/embeddings", {"input": texts[i]}))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone
    assert [vector(server.post("/v1/embeddings", {"input": texts}), i) for i in range(12)] == alone


@pytest.mark.parametrize("path, body, words", [
    ("/v1/embeddings", {}, "'input'"), ("/v1/embeddings", {"input": []}, "'input'"),
    ("/v1/embeddings", {"input": [[]]}, "no tokens"), ("/v1/embeddings", {"input": [1 << 30]}, "vocabulary"),
    ("/v1/embeddings", {"input": {}}, "'input'"), ("/v1/embeddings", {"input": "a", "dimensions": 99}, "'dimensions'"),
    ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ("/v1/embeddings", {"input": [1] * 300}, "maximum context length is 256"),
    ("/v1/score", {"text_1": "a"}, "text_2"), ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_2"),
    ("/v1/rerank", {"query": "a", "documents": "b"}, "documents"),
    ("/v1/rerank", {"query": ["a", "b"], "documents": ["b"]}, "'query' one string"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "return_documents": 1}, "return_documents"),
    ("/v1/completions", {"prompt": "a"}, "vectors"),
])
def test_bad_requests(server, path, body, words):
    assert words in server.post(path, body, 400)["error"]["message"]
    assert server.ask("GET", "/health")[0] == 200


VECTORS = {"/v1/embeddings": {"input": "in the"}, "/v1/score": {"text_1": "in the", "text_2": ["a", "the"]},
           "/v1/rerank": {"query": "in the", "documents": ["a", "the"]}}
CHANGES, SAME, REFUSED = "another answer", "the same answer", "refused by name"
PARAMETERS = {  # as vLLM, SGLang, llama-server and OpenAI name them: a value, what becomes of it
    "encoding_format": ("float", SAME), "dimensions": (7, CHANGES), "truncate_prompt_tokens": (1, CHANGES),
    "add_special_tokens": (False, CHANGES), "embed_dtype": ("float32", SAME), "endianness": ("little", SAME),
    "use_activation": (True, SAME), "user": ("u", SAME), "request_id": ("r", SAME), "rid": ("r", SAME),
    "cache_salt": ("s", SAME), "add_generation_prompt": (True, SAME), "continue_final_message": (True, SAME),
    "chat_template": ("a", SAME), "chat_template_kwargs": ({"a": 1}, SAME), "media_io_kwargs": ({"a": {}}, SAME),
    "embd_normalize": (-1, REFUSED), "return_documents": (False, SAME),
    "return_text": (True, REFUSED), "messages": ([{"role": "user"}], REFUSED),
    "task": ("embed", REFUSED), "instruction": ("a", REFUSED), "instruct": ("a", REFUSED),
    "mm_processor_kwargs": ({"a": 1}, REFUSED), "priority": (1, REFUSED), "lora_path": ("a", REFUSED),
    "content": ("a", REFUSED), "texts": (["a"], REFUSED), "padding": ("max_length", REFUSED),
    "truncation_side": ("right", REFUSED), "label_token_ids": ([1], REFUSED), "apply_softmax": (True, REFUSED),
    "item_first": (True, REFUSED), "softmax": (True, REFUSED), "activation": (True, REFUSED),
    "raw_scores": (True, REFUSED), "max_tokens_per_doc": (2, REFUSED), "embed_override_token_id": (3, REFUSED),
    "embed_overrides": ([[[0.5]]], REFUSED), "query_embed_overrides": ([[0.5]], REFUSED),
    "item_embed_overrides": ([[[0.5]]], REFUSED), "return_pooled_hidden_states": (True, REFUSED)}
OTHER_VALUES = {"encoding_format": "int8", "embed_dtype": "float16", "endianness": "big", "use_activation": False}


@pytest.mark.parametrize("path", VECTORS)
def test_no_parameter_is_silent(server, path):
    plain = server.post(path, VECTORS[path])
    for name, (value, outcome) in PARAMETERS.items():
        status, headers, reply = server.ask("POST", path, {**VECTORS[path], name: value})
        if outcome == REFUSED:
            assert status == 400 and reply["error"]["param"] == name and f"'{name}'" in reply["error"]["message"], reply
        else:
            assert status == 200 and "X-Ignored-Parameters" not in headers, (name, reply)
            assert (reply == plain) == (outcome == SAME), (name, reply, plain)
    for name, value in OTHER_VALUES.items():
        if path == "/v1/embeddings" or name != "encoding_format":
            assert server.post(path, {**VECTORS[path], name: value}, 400)["error"]["param"] == name
    assert server.ask("POST", path, {**VECTORS[path], "colour": 1})[1]["X-Ignored-Parameters"] == "colour"


def test_names_of_the_sides_of_a_score(server):
    plain = server.post("/v1/score", VECTORS["/v1/score"])
    for left, right in (("data_1", "data_2"), ("queries", "documents"), ("queries", "items")):
        assert server.post("/v1/score", {left: "in the", right: ["a", "the"]}) == plain
        assert f"'{right}'" in server.post("/v1/score", {left: ["a", "b"], right: ["c"]}, 400)["error"]["message"]


def test_documents_that_are_ranked_come_back(server):
    documents = ["a", "the \"in\"", "in"]
    plain = server.post("/v1/rerank", {"query": "in the", "documents": documents})["results"]
    reply = server.post("/v1/rerank", {"query": "in the", "documents": documents, "return_documents": True})["results"]
    assert [r["document"]["text"] for r in reply] == [documents[r["index"]] for r in plain]
    assert [r["relevance_score"] for r in reply] == [r["relevance_score"] for r in plain]


def test_every_parameter_is_documented():
    words = set(re.findall(r"`\"?([\w.]+)", (support.ROOT / "docs/server.md").read_text()))
    assert not set(PARAMETERS) - words


def test_the_parameters_of_other_servers():
    """Each name that their requests for vectors have, as far as peer_parameters.json lists them."""
    own = set(PARAMETERS) | {"model"}
    sides = {"query", "text_1", "text_2", "data_1", "data_2", "queries", "documents", "items"}
    given = {"/v1/embeddings": {"input"}, "/v1/score": sides, "/v1/rerank": {"query", "documents", "top_n"}}
    peers = [p for p in json.loads((support.ROOT / "tests/peer_parameters.json").read_text()) if p["path"] in given]
    assert len(peers) >= 6
    for peer in peers:
        missing = set(peer["parameters"]) - own - given[peer["path"]]
        assert not missing, (peer["server"], peer["path"], sorted(missing))


def test_vectors_that_are_not_finite(tmp_path):
    """They are an error of that input, and no nan in JSON; the server goes on."""
    def spoil(net):
        net.model.norm.weight[RANDOM.randrange(32)] = float("nan")
    folder = tiny.model(tmp_path / "spoilt", change=spoil)
    out, message = support.mpk("embed", folder, "-p", "in the", code=1)
    assert out == b"" and "of its vector is not finite" in message
    with Server(folder, "--embeddings") as s:
        for path, body in (("embeddings", {"input": ["in", "the"]}), ("rerank", {"query": "a", "documents": ["b"]})):
            assert "text 0: number" in s.post(f"/v1/{path}", body, 500)["error"]["message"]
        assert s.ask("GET", "/health")[0] == 200


def test_vectors_that_fit_no_memory(tmp_path):
    """A small body may ask for gigabytes of vectors: refused before anything is computed."""
    with Server(tiny.model(tmp_path / "wide", hidden_size=256), "--embeddings") as s:
        message = s.post("/v1/embeddings", {"input": [[1]] * 150000}, 413)["error"]["message"]
        assert "MiB of memory" in message
        assert len(s.post("/v1/embeddings", {"input": [[1]] * 150})["data"]) == 150


def test_long_inputs_are_cut(server):
    long = list(range(250)) * 2
    cut = vector(server.post("/v1/embeddings", {"input": long, "truncate_prompt_tokens": -1}))
    assert cut == vector(server.post("/v1/embeddings", {"input": long[-256:]}))
    words = "in the " * 20000  # more bytes than 256 tokens can have: refused before they are counted
    refused = server.post("/v1/embeddings", {"input": ["a", words]}, 400)["error"]
    assert refused["code"] == "context_length_exceeded" and f"{len(words)} bytes" in refused["message"]
    cut = vector(server.post("/v1/embeddings", {"input": words, "truncate_prompt_tokens": -1}))
    assert cut == vector(server.post("/v1/embeddings", {"input": words[70:], "truncate_prompt_tokens": -1}))


def test_a_server_of_text_says_so(tmp_path):
    with Server(tiny.model(tmp_path / "text")) as s:
        assert "--embeddings" in s.post("/v1/embeddings", {"input": "a"}, 400)["error"]["message"]
