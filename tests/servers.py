"""A running mpk serve for tests and for ./dev soak; of Python's standard library but for the client of openai."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import support

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
        found = re.fullmatch(r"mpk: serving (.*) on https?://(.*):(\d+) \([^;]+; context \d+, \d+ requests at a "
                             r"time\)\n", self.lines)
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
        import openai
        return openai.OpenAI(base_url=f"{scheme}://{self.host}:{self.port}/v1", api_key="none", max_retries=0, **more)
