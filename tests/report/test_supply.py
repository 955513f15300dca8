"""The chart of the supply bound."""

import numpy as np

from afd_dse.architecture.catalogue import load_model
from afd_dse.network.hardware import supply_hardware
from afd_dse.network.hfu import HfuAnalysis, hfu_analysis
from afd_dse.report.supply import supply_figure, supply_info, supply_page


def _analysis(accelerator: str) -> HfuAnalysis:
    return hfu_analysis(
        load_model("deepseek-v3"), supply_hardware(accelerator, "baidu"), np.arange(1.0, 65.0)
    )


def test_the_chart_shows_boundaries_and_dead_zone_that_lie_within_it() -> None:
    info = supply_info(_analysis("h800"))
    assert [place for place, _ in info.boundaries] == [2.5, 8.0, 32.0]
    assert info.dead_zone == (3.0, 64.0)
    assert [place for place, _ in supply_info(_analysis("gb200")).boundaries] == [8.0, 32.0]
    assert supply_info(_analysis("gb200")).dead_zone is None


def test_the_figure_has_both_curves_and_the_page_needs_no_network() -> None:
    figure = supply_figure(supply_info(_analysis("h800")))
    assert [trace.name for trace in figure.data] == ["HFU at most", "arithmetic intensity, 1 node = 1"]
    assert "dead zone" in {annotation.text for annotation in figure.layout.annotations}
    page = supply_page(_analysis("h800"))
    assert 'src="http' not in page
