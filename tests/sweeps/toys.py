"""Work for engines that leaves a trace: which tasks began, which ended, and in which process."""

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Toy:
    """A task that takes ``seconds``.

    ``deadly`` ends its process the first so many times; ``held`` makes it wait for a file ``go``.
    """

    number: int
    folder: str
    seconds: float = 0.0
    deadly: int = 0
    held: bool = False


def note(toy: Toy, word: str) -> None:
    """One line, appended in a single write, so that processes don't mix theirs."""
    with (Path(toy.folder) / "trace").open("ab", buffering=0) as file:
        file.write(f"{word} {toy.number} {os.getpid()}\n".encode())


def trace(folder: Path) -> list[tuple[str, int, int]]:
    """What happened so far: word, number of the task, process."""
    path = folder / "trace"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [(word, int(number), int(pid)) for word, number, pid in (line.split() for line in lines)]


def counts(folder: Path, word: str) -> Counter[int]:
    """How often each task began, or ended."""
    return Counter(number for said, number, _ in trace(folder) if said == word)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def play(toy: Toy) -> int:
    """The square of the task's number."""
    note(toy, "began")
    begun = sum(word == "began" and number == toy.number for word, number, _ in trace(Path(toy.folder)))
    if begun <= toy.deadly:
        os._exit(9)
    time.sleep(toy.seconds)
    while toy.held and not (Path(toy.folder) / "go").exists():
        time.sleep(0.05)
    note(toy, "ended")
    return toy.number**2
