"""The closed pipeline: m micro-batches circulate over the stations of every layer."""

from collections.abc import Sequence

import numpy as np

from afd_dse.operators.latency import FloatArray


def step_time(stations: Sequence[FloatArray], layers: FloatArray, micro_batches: FloatArray) -> FloatArray:
    """Time of one step of all micro-batches through all layers, seconds [n].

    ``stations`` in visiting order, each [n, kinds]: time of one micro-batch in a layer of each kind; ``layers`` [kinds]
    how many layers of each kind, ``micro_batches`` [n] m ≥ 1.

    With s_max the slowest station and S the sum of a layer, the period of a layer is max(m·s_max, S); L equal layers
    take S + (L − 1)·period + (m − 1)·s_max: exact for FIFO stations, also where m·s_max < S, the case that
    MegaScale-Infer (arXiv 2504.02263) Eq. 5 excludes. Kinds follow each other; the fill of the pipeline is paid once.
    """
    slowest, total = stations[0], stations[0]
    for station in stations[1:]:
        slowest, total = np.maximum(slowest, station), total + station
    m = micro_batches[:, None]
    period = np.maximum(m * slowest, total)
    fill = total - period + (m - 1.0) * slowest
    result: FloatArray = period @ layers + fill @ (layers / layers.sum())
    return result


def busy_time(station: FloatArray, layers: FloatArray, micro_batches: FloatArray) -> FloatArray:
    """Time that one station works during a step, seconds [n]; ``station`` [n, kinds]."""
    result: FloatArray = (station @ layers) * micro_batches
    return result
