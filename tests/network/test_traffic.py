from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.network.collectives import all_reduce
from afd_dse.network.tiers import (
    EXCHANGE_OVERHEAD_LOW_LATENCY_S,
    EXCHANGE_OVERHEAD_THROUGHPUT_S,
    LINK_EFFICIENCY,
    SCALE_OUT_EFFICIENCY,
    SCALE_UP_EFFICIENCY_LOW_LATENCY,
    SCALE_UP_EFFICIENCY_THROUGHPUT,
    Tiers,
)
from afd_dse.network.traffic import Routing, attention_ffn_seconds, exchange_seconds, kv_transfer_seconds
from afd_dse.operators.latency import Provenance
from tests.strategies import overridden, scenario

LINE_UP, LINE_OUT = 400e9, 50e9
# Without latencies, so that bytes can be counted.
TIERS = Tiers(np.array([LINE_UP] * 2), np.zeros(2), np.array([LINE_OUT] * 2), np.zeros(2), np.array([8, 8]))
OUT = LINE_OUT * SCALE_OUT_EFFICIENCY
UP = {True: LINE_UP * SCALE_UP_EFFICIENCY_LOW_LATENCY, False: LINE_UP * SCALE_UP_EFFICIENCY_THROUGHPUT}
START = {True: EXCHANGE_OVERHEAD_LOW_LATENCY_S, False: EXCHANGE_OVERHEAD_THROUGHPUT_S}
DENSE, SPARSE = Routing(1, 1), Routing(256, 8)
counts = st.integers(1, 64)
factors = st.floats(1.0, 10.0)
tokens_ = st.floats(1.0, 1e5)


def one(value: float) -> np.ndarray:
    return np.array([value])


def exchange(
    tiers: Tiers,
    ranks: int,
    tokens: float,
    routing: Routing = SPARSE,
    moe_tp: int = 1,
    low_latency: bool = False,
) -> float:
    found = exchange_seconds(
        tiers,
        pool=np.array([0]),
        ranks=np.array([ranks]),
        moe_tp=np.array([moe_tp]),
        tokens_per_gpu=one(tokens),
        bytes_per_token=7168.0,
        routing=routing,
        low_latency=np.array([low_latency]),
    )
    return float(found[0])


def to_ffn(
    tiers: Tiers,
    attention: int,
    ranks: int,
    tokens: float,
    routing: Routing = SPARSE,
    moe_tp: int = 1,
    pools: tuple[int, int] = (0, 0),
    low_latency: bool = False,
) -> float:
    found = attention_ffn_seconds(
        tiers,
        attention_pool=np.array([pools[0]]),
        ffn_pool=np.array([pools[1]]),
        attention_gpus=np.array([attention]),
        ranks=np.array([ranks]),
        moe_tp=np.array([moe_tp]),
        tokens=one(tokens),
        bytes_per_token=7168.0,
        routing=routing,
        low_latency=np.array([low_latency]),
    )
    return float(found[0])


def faster(up: float, out: float) -> Tiers:
    return replace(
        TIERS,
        scale_up_bytes_per_s=TIERS.scale_up_bytes_per_s * up,
        scale_out_bytes_per_s=TIERS.scale_out_bytes_per_s * out,
    )


@given(tokens_, st.sampled_from([DENSE, SPARSE]), st.booleans())
def test_one_gpu_exchanges_nothing(tokens: float, routing: Routing, low_latency: bool) -> None:
    assert exchange(TIERS, 1, tokens, routing, low_latency=low_latency) == 0.0


@pytest.mark.parametrize("low_latency", [True, False])
def test_inside_a_domain_a_token_goes_once_to_every_other_gpu_that_needs_it(low_latency: bool) -> None:
    # One expert a GPU, all needed: every token leaves for the 7 other GPUs.
    seconds = exchange(TIERS, 8, 1000.0, Routing(8, 8), low_latency=low_latency) - START[low_latency]
    assert seconds == pytest.approx(1000 * 7168 * 7 / UP[low_latency])


