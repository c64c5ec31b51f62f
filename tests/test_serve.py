"""mpk serve as its clients meet it: completions and chats of OpenAI's API, and what the server says of itself."""

import concurrent.futures
import re
import time

import openai
import pytest

import support
from serving import CHAT, MESSAGES, THINKING, Server, begin, busy, chat, endless, model, server  # noqa: F401, fixtures

# ---- what the server says of itself ----

def test_facts(server):
    assert server.ask("GET", "/health")[0::2] == (200, {"status": "ok"})
    assert re.fullmatch(r"\d+\.\d+\.\d+", server.ask("GET", "/version")[2]["version"])
    models = server.ask("GET", "/v1/models")[2]
    assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["tiny"]
    assert models["data"][0]["max_model_len"] == 256
    assert server.ask("GET", "/v1/models/tiny")[2] == models["data"][0]
    assert server.ask("GET", "/v1/models/other")[0] == 404
    assert server.ask("HEAD", "/health")[0::2] == (200, "")
    props = server.ask("GET", "/props")[2]
    assert props["total_slots"] == 16 and props["default_generation_settings"]["n_ctx"] == 256
    assert props["default_generation_settings"]["params"]["temperature"] == 1
    slots = server.ask("GET", "/slots")[2]
    assert len(slots) == 16 and slots[3] == {"id": 3, "n_ctx": 256, "is_processing": False}


def test_metrics(server):
    before = server.metric("mpk_generated_tokens_total")
    replies = server.metric("mpk_request_duration_seconds_count")
    server.complete(max_tokens=5)
    server.wait_metric("mpk_request_duration_seconds_count", replies + 1)  # counted when the reply has gone
    text = server.ask("GET", "/metrics")[2]
    assert server.metric("mpk_generated_tokens_total") == before + 5
    assert re.search(r'^mpk_http_requests_total\{endpoint="/v1/completions",status="200"\} \d+$', text, re.M)
    for name in ("time_to_first_token", "time_per_output_token", "request_duration", "inter_token", "decode", "queue",
                 "prefill", "inference"):
        buckets = [int(n) for n in re.findall(rf'^mpk_{name}_seconds_bucket\{{le="[^"]+"\}} (\d+)$', text, re.M)]
        assert buckets == sorted(buckets) and len(buckets) > 10
        assert buckets[-1] == server.metric(f"mpk_{name}_seconds_count") > 0
        may_be_0 = ("time_per_output_token", "inter_token", "decode", "queue")  # tokens may come at once
        assert server.metric(f"mpk_{name}_seconds_sum") > 0 or name in may_be_0
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \w+ .*|[a-z_]+(\{.*\})? \S+", line), line


def test_metrics_of_what_runs(busy):
    gaps = busy.metric("mpk_inter_token_seconds_count")
    busy.complete(max_tokens=9)
    assert busy.metric("mpk_inter_token_seconds_count") == gaps + 8
    ended = busy.metric('mpk_answers_total{reason="abort"}')
    n_prompt = len(busy.post("/tokenize", {"prompt": "in the"})["tokens"])
    assert busy.metric("mpk_kv_tokens_used") == 0 and busy.metric("mpk_kv_tokens") >= 1 << 21
    generated = busy.metric("mpk_generated_tokens_total")
    c = begin(busy, True)
    busy.wait_metric("mpk_requests_running", 1)
    assert busy.metric("mpk_kv_tokens_used") > n_prompt and busy.metric("mpk_kv_usage_ratio") > 0
    assert busy.ask("GET", "/slots")[2][0]["is_processing"]
    assert busy.metric("mpk_generated_tokens_total") > generated  # counted as they come
    c.close()
    busy.wait_metric("mpk_requests_running", 0)
    busy.wait_metric("mpk_kv_tokens_used", 0)
    assert busy.metric('mpk_answers_total{reason="abort"}') == ended + 1


