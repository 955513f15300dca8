"""The event loop: arrivals, routing, engine steps, hand-over of KV caches, and where everything stands."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from afd_dse.errors import AfdDseError
from afd_dse.operators.latency import IntArray
from afd_dse.simulation.clock import Clock
from afd_dse.simulation.plant import Plant
from afd_dse.simulation.records import Records
from afd_dse.simulation.state import (
    COLUMNS,
    DECODE,
    IDLE,
    Book,
    KvPool,
    Lane,
    Rank,
    lane_state,
    pool_state,
    rank_state,
    restore_lane,
    restore_pool,
    restore_rank,
)
from afd_dse.simulation.steps import Stepper
from afd_dse.simulation.traffic import Requests

_ARRIVAL, _STEP, _MOVED = 0, 1, 2
_LENGTH_BUCKETS = 4
# Events between two calls of the observer.
_OBSERVED = 4096


class Simulator:
    """Runs requests through a plant. Times in seconds; the same inputs give the same events, bit for bit.

    A request that would not fit into an empty cache is refused when it arrives; every other one ends.
    """

    def __init__(self, plant: Plant, clock: Clock, requests: Requests) -> None:
        self.plant, self.requests = plant, requests
        self.book = Book(
            requests.arrival_s.tolist(),
            requests.input_tokens.tolist(),
            requests.output_tokens.tolist(),
            requests.blocks,
        )
        self.records = Records()
        self.now = 0.0
        self.refused: list[int] = []
        self.done = 0
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._serial = 0
        self._next = 0  # request that arrives next
        self._turn = 0  # of round robin
        self._blocked: deque[int] = deque()
        self._moving = 0
        self._dirty: dict[int, None] = {}
        shared = requests.prefix_tokens if requests.prefix_shared else 0.0
        own = 0.0 if requests.prefix_shared else requests.prefix_tokens
        self.decode_lanes = plant.decode_lanes
        self._build(shared)
        self.stepper = Stepper(
            plant,
            clock,
            self.book,
            self.records,
            prefix=requests.prefix_tokens,
            own_prefix=own,
            edges=_length_edges(requests.input_tokens, _LENGTH_BUCKETS)
            if plant.batching == "buckets"
            else [],
        )
        self._edges = _length_edges(requests.input_tokens, min(_LENGTH_BUCKETS, len(self.prefill_ranks)))
        self._push_arrivals()

    def _build(self, shared_prefix: float) -> None:
        plant = self.plant

        def ranks(count: int, store: Any) -> list[Rank]:
            return [Rank(KvPool(store, shared_prefix, plant.block_tokens)) for _ in range(count)]

        self.decode_ranks = ranks(plant.decode_lanes * plant.decode_ranks, plant.decode_store)
        if plant.shared_steps:
            self.prefill_ranks = self.decode_ranks
        elif plant.one_cache:
            self.prefill_ranks = [Rank(rank.pool) for rank in self.decode_ranks]
        else:
            self.prefill_ranks = ranks(plant.prefill_lanes * plant.prefill_ranks, plant.prefill_store)
        self.lanes = [
            Lane(group, False, True, number * plant.replicas // plant.decode_lanes)
            for number, group in enumerate(_split(self.decode_ranks, plant.decode_lanes))
        ]
        if plant.shared_steps:
            for lane in self.lanes:
                lane.prefills = True
        else:
            self.lanes += [
                Lane(group, True, False, number * plant.replicas // plant.prefill_lanes)
                for number, group in enumerate(_split(self.prefill_ranks, plant.prefill_lanes))
            ]

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, observer: Callable[["Simulator"], None] | None = None, until: int | None = None) -> None:
        """Go on until every request has ended, or ``until`` of them have; ``observer`` looks in now and then."""
        events = 0
        wanted = len(self.book.arrival_s) if until is None else until
        while self._heap and self.done + len(self.refused) < wanted:
            now, _, kind, subject, version = heappop(self._heap)
            self.now = now
            if kind == _ARRIVAL:
                self._arrive(subject)
            elif kind == _STEP:
                if self.lanes[subject].version == version:
                    self._complete(subject)
            else:
                self._moved(subject)
            if self._dirty and not (self._heap and self._heap[0][0] <= now):
                self._plan_dirty()
            if now >= self.records.next_sample_s:
                self.records.sample(self._sample())
            events += 1
            if observer is not None and events % _OBSERVED == 0:
                observer(self)
        if until is None and self.done + len(self.refused) < wanted:
            left = wanted - self.done - len(self.refused)
            raise AfdDseError(f"the simulation stands still with {left} requests left; this is a fault of it")

    def _push(self, when: float, kind: int, subject: int, version: int = 0) -> None:
        self._serial += 1
        heappush(self._heap, (when, self._serial, kind, subject, version))

    def _push_arrivals(self) -> None:
        """All requests of a burst at once, else one after the other: the heap stays short."""
        arrivals = self.book.arrival_s
        while self._next < len(arrivals) and arrivals[self._next] < float("inf"):
            when = arrivals[self._next] + self.plant.request_s
            self._push(when, _ARRIVAL, self._next)
            self._next += 1
            if when > self.now:
                break

    def _arrive(self, request: int) -> None:
        if self._next < len(self.book.arrival_s):
            self._push_arrivals()
        if not self._fits(request):
            self.refused.append(request)
            self._next_of_loop()
            return
        self._route(request)

    def _fits(self, request: int) -> bool:
        """Whether a request fits into empty caches with its whole output."""
        tokens = self.stepper.own_prefix + self.book.input_tokens[request]
        tokens += self.book.output_tokens[request] + self.plant.accepted_per_step + 1.0
        pools = (self.prefill_ranks[0].pool, self.decode_ranks[0].pool)
        return all(pool.store.bytes_of(tokens) <= pool.capacity for pool in pools)

    def _next_of_loop(self) -> None:
        """In a closed loop an ended request starts the next one."""
        arrivals = self.book.arrival_s
        if self._next < len(arrivals) and arrivals[self._next] == float("inf"):
            arrivals[self._next] = self.now
            self._push(self.now + self.plant.request_s, _ARRIVAL, self._next)
            self._next += 1

    # -- routing -------------------------------------------------------------------------------------------------------

    def _route(self, request: int) -> None:
        ranks = self.prefill_ranks
        if self.plant.routing == "shared_queue":
            self.stepper.central.append(request)
            self._wake_one()
            return
        if self.plant.routing == "round_robin":
            number = self._turn % len(ranks)
            self._turn += 1
        elif self.plant.routing == "length_buckets" and len(ranks) > 1:
            number = self._bucket_rank(request)
        else:
            number = min(range(len(ranks)), key=lambda index: ranks[index].load)
        rank = ranks[number]
        self.book.prefill_rank[request] = number
        rank.load += self._weight(request)
        rank.waiting.append(request)
        lane = self.lanes[self._prefill_lane(number)]
        later = self.plant.admission_steps
        if later and lane.kind != IDLE:
            self.book.ready[request] = lane.ran + (self.now - lane.start) / lane.duration + later
        self._wake(self._prefill_lane(number), later)

    def _bucket_rank(self, request: int) -> int:
        """The least loaded rank of those that serve prompts of this length."""
        ranks, count = self.prefill_ranks, len(self._edges) + 1
        bucket = sum(self.book.input_tokens[request] > edge for edge in self._edges)
        first, last = bucket * len(ranks) // count, (bucket + 1) * len(ranks) // count
        return min(range(first, last), key=lambda index: ranks[index].load)

    def _weight(self, request: int) -> float:
        """What a request adds to a rank's load: itself where the rank also decodes it, else its prompt tokens."""
        return 1.0 if self.plant.shared_steps else float(self.book.input_tokens[request])

    def _prefill_lane(self, rank: int) -> int:
        per_lane = self.plant.decode_ranks if self.plant.shared_steps else self.plant.prefill_ranks
        return rank // per_lane + (0 if self.plant.shared_steps else self.decode_lanes)

    def _wake_one(self) -> None:
        """The engine that should look into the shared queue: an idle one, else the one with the fewest sequences."""
        start = 0 if self.plant.shared_steps else self.decode_lanes
        lanes = range(start, len(self.lanes))
        idle = [number for number in lanes if self.lanes[number].kind == IDLE and number not in self._dirty]
        if idle:
            self._wake(idle[0])
        elif self.plant.shared_steps:
            self._wake(min(lanes, key=lambda number: self.lanes[number].batch))

    # -- engines -------------------------------------------------------------------------------------------------------

    def _wake(self, number: int, later: float = 0.0) -> None:
        """Let an engine look for work as soon as it can: at once when idle, after the running decode step otherwise.

        Or ``later`` steps after that.
        """
        lane = self.lanes[number]
        if lane.kind == IDLE:
            self._dirty[number] = None
        elif lane.kind == DECODE and lane.planned > 1:
            steps = max(math.ceil((self.now - lane.start) / lane.duration + later), 1)
            if steps < lane.planned:
                lane.planned = steps
                lane.version += 1
                when = max(lane.start + steps * lane.duration, self.now)
                self._push(when, _STEP, number, lane.version)

    def _plan_dirty(self) -> None:
        while self._dirty:
            number = next(iter(self._dirty))
            del self._dirty[number]
            lane = self.lanes[number]
            if lane.kind != IDLE:
                continue
            lost = self.stepper.plan(lane, self.now, self._disturbance(lane))
            for request in lost:
                self.decode_ranks[self.book.decode_rank[request]].load -= 1.0
                self._route(request)
            if lane.kind != IDLE:
                end = self.now + lane.planned * lane.duration
                self._push(end, _STEP, number, lane.version)
                if self.plant.interferes and not lane.decodes:
                    self._wake_disturbed(lane)
            if lost:
                self._drain_blocked()

    def _disturbance(self, lane: Lane) -> float:
        """What the other phase does on a lane's replica: share of its load."""
        if not self.plant.interferes:
            return 0.0
        others = [o for o in self.lanes if o.replica == lane.replica and o.decodes != lane.decodes]
        if lane.decodes:
            return sum(o.kind != IDLE for o in others) / len(others)
        ranks = sum(len(o.ranks) for o in others)
        return sum(o.batch for o in others) / ranks / max(self.plant.mean_batch, 1e-9)

    def _wake_disturbed(self, lane: Lane) -> None:
        for number, other in enumerate(self.lanes):
            if other.replica == lane.replica and other.decodes and other.kind == DECODE:
                self._wake(number)

    def _complete(self, number: int) -> None:
        lane = self.lanes[number]
        prefilled, ended = self.stepper.complete(lane, self.now)
        for _, request in ended:
            self._end(request)
        for rank, request in prefilled:
            self._computed(lane, number, rank, request)
        self._dirty[number] = None
        if ended:
            self._drain_blocked()
            if self.plant.one_cache and not self.plant.shared_steps:
                self._wake(number + self.decode_lanes)
        if self.plant.interferes and not lane.decodes:
            self._wake_disturbed(lane)

    def _end(self, request: int) -> None:
        book = self.book
        book.finish_s[request] = self.now
        self.done += 1
        if self.plant.shared_steps and book.prefill_rank[request] >= 0:
            self.prefill_ranks[book.prefill_rank[request]].load -= 1.0
        elif not self.plant.one_cache:
            self.decode_ranks[book.decode_rank[request]].load -= 1.0
        self._next_of_loop()

    def _computed(self, lane: Lane, number: int, index: int, request: int) -> None:
        """A prompt is computed, its first (or next) token made: decode it here, or hand it over."""
        book, plant = self.book, self.plant
        rank = lane.ranks[index]
        self.stepper.remember(rank, request)
        book.made[request] += 1.0
        lane_of_decode = number if plant.shared_steps else number - self.decode_lanes
        if plant.one_cache:
            book.decode_rank[request] = lane_of_decode * plant.decode_ranks + index
            self._unload(request)
            self._first_token(request, lane_of_decode, rank)
        else:
            book.prefill_rank[request] = (number - self.decode_lanes) * plant.prefill_ranks + index
            self._blocked.append(request)
            self._drain_blocked()

    def _unload(self, request: int) -> None:
        """Where prefill has lanes of its own, a request counts there until it has left them."""
        rank = self.book.prefill_rank[request]
        if not self.plant.shared_steps and rank >= 0 and self.plant.routing != "shared_queue":
            self.prefill_ranks[rank].load -= self._weight(request)

    def _first_token(self, request: int, lane: int, holder: Rank) -> None:
        """A token has reached the user; the request ends, or decodes on in ``lane``."""
        book = self.book
        book.first_s[request] = min(book.first_s[request], self.now)
        if book.made[request] >= book.output_tokens[request]:
            self.stepper.release(holder, request, 0.0)
            self._end(request)
            self._drain_blocked()
            return
        rank = self.decode_ranks[book.decode_rank[request]]
        self.stepper.join(self.lanes[lane], rank, request)
        self._wake(lane)

    # -- hand-over -----------------------------------------------------------------------------------------------------

    def _drain_blocked(self) -> None:
        """Hand over computed prompts in order, as long as a decode rank has room: the rest holds up prefill."""
        while self._blocked:
            request = self._blocked[0]
            rank = self._receiver(request)
            if rank is None:
                return
            self._blocked.popleft()
            self._hand_over(request, rank)

    def _receiver(self, request: int) -> int | None:
        """The decode rank with the most free cache, if it has room for the request and may run one more."""
        most, found = -1.0, None
        for number, rank in enumerate(self.decode_ranks):
            free = rank.pool.capacity - rank.pool.used
            if free > most and rank.load < self.plant.most_sequences:
                most, found = free, number
        if found is None:
            return None
        rank = self.decode_ranks[found]
        need = self.stepper.decode_need(rank, request) + self.stepper.growth(rank, rank.load + 1.0)
        return found if rank.pool.has_room(need) else None

    def _hand_over(self, request: int, number: int) -> None:
        """Start or complete the transfer of a request's KV; what could overlap with its prefill has overlapped.

        The transfer follows prefill layer by layer if the receiver had room by then; it ends one layer's part after
        prefill at the earliest.
        """
        book, plant = self.book, self.plant
        rank, source = self.decode_ranks[number], self.prefill_ranks[book.prefill_rank[request]]
        need = self.stepper.decode_need(rank, request)
        rank.pool.take(need)
        rank.load += 1.0
        book.decode_rank[request] = number
        computed = self.lanes[self._prefill_lane(book.prefill_rank[request])]
        length = plant.transfer_s_per_token * (book.input_tokens[request] + book.made[request] - 1.0)
        at_once = computed.kind == IDLE and computed.start + computed.duration >= self.now - 1e-12
        if at_once:
            begin = max(source.link_free, book.start_s[request])
            end = max(self.now + length / plant.layers, begin + length)
        else:
            begin = max(source.link_free, self.now)
            end = begin + length
            book.blocked_s[request] += begin - self.now
        source.link_free = end
        self._moving += 1
        self._push(end, _MOVED, request)

    def _moved(self, request: int) -> None:
        book = self.book
        source_number = book.prefill_rank[request]
        source = self.prefill_ranks[source_number]
        self.stepper.release(source, request, 0.0)
        self._unload(request)
        self._moving -= 1
        number = book.decode_rank[request]
        rank = self.decode_ranks[number]
        book.held[request] = self.stepper.decode_need(rank, request)
        self._first_token(request, number // self.plant.decode_ranks, rank)
        self._wake(self._prefill_lane(source_number))

    # -- where everything stands ---------------------------------------------------------------------------------------

    def _sample(self) -> tuple[float, ...]:
        prefill, decode = self.prefill_ranks, self.decode_ranks
        waiting = sum(len(rank.waiting) for rank in prefill) + len(self.stepper.central)
        capacity = sum(rank.pool.capacity for rank in decode)
        used = sum(rank.pool.taken for rank in decode)
        prefilling = [lane for lane in self.lanes if lane.prefills]
        decoding = self.lanes[: self.decode_lanes]
        return (
            self.now,
            float(waiting),
            float(sum(len(rank.started) for rank in prefill)),
            float(self._moving + len(self._blocked)),
            float(sum(len(rank.running) for rank in decode)),
            used / capacity if capacity > 0.0 else 0.0,
            sum(bool(lane.pieces) for lane in prefilling) / len(prefilling),
            sum(lane.kind != IDLE for lane in decoding) / len(decoding),
        )

    def _pools(self) -> list[KvPool]:
        found = {id(rank.pool): rank.pool for rank in (*self.decode_ranks, *self.prefill_ranks)}
        return list(found.values())

    @property
    def fullest(self) -> float:
        """The most that any KV store has held, as a share of its capacity."""
        return float(
            max(pool.most_used / pool.capacity if pool.capacity > 0.0 else 0.0 for pool in self._pools())
        )

    def state(self) -> dict[str, Any]:
        """Everything that changes, as JSON values; :meth:`restore` continues from it bit for bit."""
        book = self.book
        return {
            "book": {name: getattr(book, name) for name in ("arrival_s", *COLUMNS)},
            "pools": [pool_state(pool) for pool in self._pools()],
            "ranks": [rank_state(rank) for rank in self._ranks()],
            "lanes": [lane_state(lane) for lane in self.lanes],
            "records": self.records.state(),
            "central": list(self.stepper.central),
            "blocked": list(self._blocked),
            "heap": [list(event) for event in self._heap],
            "numbers": [self.now, self.done, self._serial, self._next, self._turn, self._moving],
            "refused": self.refused,
            "dirty": list(self._dirty),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` gave for the same plant and requests."""
        for name, column in state["book"].items():
            setattr(self.book, name, list(column))
        for pool, entry in zip(self._pools(), state["pools"], strict=True):
            restore_pool(pool, entry)
        for rank, entry in zip(self._ranks(), state["ranks"], strict=True):
            restore_rank(rank, entry)
        for lane, entry in zip(self.lanes, state["lanes"], strict=True):
            restore_lane(lane, entry)
        self.records.restore(state["records"])
        self.stepper.central, self._blocked = deque(state["central"]), deque(state["blocked"])
        # A heap that was saved as a list is a heap.
        self._heap = [(when, serial, kind, subject, n) for when, serial, kind, subject, n in state["heap"]]
        self.now, self.done, self._serial, self._next, self._turn, self._moving = state["numbers"]
        self.refused, self._dirty = list(state["refused"]), dict.fromkeys(state["dirty"])

    def _ranks(self) -> list[Rank]:
        return self.decode_ranks if self.plant.shared_steps else [*self.decode_ranks, *self.prefill_ranks]


def _split(ranks: Sequence[Rank], parts: int) -> list[list[Rank]]:
    size = len(ranks) // parts
    return [list(ranks[part * size : (part + 1) * size]) for part in range(parts)]


def _length_edges(lengths: IntArray, buckets: int) -> list[float]:
    """Prompt lengths that part the requests into up to ``buckets`` kinds with equally many tokens, not requests.

    Fewer where many prompts are of one length.
    """
    ordered = np.sort(lengths).astype(np.float64)
    work = np.cumsum(ordered) / ordered.sum()
    edges = ordered[np.searchsorted(work, np.arange(1, buckets) / buckets)]
    below = ordered[ordered < ordered[-1]]
    # An edge at the longest prompt parts nothing: it parts the longest from all others instead.
    return [] if not len(below) else [float(edge) for edge in np.unique(np.minimum(edges, below[-1]))]
