"""Processes of their own: what they report is theirs alone, and what goes wrong is told."""

import sys

import numpy as np
import pytest

from benchmarks.jobs import deepseek
from benchmarks.process import NotMeasuredError, fixed_work_seconds, peak_bytes, probe, run

PRINT_PEAK = "from benchmarks.process import peak_bytes; print(peak_bytes())"


def test_the_peak_of_a_process_leaves_out_the_one_that_started_it() -> None:
    here = np.ones(40_000_000)  # 320 MB
    assert peak_bytes() > here.nbytes
    there = int(run([sys.executable, "-c", PRINT_PEAK], limit_s=60).stdout)
    assert 1e6 < there < 1e8


def test_the_peak_of_a_process_counts_what_it_has_freed() -> None:
    script = f"import numpy as np; a = np.ones(20_000_000); del a; {PRINT_PEAK}"
    assert int(run([sys.executable, "-c", script], limit_s=60).stdout) > 160_000_000


def test_the_peak_is_that_of_the_larger_one_of_a_process_and_those_that_it_forked() -> None:
    forked = "import os; import numpy as np; a = np.ones(20_000_000) if os.fork() == 0 else os.wait()"
    script = f"{forked}\nif isinstance(a, tuple): {PRINT_PEAK}"
    assert 160_000_000 < int(run([sys.executable, "-c", script], limit_s=60).stdout) < 320_000_000


def test_a_fixed_piece_of_work_takes_processor_time_that_hardly_varies() -> None:
    one, other = fixed_work_seconds(), fixed_work_seconds()
    assert 0.01 < one < 20.0
    assert 0.2 < one / other < 5.0


def test_a_process_that_takes_too_long_is_ended_and_named_so() -> None:
    with pytest.raises(NotMeasuredError, match="not done after 1 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], limit_s=1)


def test_processor_time_is_what_was_computed_not_what_was_waited() -> None:
    script = "import time; time.sleep(1.0)"
    found = run([sys.executable, "-c", script], limit_s=60)
    assert found.wall_s >= 1.0
    assert found.cpu_s < 0.9


def test_a_probe_that_fails_says_why() -> None:
    with pytest.raises(NotMeasuredError, match=r"answers failed: .*no-such-model"):
        probe("answers", limit_s=60, jobs=[deepseek(model="no-such-model")])
