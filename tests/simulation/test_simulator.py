from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.simulation.plant import BATCHINGS, KvStore, Plant
from afd_dse.simulation.simulator import Simulator
from afd_dse.simulation.state import KvPool
from afd_dse.simulation.traffic import Requests
from tests.simulation.toys import LinearClock, colocated, engine_by_simpy, plant, simulated, traffic

ROUTINGS = ("least_loaded", "round_robin", "length_buckets", "shared_queue")


@st.composite
def plants(draw: Any) -> Plant:
    """Small deployments of every kind, with little memory."""
    store = KvStore(float(draw(st.integers(300, 3000))), 1.0, float(draw(st.sampled_from([0, 20]))))
    policy = {
        "kv_policy": draw(st.sampled_from(["grow", "reserve"])),
        "routing": draw(st.sampled_from(ROUTINGS)),
        "batching": draw(st.sampled_from(BATCHINGS)),
        "chunk_tokens": float(draw(st.sampled_from([16, 64, 300]))),
        "max_batch": draw(st.sampled_from([None, 1, 4])),
        "admission_steps": draw(st.sampled_from([0.0, 0.0, 2.5])),
        "accepted_per_step": draw(st.sampled_from([1.0, 1.7])),
        "block_tokens": 32,
        "decode_lanes": draw(st.integers(1, 3)),
        "decode_ranks": draw(st.integers(1, 3)),
        "prefill_store": store,
        "decode_store": store,
    }
    kind = draw(st.sampled_from(["shared", "prioritized", "separate", "one cache", "disturbed"]))
    if kind in ("shared", "prioritized"):
        return colocated(**policy, prioritized=kind == "prioritized")
    same = {"prefill_lanes": policy["decode_lanes"], "prefill_ranks": policy["decode_ranks"]}
    if kind == "separate":
        own = {"prefill_lanes": draw(st.integers(1, 3)), "prefill_ranks": draw(st.integers(1, 3))}
        return plant(**policy, **own, transfer_s_per_token=1e-4, layers=4)
    return plant(
        **policy,
        **same,
        replicas=policy["decode_lanes"],
        interferes=True,
        one_cache=kind == "one cache",
        transfer_s_per_token=1e-4,
        layers=4,
    )


