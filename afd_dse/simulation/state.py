"""The moving parts of a simulation: KV pools, ranks, lanes, and the book of requests; all of it saved and restored."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from afd_dse.simulation.cache import PrefixCache
from afd_dse.simulation.plant import KvStore

IDLE, PREFILL, DECODE, MIXED = 0, 1, 2, 3
NEVER = float("inf")


class KvPool:
    """The KV cache of one attention rank: ``used`` bytes are of single requests, blocks of the prefix cache add."""

    __slots__ = ("block_bytes", "cache", "capacity", "most_used", "store", "used")

    def __init__(self, store: KvStore, shared_prefix_tokens: float, block_tokens: int) -> None:
        self.store = store
        self.capacity = store.capacity - store.per_token * shared_prefix_tokens
        self.block_bytes = store.per_token * block_tokens
        self.used = 0.0
        self.most_used = 0.0
        self.cache = PrefixCache()

    @property
    def taken(self) -> float:
        """Bytes that requests need: what cannot be had by forgetting."""
        return self.used + self.cache.in_use * self.block_bytes

    def has_room(self, need: float) -> bool:
        """Whether ``need`` more bytes fit once idle blocks are forgotten."""
        return self.taken + need <= self.capacity

    def take(self, need: float) -> None:
        """Take ``need`` bytes, forgetting idle blocks as far as needed."""
        self.used += need
        taken, cache = self.taken, self.cache
        over = taken + cache.idle * self.block_bytes - self.capacity
        if over > 0.0 and cache.idle:
            cache.forget(int(-(-over // self.block_bytes)))
        self.most_used = max(self.most_used, taken + cache.idle * self.block_bytes)


class Rank:
    """An attention rank: requests that wait for it, are being prefilled, and decode on it (in order of admission)."""

    __slots__ = ("context", "link_free", "load", "pool", "running", "started", "waiting")

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self.waiting: deque[int] = deque()
        self.started: list[int] = []
        self.running: dict[int, None] = {}
        self.context = 0.0
        self.load = 0.0
        self.link_free = 0.0


class Lane:
    """An engine: ranks that step together. ``ends`` is a heap of decoding requests.

    Its entries are (number of the request's last step, request, how often it had lost its place by then).
    """

    __slots__ = (
        "busy_s",
        "decodes",
        "duration",
        "ends",
        "joined_s",
        "kind",
        "pieces",
        "planned",
        "prefills",
        "ran",
        "ranks",
        "replica",
        "start",
        "steps",
        "version",
    )

    def __init__(self, ranks: list[Rank], prefills: bool, decodes: bool, replica: int) -> None:
        self.ranks, self.prefills, self.decodes, self.replica = ranks, prefills, decodes, replica
        self.ends: list[tuple[int, int, int]] = []
        self.steps = 0
        self.ran = 0  # steps of any kind
        self.kind = IDLE
        self.start = 0.0
        self.duration = 0.0  # of one step
        self.planned = 0  # steps until the next event
        self.version = 0
        self.pieces: list[tuple[int, int, float]] = []  # rank, request, tokens of the step under way
        self.joined_s = 0.0  # end of the last decode step
        self.busy_s = 0.0

    @property
    def batch(self) -> int:
        """Decoding requests of all ranks."""
        return sum(len(rank.running) for rank in self.ranks)


# Columns of the book that are numbers, one a request.
COLUMNS = (
    "first_s",
    "finish_s",
    "start_s",
    "todo",
    "made",
    "held",
    "joined",
    "prefill_rank",
    "decode_rank",
    "cached",
    "blocks_used",
    "preemptions",
    "blocked_s",
    "ready",
)


class Book:
    """What is known of every request, a list a property.

    ``todo`` prompt tokens still to be computed, ``made`` tokens generated before it last joined a decode batch,
    ``held`` bytes in its pool (growth apart), ``joined`` the lane's step number then, ``cached`` prompt tokens found
    in the prefix cache, ``blocks_used`` leading blocks that it uses in its pool, ``blocked_s`` that its hand-over
    waited, ``ready`` the number of steps of its lane from which on it may take part in one.
    """

    __slots__ = ("arrival_s", "blocks", "input_tokens", "output_tokens", *COLUMNS)

    def __init__(
        self,
        arrival_s: Sequence[float],
        input_tokens: Sequence[int],
        output_tokens: Sequence[int],
        blocks: Sequence[tuple[int, ...]] | None,
    ) -> None:
        count = len(arrival_s)
        self.arrival_s, self.input_tokens = list(arrival_s), list(input_tokens)
        self.output_tokens, self.blocks = list(output_tokens), blocks
        self.first_s = [NEVER] * count
        self.finish_s = [NEVER] * count
        self.start_s = [NEVER] * count
        self.todo = [float(tokens) for tokens in input_tokens]
        self.made = [0.0] * count
        self.held = [0.0] * count
        self.joined = [0] * count
        self.prefill_rank = [-1] * count
        self.decode_rank = [-1] * count
        self.cached = [0.0] * count
        self.blocks_used = [0] * count
        self.preemptions = [0] * count
        self.blocked_s = [0.0] * count
        self.ready = [0.0] * count

    def full_blocks(self, request: int, block_tokens: int) -> tuple[int, ...]:
        """Hash ids of the blocks that the prompt fills whole."""
        if self.blocks is None:
            return ()
        return self.blocks[request][: self.input_tokens[request] // block_tokens]


def pool_state(pool: KvPool) -> dict[str, Any]:
    """A pool as JSON values."""
    return {"used": pool.used, "most_used": pool.most_used, "cache": pool.cache.state()}


def restore_pool(pool: KvPool, state: dict[str, Any]) -> None:
    """Take over what :func:`pool_state` gave."""
    pool.used, pool.most_used = state["used"], state["most_used"]
    pool.cache.restore(state["cache"])


def rank_state(rank: Rank) -> dict[str, Any]:
    """A rank as JSON values, its pool apart."""
    return {
        "waiting": list(rank.waiting),
        "started": list(rank.started),
        "running": list(rank.running),
        "context": rank.context,
        "load": rank.load,
        "link_free": rank.link_free,
    }


def restore_rank(rank: Rank, state: dict[str, Any]) -> None:
    """Take over what :func:`rank_state` gave."""
    rank.waiting, rank.started = deque(state["waiting"]), list(state["started"])
    rank.running = dict.fromkeys(state["running"])
    rank.context, rank.load, rank.link_free = state["context"], state["load"], state["link_free"]


_LANE_NUMBERS = ("steps", "ran", "kind", "start", "duration", "planned", "version", "joined_s", "busy_s")


def lane_state(lane: Lane) -> dict[str, Any]:
    """A lane as JSON values, its ranks apart."""
    return {name: getattr(lane, name) for name in _LANE_NUMBERS} | {
        "ends": [list(entry) for entry in lane.ends],
        "pieces": [list(piece) for piece in lane.pieces],
    }


def restore_lane(lane: Lane, state: dict[str, Any]) -> None:
    """Take over what :func:`lane_state` gave."""
    for name in _LANE_NUMBERS:
        setattr(lane, name, state[name])
    lane.ends = [(step, request, life) for step, request, life in state["ends"]]
    lane.pieces = [(rank, request, tokens) for rank, request, tokens in state["pieces"]]
