"""The prefix cache of one attention rank: blocks of prompts by hash, shared while in use, forgotten oldest first."""

from collections.abc import Sequence


class PrefixCache:
    """Blocks with the number of requests that use each; unused ones stay until room is needed.

    ``in_use`` and ``idle`` count blocks.
    """

    __slots__ = ("_idle", "_users")

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        # NOTE: a dict keeps insertion order, which here is the order of becoming idle: the first is the oldest.
        self._idle: dict[int, None] = {}

    @property
    def in_use(self) -> int:
        """Blocks that some request uses."""
        return len(self._users)

    @property
    def idle(self) -> int:
        """Blocks that can be forgotten."""
        return len(self._idle)

    def known(self, blocks: Sequence[int]) -> int:
        """How many leading blocks of a prompt are in the cache."""
        for number, block in enumerate(blocks):
            if block not in self._users and block not in self._idle:
                return number
        return len(blocks)

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks`` nobody uses now."""
        return sum(block in self._idle for block in blocks)

    def use(self, blocks: Sequence[int]) -> None:
        """One more request uses ``blocks``; new ones enter the cache."""
        for block in blocks:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1

    def release(self, blocks: Sequence[int]) -> None:
        """One request less uses ``blocks``; the last blocks of a prompt are forgotten first."""
        for block in reversed(blocks):
            if self._users[block] > 1:
                self._users[block] -= 1
            else:
                del self._users[block]
                self._idle[block] = None

    def forget(self, count: int) -> None:
        """Drop the ``count`` oldest idle blocks."""
        for _ in range(min(count, len(self._idle))):
            del self._idle[next(iter(self._idle))]

    def state(self) -> dict[str, list[list[int]] | list[int]]:
        """Everything as JSON values."""
        return {"users": [list(item) for item in self._users.items()], "idle": list(self._idle)}

    def restore(self, state: dict[str, list[list[int]] | list[int]]) -> None:
        """Take over what :meth:`state` gave."""
        users, idle = state["users"], state["idle"]
        self._users = {pair[0]: pair[1] for pair in users if isinstance(pair, list)}
        self._idle = {block: None for block in idle if isinstance(block, int)}
