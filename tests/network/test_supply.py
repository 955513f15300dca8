"""The supply bound against its paper and its laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.architecture.catalogue import load_model
from afd_dse.errors import InputError
from afd_dse.network.hardware import supply_hardware, supply_profiles
from afd_dse.network.hfu import hfu_analysis
from afd_dse.network.supply import (
    Fabric,
    Regime,
    boundaries,
    dead_zone,
    exchange_rate,
    hfu_bound,
    least_sparsity,
    network_intensity,
    regime,
    relative_intensity,
    stage_budget,
    supplied_bandwidth,
    supplied_tokens,
)

H800 = supply_hardware("h800", "baidu").fabric
FABRICS = st.builds(Fabric, st.floats(1e9, 1e12), st.floats(1e9, 1e12), st.sampled_from([4, 8, 72]))


# arXiv 2602.09721: DeepSeek-V3 on two FFN nodes.
@pytest.mark.parametrize(
    ("accelerator", "percent"), [("h20", 100.0), ("h100", 41.4), ("b200", 18.2), ("gb200", 65.5)]
)
def test_the_published_bounds_come_out(accelerator: str, percent: float) -> None:
    hardware = supply_hardware(accelerator, "baidu")
    found = hfu_bound(hardware.fabric, 2, topk=8, intermediate=2048, peak_flops=hardware.peak_flops)
    assert 100 * found == pytest.approx(percent, abs=0.1)


def test_the_published_regimes_and_their_boundaries_come_out() -> None:
    ends = boundaries(H800, topk=8, experts=256)
    assert (ends.scale_out_full, ends.no_reuse, ends.one_expert) == (2.5, 8.0, 32.0)
    nodes = [1, 2.5, 4, 8, 9, 31, 32, 64]
    assert regime(H800, nodes, topk=8, experts=256).tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    found = relative_intensity(H800, [1, 2, 2.5, 8, 32, 64], topk=8, experts=256)
    assert found == pytest.approx([1, 2, 2.5, 2.5, 10, 10])


def test_intensity_is_twice_the_expert_width_for_one_byte_out_and_two_back() -> None:
    assert network_intensity(np.array([2048, 5120, 1536])) == pytest.approx([4096, 10240, 3072])


def test_a_stage_budget_is_well_below_a_millisecond() -> None:
    assert stage_budget(0.050, 61) == pytest.approx(273e-6, rel=1e-3)
    assert stage_budget(0.050, 61, accepted_per_step=2.0, gap_s=0.01) == pytest.approx(0.09 / 183)


def test_an_ffn_gpu_of_step_3_receives_the_published_traffic() -> None:
    # arXiv 2507.19427: 2 x 128 tokens of 7168 elements at 3 bytes in 273 us are 161.3 Gb/s.
    assert exchange_rate(256, 7168, 3.0, 273e-6) * 8 == pytest.approx(161.3e9, rel=0.01)


def test_the_least_sparsity_of_step_3_comes_out() -> None:
    found = least_sparsity(295.5, node_bytes_per_s=400e9, hidden=7168, budget_s=stage_budget(0.050, 61))
    assert found == pytest.approx(0.058, rel=0.05)


def test_supplied_tokens_fill_the_supplied_bandwidth() -> None:
    tokens = supplied_tokens(H800, [1.0, 8.0], topk=8, hidden=7168, budget_s=273e-6)
    assert tokens * 7168 * 3 / 273e-6 == pytest.approx(supplied_bandwidth(H800, [1.0, 8.0], 8))


@given(FABRICS, st.integers(1, 16), st.integers(1, 64))
def test_the_bound_never_rises_with_more_nodes_and_intensity_never_falls(
    fabric: Fabric, topk: int, multiple: int
) -> None:
    nodes = np.arange(1.0, 65.0)
    bandwidth = supplied_bandwidth(fabric, nodes, topk)
    assert (np.diff(bandwidth) <= 1e-6 * bandwidth[:-1]).all()
    assert (bandwidth <= fabric.scale_up_bytes_per_s).all()
    growing = relative_intensity(fabric, nodes, topk=topk, experts=topk * multiple)
    alive = regime(fabric, nodes, topk=topk, experts=topk * multiple) != Regime.ONE_EXPERT
    assert (np.diff(growing)[alive[1:]] >= -1e-9 * growing[:-1][alive[1:]]).all()


@given(FABRICS, st.integers(1, 16))
def test_the_dead_zone_is_where_the_bound_is_lower_than_with_one_node(fabric: Fabric, topk: int) -> None:
    nodes = np.arange(1.0, 33.0)
    bound = hfu_bound(fabric, nodes, topk=topk, intermediate=2048, peak_flops=1e15)
    dead = dead_zone(fabric, nodes, topk=topk, intermediate=2048, peak_flops=1e15)
    assert not dead[0]
    assert (bound[dead] < bound[0]).all()
    assert bound[~dead] == pytest.approx(bound[0])


def test_one_domain_of_many_nodes_is_fed_over_scale_up_until_it_is_left() -> None:
    fabric = supply_hardware("gb200").fabric
    assert supplied_bandwidth(fabric, [17.0, 18.0], 1).tolist() == [900e9, 50e9]
    assert boundaries(fabric, topk=8, experts=256).scale_out_full == 17.0


def test_hardware_without_fp8_counts_its_bfloat16_peak() -> None:
    assert supply_hardware("a100").peak_flops == 312e12


def test_unknown_hardware_and_profiles_are_refused_with_what_there_is() -> None:
    assert supply_profiles() == ("catalogue", "baidu")
    for name, profile in (
        ("a100", "baidu"),
        ("h800", "step3"),
        ("h800", "nonsense"),
        ("nonsense", "catalogue"),
    ):
        with pytest.raises(InputError, match=r"use one of|Use one of|did you mean"):
            supply_hardware(name, profile)


def test_an_analysis_has_the_columns_of_its_nodes_and_needs_experts() -> None:
    found = hfu_analysis(
        load_model("deepseek-v3"), supply_hardware("h800", "baidu"), [1.0, 2.0, 8.0], tpot_s=0.05
    )
    assert 100 * found.bound == pytest.approx([33.12, 33.12, 10.35], abs=0.01)
    assert found.dead_zone == (8.0, 8.0)
    assert found.tokens_per_gpu is not None
    assert found.tokens_per_gpu[0] == pytest.approx(2033, rel=1e-3)
    with pytest.raises(InputError, match="has no experts"):
        hfu_analysis(load_model("qwen3-32b"), supply_hardware("h800"), [1.0])
