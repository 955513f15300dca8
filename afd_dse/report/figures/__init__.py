"""Charts, each in two steps: an info object with what is to be shown, and the plotly figure of it.

Report, dashboard and notebooks use the same: ``front_figure(front_info(document, points))``.
"""

from afd_dse.report.figures.front import front_figure, front_info
from afd_dse.report.figures.memory import memory_figure, memory_info
from afd_dse.report.figures.modes import (
    decode_info,
    first_token_info,
    modes_figure,
    modes_info,
    parts_figure,
)
from afd_dse.report.figures.nothing import NothingToShowError, feasible_modes
from afd_dse.report.figures.ratio import ratio_figure, ratio_info
from afd_dse.report.figures.roofline import hfu_bars, roofline_figure, roofline_info
from afd_dse.report.figures.sensitivity import sensitivity_figure, sensitivity_info

__all__ = [
    "NothingToShowError",
    "decode_info",
    "feasible_modes",
    "first_token_info",
    "front_figure",
    "front_info",
    "hfu_bars",
    "memory_figure",
    "memory_info",
    "modes_figure",
    "modes_info",
    "parts_figure",
    "ratio_figure",
    "ratio_info",
    "roofline_figure",
    "roofline_info",
    "sensitivity_figure",
    "sensitivity_info",
]
