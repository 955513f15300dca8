"""Writing calibrations and predictions, whole or not at all."""

import os
import tempfile
from pathlib import Path

import pandas as pd
import yaml

from afd_dse.errors import InputError, Problem
from afd_dse.spec.calibration import Calibration


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration file (YAML)."""
    document = calibration.model_dump(mode="json")
    _write_whole(path, yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110))


def write_predictions(table: pd.DataFrame, path: Path) -> None:
    """Write measured runs beside their predictions (CSV)."""
    _write_whole(path, table.to_csv(index=False, float_format="%.6g"))


def check_target(path: Path, field: str) -> None:
    """Raise :class:`InputError` where the file ``path`` could not be written, so that no work is done in vain."""
    folder = path.expanduser().absolute().parent
    if path.is_dir():
        message = "is a folder"
    elif not folder.is_dir():
        message = f"the folder {folder} does not exist"
    elif not os.access(folder, os.W_OK):
        message = f"the folder {folder} is not writable"
    else:
        return
    raise InputError(Problem(field, str(path), message, "give the path of a file in an existing folder"))


def _write_whole(path: Path, text: str) -> None:
    target = path.expanduser().absolute()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as staging:
        staging.write(text)
    # A temporary file is private; what a user asked for is not.
    whole = Path(staging.name)
    whole.chmod(0o644)
    whole.replace(target)
