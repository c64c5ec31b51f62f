"""A load test of a server that speaks OpenAI's API: so many streams at a time, and what their clients see.

    mpk serve MODEL &
    python serve_load.py --streams=16 --requests=64 --tokens=128
"""
import argparse
import asyncio
import statistics
import time

import openai


async def stream(client, model, prompt, tokens):
    """Times at which a request's events came, since it was sent."""
    begin = time.perf_counter()
    reply = await client.completions.create(model=model, prompt=prompt, max_tokens=tokens, stream=True,
                                            extra_body={"ignore_eos": True})
    return [time.perf_counter() - begin async for event in reply if event.choices and event.choices[0].text]


async def run(options):
    client = openai.AsyncOpenAI(base_url=options.url, api_key=options.key, timeout=None)
    model = (await client.models.list()).data[0].id
    places = asyncio.Semaphore(options.streams)

    async def one(i):
        async with places:
            return await stream(client, model, f"{i}: {options.prompt}", options.tokens)
    begin = time.perf_counter()
    times = await asyncio.gather(*[one(i) for i in range(options.requests)])
    seconds = time.perf_counter() - begin
    gaps = sorted(b - a for t in times for a, b in zip(t, t[1:]))
    firsts = sorted(t[0] for t in times if t)
    print(f"{options.requests} requests, {options.streams} at a time: {seconds:.2f} s, "
          f"{options.requests * options.tokens / seconds:.0f} tokens a second")
    for name, values in (("first token", firsts), ("gap between events", gaps)):
        if values:
            print(f"{name}: median {statistics.median(values) * 1e3:.2f} ms, "
                  f"99 of 100 below {values[len(values) * 99 // 100] * 1e3:.2f} ms, longest {values[-1] * 1e3:.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--key", default="none")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", default="Tell me about the sea.")
    asyncio.run(run(parser.parse_args()))
