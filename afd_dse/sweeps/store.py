"""The folder of a sweep: results under their addresses, a log of what was computed, one writer at a time."""

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from afd_dse.errors import InputError, Problem
from afd_dse.results.files import STAGING, check_folder, write_files
from afd_dse.results.result import is_result

RESULTS, LOG, ASKED = "results", "log.jsonl", "sweep.json"
SUMMARY_CSV, SUMMARY = "summary.csv", "summary.parquet"
_LOCK = ".lock"


class Store:
    """Results of any number of sweeps in one folder; what is there under an address is never computed again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder, which is made if need be, and clear away what a killed writer left half-written.

        Raises :class:`InputError` where it cannot be written, or another process holds it.
        """
        check_folder(self.folder)
        (self.folder / RESULTS).mkdir(parents=True, exist_ok=True)
        # NOTE: the lock goes with the process, however it ends, so a killed sweep leaves nothing to clean up by hand.
        with (self.folder / _LOCK).open("a+", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                message = f"{holder} is computing a sweep there"
                remedy = "wait for it, or give another folder"
                raise InputError(Problem("--out", str(self.folder), message, remedy)) from None
            except OSError as error:
                message = f"its file system has no locks ({error.strerror})"
                remedy = "give a folder on another one"
                raise InputError(Problem("--out", str(self.folder), message, remedy)) from error
            lock.seek(0)
            lock.truncate()
            lock.write(f"process {os.getpid()} on {platform.node()}\n")
            lock.flush()
            for folder in (self.folder, self.folder / RESULTS):
                for left in folder.glob(f"{STAGING}*"):
                    shutil.rmtree(left, ignore_errors=True)
            yield

    def path(self, address: str) -> Path:
        """File of the result under an address, whether or not it is there."""
        return self.folder / RESULTS / f"{address}.json"

    def read(self, address: str) -> dict[str, Any] | None:
        """The result under an address; None where there is none, or the file is damaged."""
        try:
            document = json.loads(self.path(address).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return document if is_result(document) else None

    def write(self, address: str, text: bytes) -> Path:
        """Store a result as a whole."""
        return write_files(self.folder / RESULTS, {f"{address}.json": text})[0]

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append a line to the log, with the time."""
        stamped = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")} | dict(entry)
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(stamped, ensure_ascii=False) + "\n")

    def write_summary(self, contents: Mapping[str, bytes]) -> list[Path]:
        """Replace the files of the summary."""
        return write_files(self.folder, contents)
