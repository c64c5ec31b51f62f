#!/usr/bin/env python3
"""Run PyTorch's operator test data through the backend and compare with eager: the table docs/op-db.md.

usage: op_db.py [--write FILE] [--json FILE] [--jobs N] [--samples N] [NAME...]

Each entry of torch.testing._internal.common_methods_invocations.op_db, forward, on the CPU, for fp32, bf16, int64 and
bool where the entry has them, with all of its sample inputs, within the tolerances of torch.testing.assert_close.  An
operator is captured with make_fx over fake tensors in place of Dynamo, which is the same for a single call, and handed
to the backend's own entry point.  With NAMEs, --write changes the rows of these entries in a table that is there.  Exit
code 1 if anything is wrong.
"""

import argparse
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = ["float32", "bfloat16", "int64", "bool"]
SAMPLE_SECONDS = 60
SEED = 42  # what the entries that draw random numbers set themselves
# Which of equal elements they name is not promised; the place of dim among the arguments.
AMBIGUOUS = {"kthvalue": 1, "topk": 1, "median": 0, "nanmedian": 0, "sort": 0, "argsort": 0, "msort": 9}
# Results that PyTorch itself makes differently each time, or leaves undefined.
UNDEFINED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


# ---- one entry ----


def entries():
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def full_name(op):
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


class TookTooLong(Exception):
    pass


def stop_it(*_):
    raise TookTooLong(f"more than {SAMPLE_SECONDS} s")


def tolerances(op, dtype):
    """Those that PyTorch's own tests of the entry override."""
    from torch.testing._internal.common_device_type import toleranceOverride

    for decorator in op.decorators or []:
        for d in getattr(decorator, "decorators", [decorator]):
            if (
                isinstance(d, toleranceOverride)
                and dtype in d.d
                and getattr(decorator, "device_type", None) in (None, "cpu")
            ):
                return {"atol": d.d[dtype].atol, "rtol": d.d[dtype].rtol}
    return {}


def differs(got, expected, tolerance):
    """What is different, or None."""
    import torch

    try:
        torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)
    except AssertionError as problem:
        return " ".join(str(problem).split())[:200]
    return None


def copy_of(t):
    """A copy, unless the tensor looks at a part of a larger storage, which as_strided may see."""
    import torch

    return (
        t.clone()
        if t.layout is not torch.strided or t.untyped_storage().nbytes() == t.numel() * t.element_size()
        else t
    )


def same_places(op, sample, got, expected):
    """Do other indices name equal elements?  Of equal ones PyTorch promises none."""
    import torch

    x, at = sample.input, AMBIGUOUS[op.name]
    dim = sample.kwargs.get("dim", sample.args[at] if len(sample.args) > at else -1)
    if x.dim() == 0:
        return True
    if got.dim() < x.dim():
        got, expected = got.unsqueeze(dim), expected.unsqueeze(dim)
    return torch.equal(x.gather(dim, got), x.gather(dim, expected))


def wide(call, tensors):
    """The results of eager in fp64."""
    return call(*(t.double() if t.is_floating_point() else t for t in tensors))


def as_near(got, expected, exact):
    """Is a float result about as near to that of fp64 as eager's?  By PyTorch's rule for its compilers."""
    import torch

    try:
        exact = exact()
        tolerance = 1.6e-2 if got.dtype is torch.bfloat16 else 1.3e-6
        if torch._dynamo.utils.same(expected, got, exact, tol=tolerance, equal_nan=True):
            return True
        ours, theirs = ((v.double() - exact).abs().nan_to_num(0) for v in (got, expected))
        return torch.equal(got.isnan(), exact.isnan()) and bool((ours <= theirs.max()).all())
    except Exception:
        return False


