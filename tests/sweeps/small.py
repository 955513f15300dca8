"""A sweep of jobs that take a second, and a process that runs one."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.results.examples import TINY

# Without a percentile nothing is simulated: a job takes a fraction of a second once its tables are read.
BASE: dict[str, Any] = TINY | {"slo": {"ttft_ms": 1000, "tpot_ms": 20}}
SWEEP: dict[str, Any] = {"base": BASE, "axes": {"slo.tpot_ms": [10, 15, 20, 25, 30]}}


def written(folder: Path, document: Any = None) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(SWEEP if document is None else document))
    return path


def log(folder: Path) -> list[dict[str, Any]]:
    """The log of a store, a line a computed job."""
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def driver(*words: object) -> subprocess.Popen[str]:
    """``afd-dse sweep`` in a process of its own."""
    code = "import sys; from afd_dse.cli import main; main()"
    command = [sys.executable, "-c", code, "sweep", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
