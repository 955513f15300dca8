"""What all tests share: the root on the path (for ``tests.strategies``) and Hypothesis profiles."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_ROOT = str(Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

# The cores are the workers' (one each): threads of BLAS, set before NumPy is imported, would only wait for each other.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Two busy cores: a deadline would measure the neighbours. "thorough" is for a night, "default" for every push.
settings.register_profile(
    "default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Files that take longest, about in that order. A worker gets file after file, and should not get one of these last.
LONGEST = (
    "test_notebooks.py",
    "dashboard/test_in_browser.py",
    "search/test_sampled.py",
    "cost/test_evaluate.py",
    "sweeps/test_ray_engine.py",
    "report/test_in_browser.py",
    "sweeps/test_run.py",
    "benchmarks/test_main.py",
    "search/test_storage.py",
    "literature/test_run.py",
    "cli/test_commands.py",
    "cli/test_report.py",
    "operators/test_check.py",
    "search/test_exhaustive.py",
    "cost/test_memory.py",
    "test_golden.py",
    "calibration/test_gate.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, where several workers share the tests."""
    if hasattr(config, "workerinput"):
        here = Path(__file__).parent
        place = {here / name: number for number, name in enumerate(LONGEST)}
        assert all(path.is_file() for path in place), "LONGEST names a file that is not there"
        items.sort(key=lambda item: place.get(item.path, len(place)))
