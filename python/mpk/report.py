"""mpk.explain: what became tasks, what stayed with PyTorch, how many launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from mpk import backend


@dataclasses.dataclass
class Explanation:
    """What the backend made of one call.

    graphs: pieces in which Dynamo captured it, one if nothing broke; launches: programs that a call runs, on a GPU one
    launch of a kernel each; devices: where they run; tasks,
    events, operators: of all programs; kinds: operators by name; code: what runs the operators of each program, by
    kind, with the block programs that were searched for it; once: operators of PyTorch that ran before the first call,
    since they read weights alone; fallbacks: operators that PyTorch runs, and why;
    profile: if one was asked for, where the time of each program's last run went (the fields of both are those of
    mpk_engine_profile in mpk.h).
    """

    graphs: int
    launches: int
    devices: list[str]
    operators: int
    tasks: int
    events: int
    kinds: dict[str, int]
    code: list[list[dict]]
    once: int
    fallbacks: dict[str, str]
    breaks: list[str]
    compile_ms: float
    profile: list[dict]
    result: Any = dataclasses.field(repr=False)

    def __str__(self) -> str:
        lines = [
            f"{self.graphs} graphs, {self.launches} launches a call on {' and '.join(self.devices) or 'nothing'}, "
            f"{self.operators} operators, {self.tasks} tasks, "
            f"{self.events} events, compiled in {self.compile_ms:.1f} ms"
        ]
        lines += ["  " + ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items(), key=lambda kn: -kn[1]))]
        lines += [f"  {self.once} operators on weights alone run once"] if self.once else []
        lines += [f"  PyTorch runs {name}: {reason}" for name, reason in self.fallbacks.items()]
        lines += [f"  the capture broke: {reason}" for reason in self.breaks]
        for program in self.profile:
            lines += ["  us of a launch, by kind of operator; means over its tasks: waiting, working, slowest"]
            for k in sorted(program["kinds"], key=lambda k: -k["sm_us"]):
                lines += [
                    f"  {k['sm_us']:9.1f} ({k['share']:.1%})  {_code(k)}: "
                    f"{k['wait_us']:.2f}, {k['body_us']:.2f}, {k['longest_us']:.2f}"
                ]
                lines += _searched(k, program["clock_mhz"])
        for program in [] if self.profile else self.code:
            lines += [line for k in program for line in (f"  {_code(k)}", *_searched(k))]
        return "\n".join(line for line in lines if line.strip())


def _code(kind: dict) -> str:
    name, body = kind["kind"], kind["body"]
    ran = body if body.startswith(name) else f"{name} by {body}"
    return f"{ran}, {kind['operators']} operators, {kind['tasks']} tasks"


def _searched(kind: dict, mhz: float = 0.0) -> list[str]:
    """A line for each block program of this kind."""
    lines = []
    for p in kind["programs"]:
        estimate = f"{p['cycles'] / mhz:.2f} us" if mhz else f"{p['cycles']:.0f} cycles"
        refused = f", {p['refused']} refused" if p["refused"] else ""
        tried = f"of {p['listed']} block programs {p['fitting']} fit{refused}"
        lines += [f"      {tried}; the model expects {estimate} a task"]
    return lines


def explain(fn: Callable, *args: Any, profile: bool = False, **kwargs: Any) -> Explanation:
    """Compile fn for these arguments, run it once, tell what it became.  profile: run it once more, and tell where
    its time went; fn gets no argument of this name."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    reports: list[backend.Report] = []
    compiled = torch.compile(fn, backend=backend.mpk, options=backend.Options(profile=profile, reports=reports))
    with torch.no_grad():
        result = compiled(*args, **kwargs)
        if profile:
            compiled(*args, **kwargs)  # the first run begins with cold caches
    breaks = list(torch._dynamo.utils.counters["graph_break"])
    programs = [program for report in reports for program in report.programs]
    facts = [program.describe() for program in programs]
    torch._dynamo.reset()

    def total(name: str) -> Any:
        return sum(f[name] for f in facts)

    kinds: dict[str, int] = {}
    for f in facts:
        for kind, n in f["kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + n
    return Explanation(
        len(reports),
        len(facts),
        sorted({f["device"] for f in facts}),
        total("operators"),
        total("tasks"),
        total("events"),
        kinds,
        [f["code"] for f in facts],
        sum(r.n_once for r in reports),
        {name: reason for r in reports for name, reason in r.fallbacks.items()},
        breaks,
        float(total("compile_ms")),
        [program.profile() for program in programs if profile],
        result,
    )