def test_metrics_of_time_in_the_queue(busy):
    """What waits for a place waits in the queue; what then comes before the first token is the prompt."""
    def sums():
        names = ("queue", "prefill", "time_to_first_token", "decode", "inference")
        return [busy.metric(f"mpk_{n}_seconds_sum") for n in names]

    before = sums()
    busy.complete(max_tokens=3)
    alone = [b - a for a, b in zip(before, sums())]
    assert alone[0] + alone[1] == pytest.approx(alone[2], abs=1e-7)
    assert alone[1] + alone[3] == pytest.approx(alone[4], abs=1e-7) and alone[1] > 0
    runs = [begin(busy, True) for _ in range(2)]
    busy.wait_metric("mpk_requests_running", 2)
    before, held = sums(), 0.5
    with concurrent.futures.ThreadPoolExecutor() as pool:
        reply = pool.submit(busy.complete, max_tokens=3)
        busy.wait_metric("mpk_requests_waiting", 1)
        time.sleep(held)
        runs[0].close()
        reply.result()
    waited = [b - a for a, b in zip(before, sums())]
    assert waited[0] >= held and waited[0] + waited[1] == pytest.approx(waited[2], abs=1e-7)
    runs[1].close()
    busy.wait_metric("mpk_requests_running", 0)


def test_metrics_of_sizes(model):
    with Server(model) as s:
        for n in (1, 2, 30):
            s.complete(prompt=list(range(n)), max_tokens=n)
        text = s.ask("GET", "/metrics")[2]
    for name in ("prompt", "generated"):
        values = re.findall(rf'^mpk_request_{name}_tokens_bucket{{le="(\S+)"}} (\d+)$', text, re.M)
        assert [(float(le), n) for le, n in values if n != "0"][:6] == [
            (1, "1"), (2, "2"), (5, "2"), (10, "2"), (20, "2"), (50, "3")]
        assert f"\nmpk_request_{name}_tokens_sum 33\n" in text


def test_metrics_under_the_names_of_vllm(model):
    with Server(model, "--metrics-names=vllm", "--model-name", 'a"b') as s:
        s.complete(max_tokens=5)
        text = s.ask("GET", "/metrics")[2]
        label = 'model_name="a\\"b"'
        assert f'vllm:generation_tokens_total{{{label}}} 5\n' in text and "\nmpk_generated_tokens_total 5\n" in text
        assert f'vllm:request_success_total{{{label},finished_reason="length"}} 1\n' in text
        assert f'vllm:inter_token_latency_seconds_bucket{{{label},le="+Inf"}} 4\n' in text
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                     "time_to_first_token_seconds_count", "request_decode_time_seconds_count",
                     "request_queue_time_seconds_count", "request_prefill_time_seconds_count",
                     "request_inference_time_seconds_count", "request_prompt_tokens_count",
                     "request_generation_tokens_count"):
            assert f"\nvllm:{name}{{{label}}} " in text
        for line in text.splitlines():
            assert re.fullmatch(r"# (HELP|TYPE) [\w:]+ .*|[a-z_:0-9]+(\{.*\})? \S+", line), line
        names = re.findall(r"^# TYPE (\S+)", text, re.M)
        assert len(names) == len(set(names))


def test_tokenize(server):
    plain = [int(t) for t in support.mpk("tokenize", server_model(server), "-p", "in the")[0].split()]
    reply = server.post("/tokenize", {"content": "in the"})
    assert reply["tokens"] == plain and reply["count"] == len(plain)
    special = server.post("/tokenize", {"prompt": "in the"})["tokens"]
    assert special[1:] == plain
    assert server.post("/tokenize", {"content": "in the", "add_special": True})["tokens"] == special
    assert server.post("/tokenize", {"prompt": "in the", "add_special_tokens": False})["tokens"] == plain
    for more in {}, {"skip_special_tokens": True}:
        assert server.post("/detokenize", {"tokens": plain, **more})["content"] == "in the"
    assert server.post("/tokenize", {"content": ""})["tokens"] == []
    assert server.post("/tokenize", {"content": "a", "with_pieces": False})["count"] == 1
    for body in ({}, {"content": 1}, {"content": "x", "add_special": 1}, {"messages": []},
                 {"content": "a", "with_pieces": True}, {"prompt": "a", "return_token_strs": True},
                 {"content": "a", "parse_special": False}):
        assert server.post("/tokenize", body, 400)["error"]["param"] in {"content", "messages", *body}
    for body in ({}, {"tokens": "x"}, {"tokens": [1 << 20]}, {"tokens": ["a"]},
                 {"tokens": plain, "skip_special_tokens": False}):
        server.post("/detokenize", body, 400)


