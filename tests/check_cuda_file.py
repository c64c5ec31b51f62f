#!/usr/bin/env python3
"""A model's file on a GPU beside the CPU: logits, greedy text where margins allow, answers of a given form, speed.

    tests/check_cuda_file.py --mpk build/mpk [--unpack-blocks] MODEL.gguf

The CPU computes in fp32, the GPU in bf16 with weights rounded to bf16; so logits may differ by a share of their range,
and a choice may differ where the best two lie closer than that.  A text may go another way only from such a place on.
Wrong rows, a wrong rotation or a wrong format change every logit and are found by both.  Nothing but Python is needed.
"""
import argparse
import array
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TEXT = ("The history of computing is longer than the history of computers. Long before there were machines that could "
        "follow a program, people used tables, rods and wheels to make arithmetic faster and less tiring, and to make "
        "its errors rarer. In the seventeenth century Blaise Pascal built a machine of gears that could add numbers.")
PROMPTS = ["The capital of France is", "def quicksort(items):\n", "Once upon a time, in a small village by the sea,"]
ANSWER_TOKENS = 48
ALLOWED = 0.04  # of the range of the logits
GIVEN = []  # of every engine; on a CPU --unpack-blocks changes nothing
EXACT = ["--activations=f32"]  # a CPU would round activations to 8 bits


def mpk(command, *words):
    result = subprocess.run([command, *map(str, words)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"mpk {' '.join(map(str, words))}: exit code {result.returncode}\n{result.stderr[-2000:]}")
    return result.stdout


def tokens_of(args, text):
    return [int(word) for word in mpk(args.mpk, "tokenize", args.model, "-p", text).split()]


def logits_of(args, folder, device, tokens):
    """Teacher-forced logits: a list of rows."""
    ids, out = folder / "ids.txt", folder / "logits.npy"
    ids.write_text(" ".join(map(str, tokens)))
    mpk(args.mpk, "score", args.model, "--tokens", ids, "--logits", out, "--device", device, *EXACT, *GIVEN, "-q")
    numbers = array.array("f", out.read_bytes()[128:])
    columns = len(numbers) // len(tokens)
    return [numbers[i * columns:(i + 1) * columns] for i in range(len(tokens))]


def answer_of(args, folder, device, tokens):
    requests, answers = folder / "requests.jsonl", folder / "answers.jsonl"
    requests.write_text(json.dumps({"tokens": tokens, "max_tokens": ANSWER_TOKENS, "temperature": 0}) + "\n")
    mpk(args.mpk, "batch", args.model, requests, "-o", answers, "--device", device, *EXACT, *GIVEN, "-q")
    return json.loads(answers.read_text())["tokens"]


def lead(row):
    """The first choice, and by how much it leads."""
    best = max(range(len(row)), key=row.__getitem__)
    return best, row[best] - max(max(row[:best], default=row[best + 1:][0]), max(row[best + 1:], default=row[0]))


def check_logits(args, folder):
    """The largest difference that is allowed in the logits; fails if they differ by more."""
    tokens = tokens_of(args, TEXT)
    expected, found = (logits_of(args, folder, device, tokens) for device in ("cpu", args.device))
    width = max(map(max, expected)) - min(map(min, expected))
    worst = max(abs(a - b) for row, other in zip(expected, found) for a, b in zip(row, other))
    print(f"logits of {len(tokens)} tokens: differ by at most {worst / width:.2e} of their range")
    if not worst <= ALLOWED * width:
        sys.exit(f"logits differ by {worst / width:.2e} of their range, allowed is {ALLOWED}")
    for i, (row, other) in enumerate(zip(expected, found)):
        best, by = lead(row)
        if by > 2 * worst and lead(other)[0] != best:
            sys.exit(f"token {i + 1}: {best} leads by {by:.3f} on the CPU, and is not the choice on {args.device}")
    return worst


def check_text(args, folder, prompt, worst):
    tokens = tokens_of(args, prompt)
    expected, found = (answer_of(args, folder, device, tokens) for device in ("cpu", args.device))
    same = 0
    while same < min(len(expected), len(found)) and expected[same] == found[same]:
        same += 1
    print(f"{prompt!r}: {same} of {len(expected)} greedy tokens are the CPU's")
    if same < len(expected):
        _, by = lead(logits_of(args, folder, "cpu", tokens + expected[:same])[-1])
        if by > 2 * worst:
            sys.exit(f"token {same} of the answer to {prompt!r} differs, though the CPU's choice leads by {by:.3f}")


def check_forms(args, folder):
    """Answers of a given form: masks cross to the GPU while the kernel runs."""
    requests, answers = folder / "requests.jsonl", folder / "answers.jsonl"
    expression = "(?:[0-9]{3}-[a-f]{2,5};){4,9}"
    with requests.open("w") as f:
        for i in range(24):
            f.write(json.dumps({"prompt": PROMPTS[i % 3] * (1 + i), "max_tokens": 120, "seed": i,
                                "temperature": 1.5 * (i % 2), **({"regex": expression} if i % 4 else {})}) + "\n")
    mpk(args.mpk, "batch", args.model, requests, "-o", answers, "--device", args.device, "--max-batch=8", *GIVEN, "-q")
    for i, line in enumerate(answers.read_text().split("\n")[:24]):
        text = json.loads(line)["text"]
        if i % 4 and not re.fullmatch(expression, text):
            sys.exit(f"answer {i} to the form {expression} is {text!r}")
    print("18 answers to a regular expression have its form, in the company of 6 without one")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mpk", default="build/mpk")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--unpack-blocks", action="store_true", help="weights are bf16 on the GPU")
    parser.add_argument("model")
    args = parser.parse_args()
    GIVEN.append("--unpack-blocks" if args.unpack_blocks else "--keep-blocks")
    with tempfile.TemporaryDirectory() as folder:
        worst = check_logits(args, Path(folder))
        for prompt in PROMPTS:
            check_text(args, Path(folder), prompt, worst)
        check_forms(args, Path(folder))
    for batch in (1, 16):
        print(mpk(args.mpk, "bench", args.model, "--device", args.device, "-b", batch, "-n", 256, *GIVEN).strip())


if __name__ == "__main__":
    main()
