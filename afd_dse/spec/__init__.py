"""What a user submits: the job file and its parts, the catalogue of accelerators, the named modes."""

from afd_dse.spec.accelerator import Accelerator
from afd_dse.spec.catalogue import accelerator_aliases, accelerator_names, load_accelerator
from afd_dse.spec.job import (
    Cluster,
    Job,
    Pool,
    Quantization,
    Search,
    Slo,
    Speculative,
    Workload,
    job_warnings,
)
from afd_dse.spec.load import load_job
from afd_dse.spec.modes import named_modes, resolve_modes

__all__ = [
    "Accelerator",
    "Cluster",
    "Job",
    "Pool",
    "Quantization",
    "Search",
    "Slo",
    "Speculative",
    "Workload",
    "accelerator_aliases",
    "accelerator_names",
    "job_warnings",
    "load_accelerator",
    "load_job",
    "named_modes",
    "resolve_modes",
]