def test_tokenize_of_a_chat(server):
    body = {"messages": MESSAGES, "chat_template": CHAT}
    prompt = server.post("/apply-template", body)["prompt"]
    tokens = server.post("/tokenize", {"content": prompt})["tokens"]
    assert server.post("/tokenize", body)["tokens"] == tokens
    whole = server.post("/tokenize", {**body, "add_special_tokens": True})["tokens"]
    assert whole == server.post("/tokenize", {"prompt": prompt})["tokens"] != tokens
    assert server.post("/tokenize", {**body, "add_generation_prompt": False})["count"] < len(tokens)


def test_refusals_name_the_field(server, busy):
    """Also those that need the vocabulary or the rest of the request, and forms that the engine refuses."""
    for field, value in (("logit_bias", {"99999": 1}), ("allowed_token_ids", [99999]), ("stop_token_ids", [99999]),
                         ("min_tokens", 9), ("min_tokens", -1), ("min_tokens", 0.5), ("min_tokens", 1e9),
                         ("model", 5), ("model", ["tiny"])):
        error = server.post("/v1/completions", {"prompt": "in", "max_tokens": 8, field: value}, 400)["error"]
        assert error["param"] == field and f"'{field}'" in error["message"]
    wrong, unsupported = {"type": "odd"}, {"not": {}}
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": unsupported}}]
    for field, value, more in (
            ("json_schema", wrong, {}), ("json_schema", unsupported, {}), ("regex", "(", {}), ("grammar", "root :", {}),
            ("structured_outputs", {"json": unsupported}, {}), ("guided_choice", [1], {"guided_json": ""}),
            ("response_format", {"type": "json_schema", "json_schema": {"schema": unsupported}}, {}),
            ("tools", tools, {}), ("tools", tools, {"tool_choice": "required", "regex": "a"})):
        body = {"messages": MESSAGES, "chat_template": CHAT, field: value, **more}
        assert busy.post("/v1/chat/completions", body, 400)["error"]["param"] == field
    body = {"input": "in", "text": {"format": {"type": "json_schema", "name": "a", "schema": unsupported}}}
    assert busy.post("/v1/responses", {**body, "chat_template": CHAT}, 400)["error"]["param"] == "text"
    for body in (b"{", b"", b'{"prompt": NaN}'):
        status, _, reply = server.ask("POST", "/v1/completions", body)
        assert status == 400 and reply["error"]["message"].startswith("the body is not valid JSON: line 1")
    error = server.post("/v1/completions", {"prompt": "in", "guided_json": "{"}, 400)["error"]["message"]
    assert "  while reading the JSON schema" in error


def server_model(server):
    return server.process.args[2]


# ---- completions ----

def test_greedy_is_what_run_prints(server):
    for prompt in ("in the", "a", "é \U0001f600"):
        printed = support.mpk("run", server_model(server), "-p", prompt, "-n", "30", "--ignore-eos")[0].decode()[:-1]
        assert server.complete(prompt, max_tokens=30)["choices"][0]["text"] == printed
        events = server.stream("/v1/completions", {"prompt": prompt, "max_tokens": 30, "temperature": 0,
                                                   "ignore_eos": True})
        assert "".join(e["choices"][0]["text"] for e in events) == printed
        assert [e["choices"][0]["finish_reason"] for e in events] == [None] * (len(events) - 1) + ["length"]


def test_forms_of_prompts(server):
    ids = server.post("/tokenize", {"prompt": "in the"})["tokens"]
    text = server.complete("in the")["choices"][0]["text"]
    assert server.complete(ids)["choices"][0]["text"] == text
    many = server.complete(["in the", "a", "in the"])
    assert [c["index"] for c in many["choices"]] == [0, 1, 2]
    assert many["choices"][0]["text"] == many["choices"][2]["text"] == text != many["choices"][1]["text"]
    assert [c["text"] for c in server.complete([ids, ids])["choices"]] == [text, text]
    echoed = server.complete("in the", echo=True)
    assert echoed["choices"][0]["text"] == "in the" + text and echoed["usage"]["completion_tokens"] == 8
    assert server.complete(ids[1:], echo=True)["choices"][0]["text"].startswith("in the")
    assert server.complete("")["usage"]["prompt_tokens"] == 1  # the tokenizer adds <s>


