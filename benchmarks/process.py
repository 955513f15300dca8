"""Processes of their own: cold starts, memory and processor time are those of one measurement and nothing else."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What makes numerical libraries use one thread.
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "ARROW_NUM_THREADS",
    ),
    "1",
)
# The command line without the console script, which an uninstalled checkout lacks.
CLI = (sys.executable, "-c", "import sys; from afd_dse.cli import main; sys.exit(main())")


class NotMeasuredError(Exception):
    """A process that failed or took too long; the message says which."""


@dataclass(frozen=True, slots=True)
class Run:
    """A process that has ended: wall and processor seconds from its start to its end, and what it wrote."""

    wall_s: float
    cpu_s: float
    returncode: int
    stdout: str
    stderr: str


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    one_thread: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Run:
    """Run ``command`` from the root of the checkout.

    Raises :class:`NotMeasuredError` when it takes longer than ``limit_s`` seconds.
    """
    environment = {**os.environ, **(ONE_THREAD if one_thread else {}), **(variables or {})}
    environment["PYTHONPATH"] = os.pathsep.join(
        p for p in (str(ROOT), environment.get("PYTHONPATH", "")) if p
    )
    before, began = cpu_seconds(), time.perf_counter()
    try:
        done = subprocess.run(
            [*command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError(f"not done after {limit_s:.0f} s") from error
    wall, cpu = time.perf_counter() - began, cpu_seconds() - before
    return Run(wall, cpu, done.returncode, done.stdout, done.stderr)


def probe(name: str, *, limit_s: float, one_thread: bool = False, **arguments: Any) -> dict[str, Any]:
    """What the function ``name`` of :mod:`benchmarks.probes` finds in a process of its own.

    Raises :class:`NotMeasuredError` when it fails or takes longer than ``limit_s`` seconds.
    """
    command = [sys.executable, "-m", "benchmarks.probes", name, json.dumps(arguments)]
    done = run(command, limit_s=limit_s, one_thread=one_thread)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise NotMeasuredError(f"{name} failed: {lines[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cpu_seconds() -> float:
    """Processor time of this process and of those that it has started and waited for."""
    import resource

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_bytes() -> int:
    """Largest resident memory so far of this process, or of one that it has started and waited for if that took more.

    NOTE: its own on Linux not from ``getrusage``: a process inherits that maximum from the one that started it.
    """
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    own, started = (
        resource.getrusage(who).ru_maxrss * unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    status = Path("/proc/self/status")
    if status.is_file():
        lines = status.read_text(encoding="ascii").splitlines()
        peak = next((line for line in lines if line.startswith("VmHWM:")), None)
        own = int(peak.split()[1]) * 1024 if peak is not None else own
    return max(own, started)


def fixed_work_seconds() -> float:
    """Processor seconds of a fixed piece of Python and numpy, the least of three: how fast the machine is just now.

    Integers one by one, arithmetic on columns, and rows taken from all over them into fresh memory, as searches do.
    """
    import numpy as np

    rng, found = np.random.default_rng(0), []
    values, order = rng.random(4_000_000), rng.permutation(4_000_000)
    for _ in range(3):
        began = time.process_time()
        total = 0
        for number in range(2_000_000):
            total += number
        for _ in range(4):
            np.exp(-values[order] * values).cumsum()
        found.append(time.process_time() - began)
    return min(found)


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was before."""
    import platform

    load = os.getloadavg()
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "fixed_work_s": fixed_work_seconds(),
        "load": {"1 min": load[0], "5 min": load[1], "15 min": load[2]},
    }


def machine_words(facts: Mapping[str, Any]) -> str:
    """The machine of :func:`machine` in one line."""
    pace = f"a fixed piece of Python and numpy takes {facts['fixed_work_s']:.2f} s"
    return f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}; {pace}"


def _processor() -> str:
    import platform

    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
