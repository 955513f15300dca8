"""Steps of an engine: which prompts enter, how long a step takes, what has ended when it is over."""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import islice

from afd_dse.simulation.clock import Clock
from afd_dse.simulation.plant import Plant
from afd_dse.simulation.records import Records
from afd_dse.simulation.state import DECODE, IDLE, MIXED, PREFILL, Book, Lane, Rank

# Decode steps taken at once while nothing changes: contexts grow by at most this share meanwhile, and by this many
# tokens at least.
_JUMP_SHARE, _JUMP_LEAST = 0.03, 8.0
# Of a store that is in use this share stays free for growth when a prompt is admitted (vLLM's watermark).
_WATERMARK = 0.01
# Waiting prompts that are looked through for one of a bucket.
_LOOKED_AT = 256


class Stepper:
    """Plans and completes the steps of lanes; ``central`` holds requests that no rank has been chosen for."""

    def __init__(
        self,
        plant: Plant,
        clock: Clock,
        book: Book,
        records: Records,
        *,
        prefix: float,
        own_prefix: float,
        edges: Sequence[float] = (),
    ) -> None:
        self.plant, self.clock, self.book, self.records = plant, clock, book, records
        # Cached tokens that every prompt attends to, and how many of them each sequence holds itself.
        self.prefix, self.own_prefix = prefix, own_prefix
        # Lengths that part the buckets of prompts that share a step; none: first come, first served.
        self.edges = edges
        self.central: deque[int] = deque()
        self.grows = plant.kv_policy == "grow" and not (plant.one_cache and not plant.shared_steps)
        self.accepted = plant.accepted_per_step

    # -- what a request needs ------------------------------------------------------------------------------------------

    def prefill_need(self, rank: Rank, request: int, cached_blocks: int) -> float:
        """Bytes to be had in ``rank``'s pool before a prompt may start there, blocks that it shares apart."""
        if self.plant.one_cache:
            tokens = self._decode_tokens(request, self.book.made[request] + 1.0)
        else:
            tokens = self.own_prefix + self.book.input_tokens[request] + self.book.made[request]
        return rank.pool.store.bytes_of(tokens - cached_blocks * self.plant.block_tokens)

    def decode_need(self, rank: Rank, request: int) -> float:
        """Bytes that a request takes in the pool of the decode ``rank`` that it is handed over to."""
        return rank.pool.store.bytes_of(self._decode_tokens(request, self.book.made[request]))

    def growth(self, rank: Rank, sequences: float) -> float:
        """Bytes that ``sequences`` of a rank gain in one step.

        Room for it is kept whenever a request enters, so that requests cannot push each other out without progress.
        """
        return sequences * self.accepted * rank.pool.store.per_token if self.grows else 0.0

    def _decode_tokens(self, request: int, made: float) -> float:
        tokens = self.own_prefix + self.book.input_tokens[request]
        return tokens + (made if self.grows else self.book.output_tokens[request] + self.accepted)

    # -- planning ------------------------------------------------------------------------------------------------------

    def plan(self, lane: Lane, now: float, disturbed: float) -> list[int]:
        """Start the next step of an idle lane, or decode steps up to the next change; leave it idle if it has no work.

        ``disturbed`` is what the other phase does on the same GPUs: a share of its load. Returns requests that lost
        their place in the cache and belong to no rank now.
        """
        lost = self._make_room(lane) if lane.decodes and self.grows else []
        pieces = self._pieces(lane, now) if lane.prefills else []
        lane.pieces = pieces
        lane.start, lane.planned = now, 1
        lane.version += 1
        batch = lane.batch if lane.decodes else 0
        if pieces and (batch == 0 or self.plant.prioritized):
            lane.kind = PREFILL
            tokens, attended, mean, _ = self._prompt_load(lane, pieces)
            lane.duration = self.clock.prefill(tokens, attended, mean, disturbed)
        elif pieces:
            lane.kind = MIXED
            tokens, attended, mean, busiest = self._prompt_load(lane, pieces)
            rank = lane.ranks[busiest]
            own = len(rank.running)
            context = rank.context / own if own else 0.0
            mean_batch = batch / len(lane.ranks)
            lane.duration = self.clock.mixed(float(own), context, tokens, attended, mean_batch, mean)
        elif batch:
            lane.kind = DECODE
            self._plan_decode(lane, batch, disturbed)
        else:
            lane.kind = IDLE
        return lost

    def _plan_decode(self, lane: Lane, batch: int, disturbed: float) -> None:
        busiest = max(lane.ranks, key=_context_of)
        own = len(busiest.running)
        context = busiest.context / own
        steps = max(_JUMP_LEAST, _JUMP_SHARE * context) / self.accepted
        ends, book = lane.ends, self.book
        while book.preemptions[ends[0][1]] != ends[0][2]:
            heappop(ends)  # it has lost its place meanwhile
        steps = min(steps, ends[0][0] - lane.steps)
        if self.grows:
            for rank in lane.ranks:
                if rank.running:
                    growth = self.growth(rank, len(rank.running))
                    if growth > 0.0:
                        steps = min(steps, (rank.pool.capacity - rank.pool.taken) // growth)
        if self.plant.admission_steps and lane.prefills:
            for rank in lane.ranks:
                left = book.ready[rank.waiting[0]] - lane.ran if rank.waiting else 0.0
                steps = min(steps, math.ceil(left)) if left > 0.0 else steps
        lane.planned = max(int(steps), 1)
        middle = context + self.accepted * (lane.planned - 1) / 2.0
        lane.duration = self.clock.decode(float(own), middle, batch / len(lane.ranks), disturbed > 0.0)

    def _prompt_load(
        self, lane: Lane, pieces: list[tuple[int, int, float]]
    ) -> tuple[float, float, float, int]:
        """Prompt tokens of the busiest rank, how much each attends to, mean tokens of a rank, and the rank."""
        tokens = [0.0] * len(lane.ranks)
        pairs = [0.0] * len(lane.ranks)
        book = self.book
        for number, request, size in pieces:
            whole = book.input_tokens[request] + book.made[request]
            before = self.prefix + whole - book.todo[request]
            tokens[number] += size
            pairs[number] += size * (before + size / 2.0)
        busiest = max(range(len(tokens)), key=pairs.__getitem__)
        return tokens[busiest], pairs[busiest] / tokens[busiest], sum(tokens) / len(tokens), busiest

    def _pieces(self, lane: Lane, now: float) -> list[tuple[int, int, float]]:
        plant, book = self.plant, self.book
        mixed = lane.decodes and not plant.prioritized
        pieces: list[tuple[int, int, float]] = []
        rooms = []
        bucket = self._bucket_of_step(lane) if self.edges else None
        busy = plant.admission_steps > 0.0 and any(rank.running or rank.started for rank in lane.ranks)
        for number, rank in enumerate(lane.ranks):
            room = plant.chunk_tokens - (len(rank.running) * plant.tokens_per_sequence if mixed else 0.0)
            for request in rank.started:
                if room < 1.0:
                    break
                size = min(book.todo[request], room)
                pieces.append((number, request, size))
                room -= size
            limit = plant.prompts_per_step or len(rank.waiting)
            while room >= 1.0 and limit > 0:
                place = self._next(rank.waiting, bucket)
                if place is None:
                    break
                request = rank.waiting[place]
                # An engine with nothing else to do does not wait for steps to run.
                if (busy and book.ready[request] > lane.ran) or not self._admit(lane, rank, request, now):
                    break
                del rank.waiting[place]
                size = min(book.todo[request], room)
                pieces.append((number, request, size))
                room -= size
                limit -= 1
            rooms.append(room)
        if self.central:
            self._pull(lane, now, rooms, pieces, bucket)
        return pieces

    def _bucket_of_step(self, lane: Lane) -> int:
        """The bucket of the oldest prompt that a lane may work on: nobody waits for ever."""
        oldest = [min(rank.started) for rank in lane.ranks if rank.started]
        oldest += [rank.waiting[0] for rank in lane.ranks if rank.waiting]
        oldest += [self.central[0]] if self.central else []
        return self._bucket(min(oldest)) if oldest else 0

    def _bucket(self, request: int) -> int:
        return bisect_left(self.edges, self.book.input_tokens[request])

    def _next(self, queue: deque[int], bucket: int | None) -> int | None:
        """Place of the prompt in ``queue`` that enters a step next: of its bucket, else a shorter one, else none."""
        if bucket is None or not queue:
            return 0 if queue else None
        shorter = None
        for place, request in enumerate(islice(queue, _LOOKED_AT)):
            found = self._bucket(request)
            if found == bucket:
                return place
            if found < bucket and shorter is None:
                shorter = place
        return shorter

    def _pull(
        self,
        lane: Lane,
        now: float,
        rooms: list[float],
        pieces: list[tuple[int, int, float]],
        bucket: int | None,
    ) -> None:
        """Prompts from the queue that all ranks share, each to the rank with the most room for it."""
        book, limit = self.book, self.plant.prompts_per_step
        counts = [len(rank.started) for rank in lane.ranks]
        while (place := self._next(self.central, bucket)) is not None:
            request = self.central[place]
            order = sorted(range(len(rooms)), key=rooms.__getitem__, reverse=True)
            for number in order:
                open_ = rooms[number] >= 1.0 and (limit is None or counts[number] < limit)
                if open_ and self._admit(lane, lane.ranks[number], request, now):
                    break
            else:
                return
            del self.central[place]
            size = min(book.todo[request], rooms[number])
            pieces.append((number, request, size))
            rooms[number] -= size
            counts[number] += 1

    def _admit(self, lane: Lane, rank: Rank, request: int, now: float) -> bool:
        """Take a request into ``rank``'s cache and start its prefill, if it fits."""
        plant, book = self.plant, self.book
        if lane.decodes and len(rank.running) + len(rank.started) >= plant.most_sequences:
            return False
        pool = rank.pool
        blocks = book.full_blocks(request, plant.block_tokens)
        known = pool.cache.known(blocks) if blocks else 0
        need = self.prefill_need(rank, request, known)
        kept = _WATERMARK * pool.capacity if self.grows and pool.used > 0.0 else 0.0
        kept = max(kept, self.growth(rank, len(rank.running) + len(rank.started)) if lane.decodes else 0.0)
        woken = pool.cache.idle_among(blocks[:known]) * pool.block_bytes if known else 0.0
        if not pool.has_room(need + kept + woken):
            return False
        pool.cache.use(blocks[:known])
        pool.take(need)
        book.held[request], book.blocks_used[request] = need, known
        # The last token of a prompt is always computed: its output is the first token of the answer.
        cached = min(known * plant.block_tokens, book.input_tokens[request] - 1)
        book.cached[request] = float(cached)
        book.todo[request] = book.input_tokens[request] - cached + book.made[request]
        book.start_s[request] = min(book.start_s[request], now)
        rank.started.append(request)
        return True

    def _make_room(self, lane: Lane) -> list[int]:
        """Take back the youngest requests of ranks whose cache cannot hold one more step."""
        lost: list[int] = []
        for rank in lane.ranks:
            pool = rank.pool
            while rank.running:
                if pool.has_room(self.growth(rank, len(rank.running))):
                    break
                decoding = not rank.started
                request = rank.running.popitem()[0] if decoding else rank.started.pop()
                self.take_back(lane, rank, request, decoding)
                if lane.prefills:
                    rank.waiting.appendleft(request)
                else:
                    lost.append(request)
        return lost

    def take_back(self, lane: Lane, rank: Rank, request: int, decoding: bool) -> None:
        """A request loses its cache; what it has generated is computed again with its prompt."""
        book = self.book
        if decoding:
            grown = self.accepted * (lane.steps - book.joined[request])
            self._leave(rank, request, grown)
            book.made[request] += grown
        else:
            self.release(rank, request, 0.0)
        book.todo[request] = book.input_tokens[request] + book.made[request]
        book.preemptions[request] += 1

    # -- completion ----------------------------------------------------------------------------------------------------

    def complete(self, lane: Lane, now: float) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """End the step or steps of a lane: (rank, request) whose prompts are computed, and those that are done."""
        lane.busy_s += now - lane.start
        lane.ran += lane.planned
        ended: list[tuple[int, int]] = []
        if lane.kind in (DECODE, MIXED):
            ended = self._advance(lane, now)
        prefilled, book = [], self.book
        for number, request, size in lane.pieces:
            book.todo[request] -= size
            self.records.prefill_tokens += size
            if book.todo[request] < 0.5:
                lane.ranks[number].started.remove(request)
                prefilled.append((number, request))
        lane.pieces = []
        lane.kind = IDLE
        return prefilled, ended

    def _advance(self, lane: Lane, now: float) -> list[tuple[int, int]]:
        """Decode steps go by: sequences grow, and those at their last token leave."""
        steps, made = lane.planned, lane.planned * self.accepted
        lane.steps += steps
        batch = 0
        for rank in lane.ranks:
            running = len(rank.running)
            batch += running
            rank.context += running * made
            if self.grows and running:
                rank.pool.take(running * made * rank.pool.store.per_token)
        self.records.decode_tokens += batch * made
        first = lane.start + lane.duration - max(lane.joined_s, 0.0) if lane.joined_s else lane.duration
        self.records.interval(max(first, lane.duration), batch * self.accepted)
        if steps > 1:
            self.records.interval(lane.duration, batch * made - batch * self.accepted)
        ended, book = [], self.book
        while lane.ends and lane.ends[0][0] <= lane.steps:
            _, request, life = heappop(lane.ends)
            if book.preemptions[request] != life:
                continue
            number = book.decode_rank[request] % len(lane.ranks)
            rank = lane.ranks[number]
            del rank.running[request]
            self._leave(rank, request, self.accepted * (lane.steps - book.joined[request]))
            ended.append((number, request))
        lane.joined_s = now if len(ended) < batch else 0.0
        return ended

    def join(self, lane: Lane, rank: Rank, request: int) -> None:
        """A request whose prompt is computed decodes on ``rank`` from the next step on."""
        book = self.book
        left = book.output_tokens[request] - book.made[request]
        steps = max(math.ceil(left / self.accepted - 1e-9), 1)
        book.joined[request] = lane.steps
        heappush(lane.ends, (lane.steps + steps, request, book.preemptions[request]))
        rank.running[request] = None
        rank.context += self.prefix + book.input_tokens[request] + book.made[request]

    def _leave(self, rank: Rank, request: int, grown: float) -> None:
        """A decoding request ends or loses its place after ``grown`` tokens in the batch."""
        book = self.book
        rank.context -= self.prefix + book.input_tokens[request] + book.made[request] + grown
        if not rank.running:
            rank.context = 0.0
        self.release(rank, request, grown if self.grows else 0.0)

    def release(self, rank: Rank, request: int, grown: float) -> None:
        """Give a request's bytes and blocks back to the pool."""
        book, pool = self.book, rank.pool
        pool.used -= book.held[request] + grown * pool.store.per_token
        if pool.used < 1e-9 * pool.capacity:  # rounding
            pool.used = 0.0
        used = book.blocks_used[request]
        if used:
            pool.cache.release(book.full_blocks(request, self.plant.block_tokens)[:used])
        book.held[request], book.blocks_used[request] = 0.0, 0

    def remember(self, rank: Rank, request: int) -> None:
        """A computed prompt's blocks enter the prefix cache: others may use them from now on."""
        book, pool = self.book, rank.pool
        blocks = book.full_blocks(request, self.plant.block_tokens)
        fresh = blocks[book.blocks_used[request] :]
        if fresh:
            pool.used -= len(fresh) * pool.block_bytes
            book.held[request] -= len(fresh) * pool.block_bytes
            pool.cache.use(fresh)
            book.blocks_used[request] = len(blocks)
            pool.take(0.0)


def _context_of(rank: Rank) -> float:
    return rank.context