def usage_of(prompt, answer, cached=0):
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": cached}}


def test_usage(server):
    ids = server.post("/tokenize", {"prompt": "in the"})["tokens"]
    usage = server.complete("in the", n=3, temperature=1)["usage"]
    assert usage == usage_of(len(ids), 24)
    body = {"prompt": "in the", "max_tokens": 4, "ignore_eos": True, "stream_options": {"include_usage": True}}
    events = server.stream("/v1/completions", body)
    assert all(e["usage"] is None for e in events[:-1]) and events[-1]["choices"] == []
    assert events[-1]["usage"] == usage_of(len(ids), 4)
    assert "usage" not in server.stream("/v1/completions", {"prompt": "a"})[0]


def test_prefix_cache(model):
    prompt = [7] * 150
    with Server(model, "--metrics-names=vllm") as s:
        first = s.complete(prompt)
        again = s.complete(prompt)
        assert first["usage"] == usage_of(150, 8) and again["usage"] == usage_of(150, 8, 128)
        assert again["choices"] == first["choices"]
        assert s.complete(prompt, cache_salt="a")["usage"] == usage_of(150, 8)
        assert s.complete(prompt, cache_salt="a")["usage"] == usage_of(150, 8, 128)
        assert s.complete(prompt, cache_prompt=False)["usage"] == usage_of(150, 8)
        event, = [e for e in s.stream("/v1/completions", {"prompt": prompt, "max_tokens": 2, "ignore_eos": True,
                                                         "stream_options": {"include_usage": True}}) if e["usage"]]
        assert event["usage"] == usage_of(150, 2, 128)
        assert s.metric("mpk_prefix_cache_queries_total") == 750 and s.metric("mpk_prefix_cache_hits_total") == 384
        assert s.metric("mpk_preemptions_total") == 0
        assert 'vllm:prefix_cache_hits_total{model_name="tiny"} 384\n' in s.ask("GET", "/metrics")[2]
        long = "the in " * 40
        body = {"messages": [{"role": "user", "content": long}], "max_tokens": 4, "chat_template": CHAT}
        usages = [s.post("/v1/messages", body)["usage"] for _ in range(2)]
        total = usages[0]["input_tokens"]
        assert usages[0]["cache_read_input_tokens"] == 0 < usages[1]["cache_read_input_tokens"]
        assert usages[1]["cache_read_input_tokens"] + usages[1]["input_tokens"] == total
        details = s.post("/v1/responses", {"input": long, "max_output_tokens": 3, "chat_template": CHAT})["usage"]
        assert details["input_tokens_details"]["cached_tokens"] > 0
    with Server(model, "--no-prefix-cache") as s:
        assert [s.complete(prompt)["usage"] for _ in range(2)] == 2 * [usage_of(150, 8)]
        assert s.metric("mpk_prefix_cache_queries_total") == 0


def test_answers_to_one_prompt_share_it(model):
    with Server(model) as s:
        s.complete([9] * 200, n=8, temperature=1)
        assert s.metric("mpk_prefix_cache_hits_total") == 7 * 192


