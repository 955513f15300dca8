from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.network.collectives import all_reduce
from afd_dse.network.tiers import EXCHANGE_OVERHEAD_S, LINK_EFFICIENCY, Tiers
from afd_dse.network.traffic import Routing, attention_ffn_seconds, exchange_seconds, kv_transfer_seconds
from afd_dse.operators.latency import Provenance
from tests.strategies import overridden, scenario

UP, OUT = 400e9, 50e9
# Without latencies, so that bytes can be counted.
TIERS = Tiers(np.array([UP, UP]), np.zeros(2), np.array([OUT, OUT]), np.zeros(2), np.array([8, 8]))
DENSE, SPARSE = Routing(1, 1), Routing(256, 8)
counts = st.integers(1, 64)
factors = st.floats(1.0, 10.0)
tokens_ = st.floats(1.0, 1e5)


def one(value: float) -> np.ndarray:
    return np.array([value])


def exchange(tiers: Tiers, ranks: int, tokens: float, routing: Routing = SPARSE, moe_tp: int = 1) -> float:
    found = exchange_seconds(
        tiers,
        pool=np.array([0]),
        ranks=np.array([ranks]),
        moe_tp=np.array([moe_tp]),
        tokens_per_gpu=one(tokens),
        bytes_per_token=7168.0,
        routing=routing,
    )
    return float(found[0])


def to_ffn(
    tiers: Tiers, attention: int, ranks: int, tokens: float, routing: Routing = SPARSE, moe_tp: int = 1, pools: tuple[int, int] = (0, 0)
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
    )
    return float(found[0])


def faster(up: float, out: float) -> Tiers:
    return replace(TIERS, scale_up_bytes_per_s=TIERS.scale_up_bytes_per_s * up, scale_out_bytes_per_s=TIERS.scale_out_bytes_per_s * out)


@given(tokens_, st.sampled_from([DENSE, SPARSE]))
def test_one_gpu_exchanges_nothing(tokens: float, routing: Routing) -> None:
    assert exchange(TIERS, 1, tokens, routing) == 0.0


def test_inside_a_domain_a_token_goes_once_to_every_other_gpu_that_needs_it() -> None:
    # One expert a GPU, all needed: every token leaves for the 7 other GPUs.
    seconds = exchange(TIERS, 8, 1000.0, Routing(8, 8)) - EXCHANGE_OVERHEAD_S
    assert seconds == pytest.approx(1000 * 7168 * 7 / UP)


def test_across_domains_a_token_goes_once_to_every_other_domain() -> None:
    # Four domains that all hold one of the experts: three copies cross, whatever the GPUs in a domain.
    seconds = exchange(TIERS, 32, 1000.0, Routing(32, 32)) - EXCHANGE_OVERHEAD_S
    assert seconds == pytest.approx(1000 * 7168 * 3 / OUT)


@given(counts, tokens_, factors, factors, st.sampled_from([1, 2, 4]))
def test_more_bandwidth_never_slows_an_exchange(ranks: int, tokens: float, up: float, out: float, moe_tp: int) -> None:
    assert exchange(faster(up, out), ranks, tokens, moe_tp=moe_tp) <= exchange(TIERS, ranks, tokens, moe_tp=moe_tp)


@given(counts, tokens_, factors)
def test_more_tokens_never_exchange_faster(ranks: int, tokens: float, factor: float) -> None:
    assert exchange(TIERS, ranks, tokens) <= exchange(TIERS, ranks, tokens * factor)


@given(st.integers(1, 4), st.integers(1, 4), tokens_)
def test_a_transfer_between_m_and_n_gpus_takes_as_long_as_between_n_and_m(m: int, n: int, tokens: float) -> None:
    # Every token to one GPU: the smaller side's ports limit, whichever side that is.
    assert to_ffn(TIERS, m, n, tokens, DENSE) == pytest.approx(to_ffn(TIERS, n, m, tokens, DENSE))
    assert to_ffn(TIERS, m, n, tokens, DENSE) - EXCHANGE_OVERHEAD_S == pytest.approx(tokens * 7168 / min(m, n) / UP)


@given(st.integers(9, 40), st.integers(9, 40), tokens_)
def test_across_domains_every_byte_leaves_a_sender_and_enters_a_receiver(m: int, n: int, tokens: float) -> None:
    seconds = to_ffn(TIERS, m, n, tokens, DENSE) - EXCHANGE_OVERHEAD_S
    assert seconds * OUT * min(m, n) == pytest.approx(tokens * 7168)


