"""What a process keeps in memory; each in a process of its own."""

import subprocess
import sys

import pytest

RESIDENT = """
import gc
def resident():
    return int(next(line for line in open("/proc/self/status") if "VmRSS" in line).split()[1]) / 1024
"""

FREED = """
import numpy as np
from afd_dse.resources import keep_freed_memory, return_freed_memory
keep_freed_memory()
arrays = [np.ones(2**17) for _ in range(300)]
last = np.ones(2**17)
del arrays
kept = resident()
return_freed_memory()
print(kept - resident())
"""

SAMPLED = """
from afd_dse import load_job, optimize
from afd_dse.cost.scenario import Scenario
from tests.results.examples import SMALL
job = load_job({**SMALL, "search": {"space": "quick", "modes": ["colocated"], "method": "optuna", "trials": 30}})
assert optimize(job, processes=1).best
gc.collect()
print(sum(isinstance(thing, Scenario) for thing in gc.get_objects()))
"""


def printed(code: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT + code], capture_output=True, text=True, check=True, timeout=120
    )
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's memory is glibc's")
def test_what_arrays_have_freed_is_returned_when_asked() -> None:
    assert printed(FREED) > 200.0


def test_nothing_of_a_sampled_search_stays_behind() -> None:
    assert printed(SAMPLED) == 0.0
