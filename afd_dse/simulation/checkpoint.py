"""A simulation on disk: saved as a whole now and then, continued after an interruption, bit for bit."""

import hashlib
import json
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from afd_dse.errors import InputError, Problem
from afd_dse.simulation.plant import Plant
from afd_dse.simulation.simulator import Simulator
from afd_dse.simulation.traffic import Requests

_FORMAT = 2
_SECONDS = 5.0  # of computing between two saves
_REMEDY = "delete it to start anew, or name another file"


def digest_of(inputs: Any, plant: Plant, requests: Requests) -> str:
    """What identifies a simulation: its ``inputs`` (job and deployment as JSON), policies and every request."""
    text = json.dumps([_FORMAT, inputs, repr(plant)], sort_keys=True, default=str)
    found = hashlib.sha256(text.encode())
    for column in (requests.arrival_s, requests.input_tokens, requests.output_tokens):
        found.update(np.ascontiguousarray(column).tobytes())
    found.update(repr((requests.prefix_tokens, requests.prefix_shared)).encode())
    found.update(repr(requests.blocks).encode())
    return found.hexdigest()


@dataclass
class Checkpoint:
    """A file that a simulation is saved to (as an observer of it) and restored from."""

    path: Path
    digest: str
    seconds: float = _SECONDS
    _saved: float = field(default_factory=time.monotonic, init=False)

    def __call__(self, simulator: Simulator) -> None:
        """Save if the last time is long enough ago."""
        if time.monotonic() - self._saved >= self.seconds:
            self.save(simulator)
            self._saved = time.monotonic()

    def save(self, simulator: Simulator) -> None:
        """Write the state beside the file and move it there: an interrupted save leaves the one before."""
        state = simulator.state()
        columns = {name: np.array(values) for name, values in state.pop("book").items()}
        rest = json.dumps({"format": _FORMAT, "digest": self.digest, "state": state})
        beside = self._beside
        try:
            with beside.open("wb") as file:
                np.savez(
                    file, allow_pickle=False, rest=np.frombuffer(rest.encode(), dtype=np.uint8), **columns
                )
            beside.replace(self.path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise self._problem(f"cannot be written ({error.strerror})", "name another file") from error

    def restore(self, simulator: Simulator) -> bool:
        """Continue from the file, if it exists; whether it did.

        Raises :class:`InputError` where the file is no checkpoint, or one of another simulation.
        """
        if not self.path.exists():
            return False
        try:
            with np.load(self.path, allow_pickle=False) as file:
                rest = json.loads(file["rest"].tobytes())
                book = {name: file[name].tolist() for name in file.files if name != "rest"}
            fits = rest["format"] == _FORMAT and rest["digest"] == self.digest
            state = rest["state"]
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise self._problem("is not the checkpoint of a simulation", _REMEDY) from error
        if not fits:
            raise self._problem("belongs to another job, deployment, seed or option", _REMEDY)
        simulator.restore({**state, "book": book})
        return True

    def remove(self) -> None:
        """The simulation is over."""
        self.path.unlink(missing_ok=True)
        self._beside.unlink(missing_ok=True)

    @property
    def _beside(self) -> Path:
        return self.path.with_name(f".{self.path.name}.saving")

    def _problem(self, message: str, remedy: str) -> InputError:
        return InputError(Problem("--checkpoint", str(self.path), message, remedy))
