#!/usr/bin/env python3
"""Print the share of lines that the tests executed, for each room of src/.

Input: a build folder made with MPK_COVERAGE and the counts that its tests left; output: a table, least covered files
below it.  A line of a file counts once, however many programs hold it: it is covered if any of them ran it.  Cost: one
gcov for each object file.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

import tree


def merge_counts(build, root):
    """{file: {line: executions}} over all programs of the build, for files below src/ that are no tests."""
    lines = collections.defaultdict(lambda: collections.defaultdict(int))
    for notes in sorted(build.rglob("*.gcno")):
        run = subprocess.run(["gcov", "--json-format", "--stdout", str(notes.resolve())], capture_output=True,
                             text=True, cwd=build)
        for document in run.stdout.splitlines():
            for file in json.loads(document)["files"] if document.startswith("{") else ():
                path = (pathlib.Path(build) / file["file"]).resolve()
                if not path.is_relative_to(root / "src") or path.stem.endswith(("_test", "_fuzz")):
                    continue
                for line in file["lines"]:
                    lines[str(path.relative_to(root))][line["line_number"]] += line["count"]
    return lines


def share(counts):
    ran = sum(1 for count in counts if count)
    return ran, len(counts), 100.0 * ran / max(1, len(counts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    lines = merge_counts(parser.parse_args().build, tree.ROOT)
    if not lines:
        print("no counts: build with -DMPK_COVERAGE=ON and run the tests first")
        return 1
    rooms = collections.defaultdict(list)
    for name, counts in lines.items():
        rooms[name.split("/")[1]] += counts.values()
    print(f"{'room':10} {'lines':>7} {'executed':>9} {'share':>7}")
    for room, counts in sorted(rooms.items()):
        ran, n, percent = share(counts)
        print(f"{room:10} {n:7} {ran:9} {percent:6.1f}%")
    ran, n, percent = share([c for counts in rooms.values() for c in counts])
    print(f"{'all':10} {n:7} {ran:9} {percent:6.1f}%\n")
    print("least covered files")
    for name in sorted(lines, key=lambda n: share(lines[n].values())[2])[:10]:
        print(f"  {share(lines[name].values())[2]:5.1f}%  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
