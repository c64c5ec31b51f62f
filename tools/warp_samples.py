#!/usr/bin/env python3
"""Where do the warps of a generated kernel spend their time, function by function of device/?

    tools/warp_samples.py samples.csv kernel.cu kernel.sass [--least 0.5] [--inside NAME]

Input: Nsight Compute's samples, the kernel's source, and its instructions with the lines that they come from:

    ncu -k mpk_kernel --launch-skip 5 -c 1 --section SourceCounters --section WarpStateStats -o report COMMAND
    ncu --import report.ncu-rep --page source --csv > samples.csv
    nvcc -arch=sm_90a -std=c++17 -lineinfo -cubin -o kernel.cubin kernel.cu         # or NVRTC, the same version
    nvdisasm -c -gi kernel.cubin > kernel.sass

Output: a tree of functions as they are inlined, each with its share of all samples, its instructions, and the reasons
for which warps that were sampled there stood still, in per cent of all samples.  A role whose warp lives as long as the
kernel has 100 / warps of them, as twelve warps have 8.3 each.  Lines do not change the instructions; if their number
differs, source or compiler are not those of the run.
"""
import argparse
import collections
import csv
import re
import sys

import sanitize_cuda

PLACE = re.compile(r'//## File "[^"]*", line (\d+)')
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,6}\*/\s+(.*?);")


def places_of(sass):
    """For each instruction the lines that it comes from, innermost first."""
    places, lines, begins = [], [], True
    for text in sass:
        found = PLACE.search(text)
        if found:
            lines = [*([] if begins else lines), int(found.group(1))]
            begins = False
        elif INSTRUCTION.match(text):
            begins = True
            places.append(lines)
    return places


def samples_of(rows):
    """For each instruction its samples by reason; rows: those of the CSV."""
    rows = [row for row in rows if row]
    titles = next(row for row in rows if row[0] == "Address")
    reasons = {i: t[6:] for i, t in enumerate(titles) if t.startswith("stall_") and "Not Issued" not in t}
    for row in rows[rows.index(titles) + 1:]:
        yield {reason: int(float(row[i] or 0)) for i, reason in reasons.items()}


class Node:
    """A function where it is inlined."""

    def __init__(self):
        self.instructions, self.reasons, self.inside = 0, collections.Counter(), collections.defaultdict(Node)

    def samples(self):
        return sum(self.reasons.values())


def tree_of(source, places, samples):
    root = Node()
    for lines, reasons in zip(places, samples):
        path = [root]
        for line in reversed(lines):
            path.append(path[-1].inside[source.function(line)])
        for node in path:
            node.instructions += 1
            node.reasons.update(reasons)
    return root


def found_inside(node, wanted):
    """All places where a function is inlined."""
    for name, inner in node.inside.items():
        if name == wanted:
            yield inner
        else:
            yield from found_inside(inner, wanted)


def printed(node, total, least, depth=0):
    for name, inner in sorted(node.inside.items(), key=lambda pair: -pair[1].samples()):
        share = 100 * inner.samples() / total
        if share < least:
            continue
        reasons = ((reason, 100 * n / total) for reason, n in inner.reasons.most_common(4))
        shown = " ".join(f"{reason} {part:.1f}" for reason, part in reasons if part >= least / 2)
        yield f"{'  ' * depth}{share:5.2f} {name} [{inner.instructions}] {shown}"
        yield from printed(inner, total, least, depth + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("samples")
    parser.add_argument("source")
    parser.add_argument("sass")
    parser.add_argument("--least", type=float, default=0.5, metavar="PERCENT", help="of all samples, to be shown (0.5)")
    parser.add_argument("--inside", metavar="NAME", help="only within this function")
    given = parser.parse_args()
    with open(given.samples, newline="") as f:
        samples = list(samples_of(csv.reader(f)))
    with open(given.source) as f:
        source = sanitize_cuda.Source(f.read())
    with open(given.sass) as f:
        places = places_of(f)
    if len(samples) != len(places):
        sys.exit(f"warp_samples: {given.samples} has {len(samples)} instructions and {given.sass} {len(places)}: "
                 "compile the source of that run with its compiler")
    root = tree_of(source, places, samples)
    total = root.samples()
    if not total:
        sys.exit(f"warp_samples: {given.samples} has no samples: give ncu --section SourceCounters")
    for node in found_inside(root, given.inside) if given.inside else [root]:
        print("\n".join(printed(node, total, given.least)))


if __name__ == "__main__":
    main()
