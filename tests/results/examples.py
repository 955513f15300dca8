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


@lru_cache(maxsize=8)
def job(name: str = "SMALL") -> Job:
    return load_job(globals()[name])


@lru_cache(maxsize=8)
def answer(name: str = "SMALL") -> Result:
    return optimize(job(name))


@lru_cache(maxsize=8)
def full(name: str = "SMALL") -> Result:
    """The answer with what a report adds to it."""
    return analysed(job(name), answer(name))
