"""Processes of a group that are started, not forked, and watched, for cases that may hang, as on GPUs.

`run` starts a process for each rank with the names of all cases.  Each process notes how its cases end (Notes), and
ends itself at the first that fails or takes too long.  Then the others have GRACE seconds before they are killed, and
another group of processes goes on with the cases after that one.
"""

import faulthandler
import json
import os
import subprocess
import sys
import time

GRACE = 10  # seconds that processes have to end after another one has failed
BARREN = 4  # groups in a row whose first case fails, after which no other is started
SLACK = 60  # seconds that a process may take longer than it allows a case itself: to start, and to end
END = "the end of the group"


class Notes:
    """What a process tells of its cases, in a file: None for one that went well, else a text."""

    def __init__(self, path, rank, seconds):
        self.path, self.rank, self.seconds, self.found = path, rank, seconds, {}

    def begin(self, name):
        """From here on the process has so many seconds; a thread that needs nothing of Python's ends it then."""
        self.start = time.monotonic()
        self.note(name, f"rank {self.rank} did not end: it hung, died, or was killed after another one had failed")
        faulthandler.dump_traceback_later(self.seconds, exit=True, file=sys.__stderr__)

    def end(self, name, problem):
        faulthandler.cancel_dump_traceback_later()
        self.note(name, problem)
        if self.rank == 0:
            said = "failed" if problem else "ok"
            print(f"{name}: {said}, {time.monotonic() - self.start:.1f} s", file=sys.__stdout__, flush=True)

    def note(self, name, problem):
        self.found[name] = problem
        whole = self.path.with_suffix(".part")
        whole.write_text(json.dumps(self.found))
        os.replace(whole, self.path)


def watch(processes, notes, seconds):
    """Until all have ended, or had to be killed."""
    start, failed = time.time(), None
    try:
        while any(p.poll() is None for p in processes):
            now = time.time()
            news = max([start, *(path.stat().st_mtime for path in notes if path.exists())])
            if failed is None and any(p.returncode for p in processes):
                failed = now
            if now - news > seconds + SLACK or failed is not None and now - failed > GRACE:
                break
            time.sleep(0.1)
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
        for p in processes:
            p.wait()


def run(command, world, names, folder, tag, seconds):
    """What each rank says of each case: {name: [None or a text, by rank]}.  command(rank, names): what to start; it
    notes in FOLDER/TAG-RANK.json.  Standard errors go to FOLDER/TAG-RANK.log.  Cases are left out when no process began
    any, or after BARREN groups."""
    found, left, barren = {}, list(names), 0
    notes = [folder / f"{tag}-{rank}.json" for rank in range(world)]
    while left:
        for path in notes:
            path.unlink(missing_ok=True)
        processes = []
        for rank in range(world):
            with (folder / f"{tag}-{rank}.log").open("ab") as log:
                processes.append(subprocess.Popen([*map(str, command(rank, left))], stderr=log))
        watch(processes, notes, seconds)
        told = [json.loads(path.read_text()) if path.exists() else {} for path in notes]
        each = {name: [of.get(name, f"rank {rank} did not begin") for rank, of in enumerate(told)] for name in left}
        bad = next((i for i, name in enumerate(left) if any(each[name])), None)
        codes = [p.returncode for p in processes]
        if bad is None:
            found.update(each)
            if any(codes):
                found[END] = [f"rank {rank} ended with {code}" if code else None for rank, code in enumerate(codes)]
            break
        found.update({name: each[name] for name in left[: bad + 1]})
        print(f"{left[bad]}: failed; exit codes {codes}")
        for rank, text in enumerate(each[left[bad]]):
            print(f"---- rank {rank}:\n{text}", flush=True)
        barren = 0 if bad else barren + 1
        if not any(told) or barren == BARREN:
            break
        left = left[bad + 1 :]
    return found