@given(counts, counts, tokens_, factors, factors, st.sampled_from([(0, 0), (0, 1)]))
def test_more_bandwidth_never_slows_a_transfer_to_the_ffn(
    m: int, n: int, tokens: float, up: float, out: float, pools: tuple[int, int]
) -> None:
    assert to_ffn(faster(up, out), m, n, tokens, pools=pools) <= to_ffn(TIERS, m, n, tokens, pools=pools)


@given(counts, counts, tokens_)
def test_more_attention_gpus_never_slow_a_transfer_in_the_same_tier(m: int, n: int, tokens: float) -> None:
    far = to_ffn(TIERS, m, n, tokens, pools=(0, 1))
    assert to_ffn(TIERS, 2 * m, n, tokens, pools=(0, 1)) <= far * (1 + 1e-12)


@given(st.integers(1, 4), st.integers(1, 4), tokens_)
def test_staying_in_the_domain_is_never_slower_than_leaving_it(m: int, n: int, tokens: float) -> None:
    assert to_ffn(TIERS, m, n, tokens) <= to_ffn(TIERS, m, n, tokens, pools=(0, 1)) * (1 + 1e-12)


def test_all_shards_of_an_expert_receive_its_tokens() -> None:
    # moe_tp 2: every token goes to both shards; four GPUs on either side.
    seconds = to_ffn(TIERS, 4, 2, 1000.0, DENSE, moe_tp=2) - EXCHANGE_OVERHEAD_S
    assert seconds == pytest.approx(1000 * 7168 * 2 / 4 / UP)


def kv(tiers: Tiers, senders: int, receivers: int, inside: bool, kv_bytes: float, pools: tuple[int, int] = (0, 0)) -> float:
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
    assert seconds == pytest.approx(size / min(senders, receivers) / (UP if inside else OUT))
    assert seconds == kv(TIERS, receivers, senders, inside, size)
    assert kv(faster(up, out), senders, receivers, inside, size) <= seconds


def test_pools_are_never_joined_by_scale_up_links() -> None:
    assert kv(TIERS, 1, 1, True, 1e9, pools=(0, 1)) == pytest.approx(1e9 / OUT)


def test_tiers_hold_the_accelerators_rates_by_pool() -> None:
    case = scenario("glm-4.5 on h200 and b200")
    rates = [pool.accelerator.scale_up_bytes_per_s * LINK_EFFICIENCY for pool in case.pools]
    assert case.tiers.scale_up_bytes_per_s.tolist() == rates
    assert rates[0] < rates[1]
    assert case.tiers.domain_gpus.tolist() == [8, 8]


def reduced(name: str, gpus: list[int], size: float = 1e7, **rates: float) -> np.ndarray:
    case = overridden(name, **rates) if rates else scenario(name)
    found = all_reduce(case.databases[0], case.tiers, 0, message_bytes=np.full(len(gpus), size), gpus=np.array(gpus))
    return found.seconds


def test_an_all_reduce_of_one_gpu_or_of_nothing_is_free() -> None:
    assert reduced("deepseek-v3 on b200", [1, 1]).tolist() == [0.0, 0.0]
    assert reduced("deepseek-v3 on b200", [8, 32], size=0.0).tolist() == [0.0, 0.0]


def test_an_all_reduce_across_domains_costs_more_and_says_that_it_is_modelled() -> None:
    case = scenario("deepseek-v3 on b200")
    found = all_reduce(case.databases[0], case.tiers, 0, message_bytes=np.full(3, 1e7), gpus=np.array([8, 16, 32]))
    assert found.seconds[0] < found.seconds[1] < found.seconds[2]
    assert found.provenance[0] != Provenance.SPEED_OF_LIGHT
    assert found.provenance[1] == found.provenance[2] == Provenance.SPEED_OF_LIGHT


@pytest.mark.parametrize("rate", ["scale_up_bytes_per_s", "scale_out_bytes_per_s"])
def test_faster_links_never_slow_an_all_reduce(rate: str) -> None:
    gpus = [2, 4, 8, 16, 64]
    assert (reduced("deepseek-v3 on b200", gpus, **{rate: 2.0}) <= reduced("deepseek-v3 on b200", gpus)).all()