def test_two_level_exchange_sends_a_token_once_to_every_other_domain() -> None:
    # Four domains that all hold one of the experts: three copies cross, whatever the GPUs in a domain.
    seconds = exchange(faster(100.0, 1.0), 32, 1000.0, Routing(32, 32)) - START[False]
    assert seconds == pytest.approx(1000 * 7168 * 3 / OUT)


def test_low_latency_exchange_sends_every_copy_by_itself() -> None:
    # Of 32 copies, 24 lie in the three other domains.
    seconds = exchange(TIERS, 32, 1000.0, Routing(32, 32), low_latency=True) - START[True]
    assert seconds == pytest.approx(1000 * 7168 * 24 / OUT)


@given(counts, tokens_, factors, factors, st.sampled_from([1, 2, 4]), st.booleans())
def test_more_bandwidth_never_slows_an_exchange(
    ranks: int, tokens: float, up: float, out: float, moe_tp: int, low_latency: bool
) -> None:
    more = exchange(faster(up, out), ranks, tokens, moe_tp=moe_tp, low_latency=low_latency)
    assert more <= exchange(TIERS, ranks, tokens, moe_tp=moe_tp, low_latency=low_latency)


@given(counts, tokens_, factors, st.booleans())
def test_more_tokens_never_exchange_faster(
    ranks: int, tokens: float, factor: float, low_latency: bool
) -> None:
    few = exchange(TIERS, ranks, tokens, low_latency=low_latency)
    assert few <= exchange(TIERS, ranks, tokens * factor, low_latency=low_latency)


@given(st.integers(1, 4), st.integers(1, 4), tokens_, st.booleans())
def test_a_transfer_between_m_and_n_gpus_takes_as_long_as_between_n_and_m(
    m: int, n: int, tokens: float, low_latency: bool
) -> None:
    # Every token to one GPU: the smaller side's ports limit, whichever side that is.
    there = to_ffn(TIERS, m, n, tokens, DENSE, low_latency=low_latency)
    assert there == pytest.approx(to_ffn(TIERS, n, m, tokens, DENSE, low_latency=low_latency))
    assert there - START[low_latency] == pytest.approx(tokens * 7168 / min(m, n) / UP[low_latency])


@given(st.integers(9, 40), st.integers(9, 40), tokens_, st.booleans())
def test_across_domains_every_byte_leaves_a_sender_and_enters_a_receiver(
    m: int, n: int, tokens: float, low_latency: bool
) -> None:
    seconds = to_ffn(TIERS, m, n, tokens, DENSE, low_latency=low_latency) - START[low_latency]
    assert seconds * OUT * min(m, n) == pytest.approx(tokens * 7168)


@given(counts, counts, tokens_, factors, factors, st.sampled_from([(0, 0), (0, 1)]), st.booleans())
def test_more_bandwidth_never_slows_a_transfer_to_the_ffn(
    m: int, n: int, tokens: float, up: float, out: float, pools: tuple[int, int], low_latency: bool
) -> None:
    slow = to_ffn(TIERS, m, n, tokens, pools=pools, low_latency=low_latency)
    assert to_ffn(faster(up, out), m, n, tokens, pools=pools, low_latency=low_latency) <= slow


@given(counts, counts, tokens_, st.booleans())
def test_more_attention_gpus_never_slow_a_transfer_in_the_same_tier(
    m: int, n: int, tokens: float, low_latency: bool
) -> None:
    far = to_ffn(TIERS, m, n, tokens, pools=(0, 1), low_latency=low_latency)
    assert to_ffn(TIERS, 2 * m, n, tokens, pools=(0, 1), low_latency=low_latency) <= far * (1 + 1e-12)


@given(st.integers(1, 4), st.integers(1, 4), tokens_, st.booleans())
def test_staying_in_the_domain_is_never_slower_than_leaving_it(
    m: int, n: int, tokens: float, low_latency: bool
) -> None:
    near = to_ffn(TIERS, m, n, tokens, DENSE, low_latency=low_latency)
    assert near <= to_ffn(TIERS, m, n, tokens, DENSE, pools=(0, 1), low_latency=low_latency) * (1 + 1e-12)


