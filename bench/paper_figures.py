"""Figures of bench/paper.py: bars as in the paper's section 6, one PNG a section.

Input: rows of paper.json; output: files in a folder.  matplotlib is needed for this alone; without it nothing is drawn.
"""


def draw(rows, folder):
    """Draw what the rows have; returns a sentence on what was done."""
    try:
        import matplotlib
    except ImportError:
        return "no figures: matplotlib is not installed (pip install matplotlib)"
    matplotlib.use("Agg")
    drawn = []
    for section, (title, key, normalise) in FIGURES.items():
        mine = [row for row in rows if row["section"] == section and has_times(row)]
        if mine:
            draw_bars(mine, title, key, normalise, folder / f"{section}.png")
            drawn.append(f"{section}.png")
    return "figures: " + (", ".join(drawn) or "none, for nothing was measured")


def has_times(row):
    return any("median" in t for t in row["ms"].values())


# section -> title, what tells rows of one model apart, and whether bars are speeds relative to mpk or milliseconds
FIGURES = {
    "latency": ("Decode throughput, normalised to mpk (higher is better)", "batch", True),
    "ablation": ("Ablations: ms a step (lower is better)", "batch", False),
    "unequal": ("Requests of unequal length: ms a step (lower is better)", "batch", False),
    "prompts": ("Prompts: ms to the first token (lower is better)", "tokens", False),
    "linear": ("Final linear layer: ms a step (lower is better)", "batch", False),
    "context": ("Long context: ms a step (lower is better)", "context", False),
}


def heights(row, name, normalise):
    """Bar and error bar of one variant, or None."""
    t, ours = row["ms"].get(name, {}), row["ms"].get("mpk", {})
    if not t.get("median") or normalise and not ours.get("median"):
        return None
    if normalise:
        return ours["median"] / t["median"], (0, 0)
    return t["median"], (t["median"] - t["least"], t["most"] - t["median"])


def draw_bars(rows, title, key, normalise, file):
    """One panel a model, one group of bars a row."""
    from matplotlib import pyplot
    models = list(dict.fromkeys(row["model"] for row in rows))
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    figure, panels = pyplot.subplots(1, len(models), figsize=(max(6, 4.5 * len(models)), 3.6), squeeze=False)
    for panel, model in zip(panels[0], models):
        mine = [row for row in rows if row["model"] == model]
        for i, name in enumerate(names):
            for at, row in enumerate(mine):
                bar = heights(row, name, normalise)
                if bar:
                    panel.bar(at + (i + 0.5) / (len(names) + 1) - 0.5, bar[0], 1 / (len(names) + 1), color=f"C{i % 10}",
                              yerr=[[max(0, bar[1][0])], [max(0, bar[1][1])]], label=name)
        for at, row in enumerate(mine):
            label_row(panel, at, row, normalise)
        panel.margins(y=0.12)
        panel.set_title(model, fontsize=9)
        panel.set_xlabel(key, fontsize=8)
        panel.set_xticks(range(len(mine)), [str(row.get(key, "")) for row in mine])
        panel.tick_params(labelsize=8)
    handles = {label: handle for panel in panels[0] for handle, label in zip(*panel.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=min(6, len(names)), fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def label_row(panel, at, row, normalise):
    """Above the group: the speed-up over the best rival; of milliseconds, where light is."""
    if normalise:
        rivals = [t["median"] for name, t in row["ms"].items() if name != "mpk" and t.get("median")]
        if rivals and row["ms"].get("mpk", {}).get("median"):
            panel.text(at - 0.35, 1.02, f"{min(rivals) / row['ms']['mpk']['median']:.2f}x", fontsize=7)
    elif row.get("light_ms"):
        panel.hlines(row["light_ms"], at - 0.5, at + 0.4, colors="black", linestyles="dotted", linewidth=1)
