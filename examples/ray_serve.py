"""Several servers behind one address: Ray Serve starts a `mpk serve` for each replica and hands requests through.

    pip install "ray[serve]" httpx
    python ray_serve.py MODEL --replicas=2 --port=8000              # on a CPU
    python ray_serve.py MODEL --replicas=8 --gpus=1 -- --max-batch=64   # a GPU each; behind -- options of mpk serve

Every path of the server is there, streams included.  A replica that fails is started anew.  A request of which the
client has seen nothing yet is sent to a replica again; a stream that has begun ends with an error in its last event.
"""
import argparse
import asyncio
import ctypes
import json
import os
import re
import signal
import subprocess

import httpx
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

TRIES = 4
AT_A_TIME = 4096  # requests that a replica takes; which of them run, and which wait, its server decides
HEADERS = ("authorization", "x-api-key", "x-request-id", "content-type", "anthropic-version")


def die_with_parent():
    """In a child: SIGTERM when the replica's process ends, however that comes."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Server:
    """A `mpk serve` of one's own, on a port that it chooses."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        line = self.process.stdout.readline()  # one line when it is ready, none if it fails
        found = re.search(r" on (https?://\S+) \(", line)
        if not found:
            raise RuntimeError(f"{command[0]} serve ended with exit code {self.process.wait()}: see the log")
        self.url = found[1]

    def runs(self):
        return self.process.poll() is None


@serve.deployment(max_ongoing_requests=AT_A_TIME, health_check_period_s=5)
class Replica:
    def __init__(self, command):
        self.command, self.server, self.lock = command, Server(command), asyncio.Lock()
        self.client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))

    async def start_again(self):
        """Requests wait here for a server that has died: to fail at once would draw ever more of them here."""
        async with self.lock:
            if not self.server.runs():
                self.server = await asyncio.to_thread(Server, self.command)

    async def ask(self, method, target, headers, body):
        """Yields status and headers, then the body in pieces: of a stream whole events."""
        if not self.server.runs():
            await self.start_again()
        async with self.client.stream(method, self.server.url + target, headers=headers, content=body) as reply:
            kept = {k: v for k, v in reply.headers.items() if k.startswith(("content-type", "x-", "retry-after"))}
            yield reply.status_code, kept
            rest = b""
            async for piece in reply.aiter_raw():
                *whole, rest = (rest + piece).split(b"\n\n")
                if whole:
                    yield b"\n\n".join(whole) + b"\n\n"
            if rest:
                yield rest

    def pid(self):
        return self.server.process.pid

    async def check_health(self):
        if not self.server.runs():
            await self.start_again()


def last_event(path, error):
    """How a stream says that it was cut off, in the words of the API that the path belongs to."""
    told = {"message": f"the server failed in the midst of the answer: {error}", "type": "server_error", "code": None}
    if path.startswith("/v1/messages"):
        return f"event: error\ndata: {json.dumps({'type': 'error', 'error': {**told, 'type': 'api_error'}})}\n\n"
    if path.startswith("/v1/responses"):
        return f"event: error\ndata: {json.dumps({**told, 'type': 'error', 'param': None})}\n\n"
    return f"data: {json.dumps({'error': told})}\n\ndata: [DONE]\n\n"


@serve.deployment(max_ongoing_requests=AT_A_TIME)
class Gateway:
    def __init__(self, replicas):
        self.replicas = replicas.options(stream=True)

    async def rest_of(self, path, first, answer):
        try:
            yield first
            async for piece in answer:
                yield piece
        except Exception as error:  # whatever ended it, the client is told
            yield last_event(path, type(error).__name__)

    async def attempt(self, request, body):
        """The reply of one replica; of a stream, when its first event is there."""
        target = request.url.path + ("?" + request.url.query if request.url.query else "")
        headers = {k: v for k, v in request.headers.items() if k in HEADERS}
        answer = self.replicas.ask.remote(request.method, target, headers, body)
        status, kept = await anext(answer)
        if kept.get("content-type") == "text/event-stream":
            first = await anext(answer)
            return StreamingResponse(self.rest_of(request.url.path, first, answer), status, kept)
        return Response(b"".join([piece async for piece in answer]), status, kept)

    async def __call__(self, request: Request):
        body, error = await request.body(), None
        for _ in range(TRIES):
            try:
                reply = await self.attempt(request, body)
            except (ray.exceptions.RayError, httpx.HTTPError, RuntimeError, StopAsyncIteration) as e:
                error = type(e).__name__
                continue
            if reply.status_code != 503:  # that one is stopping, or has failed
                return reply
            error = "503"
        told = {"message": f"no replica could answer ({error}); try again later", "type": "server_error",
                "param": None, "code": "unavailable"}
        return JSONResponse({"error": told}, 503, {"Retry-After": "1"})


def application(model, replicas=2, gpus=0, cpus=0, options=(), mpk=os.environ.get("MPK", "mpk")):
    """What `serve.run` takes."""
    command = [mpk, "serve", str(model), "--port=0", *options]
    resources = {"num_gpus": gpus, "num_cpus": cpus}
    return Gateway.options(ray_actor_options={"num_cpus": 0}).bind(
        Replica.options(num_replicas=replicas, ray_actor_options=resources).bind(command))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0, help="of each replica")
    parser.add_argument("--cpus", type=int, default=0, help="that Ray reserves for each replica")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("options", nargs="*", help="of mpk serve, behind --")
    o = parser.parse_args()
    serve.start(http_options={"host": o.host, "port": o.port})
    serve.run(application(o.model, o.replicas, o.gpus, o.cpus, o.options), blocking=True)