def test_best_of(server):
    """The answers of the highest mean log probability, in falling order, of as many as n would give."""
    options = {"temperature": 1, "seed": 5, "logprobs": 0}

    def means(reply):
        return [sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"]) for c in reply["choices"]]
    prompts = ["in the", "a"]
    every = server.complete(prompts, n=6, **options)
    best = server.complete(prompts, n=2, best_of=6, **options)
    for p in range(2):
        ranked = sorted(means(every)[6 * p:6 * p + 6], reverse=True)
        assert means(best)[2 * p:2 * p + 2] == ranked[:2]
    assert [c["index"] for c in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"] == every["usage"]
    plain = server.complete(prompts, n=2, best_of=6, **{**options, "logprobs": None})
    assert [c["text"] for c in plain["choices"]] == [c["text"] for c in best["choices"]]
    assert plain["choices"][0]["logprobs"] is None
    assert len(server.complete(best_of=3)["choices"]) == 1


def test_usage_in_every_event(server):
    body = {"prompt": "in the", "max_tokens": 4, "ignore_eos": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    counts = [e["usage"]["completion_tokens"] for e in server.stream("/v1/completions", body)]
    assert counts == sorted(counts) and counts[-1] == 4 and counts[0] >= 1


def test_prompts_are_cut_where_asked(server):
    ids = server.post("/tokenize", {"prompt": "the in the in the"})["tokens"]
    cut = server.complete("the in the in the", truncate_prompt_tokens=3)
    assert cut["usage"]["prompt_tokens"] == 3
    assert cut["choices"] == server.complete(ids[-3:])["choices"]
    assert server.complete("the " * 300, truncate_prompt_tokens=-1, cache_prompt=False)["usage"] == usage_of(248, 8)
    plain = server.complete("in the", add_special_tokens=False)
    assert plain["usage"]["prompt_tokens"] == server.complete("in the")["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize("by_request", [False, True])
def test_streams_that_wait_say_so(endless, by_request):
    with Server(endless, "--context", 1 << 20, "--max-batch", 1, "--kv-tokens", 1 << 20, "--grace", 0, "--sse-ping",
                0 if by_request else 1) as s:
        running = begin(s, True)
        s.wait_metric("mpk_requests_running", 1)
        waiting = begin(s, True, **{"sse_ping_interval": 1} if by_request else {})
        got = b""
        while b": still at work\n\n" not in got:
            data = waiting.recv(65536)
            assert data
            got += data
        for c in (running, waiting):
            c.close()
        s.wait_metric("mpk_requests_waiting", 0)


def test_any_model_name(model):
    with Server(model, "--any-model-name") as s:
        assert s.complete(model="gpt-4")["model"] == "tiny"


def test_seeds(server):
    def draw(**more):
        return [c["text"] for c in server.complete(temperature=1.5, max_tokens=20, **more)["choices"]]
    three = draw(n=3, seed=5)
    assert three == draw(n=3, seed=5) and len(set(three)) == 3
    assert three == [*draw(seed=5), *draw(seed=6), *draw(seed=7)]
    assert len({draw()[0] for _ in range(5)}) > 1
    events = server.stream("/v1/completions", {"prompt": "in the", "temperature": 1.5, "max_tokens": 20, "n": 3,
                                               "seed": 5, "ignore_eos": True})
    texts = ["", "", ""]
    for e in events:
        texts[e["choices"][0]["index"]] += e["choices"][0]["text"]
    assert texts == three


def test_log_probabilities(server):
    probs = server.complete(logprobs=3)["choices"][0]["logprobs"]
    text = server.complete()["choices"][0]["text"]
    assert "".join(probs["tokens"]) == text or any(t.startswith("token_id:") for t in probs["tokens"])
    for value, top in zip(probs["token_logprobs"], probs["top_logprobs"]):
        assert len(top) == 3 and value == max(top.values()) and value <= 0
    events = server.stream("/v1/completions", {"prompt": "in the", "max_tokens": 8, "temperature": 0,
                                               "ignore_eos": True, "logprobs": 3})
    streamed = [v for e in events for v in e["choices"][0]["logprobs"]["token_logprobs"]]
    assert streamed == probs["token_logprobs"]
    entries = chat(server, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(entries) == 12 and all(len(e["top_logprobs"]) == 2 and e["top_logprobs"][0]["logprob"] == e["logprob"]
                                      for e in entries)
    assert server.complete()["choices"][0]["logprobs"] is None


def test_an_answer_may_end_within_a_character(server):
    """What came of the character is shown at the end, as a browser shows such bytes, and is no other text's."""
    first = server.post("/tokenize", {"content": "\u20ac", "add_special_tokens": False})["tokens"][0]
    for stop in (None, "\u20ac", "never there"):
        choice = server.complete(max_tokens=1, allowed_token_ids=[first], stop=stop)["choices"][0]
        assert choice["text"] == "\ufffd" and choice["finish_reason"] == "length"


def test_stop(server):
    whole = server.complete(max_tokens=40)["choices"][0]["text"]
    stop = whole[len(whole) // 2:][:2]
    for given in (stop, [stop], ["never there", stop]):
        choice = server.complete(max_tokens=40, stop=given)["choices"][0]
        assert choice["text"] == whole[:whole.index(stop)] and choice["finish_reason"] == "stop"


def test_max_tokens_ends_at_the_context(server):
    reply = server.complete(max_tokens=100000)
    assert reply["usage"]["total_tokens"] == 256 and reply["choices"][0]["finish_reason"] == "length"


def test_many_streams_are_as_alone(server):
    prompts = [f"{'the ' * (i % 7)}in {i}" for i in range(32)]
    alone = [server.complete(p, max_tokens=40)["choices"][0]["text"] for p in prompts]

    def stream(prompt):
        body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        return "".join(e["choices"][0]["text"] for e in server.stream("/v1/completions", body))
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert list(pool.map(stream, prompts)) == alone
    server.wait_metric("mpk_requests_running", 0)


# ---- chats ----

def test_chat_is_a_completion_of_its_prompt(server):
    ids = server.post("/tokenize", {"content": "user: in the\nassistant:"})["tokens"]
    text = server.complete(ids, max_tokens=12)["choices"][0]["text"]
    reply = chat(server)
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-")
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["prompt_tokens"] == len(ids) and reply["usage"]["completion_tokens"] == 12
    parts = [{"role": "user", "content": [{"type": "text", "text": "in the"}]}]
    assert chat(server, messages=parts)["choices"][0]["message"]["content"] == text
    events = server.stream("/v1/chat/completions", {"messages": MESSAGES, "chat_template": CHAT, "max_tokens": 12,
                                                    "temperature": 0, "ignore_eos": True})
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == text
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert {e["object"] for e in events} == {"chat.completion.chunk"} and len({e["id"] for e in events}) == 1


def test_chat_goes_on_until_the_context_is_full(server):
    reply = chat(server, max_tokens=None)
    assert reply["usage"]["total_tokens"] == 256


def test_reasoning_is_split_off(server):
    reply = chat(server, chat_template=THINKING)
    message = reply["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] == ""
    events = server.stream("/v1/chat/completions", {"messages": MESSAGES, "chat_template": THINKING, "max_tokens": 12,
                                                    "temperature": 0, "ignore_eos": True})
    deltas = [e["choices"][0]["delta"] for e in events]
    for name in ("reasoning", "reasoning_content"):  # vLLM's name, and that of others
        assert "".join(d.get(name, "") for d in deltas) == message[name]
    assert "".join(d.get("content", "") for d in deltas) == ""


def test_reasoning_reaches_the_template(server):
    """By either name."""
    for name in ("reasoning", "reasoning_content"):
        body = {"messages": [{"role": "assistant", "content": "x", name: "hm"}],
                "chat_template": "{{ messages[0].reasoning_content }}"}
        assert server.post("/apply-template", body)["prompt"] == "hm"


def test_templates(server, model, tmp_path):
    for template in ("{{", "{{ raise_exception('no such chat') }}", "{% for i in range(100000000) %}x{% endfor %}"):
        reply = server.post("/v1/chat/completions", {"messages": MESSAGES, "chat_template": template}, 400)
        assert reply["error"]["param"] == "messages" and len(reply["error"]["message"]) > 5
    assert "no such chat" in server.post("/v1/chat/completions", {
        "messages": MESSAGES, "chat_template": "{{ raise_exception('no such chat') }}"}, 400)["error"]["message"]
    reply = server.post("/v1/chat/completions", {"messages": MESSAGES}, 400)  # the model brings none
    assert "template" in reply["error"]["message"]
    variable = "{{ colour }}" + CHAT
    kwargs = {"chat_template": variable, "chat_template_kwargs": {"colour": "the the"}}
    assert chat(server, **kwargs)["usage"]["prompt_tokens"] > chat(server)["usage"]["prompt_tokens"]
    (tmp_path / "template").write_text(CHAT)
    with Server(model, "--chat-template", tmp_path / "template", "-q") as own:
        assert chat(own, chat_template=None)["choices"] == chat(server)["choices"]


CALLS = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "2"}


def prompt_of(server, template=CHAT, **body):
    """The prompt of a chat, as its echo in the answer of a template that refuses it with it."""
    refusing = "{% set text %}" + template + "{% endset %}{{ raise_exception('<<<' ~ text ~ '>>>') }}"
    error = server.post("/v1/chat/completions", {"chat_template": refusing, **body}, 400)
    return re.search("<<<(.*)>>>", error["error"]["message"], re.S)[1]


def test_null_content_is_an_empty_text(server):
    """What the server itself sends comes back with the result of the call."""
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + ';' }}{% endfor %}"
    messages = [*MESSAGES, CALLS, RESULT]
    assert prompt_of(server, template, messages=messages) == "user: in the;assistant: ;tool: 2;"
    chat(server, messages=messages, chat_template=template)


def test_tools_that_a_template_does_not_know_are_told(busy):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    told = chat(busy, tools=tools)["usage"]["prompt_tokens"]
    assert told > chat(busy)["usage"]["prompt_tokens"] + 50
    none = chat(busy, tools=tools, tool_choice="none")
    assert none["usage"]["prompt_tokens"] == chat(busy)["usage"]["prompt_tokens"]
    refusing = ("{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
                "{{ raise_exception(m.role) }}{% endif %}{{ m.content }}{% endfor %}")
    long = chat(busy, tools=tools, messages=[*MESSAGES, {**CALLS, "content": "now"}], chat_template=refusing)
    short = chat(busy, tools=tools, messages=[*MESSAGES, {"role": "assistant", "content": "now"}],
                 chat_template=refusing)
    assert long["usage"]["prompt_tokens"] > short["usage"]["prompt_tokens"] + 10  # the call is in the prompt


def test_the_last_message_is_continued(server):
    last = {"role": "assistant", "content": "the in"}
    ids = server.post("/tokenize", {"content": "user: in the\nassistant: the in"})["tokens"]
    reply = chat(server, messages=[*MESSAGES, last], continue_final_message=True)
    assert reply["usage"]["prompt_tokens"] == len(ids)
    text = server.complete(ids, max_tokens=12)["choices"][0]["text"]
    assert reply["choices"][0]["message"]["content"] == text
    reply = server.post("/v1/chat/completions", {"messages": MESSAGES, "chat_template": "x",
                                                 "continue_final_message": True}, 400)
    assert reply["error"]["param"] == "continue_final_message"


def test_tools_reach_the_template(server):
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    without = chat(server, chat_template=template)
    given = chat(server, chat_template=template, tools=tools)
    assert given["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"]
    for choice, like in (("none", without), ("auto", given)):
        again = chat(server, chat_template=template, tools=tools, tool_choice=choice)
        assert again["usage"]["prompt_tokens"] == like["usage"]["prompt_tokens"]


@pytest.mark.skipif(not support.DEMO_MODEL.exists(), reason="no demo model")
def test_demo_model_answers_a_chat():
    with Server(support.DEMO_MODEL) as s:
        client = s.client()
        messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
        whole = client.chat.completions.create(model=s.name, messages=messages, temperature=0, max_tokens=20)
        assert "Paris" in whole.choices[0].message.content
        stream = client.chat.completions.create(model=s.name, messages=messages, temperature=0, max_tokens=20,
                                                stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in stream) == whole.choices[0].message.content


# ---- the openai client ----

def test_openai_client(server):
    client = server.client()
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    whole = client.completions.create(model="tiny", prompt="in the", max_tokens=9, temperature=0)
    assert whole.id.startswith("cmpl-") and whole.system_fingerprint.startswith("mpk-")
    stream = client.completions.create(model="tiny", prompt="in the", max_tokens=9, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in stream) == whole.choices[0].text
    more = {"chat_template": CHAT}
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9, temperature=0,
                                           extra_body=more)
    with client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9, temperature=0, stream=True,
                                        stream_options={"include_usage": True}, extra_body=more) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    with pytest.raises(openai.NotFoundError) as e:
        client.completions.create(model="gpt", prompt="x")
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="tiny", prompt="the " * 400)
    assert e.value.code == "context_length_exceeded"
    assert re.search(r"maximum context length is 256 tokens.* \d+ tokens", e.value.message)
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="tiny", prompt="x", logprobs=21)
    assert e.value.param == "logprobs"