def run_sample(op, sample, dtype):
    """("whole" | "partly" | "fallback" | "wrong" | "capture", what to say)."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    from mpk import backend

    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

    def call(*tensors):
        values = list(flat)
        for i, t in zip(at, tensors):
            values[i] = t
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        out, _ = pytree.tree_flatten(op.op(first, *args, **kwargs))
        return out

    tensors = [flat[i] for i in at]
    torch.manual_seed(SEED)
    try:
        expected = call(*map(copy_of, tensors))
    except Exception as problem:
        return "eager", f"eager refuses it: {problem}".splitlines()[0][:110]
    reports = []
    try:
        gm = make_fx(call, tracing_mode="fake")(*tensors)
        compiled = backend.mpk(gm, tensors, options=backend.Options(threads=1, reports=reports))
    except (
        torch._subclasses.fake_tensor.DataDependentOutputException,
        AssertionError,
        RuntimeError,
        NotImplementedError,
        TypeError,
        torch._subclasses.fake_tensor.DynamicOutputShapeException,
        torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode,
    ) as problem:
        if "mpk" in "".join(traceback.format_tb(problem.__traceback__)[-1:]):
            raise
        return "capture", f"{type(problem).__name__}: {problem}".splitlines()[0][:150]
    torch.manual_seed(SEED)
    got = compiled(*map(copy_of, tensors))
    fallen = sorted({name for r in reports for name in r.fallbacks})
    if len(got) != len(expected):
        return "wrong", f"{len(got)} results, expected {len(expected)}"
    for i, (g, x) in enumerate(zip(got, expected)):
        problem = differs(g, x, tolerances(op, dtype))
        if problem and op.name in AMBIGUOUS and x.dtype is torch.int64 and same_places(op, sample, g, x):
            problem = None
        if problem and not (
            g.is_floating_point() and g.dtype == x.dtype and as_near(g, x, lambda: wide(call, tensors)[i])
        ):
            return "wrong", problem
    why = "; ".join(f"{n}: {reason}" for r in reports for n, reason in r.fallbacks.items())[:300]
    n_programs = sum(len(r.programs) for r in reports)
    return ("partly" if n_programs else "fallback") if fallen else "whole", why


def run_entry(op, max_samples):
    import torch

    counts, notes, wrong = collections.Counter(), collections.Counter(), []
    for name in DTYPES:
        dtype = getattr(torch, name)
        if dtype not in op.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        try:
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        except Exception as problem:
            notes[f"no samples of {name}: {problem}".splitlines()[0][:120]] += 1
            continue
        for i, sample in enumerate(samples[:max_samples]):
            signal.alarm(SAMPLE_SECONDS)
            try:
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    status, why = run_sample(op, sample, dtype)
            except Exception as problem:
                status, why = "error", f"{type(problem).__name__}: {problem}"[:300]
            finally:
                signal.alarm(0)
            counts[status] += 1
            if status in ("wrong", "error"):
                wrong.append(f"{name} sample {i}: {why}")
            elif why:
                notes[why] += 1
        torch._dynamo.reset()
    return {"name": full_name(op), "counts": dict(counts), "notes": dict(notes.most_common(4)), "wrong": wrong[:6]}


def work(first, step, names, max_samples):
    """Print a line for each entry that is this process's."""
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("MPK_LIBRARY", str(ROOT / "build" / "libmpk.so"))
    signal.signal(signal.SIGALRM, stop_it)
    import logging

    import torch

    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    for i, op in enumerate(op for op in entries() if not names or op.name in names or full_name(op) in names):
        if i < first or i % step != first % step:
            continue
        print(json.dumps({"begin": i, "name": full_name(op)}), flush=True)
        start = time.time()
        result = run_entry(op, max_samples)
        print(json.dumps({**result, "index": i, "seconds": round(time.time() - start, 1)}), flush=True)


# ---- all entries ----


def run_lane(lane, jobs, options, results):
    """One process after the other, since an entry may end it."""
    first = lane
    while True:
        command = [
            sys.executable,
            __file__,
            "--work",
            f"{first},{jobs}",
            "--samples",
            str(options.samples),
            *options.names,
        ]
        begun = None
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if jobs > 1 else None, text=True
        ) as process:
            for line in process.stdout:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if "begin" in record:
                    begun = record
                else:
                    begun = None
                    results.append(record)
                    tell(record)
        if begun is None:
            if process.returncode:
                sys.exit(f"op_db: {' '.join(command)} ended with {process.returncode}")
            return
        results.append(
            {
                "name": begun["name"],
                "counts": {"wrong": 1},
                "notes": {},
                "wrong": [f"ended the process: {process.returncode}"],
                "index": begun["begin"],
                "seconds": 0,
            }
        )
        tell(results[-1])
        first = begun["begin"] + jobs


