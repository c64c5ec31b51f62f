"""mpk serve as its clients meet it: OpenAI's, plain sockets, clients that are wrong, slow, many, or go away."""

import concurrent.futures
import http.client
import json
import os
import random
import re
import select
import signal
import socket
import ssl
import subprocess
import threading
import time

import openai
import pytest

import support
import tiny

CHAT = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}")
THINKING = CHAT.replace("assistant:", "assistant: <think>\n")
WAIT = 120  # seconds after which something hangs


class Server:
    """A running mpk serve; at the end it must stop by itself, and nothing may be wrong in what it printed."""

    def __init__(self, model, *options, env=None, n_files=None):
        command = [str(support.MPK), "serve", str(model), "--port=0", *map(str, options)]
        if n_files:
            command = ["prlimit", f"--nofile={n_files}", *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={"MPK_DEVICE": "cpu", **os.environ, **(env or {})})
        self.lines, self.errors = "", []
        self.reader = threading.Thread(target=lambda: self.errors.extend(self.process.stderr))
        self.reader.start()
        self.lines = self.process.stdout.readline()
        found = re.fullmatch(r"mpk: serving (.*) on https?://(.*):(\d+) \(CPU, \d+ threads?; context \d+, \d+ requests "
                             r"at a time\)\n", self.lines)
        assert found, self.finish()
        self.name, self.host, self.port = found[1], found[2].strip("[]"), int(found[3])

    def finish(self, *signals):
        for s in signals:
            self.process.send_signal(s)
        code = self.process.wait(timeout=WAIT)
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code, "".join(self.errors)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            code, errors = self.finish(signal.SIGINT)
            assert kind or (code == 0 and "Sanitizer" not in errors), errors[-3000:]

    def connect(self, receive_bytes=None):
        c = socket.socket()
        if receive_bytes:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        c.settimeout(WAIT)
        c.connect((self.host, self.port))
        return c

    def ask(self, method, path, body=None, headers=None, raw=False):
        """Status, headers and what came, read as JSON if it is."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        is_json = reply.headers.get("Content-Type") == "application/json" and not raw
        return reply.status, reply.headers, json.loads(content) if is_json and content else content.decode()

    def post(self, path, body, status=200):
        got, _, reply = self.ask("POST", path, body)
        assert got == status, reply
        return reply

    def complete(self, prompt="in the", **more):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True,
                                             **more})

    def stream(self, path, body):
        """The events of a stream."""
        status, headers, content = self.ask("POST", path, {"stream": True, **body}, raw=True)
        assert status == 200 and headers["Content-Type"] == "text/event-stream", content
        events = content.split("\n\n")
        assert events.pop() == "" and events.pop() == "data: [DONE]"
        assert all(e.startswith("data: ") for e in events)
        return [json.loads(e[6:]) for e in events]

    def metric(self, name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.ask("GET", "/metrics")[2], re.M)[1])

    def wait_metric(self, name, value):
        end = time.monotonic() + WAIT
        while self.metric(name) != value:
            assert time.monotonic() < end, f"{name} is {self.metric(name)}, not {value}"
            time.sleep(0.02)

    def wait_error(self, words):
        """Until a line with these words is in the log."""
        end = time.monotonic() + WAIT
        while not any(words in line for line in self.errors):
            assert time.monotonic() < end, self.errors
            time.sleep(0.02)

    def client(self, scheme="http", **more):
        return openai.OpenAI(base_url=f"{scheme}://{self.host}:{self.port}/v1", api_key="none", max_retries=0, **more)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("serve") / "tiny")


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """An answer of this model takes so long that every test is over before."""
    return tiny.model(tmp_path_factory.mktemp("serve") / "endless", max_position_embeddings=1 << 20)


@pytest.fixture(scope="module")
def server(model):
    with Server(model) as s:
        yield s


@pytest.fixture(scope="module")
def busy(endless):
    """A server whose requests run until they are cancelled."""
    with Server(endless, "--context", 1 << 20, "--max-batch", 2, "--kv-tokens", 1 << 21, "--grace", 0) as s:
        yield s


LONG = {"prompt": "in the", "max_tokens": 1 << 20, "ignore_eos": True, "temperature": 0}


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
    for name in ("time_to_first_token", "time_per_output_token", "request_duration", "inter_token", "decode"):
        buckets = [int(n) for n in re.findall(rf'^mpk_{name}_seconds_bucket\{{le="[^"]+"\}} (\d+)$', text, re.M)]
        assert buckets == sorted(buckets) and len(buckets) > 10
        assert buckets[-1] == server.metric(f"mpk_{name}_seconds_count") > 0
        may_be_0 = ("time_per_output_token", "inter_token", "decode")  # tokens may come at once
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


def test_metrics_under_the_names_of_vllm(model):
    with Server(model, "--metrics-names=vllm", "--model-name", 'a"b') as s:
        s.complete(max_tokens=5)
        text = s.ask("GET", "/metrics")[2]
        label = 'model_name="a\\"b"'
        assert f'vllm:generation_tokens_total{{{label}}} 5\n' in text and "\nmpk_generated_tokens_total 5\n" in text
        assert f'vllm:request_success_total{{{label},finished_reason="length"}} 1\n' in text
        assert f'vllm:inter_token_latency_seconds_bucket{{{label},le="+Inf"}} 4\n' in text
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                     "time_to_first_token_seconds_count", "request_decode_time_seconds_count"):
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
    assert server.post("/detokenize", {"tokens": plain})["content"] == "in the"
    assert server.post("/tokenize", {"content": ""})["tokens"] == []
    for body in ({}, {"content": 1}, {"content": "x", "add_special": 1}):
        server.post("/tokenize", body, 400)
    for body in ({}, {"tokens": "x"}, {"tokens": [1 << 20]}, {"tokens": ["a"]}):
        server.post("/detokenize", body, 400)


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


def test_streams_that_wait_say_so(endless):
    with Server(endless, "--context", 1 << 20, "--max-batch", 1, "--kv-tokens", 1 << 20, "--grace", 0, "--sse-ping",
                1) as s:
        running = begin(s, True)
        s.wait_metric("mpk_requests_running", 1)
        waiting = begin(s, True)
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

MESSAGES = [{"role": "user", "content": "in the"}]


def chat(server, **more):
    return server.post("/v1/chat/completions", {"messages": MESSAGES, "chat_template": CHAT, "max_tokens": 12,
                                                "temperature": 0, "ignore_eos": True, **more})


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
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message["reasoning_content"]
    assert "".join(d.get("content", "") for d in deltas) == ""


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


# ---- requests that are wrong ----

@pytest.mark.parametrize("body", [
    b"", b"{", b"nonsense", b"\xff\xfe", b"\0", b'"text"', b"[" * 100000, b'{"a":' * 100000, b'{"prompt": "\xff"}',
    b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a"} x', b'{"prompt": "\\ud800"}', b'{"prompt": 1e999}',
    b'{"model": 5, "prompt": "a"}', b'{"prompt": "a", "temperature": "hot"}', b'{"prompt": [[]]}',
    b'{"prompt": [99999]}', b'{"prompt": "a", "n": 1000000}', b'{"prompt": "a", "max_tokens": -1}', b"{}"])
def test_bad_bodies(server, body):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        status, _, reply = server.ask("POST", path, body)
        if path == "/tokenize" and status == 200:
            assert "prompt" in body.decode()
            continue
        assert status == 400, reply
        error = reply["error"]
        assert error["type"] == "invalid_request_error" and len(error["message"]) > 5
        assert error.keys() == {"message", "type", "param", "code"}
    server.complete()


def test_too_many_values(server):
    assert server.ask("POST", "/v1/completions", b'{"prompt": [' + b"1," * (1 << 20) + b"1]}")[0] == 413


def test_too_long_prompts(server):
    for path, body in (("/v1/completions", {"prompt": "the " * 400}), ("/v1/completions", {"prompt": [1] * 256}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the " * 400}],
                                                 "chat_template": CHAT})):
        error = server.post(path, body, 400)["error"]
        assert error["code"] == "context_length_exceeded" and "256" in error["message"]


def test_too_many_prompts(server):
    error = server.post("/v1/completions", {"prompt": ["a"] * 1041}, 400)["error"]
    assert "1040" in error["message"]


def test_unknown_paths_and_methods(server):
    for path in ("/v1", "/v1/completions/", "/v1/embeddings", "/v1/models/", "//", "/" + "x" * 5000):
        status, _, reply = server.ask("POST", path, {"prompt": "x"})
        assert status == 404 and reply["error"]["message"], path
    for method, path, allowed in (("GET", "/v1/completions", "POST"), ("DELETE", "/v1/models", "GET"),
                                  ("PUT", "/health", "GET"), ("OPTIONS", "/v1/completions", "POST"),
                                  ("PATCH", "/v1/chat/completions", "POST")):
        status, headers, reply = server.ask(method, path)
        assert status == 405 and headers["Allow"] == allowed and reply["error"]["code"] == "method_not_allowed"


def test_huge_bodies(model):
    with Server(model, "--max-body", 1) as s:
        mib = 1 << 20
        assert s.ask("POST", "/v1/completions", b" " * (2 * mib))[0] == 413
        assert s.ask("POST", "/v1/completions", b" " * mib)[0] == 400
        with s.connect() as c:  # one that would be larger than what is let pass
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
            assert c.recv(4096).startswith(b"HTTP/1.1 413 ")
        with s.connect() as c:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                      b"Content-Length: 2000000\r\n\r\n")
            assert c.recv(4096).startswith(b"HTTP/1.1 413 ")
        with s.connect() as c:
            body = b'{"prompt": "a", "max_tokens": 1}'
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
                      % len(body))
            assert c.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            c.sendall(body)
            assert c.recv(4096).startswith(b"HTTP/1.1 200 ")
        with s.connect() as c:  # chunks without an end
            with pytest.raises(OSError):
                c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(10000):
                    c.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        with s.connect() as c:  # chunks with one
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            c.sendall((b"10000\r\n" + b" " * 65536 + b"\r\n") * 20 + b"0\r\n\r\n")
            assert c.recv(4096).startswith(b"HTTP/1.1 413 ")
        s.complete()


FORBIDDEN = {
    "two lengths": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
                         b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "NUL": b"GET /health\0x HTTP/1.1\r\nHost: x\r\n\r\n",
    "escaped NUL": b"GET /health%00x HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_http_forbids(server, case):
    with server.connect() as c:
        c.sendall(FORBIDDEN[case] + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        got = b""
        try:
            while data := c.recv(65536):  # the connection is closed, and what follows is not read
                got += data
        except OSError:  # by a reset, as there was more to read
            pass
    assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1 ") - got.count(b"HTTP/1.1 needs") == 1
    assert json.loads(got.split(b"\r\n\r\n")[1])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("line", [b"GET /health HTTP/1.1\r\nHost: x", b"GET /health HTTP/1.0",
                                  b"GET /health?a=%00 HTTP/1.1\r\nHost: x", b"GET  /health HTTP/1.1\r\nHost: x",
                                  b"GET /he%61lth?x=1&y HTTP/1.1\r\nHost:\r\nX_y!: 1"])
def test_what_http_allows(server, line):
    with server.connect() as c:
        c.sendall(line + b"\r\n\r\n")
        assert c.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_no_http(server):
    for data in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 100,
                 b"\0" * 1000, b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 200000 + b"\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        with server.connect() as c:
            try:
                c.sendall(data)
                c.shutdown(socket.SHUT_WR)
                while c.recv(65536):
                    pass
            except OSError:
                pass
    server.complete()


# ---- keys, pages of others ----

def test_keys(model):
    for options, env in ((["--api-key", "secret"], {}), ([], {"MPK_API_KEY": "secret"})):
        with Server(model, *options, env=env) as s:
            assert s.ask("GET", "/health")[0] == 200
            for key in (None, "Bearer", "Bearer ", "Bearer secre", "Bearer secrett", "Basic secret", "secret"):
                for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/metrics"),
                                     ("POST", "/nothing")):
                    status, headers, reply = s.ask(method, path, b"{}" if method == "POST" else None,
                                                   {"Authorization": key} if key else {})
                    assert status == 401 and reply["error"]["code"] == "invalid_api_key"
                    assert headers["WWW-Authenticate"] == "Bearer"
            assert s.ask("GET", "/v1/models", headers={"Authorization": "bearer secret"})[0] == 200
            with pytest.raises(openai.AuthenticationError):
                s.client().models.list()


def test_keys_of_a_file(model, tmp_path):
    path = tmp_path / "keys"

    def status(s, key):
        return s.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0]
    path.write_text("# people\n\n  one \r\ntwo")
    with Server(model, "--api-key-file", path, "--api-key", "mine") as s:
        assert [status(s, k) for k in ("one", "two", "mine", "# people", "", "three")] == [200] * 3 + [401] * 3
        path.write_text("three\n")
        s.process.send_signal(signal.SIGHUP)
        s.wait_error("read again")
        assert [status(s, k) for k in ("one", "three", "mine")] == [401, 200, 200]
        path.write_text("# nobody\n")  # a mistake locks nobody out and lets nobody in
        s.process.send_signal(signal.SIGHUP)
        s.wait_error("there is no key")
        assert [status(s, k) for k in ("one", "three", "mine")] == [401, 200, 200]
    assert "there is no key" in support.mpk("serve", model, "--api-key-file", path, "--port=0", code=1)[1]
    assert "no file" in support.mpk("serve", model, "--api-key-file", tmp_path / "no file", "--port=0", code=1)[1]


def test_tls(model, tmp_path):
    certificate, key, other = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "other.pem"
    for to in (other, key):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2", "-out", certificate,
                        "-keyout", to], check=True, capture_output=True)
    with Server(model, "--tls-cert", certificate, "--tls-key", key) as s:
        trust = ssl.create_default_context(cafile=str(certificate))
        client = s.client(http_client=openai.DefaultHttpxClient(verify=trust), scheme="https")
        stream = client.completions.create(model="tiny", prompt="in the", max_tokens=9, stream=True)
        assert list(stream)[-1].choices[0].finish_reason
        with s.connect() as c:  # without TLS
            c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not c.recv(100).startswith(b"HTTP")
    fails = (["--tls-cert", certificate], ["--tls-key", key], ["--tls-cert", certificate, "--tls-key", other],
             ["--tls-cert", certificate, "--tls-key", tmp_path / "no file"],
             ["--tls-cert", key, "--tls-key", certificate])
    for options in fails:
        out, errors = support.mpk("serve", model, "--port=0", *options, code=None)
        assert out == b"" and re.search("--tls-key belong|is .* the certificate|no file", errors), errors


def test_cors(server, model):
    assert "Access-Control-Allow-Origin" not in server.ask("GET", "/health")[1]
    with Server(model, "--cors-origin", "http://page", "--api-key", "k") as s:
        asks = {"Origin": "http://page", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
        status, headers, _ = s.ask("OPTIONS", "/v1/chat/completions", headers=asks)
        assert status == 204 and headers["Access-Control-Allow-Headers"] == "authorization,x-stainless-os"
        assert "POST" in headers["Access-Control-Allow-Methods"]
        for path in ("/health", "/v1/models", "/nothing"):
            assert s.ask("GET", path)[1]["Access-Control-Allow-Origin"] == "http://page"


def test_model_names(model):
    with Server(str(model) + "/", "--model-name", 'my/"model"') as s:
        assert s.ask("GET", "/v1/models")[2]["data"][0]["id"] == 'my/"model"'
        assert s.ask("GET", "/v1/models/my/%22model%22")[0] == 200
        assert s.complete(model='my/"model"')["model"] == 'my/"model"'
        assert s.post("/v1/completions", {"model": "tiny", "prompt": "a"}, 404)["error"]["code"] == "model_not_found"


# ---- clients that come and go ----

def test_keep_alive_and_pipelines(server):
    body = json.dumps({"prompt": "in the", "max_tokens": 4, "temperature": 0}).encode()
    one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with server.connect() as c:
        c.sendall(one * 5 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        reply = b"".join(iter(lambda: c.recv(65536), b""))
    assert reply.count(b"HTTP/1.1 200 OK") == 6 and reply.count(b'"text_completion"') == 5
    connection = http.client.HTTPConnection(server.host, server.port, timeout=WAIT)
    for _ in range(20):
        connection.request("POST", "/v1/completions", body)
        reply = connection.getresponse()
        assert reply.status == 200 and reply.read()
    connection.close()


def begin(server, stream, receive_bytes=None, **more):
    """A connection whose request is in the engine."""
    body = json.dumps({**LONG, "stream": stream, **more}).encode()
    c = server.connect(receive_bytes)
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return c


@pytest.mark.parametrize("stream", [False, True])
def test_who_goes_away_frees_the_place(busy, stream):
    clients = [begin(busy, stream) for _ in range(6)]
    busy.wait_metric("mpk_requests_running", 2)
    busy.wait_metric("mpk_requests_waiting", 4)
    got = b""
    while stream and b"data: " not in got:  # two of them are being answered
        got += select.select(clients, [], [], WAIT)[0][0].recv(65536)
    for c in clients:
        c.close()
    busy.wait_metric("mpk_requests_running", 0)
    busy.wait_metric("mpk_requests_waiting", 0)
    assert busy.complete()["usage"]["completion_tokens"] == 8


def test_who_goes_away_rudely(busy):
    linger = b"\1\0\0\0\0\0\0\0"  # a reset instead of an end
    for stream in (False, True):
        c = begin(busy, stream, n=4)
        busy.wait_metric("mpk_requests_waiting", 2)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        c.close()
        busy.wait_metric("mpk_requests_running", 0)
    c = busy.connect()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    c.close()
    busy.complete()


def test_queue_is_bounded(endless):
    with Server(endless, "--context", 1 << 20, "--kv-tokens", 1 << 20, "--max-batch", 1, "--max-waiting", 2, "--grace",
                0) as s:
        clients = [begin(s, True) for _ in range(3)]
        s.wait_metric("mpk_requests_waiting", 2)
        status, headers, reply = s.ask("POST", "/v1/completions", {"prompt": "a"})
        assert status == 429 and headers["Retry-After"] and reply["error"]["code"] == "rate_limit_exceeded"
        with pytest.raises(openai.RateLimitError):
            s.client().completions.create(model=s.name, prompt="a")
        clients.pop().close()
        s.wait_metric("mpk_requests_waiting", 1)
        for c in clients:
            c.close()
        s.wait_metric("mpk_requests_running", 0)
        s.complete()
        s.post("/v1/completions", {"prompt": "a", "n": 4}, 400)


def test_time_runs_out_for_clients_and_not_for_answers(endless):
    with Server(endless, "--context", 1 << 20, "--kv-tokens", 1 << 22, "--max-batch", 5, "--timeout", 1, "--grace",
                0) as s:
        idle, half = s.connect(), s.connect()
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        patient = begin(s, False)
        s.wait_metric("mpk_requests_running", 1)
        deaf = begin(s, True, receive_bytes=4096, n=3)  # it never reads: buffers fill, and then nothing moves
        s.wait_metric("mpk_requests_running", 4)
        assert idle.recv(1) == b"" and half.recv(1) == b""
        s.wait_metric("mpk_requests_running", 1)  # the deaf one was given up, the patient one not
        patient.setblocking(False)
        with pytest.raises(BlockingIOError):
            patient.recv(1)
        for c in (idle, half, deaf, patient):
            c.close()


def test_an_answer_may_take_longer_than_the_timeout(endless):
    with Server(endless, "--context", 1 << 20, "--timeout", 1) as s:
        n = 4000
        while True:  # as many tokens as take this machine so long
            start = time.monotonic()
            reply = s.complete(max_tokens=n)
            assert reply["usage"]["completion_tokens"] == n
            if time.monotonic() - start > 2.2:
                break
            n *= 2


# ---- the end ----

def test_shutdown_lets_requests_finish(endless):
    s = Server(endless, "--context", 1 << 16, "--grace", WAIT)
    n_prompt = len(s.post("/tokenize", {"prompt": "in the"})["tokens"])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = [pool.submit(s.complete, max_tokens=3000) for _ in range(8)]
        s.wait_metric("mpk_prompt_tokens_total", 8 * n_prompt)  # all are in the engine
        code, errors = s.finish(signal.SIGTERM)
    assert code == 0 and "stopping" in errors
    assert all(d.result()["usage"]["completion_tokens"] == 3000 for d in done)


def test_shutdown_cancels_what_takes_too_long(endless):
    s = Server(endless, "--context", 1 << 20, "--max-batch", 1, "--kv-tokens", 1 << 20, "--grace", 0)
    streaming, whole, idle = begin(s, True), begin(s, False), s.connect()
    s.wait_metric("mpk_requests_waiting", 1)
    got = streaming.recv(65536)
    assert got.startswith(b"HTTP/1.1 200 ")
    s.process.send_signal(signal.SIGINT)
    got += b"".join(iter(lambda: streaming.recv(65536), b""))
    assert b'data: {"error":' in got and b"data: [DONE]" in got[-100:]
    assert whole.recv(65536).startswith(b"HTTP/1.1 503 ")
    assert idle.recv(1) == b""
    code, errors = s.finish()
    assert code == 0 and "/v1/completions 503" in errors
    with pytest.raises(OSError):
        s.connect()


@pytest.mark.parametrize("half", [b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
                                  b"POST /v1/comp"])
def test_half_a_request_does_not_delay_the_end(model, half):
    s = Server(model, "--grace", WAIT)
    with s.connect() as c:
        c.sendall(half)
        s.ask("GET", "/health")
        begin = time.monotonic()
        code, _ = s.finish(signal.SIGTERM)
        assert code == 0 and time.monotonic() - begin < 5


def test_stopped_while_loading(tmp_path):
    """A model whose compilation takes a while."""
    big = tiny.model(tmp_path / "big", num_hidden_layers=400)
    process = subprocess.Popen([str(support.MPK), "serve", str(big), "--port=0", "--device=cpu"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    caught = 0
    while not caught & 1 << signal.SIGTERM - 1:
        caught = int(re.search(r"SigCgt:\s+(\w+)", open(f"/proc/{process.pid}/status").read())[1], 16)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 0 and out == "" and "loading" in errors


def test_a_port_in_use_is_found_before_the_model_is_read(server, tmp_path):
    _, errors = support.mpk("serve", tmp_path / "no model", "--port", server.port, code=1)
    assert "Address already in use" in errors


def test_an_empty_key_is_a_mistake(model):
    assert "--api-key" in support.mpk("serve", model, "--api-key=", "--port=0", code=2)[1]
    assert "MPK_API_KEY" in support.mpk("serve", model, "--port=0", code=2, env={"MPK_API_KEY": ""})[1]


def test_while_it_stops(endless):
    s = Server(endless, "--context", 1 << 20, "--max-batch", 1, "--kv-tokens", 1 << 20, "--grace", 1000)
    running = begin(s, True)
    kept = http.client.HTTPConnection(s.host, s.port, timeout=WAIT)
    kept.request("GET", "/health")
    assert kept.getresponse().read() == b'{"status":"ok"}'
    s.wait_metric("mpk_requests_running", 1)
    s.process.send_signal(signal.SIGINT)
    while True:  # no new connections
        try:
            s.connect().close()
        except OSError:
            break
    kept.request("GET", "/health")  # on the open one
    reply = kept.getresponse()
    assert reply.status == 503 and reply.read() == b'{"status":"stopping"}'
    assert running.recv(100)
    code, _ = s.finish(signal.SIGINT)  # a second one ends at once
    assert code == -signal.SIGINT
    running.close()
    kept.close()


def test_addresses(server, model):
    def fails(needle, *options):
        out, errors = support.mpk("serve", model, *options, code=None, timeout=60)
        assert out == b"" and re.search(needle, errors) and errors.count("\n") == 1, errors
    fails(f"port {server.port}: Address already in use.*another port", "--port", server.port)
    fails("host 'no.such.host.invalid'", "--host", "no.such.host.invalid", "--port", 0)
    fails("65536", "--port", 65536)
    fails("cannot listen on 192.0.2.1", "--host", "192.0.2.1", "--port", 0)
    fails("nothing", "--chat-template", "/nothing", "--port", 0)
    fails("--port needs a value", "--port")
    with Server(model, "--host", "localhost") as s:
        s.complete()
    if has_ipv6():
        with Server(model, "--host", "::1") as s:
            assert "http://[::1]:" in s.lines
            s.complete()
        with Server(model, "--host", "::") as s:
            s.complete()


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
        return True
    except OSError:
        return False


def test_log_lines(model):
    with Server(model) as s:
        s.complete()
        s.ask("GET", "/no%0Athing%1b[31m")
        _, errors = s.finish(signal.SIGINT)
    head = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 127\.0\.0\.1 req-[0-9a-f]{24} "
    assert re.search(head + r"POST /v1/completions 200 \d+\+8 tokens first \d+ ms \d+ ms$", errors, re.M)
    assert re.search(head + r"GET /no\?thing\?\[31m 404 \d+ ms$", errors, re.M)
    with Server(model, "-q") as s:
        s.complete()
        assert s.finish(signal.SIGINT) == (0, "")


def test_log_as_json(model):
    with Server(model, "--log-format=json") as s:
        s.ask("POST", "/v1/completions", {"prompt": "in the", "colour": 1}, {"X-Request-Id": "mine \x7f"})
        s.ask("GET", "/health")
        _, errors = s.finish(signal.SIGINT)
    lines = sorted(map(json.loads, errors.splitlines()), key=lambda x: ["/v1/completions", "/health", None].index(
        x.get("path")))  # a reply is there before its line
    assert lines[0].keys() == {"time", "client", "request_id", "method", "path", "status", "prompt_tokens",
                               "completion_tokens", "first_token_ms", "ms", "ignored"}
    assert lines[0]["request_id"] == "mine??" and lines[0]["ignored"] == "colour" and lines[0]["status"] == 200
    assert lines[1]["path"] == "/health" and lines[1]["request_id"].startswith("req-")
    assert "stopping" in lines[2]["message"]


def test_request_ids(server):
    for given, echoed in (("abc-1", "abc-1"), (None, r"req-[0-9a-f]{24}"), ("x" * 500, r"req-[0-9a-f]{24}")):
        for path in ("/health", "/nothing", "/v1/models/other"):
            headers = {"X-Request-Id": given} if given else {}
            assert re.fullmatch(echoed, server.ask("GET", path, headers=headers)[1]["X-Request-Id"])
    headers = server.ask("POST", "/v1/completions", {"prompt": "a", "colour": 1, "size": 2})[1]
    assert headers["X-Ignored-Parameters"] == "colour, size"
    assert "X-Ignored-Parameters" not in server.ask("POST", "/v1/completions", {"prompt": "a", "user": "u"})[1]


@pytest.mark.parametrize("limits", [(["--max-connections", 4], None), ([], 60)])
def test_more_connections_than_are_taken(model, limits):
    with Server(model, *limits[0], n_files=limits[1]) as s:
        held = [s.connect() for _ in range(100)]
        assert held[-1].recv(1) == b""  # closed at once; the first ones are open
        held[0].setblocking(False)
        with pytest.raises(BlockingIOError):
            held[0].recv(1)
        for c in held:
            c.close()
        end = time.monotonic() + WAIT
        while True:
            try:
                s.complete()
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.05)


# ---- for long ----

def test_random_clients(model):
    """Good and bad requests, whole, cut off, and left alone; then all is as before, descriptors and memory too."""
    draw = support.seed()
    seconds = float(os.environ.get("MPK_SOAK", 3))

    def facts(s):
        status = open(f"/proc/{s.process.pid}/status").read()
        return len(os.listdir(f"/proc/{s.process.pid}/fd")), int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def one(s, draw):
        ids = [draw.randrange(300) for _ in range(draw.randrange(300))]
        body = {"prompt": "in the" if draw.random() < 0.8 else ids,
                "max_tokens": draw.choice([1, 5, 50, 500, 0, "x"]), "n": draw.choice([1, 1, 2, 5]),
                "stream": draw.random() < 0.5, "temperature": draw.choice([0, 1, 2, -1]), "ignore_eos": True,
                "stop": draw.choice([None, "a", ["e", "\n"]])}
        data = json.dumps(body).encode()
        if draw.random() < 0.2:
            data = bytes(draw.randrange(256) if draw.random() < 0.05 else b for b in data)
        path = draw.choice(["/v1/completions"] * 6 + ["/v1/chat/completions", "/tokenize", "/metrics", "/x"])
        sent = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data
        with s.connect() as c:
            try:
                c.sendall(sent[:draw.randrange(len(sent))] if draw.random() < 0.2 else sent)
                if draw.random() < 0.3:
                    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                elif draw.random() < 0.5:
                    c.settimeout(0.2)
                    c.recv(draw.randrange(1, 4096))
            except OSError:
                pass

    keep_little = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=8"}  # of freed memory
    with Server(model, "--max-batch", 4, "--max-waiting", 20, "-q", env=keep_little) as s:
        def work(number):
            mine = random.Random(number)
            while time.monotonic() < end:
                one(s, mine)
        before = None
        for _ in range(2):  # the first round fills what is kept
            end = time.monotonic() + seconds
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                list(pool.map(work, [draw.random() for _ in range(16)]))
            s.wait_metric("mpk_requests_running", 0)
            s.wait_metric("mpk_requests_waiting", 0)
            assert s.complete()["usage"]["completion_tokens"] == 8
            before, after = after if before else facts(s), facts(s)
            before = before or after
        print("descriptors and KiB of memory, then and now:", before, after)
        assert abs(after[0] - before[0]) <= 4
        assert after[1] < before[1] * 1.25 + 20000
