"""What a run of the Python tests takes, and the seed that it takes it by.

A run has one seed: MPK_SEED, or from the clock; the last lines name it, so that a failure can be repeated.  Of a test
with many cases that run the same code, `@pytest.mark.draws(n)`, it draws n by that seed.  All are taken with
MPK_THOROUGH=1, and where the command line asks for tests by name: a node, or -k.
"""

import os
import random
import time

os.environ.setdefault("MPK_SEED", str(time.time_ns() % 2**31))


def pytest_configure(config):
    config.addinivalue_line("markers", "draws(n): a run takes n of the test's cases, as the seed says")


def takes_all(config):
    return os.environ.get("MPK_THOROUGH") or config.option.keyword or any("::" in a for a in config.args)


def pytest_collection_modifyitems(config, items):
    if takes_all(config):
        return
    cases = {}
    for item in items:
        if item.get_closest_marker("draws"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    left_out = set()
    for (path, name), of in cases.items():
        n = min(of[0].get_closest_marker("draws").args[0], len(of))
        drawn = random.Random(f"{os.environ['MPK_SEED']} {path.name} {name}").sample(of, n)
        left_out.update(item.nodeid for item in of if item not in drawn)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"MPK_SEED={os.environ['MPK_SEED']}")
