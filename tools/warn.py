#!/usr/bin/env python3
"""Have the compiler check the files that some targets of a build do not need, without making code.

Input: a configured build folder made for Ninja, and targets.  Every C file of the build that is not compiled for these
is parsed with its options, so that its warnings appear, as errors where the build says so.  Exit code: 1 if any file
fails, or if there is none, which means that the targets leave nothing out.  Cost: a tenth of a second a file.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys


def other_checks(build, targets):
    """{file: (the command that checks it, its folder)}, of files that no target needs."""
    inputs = subprocess.run(["ninja", "-C", build, "-t", "inputs", *targets], check=True, capture_output=True,
                            text=True)
    needed = {os.path.normpath(os.path.join(build, line)) for line in inputs.stdout.splitlines()}
    checks = {}
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        at = words.index("-o")
        if os.path.normpath(entry["file"]) not in needed:
            checks[entry["file"]] = (words[:at] + words[at + 2:] + ["-fsyntax-only"], entry["directory"])
    return checks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=os.path.abspath)
    parser.add_argument("targets", nargs="+")
    options = parser.parse_args()
    checks = other_checks(options.build, options.targets)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(lambda c: subprocess.run(c[0], cwd=c[1]).returncode, checks.values()))
    print(f"{len(checks)} files checked for warnings alone")
    return not codes or any(codes)


if __name__ == "__main__":
    sys.exit(main())