def tell(record):
    print(
        f"{status_of(record):12} {record['name']} {record['counts']} {record.get('seconds')} s "
        f"{'; '.join(record['wrong'])[:300]} {next(iter(record['notes']), '')}",
        flush=True,
    )


def status_of(record):
    counts = record["counts"]
    if not set(counts) - {"eager"}:
        return "no samples"
    if record["name"] in UNDEFINED:
        return "undefined"
    if counts.get("wrong") or counts.get("error"):
        return "wrong"
    if set(counts) <= {"whole", "eager"}:
        return "whole"
    return "partly" if counts.get("whole") or counts.get("partly") else "fallen back"


WORDS = {
    "whole": "compiled whole",
    "partly": "partly",
    "fallen back": "fallen back",
    "undefined": "undefined",
    "no samples": "no samples",
    "wrong": "WRONG",
}
TITLES = WORDS | {"wrong": "wrong"}
MEANINGS = {
    "whole": "every sample is one program, a view or a constant",
    "partly": "some operators or samples stayed with PyTorch",
    "fallen back": "PyTorch runs all of it",
    "undefined": "nothing to compare: the result is uninitialised memory",
    "no samples": "of none of the four dtypes, or eager on the CPU refuses them all",
    "wrong": "disagrees with eager",
}


def row_of(record):
    status = status_of(record)
    why = next(iter(record["notes"]), "")[:110] if status != "whole" else ""
    why = "; ".join(record["wrong"])[:160] if status == "wrong" else why
    why = why.translate(str.maketrans("|<>", " ()"))
    return f"| `{record['name']}` | {WORDS[status]} | {sum(record['counts'].values())} | {why} |"


def name_of(row):
    return row.split("`")[1]


HEAD = """# PyTorch's operator test data

Written by `./dev op-db` with PyTorch {}: every entry of `op_db`, forward, on the CPU, all
samples of fp32, bf16, int64 and bool, compared with eager PyTorch within its own tolerances. A float result
that is outside of them passes if it is as near to eager's in fp64 as PyTorch asks of its own compilers
(`torch._dynamo.utils.same`). Of equal elements, sort, topk, median and kthvalue may name any.

"""
SUMMARY = "| status | entries | meaning |"


def write(path, head, rows):
    totals = collections.Counter(row.split(" | ")[1] for row in rows)
    lines = [
        SUMMARY,
        "|---|---|---|",
        *(f"| {word} | {totals[WORDS[status]]} | {MEANINGS[status]} |" for status, word in TITLES.items()),
        "",
        "| entry | status | samples | why not whole |",
        "|---|---|---|---|",
        *rows,
    ]
    path.write_text(head + "\n".join(lines) + "\n")


def write_all(path, results):
    import torch

    write(path, HEAD.format(torch.__version__), [row_of(r) for r in results])


def write_some(path, results):
    """Into a table that is there: its head stays, and so do the rows of other entries."""
    new = {r["name"]: row_of(r) for r in results}
    text = path.read_text()
    rows = [line for line in text.split("\n") if line.startswith("| `")]
    write(path, text[: text.index(SUMMARY)], [new.get(name_of(row), row) for row in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--samples", type=int, default=100000, help="of each entry and dtype at most")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.work:
        first, step = map(int, options.work.split(","))
        return work(first, step, options.names, options.samples)
    from concurrent.futures import ThreadPoolExecutor

    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda lane: run_lane(lane, options.jobs, options, results), range(options.jobs)))
    totals = collections.Counter(status_of(r) for r in results)
    print(dict(totals))
    if options.json:
        options.json.write_text(json.dumps(sorted(results, key=lambda r: r["index"]), indent=1))
    if options.write:
        results.sort(key=lambda r: r["index"])
        (write_some if options.names else write_all)(options.write, results)
    sys.exit(1 if totals["wrong"] else 0)


if __name__ == "__main__":
    main()