def test_all_shards_of_an_expert_receive_its_tokens() -> None:
    # moe_tp 2: every token goes to both shards; four GPUs on either side.
    seconds = to_ffn(TIERS, 4, 2, 1000.0, DENSE, moe_tp=2) - START[False]
    assert seconds == pytest.approx(1000 * 7168 * 2 / 4 / UP[False])


def kv(
    tiers: Tiers, senders: int, receivers: int, inside: bool, kv_bytes: float, pools: tuple[int, int] = (0, 0)
) -> float:
    found = kv_transfer_seconds(
        tiers,
        from_pool=np.array([pools[0]]),
        to_pool=np.array([pools[1]]),
        senders=np.array([senders]),
        receivers=np.array([receivers]),
        fits_domain=np.array([inside]),
        kv_bytes=one(kv_bytes),
    )
    return float(found[0])


@given(counts, counts, st.floats(1e3, 1e12), factors, factors, st.booleans())
def test_a_kv_transfer_is_limited_by_the_side_with_fewer_ports(
    senders: int, receivers: int, size: float, up: float, out: float, inside: bool
) -> None:
    seconds = kv(TIERS, senders, receivers, inside, size)
    assert seconds == pytest.approx(
        size / min(senders, receivers) / (LINE_UP if inside else LINE_OUT) / LINK_EFFICIENCY
    )
    assert seconds == kv(TIERS, receivers, senders, inside, size)
    assert kv(faster(up, out), senders, receivers, inside, size) <= seconds


def test_pools_are_never_joined_by_scale_up_links() -> None:
    assert kv(TIERS, 1, 1, True, 1e9, pools=(0, 1)) == pytest.approx(1e9 / LINE_OUT / LINK_EFFICIENCY)


def test_tiers_hold_the_accelerators_rates_by_pool() -> None:
    case = scenario("glm-4.5 on h200 and b200")
    rates = [pool.accelerator.scale_up_bytes_per_s for pool in case.pools]
    assert case.tiers.scale_up_bytes_per_s.tolist() == rates
    assert rates[0] < rates[1]
    assert case.tiers.domain_gpus.tolist() == [8, 8]


def reduced(name: str, gpus: list[int], size: float = 1e7, **rates: float) -> np.ndarray:
    case = overridden(name, **rates) if rates else scenario(name)
    found = all_reduce(
        case.databases[0], case.tiers, 0, message_bytes=np.full(len(gpus), size), gpus=np.array(gpus)
    )
    return found.seconds


def test_an_all_reduce_of_one_gpu_or_of_nothing_is_free() -> None:
    assert reduced("deepseek-v3 on b200", [1, 1]).tolist() == [0.0, 0.0]
    assert reduced("deepseek-v3 on b200", [8, 32], size=0.0).tolist() == [0.0, 0.0]


def test_an_all_reduce_across_domains_costs_more_and_says_that_it_is_modelled() -> None:
    case = scenario("deepseek-v3 on b200")
    found = all_reduce(
        case.databases[0], case.tiers, 0, message_bytes=np.full(3, 1e7), gpus=np.array([8, 16, 32])
    )
    assert found.seconds[0] < found.seconds[1] < found.seconds[2]
    assert found.provenance[0] != Provenance.SPEED_OF_LIGHT
    assert found.provenance[1] == found.provenance[2] == Provenance.SPEED_OF_LIGHT


@pytest.mark.parametrize("rate", ["scale_up_bytes_per_s", "scale_out_bytes_per_s"])
def test_faster_links_never_slow_an_all_reduce(rate: str) -> None:
    gpus = [2, 4, 8, 16, 64]
    assert (reduced("deepseek-v3 on b200", gpus, **{rate: 2.0}) <= reduced("deepseek-v3 on b200", gpus)).all()
