"""examples/ray_serve.py: two servers behind one address, one of them killed under load.

Ray is not among the packages of tests/requirements.txt: `pip install --target FOLDER "ray[serve]" httpx` and
PYTHONPATH=FOLDER add it, else this test says that it was left out.
"""

import concurrent.futures
import http.client
import json
import os
import signal
import socket
import sys
import time

import pytest

import support
import tiny

ray = pytest.importorskip("ray", reason='not installed: pip install "ray[serve]" httpx')
RANDOM = support.seed()
# On a busy machine the proxy takes longer to start than Ray Serve waits by default.
os.environ |= {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120"}
N = 40
WAIT = 300  # seconds after which something hangs


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, body, path="/v1/completions"):
    """Status and body of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    content = reply.read().decode()
    connection.close()
    return reply.status, content


def events(content):
    lines = content.split("\n\n")
    assert lines.pop() == "" and lines.pop() == "data: [DONE]", content[-300:]
    return [json.loads(line[6:]) for line in lines if not line.startswith(":")]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """The port, and a handle of the replicas."""
    sys.path.insert(0, str(support.ROOT / "examples"))
    import ray_serve
    from ray import serve
    port = free_port()
    folder = tiny.model(tmp_path_factory.mktemp("ray") / "tiny", max_position_embeddings=8192)
    paths = [str(support.ROOT / "examples"), *os.environ.get("PYTHONPATH", "").split(":")]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": ":".join(paths), "MPK_DEVICE": "cpu"}})
    serve.start(http_options={"port": port})
    serve.run(ray_serve.application(folder, options=["--threads=1", "--context=8192"], mpk=str(support.MPK)))
    yield port, serve.get_deployment_handle("Replica", "default")
    serve.shutdown()
    ray.shutdown()


def servers(handle, n):
    """The processes of the replicas' servers, when there are n of them."""
    end = time.monotonic() + WAIT
    found = set()
    while len(found) < n:
        assert time.monotonic() < end, found
        found.add(handle.pid.remote().result(timeout_s=WAIT))
    return found


def test_a_server_is_killed_under_load(gateway):
    port, handle = gateway
    asked = [{"prompt": [RANDOM.randrange(250) for _ in range(20)], "max_tokens": 900, "seed": i, "ignore_eos": True,
              "stream": i % 2 == 0} for i in range(N)]
    whole = [json.loads(ask(port, {**body, "stream": False})[1])["choices"][0]["text"] for body in asked]
    victim, _ = servers(handle, 2)
    with concurrent.futures.ThreadPoolExecutor(N) as pool:
        replies = [pool.submit(ask, port, body) for body in asked]
        time.sleep(RANDOM.uniform(0, 0.5))
        os.kill(victim, signal.SIGKILL)
        replies = [r.result() for r in replies]
    cut = 0
    for body, text, (status, content) in zip(asked, whole, replies):
        assert status == 200, content
        if not body["stream"]:
            assert json.loads(content)["choices"][0]["text"] == text
            continue
        found = events(content)
        failed = "error" in found[-1]
        cut += failed
        words = "".join(e["choices"][0]["text"] for e in found[:-1 if failed else None] if e["choices"])
        assert text.startswith(words) if failed else words == text
    print(f"{cut} of {N // 2} streams were cut off")
    assert victim not in servers(handle, 2)
    status, content = ask(port, {**asked[0], "stream": False})
    assert status == 200 and json.loads(content)["choices"][0]["text"] == whole[0]


def test_a_stream_is_cut(gateway):
    """All servers are killed when its first event has come: what came stands, the last event says what happened."""
    port, handle = gateway
    body = {"prompt": [1, 2, 3], "max_tokens": 8000, "seed": 1, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    victims = servers(handle, 2)
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
    reply = connection.getresponse()
    begin = reply.read(10)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    found = events((begin + reply.read()).decode())
    assert "midst of the answer" in found[-1]["error"]["message"], found[-1]
    words = "".join(e["choices"][0]["text"] for e in found[:-1])
    status, content = ask(port, body)
    assert status == 200 and json.loads(content)["choices"][0]["text"].startswith(words)


def test_other_paths_and_refusals(gateway):
    port, _ = gateway
    status, content = ask(port, {"prompt": 5})
    assert status == 400 and json.loads(content)["error"]["param"] == "prompt"
    status, content = ask(port, {"content": "in the"}, "/tokenize")
    assert status == 200 and json.loads(content)["tokens"]
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "stream": True,
            "chat_template": "{{ messages[0].content }}"}
    status, content = ask(port, body, "/v1/chat/completions")
    assert status == 200 and events(content)[0]["choices"][0]["delta"]["role"] == "assistant"
