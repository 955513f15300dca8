"""Small answers that the tests of results, report and command line share."""

from functools import lru_cache
from typing import Any

from afd_dse import Job, Result, load_job, optimize
from afd_dse.results.analysis import analysed

SMALL: dict[str, Any] = {
    "model": "Qwen/Qwen3-30B-A3B-FP8",
    "cluster": {"pools": [{"name": "main", "accelerator": "h200_sxm", "count": 4}]},
    "workload": {"input_tokens": 1024, "output_tokens": 256},
    "slo": {"ttft_ms": 1000, "tpot_ms": 20, "percentile": 90},
    "search": {"modes": ["colocated", "pd", "afd", "pd_afd", "PA DF | PF | DA"], "space": "quick"},
}
# One mode on one GPU, for what must search anew.
TINY = SMALL | {
    "cluster": {"pools": [{"name": "main", "accelerator": "h200_sxm", "count": 1}]},
    "search": {"modes": ["colocated"], "space": "quick"},
}
IMPOSSIBLE = SMALL | {"slo": {"ttft_ms": 1000, "tpot_ms": 0.1}}
# DeepSeek-V3 does not fit two H100: no layout of any mode meets the memory limit.
TOO_SMALL = SMALL | {
    "model": "deepseek-ai/DeepSeek-V3",
    "cluster": {"pools": [{"name": "main", "accelerator": "h100_sxm", "count": 2}]},
}


# Remembered by the name alone: to a cache, a call without the default is another call than one with it.
_job = lru_cache(maxsize=8)(lambda name: load_job(globals()[name]))
_answer = lru_cache(maxsize=8)(lambda name: optimize(job(name)))
_full = lru_cache(maxsize=8)(lambda name: analysed(job(name), answer(name)))


def job(name: str = "SMALL") -> Job:
    return _job(name)


def answer(name: str = "SMALL") -> Result:
    return _answer(name)


def full(name: str = "SMALL") -> Result:
    """The answer with what a report adds to it."""
    return _full(name)
