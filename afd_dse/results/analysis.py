"""What a report adds to an answer: what would change it, and how well its GPUs are used."""

from afd_dse.results.result import Result
from afd_dse.results.utilization import utilization
from afd_dse.results.what_if import what_if
from afd_dse.spec.job import Job

ADDED = ("what_if", "utilization")
"""Keys that :func:`analysed` adds to the document."""


def analysed(job: Job, result: Result) -> Result:
    """``result`` with ``what_if`` and ``utilization`` in its document; some seconds of evaluation."""
    document = {
        **result.document,
        "what_if": what_if(job, result.document),
        "utilization": utilization(job, result.document),
    }
    return Result(document, result.candidates)