@st.composite
def requests(draw: Any) -> Requests:
    count = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    inputs, outputs = rng.integers(1, 250, count), rng.integers(1, 60, count)
    blocks = None
    if draw(st.booleans()):
        # Prompts start with one of three beginnings.
        blocks = tuple(
            tuple(
                int(100 * start + n) if n < 4 else int(1000 * (row + 1) + n) for n in range(-(-tokens // 32))
            )
            for row, (start, tokens) in enumerate(zip(rng.integers(1, 4, count), inputs, strict=True))
        )
    arrivals = np.cumsum(rng.exponential(draw(st.sampled_from([0.001, 0.1, 1.0])), count))
    if draw(st.booleans()):
        at_once = draw(st.integers(1, count))
        arrivals = np.where(np.arange(count) < at_once, 0.0, np.inf)
    prefix = 0.0 if blocks else float(draw(st.sampled_from([0, 30])))
    return traffic(
        arrivals, inputs, outputs, blocks=blocks, prefix_tokens=prefix, prefix_shared=draw(st.booleans())
    )


class Watched(Simulator):
    """Checks every pool after every event."""

    def _sample(self) -> tuple[float, ...]:
        self.records.next_sample_s = -1.0
        for pool in self._pools():
            assert pool.taken + pool.cache.idle * pool.block_bytes <= pool.capacity * (1 + 1e-9) + 1e-6
            assert pool.used >= -1e-6
        return super()._sample()


@settings(max_examples=300, deadline=None)
@given(plants(), requests())
def test_every_request_ends_once_in_order_and_the_cache_is_never_over_capacity(
    what: Plant, sent: Requests
) -> None:
    simulator = Watched(what, LinearClock(1e-7), sent)
    simulator.run()
    book = simulator.book
    ended = np.isfinite(book.finish_s)
    refused = np.zeros(len(sent), dtype=bool)
    refused[simulator.refused] = True
    assert np.array_equal(ended, ~refused)
    assert simulator.done == ended.sum()
    arrival, start = np.array(book.arrival_s)[ended], np.array(book.start_s)[ended]
    first, finish = np.array(book.first_s)[ended], np.array(book.finish_s)[ended]
    assert (arrival <= start).all()
    assert (start < first).all()
    assert (first <= finish).all()
    # Whoever was refused does not fit alone; nothing is left behind in any pool.
    for pool in simulator._pools():
        assert pool.used == pytest.approx(0.0, abs=1e-6)
        assert pool.cache.in_use == 0
    for rank in simulator.prefill_ranks:
        assert not rank.waiting
        assert not rank.started
        assert rank.load == pytest.approx(0.0)


@settings(max_examples=60, deadline=None)
@given(plants(), requests())
def test_the_same_inputs_give_the_same_events(what: Plant, sent: Requests) -> None:
    one, other = simulated(what, sent), simulated(what, sent)
    assert one.state() == other.state()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([16, 64, 256]), st.sampled_from([0.002, 0.05, 1.0]))
def test_a_colocated_engine_is_that_of_simpy_token_by_token(seed: int, chunk: int, gap: float) -> None:
    rng = np.random.default_rng(seed)
    count = 30
    sent = traffic(
        np.cumsum(rng.exponential(gap, count)), rng.integers(1, 200, count), rng.integers(1, 50, count)
    )
    # Its step must hold all sequences and a token of prefill.
    what = colocated(chunk_tokens=float(chunk + count))
    found = simulated(what, sent).book
    first, finish = engine_by_simpy(sent, LinearClock(), chunk + count)
    assert np.allclose(found.first_s, first, rtol=0.0, atol=1e-9)
    assert np.allclose(found.finish_s, finish, rtol=0.0, atol=1e-9)


def test_steps_taken_at_once_are_steps_taken_one_by_one() -> None:
    # A lone request: the sum over its steps has a closed form.
    clock = LinearClock(per_context=1e-6)
    prompt, answer = 1000, 400
    found = simulated(colocated(chunk_tokens=4096.0), traffic([0.0], [prompt], [answer]), clock).book
    steps = sum(clock.decode(1.0, prompt + n, 1.0, False) for n in range(1, answer))
    assert found.finish_s[0] - found.first_s[0] == pytest.approx(steps, rel=1e-9)


def test_a_prompt_is_cut_to_what_a_step_has_room_for() -> None:
    found = simulated(colocated(chunk_tokens=100.0), traffic([0.0], [250], [1])).book
    assert found.first_s[0] == pytest.approx(0.25)
    assert found.finish_s[0] == found.first_s[0]


def test_prioritized_prefill_stops_decoding_and_chunked_prefill_does_not() -> None:
    sent = traffic([0.0, 0.5], [10, 2000], [200, 1])
    chunked = simulated(colocated(chunk_tokens=64.0), sent)
    stopped = simulated(colocated(chunk_tokens=4096.0, prioritized=True), sent)
    assert stopped.records.interval_percentiles((99.9,))[0] > 2.0
    assert chunked.records.interval_percentiles((99.9,))[0] < 0.1
    assert stopped.book.first_s[1] < chunked.book.first_s[1]


@pytest.mark.parametrize("later", [0.0, 1.5, 4.0])
def test_a_busy_engine_runs_so_many_steps_before_it_admits_a_request(later: float) -> None:
    step = LinearClock().decode(1.0, 0.0, 1.0, False)
    first_joins = 0.1  # 100 tokens at 1 ms
    arrival = first_joins + 20.25 * step
    sent = traffic([0.0, arrival], [100, 100], [200, 2])
    found = simulated(colocated(chunk_tokens=4096.0, admission_steps=later), sent).book
    assert found.first_s[0] == pytest.approx(first_joins)  # an idle engine admits at once
    begins = first_joins + np.ceil(20.25 + later) * step
    mixed = LinearClock().mixed(1.0, 0.0, 100.0, 0.0, 1.0, 100.0)
    assert found.first_s[1] == pytest.approx(begins + mixed)


def test_a_hand_over_hides_behind_prefill_and_shows_its_last_layer() -> None:
    what = plant(transfer_s_per_token=1e-4, layers=10)
    assert simulated(what, traffic([0.0], [1000], [1])).book.first_s[0] == pytest.approx(1.0 + 0.1 / 10)
    slow = plant(transfer_s_per_token=2e-3, layers=10)
    assert simulated(slow, traffic([0.0], [1000], [1])).book.first_s[0] == pytest.approx(2.0)


def test_full_decode_holds_up_prefill() -> None:
    # Prefill holds two prompts at once, decode one sequence.
    what = plant(
        prompts_per_step=1, prefill_store=KvStore(250.0, 1.0, 0.0), decode_store=KvStore(150.0, 1.0, 0.0)
    )
    sent = traffic(np.zeros(4), np.full(4, 100), np.full(4, 40))
    held, free = simulated(what, sent).book, simulated(plant(prompts_per_step=1), sent).book
    assert free.start_s == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert held.start_s[:3] == pytest.approx([0.0, 0.1, 0.2])
    assert held.start_s[3] == pytest.approx(held.finish_s[0])
    assert held.first_s[1] == pytest.approx(held.finish_s[0])


def test_a_full_cache_takes_the_youngest_back_and_computes_it_again() -> None:
    tight = colocated(decode_store=KvStore(250.0, 1.0, 0.0))
    grown = simulated(tight, traffic([0.0, 0.0], [100, 100], [100, 100]))
    assert grown.book.preemptions == [0, 1]
    assert grown.records.prefill_tokens > 200.0
    reserved = simulated(
        colocated(decode_store=KvStore(250.0, 1.0, 0.0), kv_policy="reserve"),
        traffic([0.0, 0.0], [100, 100], [100, 100]),
    )
    assert sum(reserved.book.preemptions) == 0
    assert reserved.book.start_s[1] >= reserved.book.finish_s[0]


def test_what_fits_no_cache_is_refused() -> None:
    found = simulated(
        colocated(decode_store=KvStore(250.0, 1.0, 0.0)), traffic([0.0, 1.0], [300, 100], [10, 10])
    )
    assert found.refused == [0]
    assert np.isfinite(found.book.finish_s[1])


def test_known_blocks_are_not_computed_again() -> None:
    blocks = ((1, 2, 3), (1, 2, 4), (5, 6, 7))
    sent = traffic([0.0, 10.0, 20.0], [96, 96, 96], [1, 1, 1], blocks=blocks)
    found = simulated(colocated(block_tokens=32), sent).book
    assert found.cached == [0.0, 64.0, 0.0]
    assert found.first_s[1] - 10.0 == pytest.approx(0.032)
    # A prompt that is known whole still computes its last token.
    again = simulated(
        colocated(block_tokens=32), traffic([0.0, 10.0], [96, 96], [1, 1], blocks=blocks[:1] * 2)
    )
    assert again.book.cached[1] == 95.0


def test_a_closed_loop_keeps_its_concurrency() -> None:
    count, at_once = 200, 8
    arrivals = np.where(np.arange(count) < at_once, 0.0, np.inf)
    found = simulated(colocated(), traffic(arrivals, np.full(count, 50), np.full(count, 20))).book
    arrived, finish = np.array(found.arrival_s), np.array(found.finish_s)
    for moment in np.linspace(0.1, np.sort(arrived)[-1], 50):
        assert ((arrived <= moment) & (finish > moment)).sum() == at_once
    assert np.allclose(np.sort(arrived)[at_once:], np.sort(finish)[: count - at_once])


def test_littles_law_holds() -> None:
    rng = np.random.default_rng(0)
    count = 4000
    sent = traffic(
        np.cumsum(rng.exponential(0.5, count)), rng.integers(50, 150, count), rng.integers(20, 60, count)
    )
    found = simulated(colocated(), sent)
    arrived, finish = np.array(found.book.arrival_s), np.array(found.book.finish_s)
    moments = np.linspace(arrived[200], arrived[-200], 5000)
    present = np.searchsorted(arrived, moments) - np.searchsorted(np.sort(finish), moments)
    assert present.mean() == pytest.approx(2.0 * (finish - arrived).mean(), rel=0.05)


def test_buckets_keep_short_prompts_from_waiting_behind_long_ones() -> None:
    rng = np.random.default_rng(1)
    count = 2000
    long = rng.random(count) < 0.25
    prompts = np.where(long, 4000, rng.integers(50, 150, count))
    sent = traffic(np.cumsum(rng.exponential(0.42, count)), prompts, np.ones(count))

    def short_wait(routing: str) -> float:
        what = plant(prefill_lanes=4, prompts_per_step=1, routing=routing)
        found = simulated(what, sent).book
        return float(np.percentile((np.array(found.start_s) - sent.arrival_s)[~long], 95))

    assert short_wait("length_buckets") < 0.5 * short_wait("round_robin")


def test_steps_of_one_bucket_are_over_sooner_for_the_short_and_starve_nobody() -> None:
    rng = np.random.default_rng(2)
    count = 2000
    long = rng.random(count) < 0.25
    prompts = np.where(long, 4000, rng.integers(50, 150, count))
    sent = traffic(np.cumsum(rng.exponential(0.42, count)), prompts, np.ones(count))

    def waits(batching: str) -> np.ndarray:
        what = plant(prefill_ranks=4, routing="shared_queue", batching=batching, chunk_tokens=8000.0)
        found = simulated(what, sent).book
        return np.array(found.first_s) - sent.arrival_s

    mixed, alike = waits("fifo"), waits("buckets")
    assert alike[~long].mean() < 0.8 * mixed[~long].mean()
    assert alike.max() < 2.0 * mixed.max()


def test_a_pool_forgets_what_nobody_uses_and_nothing_else() -> None:
    pool = KvPool(KvStore(100.0, 1.0, 0.0), 0.0, 10)
    pool.cache.use([1, 2, 3])
    pool.cache.release([1, 2, 3])
    assert pool.cache.idle == 3
    pool.cache.use([2])
    pool.take(80.0)
    assert pool.cache.known([2]) == 1
    assert pool.cache.idle == 1
    assert not pool.has_room(20.0)
    assert pool.has_room(10.0)
