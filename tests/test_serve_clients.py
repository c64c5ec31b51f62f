"""mpk serve and clients that are wrong, slow, many, or go away; keys and pages of others; its end."""

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
import time

import openai
import pytest

import support
import tiny
from servers import WAIT
from serving import CHAT, LONG, Server, begin, busy, chat, endless, model, server  # noqa: F401, with fixtures


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
    for path in ("/v1", "/v1/completions/", "/v1/embeddings/", "/v1/models/", "//", "/" + "x" * 5000):
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
    assert server.complete()["usage"]["completion_tokens"] == 8


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


def test_limits_of_keys(model, tmp_path):
    """Requests, tokens and answers at a time; what the headers say; and that a file read again changes no counts."""
    path = tmp_path / "keys"

    def ask(key, path="/v1/completions", **more):
        return s.ask("POST", path, {"prompt": "in the", "max_tokens": 8, "ignore_eos": True, **more},
                     {"Authorization": f"Bearer {key}"})

    path.write_text("free\nfew requests-per-minute=2\nshort tokens-per-minute=5\nnarrow concurrent=2\n")
    with Server(model, "--api-key-file", path, "--api-key", "mine") as s:
        assert [ask(k)[0] for k in ("free", "mine", "narrow")] == [200] * 3
        assert not any(name.lower().startswith("x-ratelimit") for name in ask("free")[1])
        status, headers, _ = ask("few")
        assert status == 200 and headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "1" and headers["x-ratelimit-reset-requests"].endswith("s")
        assert ask("few", prompt=[])[0] == 400  # counts, too
        status, headers, reply = ask("few")
        assert status == 429 and 1 <= int(headers["Retry-After"]) <= 30 and reply["error"]["type"] == "rate_limit_error"
        assert reply["error"]["code"] == "rate_limit_exceeded" and "requests per minute: limit 2" in str(reply)
        assert ask("few", "/tokenize")[0] == 200  # this computes nothing
        with pytest.raises(openai.RateLimitError):
            openai.OpenAI(base_url=f"http://{s.host}:{s.port}/v1", api_key="few", max_retries=0).completions.create(
                model=s.name, prompt="a")
        assert ask("short")[0] == 200  # spends more than there is
        status, headers, reply = ask("short")
        assert status == 429 and int(headers["Retry-After"]) >= 12 and "tokens per minute: limit 5" in str(reply)
        assert headers["x-ratelimit-remaining-tokens"] == "0" and headers["x-ratelimit-limit-tokens"] == "5"
        assert ask("narrow", n=2)[0] == 200 and ask("narrow", n=3)[0] == 400
        path.write_text("few requests-per-minute=1\nshort\nnarrow concurrent=3\n")
        s.process.send_signal(signal.SIGHUP)
        s.wait_error("read again")
        assert [ask(k)[0] for k in ("few", "short", "free")] == [429, 200, 401] and ask("narrow", n=3)[0] == 200
        for line, words in (("a\nb requests=3", "line 2"), ("a concurrent=0", "whole number"), ("a\na", "line 2"),
                            ("a b", "after a key")):
            path.write_text(line)
            s.process.send_signal(signal.SIGHUP)
            s.wait_error(words)
        assert [ask(k)[0] for k in ("few", "short", "a")] == [429, 200, 401]


def test_a_key_has_so_many_streams(endless, tmp_path):
    """Streams that run count, and no longer when their client has gone; other keys are free of them."""
    path = tmp_path / "keys"
    path.write_text("narrow concurrent=2\nother concurrent=1\n")
    with Server(endless, "--context", 1 << 20, "--max-batch", 4, "--kv-tokens", 1 << 22, "--grace", 0,
                "--api-key-file", path) as s:
        def ask(key):
            return s.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1},
                         {"Authorization": f"Bearer {key}"})[0]

        def stream():
            body = json.dumps({**LONG, "stream": True}).encode()
            c = s.connect()
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer narrow\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            return c

        first, second = stream(), stream()
        for c in (first, second):
            assert c.recv(12) == b"HTTP/1.1 200"
        assert ask("narrow") == 429
        assert [ask("other") for _ in range(20)] == [200] * 20  # one after the other, never at the same time
        first.close()
        end = time.monotonic() + WAIT
        while ask("narrow") == 429:
            assert time.monotonic() < end
        second.close()


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
    assert busy.complete()["usage"]["completion_tokens"] == 8


def test_queue_is_bounded(endless):
    with Server(endless, "--context", 1 << 20, "--kv-tokens", 1 << 20, "--max-batch", 1, "--max-waiting", 2, "--grace",
                0) as s:
        clients = [begin(s, True) for _ in range(3)]
        s.wait_metric("mpk_requests_running", 1)  # before, two that wait may be all that have arrived
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


def test_shutdown_amid_all_kinds_of_requests(endless):
    """Streams and documents that run, wait for a slot, were put back, or are just coming: each ends, none hangs."""
    s = Server(endless, "--context", 4096, "--max-batch", 3, "--kv-tokens", 4096, "--grace", 0)

    def ask(i):
        body = {"prompt": "in the", "max_tokens": 3000, "ignore_eos": True, "priority": i % 3, "stream": i % 2 == 0}
        try:
            status, _, got = s.ask("POST", "/v1/completions", body, raw=True)
        except (OSError, http.client.HTTPException):  # it came when the server took no more
            return "gone"
        if status == 200 and i % 2 == 0:
            return "streamed" if got.rstrip().endswith("data: [DONE]") else got[-300:]
        return "refused" if status == 503 else "whole" if status == 200 else status

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        asked = [pool.submit(ask, i) for i in range(24)]
        end = time.monotonic() + WAIT
        while not (s.metric("mpk_preemptions_total") and s.metric("mpk_requests_waiting")):
            assert time.monotonic() < end
            time.sleep(0.02)
        late = [pool.submit(ask, i) for i in range(8)]
        sent = time.monotonic()
        code, errors = s.finish(signal.SIGTERM)
        assert code == 0 and time.monotonic() - sent < WAIT / 2 and "Sanitizer" not in errors, errors[-3000:]
        ends = [a.result() for a in asked]
        assert set(ends) <= {"streamed", "refused", "whole"} and {"streamed", "refused"} <= set(ends), ends
        assert {a.result() for a in late} <= {"gone", "streamed", "refused", "whole"}


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
    reply = kept.getresponse()
    assert reply.read() == b'{"status":"ok"}' and reply.getheader("Retry-After") is None
    s.wait_metric("mpk_requests_running", 1)
    s.process.send_signal(signal.SIGINT)
    while True:  # no new connections
        try:
            s.connect().close()
        except OSError:
            break
    kept.request("GET", "/health")  # on the open one
    reply = kept.getresponse()
    assert reply.status == 503 and reply.read() == b'{"status":"stopping"}' and reply.getheader("Retry-After")
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
    own = r"req-[0-9a-f]{24}"
    for given, echoed in (("abc-1", "abc-1"), (None, own), ("", own), ("x" * 500, own)):
        for path in ("/health", "/nothing", "/v1/models/other"):
            headers = {"X-Request-Id": given} if given is not None else {}
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
        closing = time.monotonic() + 20  # the server may yet be about to see that a client has left
        while abs(after[0] - before[0]) > 4 and time.monotonic() < closing:
            time.sleep(0.05)
            after = facts(s)
        print("descriptors and KiB of memory, then and now:", before, after)
        assert abs(after[0] - before[0]) <= 4
        assert after[1] < before[1] * 1.25 + 20000
