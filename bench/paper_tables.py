"""Tables of bench/paper.py: rows of paper.json as text, and below each table what failed and why."""


def table(title, heads, rows):
    """A titled table; the first column to the left."""
    words = [[str(w) for w in row] for row in [heads, *rows]]
    widths = [max(len(row[i]) for row in words) for i in range(len(heads))]
    print(f"\n{title}")
    for row in words:
        print("  ".join(w.ljust(n) if not i else w.rjust(n) for i, (w, n) in enumerate(zip(row, widths))).rstrip())


def shown(t, light=None):
    """"0.604 (0.601-0.610) 1.51x"; what failed is named below the table."""
    if not t or "median" not in t:
        return "failed" if t else "-"
    times = f" {t['median'] / light:.2f}x" if light else ""
    return f"{t['median']:.3f} ({t['least']:.3f}-{t['most']:.3f}){times}"


def number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def table_of_times(title, rows, keys):
    """One line a row, one column a variant; of mixtures the experts hit; ms (least-most) and times light."""
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    lit, mixed = any(row.get("light_ms") for row in rows), any(row.get("experts_hit") for row in rows)
    table(title, [*keys, *(["experts hit"] if mixed else []), *(["light"] if lit else []), *names],
          [[*(row.get(k, "-") for k in keys), *([number(row.get("experts_hit"), 1)] if mixed else []),
            *([number(row.get("light_ms"))] if lit else []),
            *(shown(row["ms"].get(n), row.get("light_ms")) for n in names)] for row in rows])


def print_correctness(rows):
    lines = []
    for row in rows:
        base = row["results"].get("eager bf16", {})
        for name, r in row["results"].items():
            ratio = [r[k] / base[k] if base.get(k) else None for k in ("kl", "nll_distance")]
            lines.append([row["model"], name, f"{r['kl']:.3e}", number(ratio[0], 2), f"{r['nll']:.5f}",
                          f"{r['nll_distance']:.3e}", number(ratio[1], 2), f"{100 * r['argmax']:.1f} %"])
    table("Correctness: logits against Transformers fp32, the same random weights (bar: 1.5 times eager bf16)",
          ["model", "by, tokens a step", "KL", "times", "NLL", "its distance", "times", "same argmax"], lines)


def print_stages(rows):
    keys = ["operators", "tasks_per_operator", "events", "fusion"]
    lines = []
    for row in rows:
        r = row["result"]
        if "failed" not in r:
            small = r["successor_bytes_list"] / max(1, r["successor_bytes_range"])
            lines.append([row["model"], row["ops"], *(f"{r[k]:g}" for k in keys), f"{small:.1f}",
                          r["normalize_tasks"], number(r["compile_ms"], 1)])
    heads = ["model", "operators of", "operators", "tasks each", "events", "fusion", "linearize", "normalize tasks",
             "compile ms"]
    table("Stages of the compiler, one token a step", heads, lines)


def print_start(rows):
    def value(result, key):
        return number(result.get(key), 0)
    heads = ["model", "compile cold", "compile cached", "from the cache", "load", "open to first token",
             "with files of weights"]
    table("Start, ms (all batch sizes up to 16)", heads,
          [[row["model"], value(row["cold"], "compile_ms"), value(row["cached"], "compile_ms"),
            row["cached"].get("program_cached", "-"), value(row["cached"], "load_ms"),
            value(row["cached"], "open_to_first_token_ms"), value(row["with_weights"], "open_to_first_token_ms")]
           for row in rows])


def print_schedule(rows):
    for row in rows:
        profile = row["result"].get("profile")
        if not profile:
            continue
        heads = ["operators", "code", "columns", "to", "number", "tasks", "us a step", "wait us", "body us",
                 "trigger us", "slowest us"]
        scheduling = (f": scheduling takes {100 * profile['scheduling']:.2f} % of the workers' time"
                      if profile["scheduling"] else "")  # a CPU does not tell it
        table(f"One step of {row['model']}, batch {row['batch']}{scheduling}", heads,
              [[k["kind"], k["body"], k.get("from", "-"), k.get("to", "-"), k["operators"], k["tasks"],
                number(k["sm_us"], 1), number(k["wait_us"], 2), number(k["body_us"], 2), number(k["trigger_us"], 3),
                number(k["longest_us"], 2)]
               for k in profile["kinds"]])


def print_linear(rows):
    table_of_times("Final linear layer, ms a step of one small layer and it", rows, ["model", "batch"])
    names = list(dict.fromkeys(name for row in rows for name in row["alone_ms"]))
    table("The layer alone, us", ["model", "batch", "light", *names],
          [[row["model"], row["batch"], number(row["light_ms"] and 1e3 * row["light_ms"], 1),
            *(number(1e3 * row["alone_ms"][n], 1) if n in row["alone_ms"] else "-" for n in names)] for row in rows])


def print_ablation(rows):
    """One mechanism at a time; then who waits for what (carriers or counters) by events and launch policy."""
    single = [{**row, "ms": {name: t for name, t in row["ms"].items() if not name.startswith("launch=")}}
              for row in rows]
    if any(row["ms"] for row in single):
        table_of_times("Ablations, ms a step", single, ["model", "batch"])
    crossed = [line for row in rows for line in mechanisms_of(row)]
    if crossed:
        table_of_times("Carriers, events and launch policies, ms a step", crossed,
                       ["model", "batch", "launch", "events"])


def mechanisms_of(row):
    """A row of the ablations as rows of launch policy and events, with a column for carriers and for counters."""
    lines = {}
    for name, t in row["ms"].items():
        launch, *words = name.split(",")
        if launch.startswith("launch="):
            key = launch.removeprefix("launch="), "coarse" if "coarse-events" in words else "fine"
            lines.setdefault(key, {})["counters" if "no-carriers" in words else "carriers"] = t
    return [{"model": row["model"], "batch": row["batch"], "launch": launch, "events": events, "ms": ms}
            for (launch, events), ms in lines.items()]


TABLES = {
    "correctness": print_correctness,
    "stages": print_stages,
    "latency": lambda rows: table_of_times("Decode, ms a step: median (least-most), times light", rows,
                                           ["model", "batch"]),
    "ablation": print_ablation,
    "unequal": lambda rows: table_of_times("Requests of unequal length, ms a step", rows, ["model", "batch", "seed"]),
    "prompts": lambda rows: table_of_times("Prompts, ms to the first token", rows, ["model", "tokens"]),
    "start": print_start,
    "schedule": print_schedule,
    "linear": print_linear,
    "context": lambda rows: table_of_times("Long context, ms a step", rows, ["model", "context"]),
}


def failures(row, path=()):
    """Where and why, of everything in a row that failed."""
    for key, value in row.items():
        if key == "failed" and value:
            for name, words in value.items() if isinstance(value, dict) else [(None, value)]:
                yield " ".join([*path, *([name] if name else [])]), words
        elif isinstance(value, dict):
            yield from failures(value, (*path, str(key)))


def print_facts(facts):
    rate = facts.get("bytes_per_s")
    print(f"{facts.get('device', 'no device')}, commit {facts.get('commit')}, {facts.get('began')}, light at "
          f"{number(rate and rate * 1e-12)} TB/s, seed {facts.get('seed')}")


def print_tables(rows):
    for name, printer in TABLES.items():
        mine = [row for row in rows if row["section"] == name]
        if not mine:
            continue
        printer(mine)
        for row in mine:
            for place, words in failures(row):
                where = " ".join(str(row[k]) for k in ("model", "batch", "tokens", "ops") if k in row)
                print(f"  {where} {place}: failed: {words}")
