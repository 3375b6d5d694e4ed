"""The noise floor of a machine, stored: how far the same code differs from itself, measured with whole replicates."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from bench.errors import UserError
from bench.machine import environment_key
from bench.results import Record, strict_json

FOLDER = Path("results") / "noise"
DEFAULT_SHARE = 0.05  # where it was not measured: what a quiet desktop rarely exceeds


class NoiseFloor(Record):
    """Noise floor of one machine. shares: by device, 0.02 is 2 %. Nothing measured: the default holds.

    cells: what was measured, the median seconds of every replicate in the order of measuring, by device and cell.
    """

    environment_key: str | None = None
    environment: dict[str, Any] = Field(default_factory=dict)
    measured_at: str | None = None
    shares: dict[str, float] = Field(default_factory=dict)
    cells: dict[str, dict[str, list[float]]] = Field(default_factory=dict)

    def share(self, device: str) -> float:
        """The floor of a device, else the default."""
        return self.shares.get(device, DEFAULT_SHARE)

    def log_share(self, device: str) -> float:
        """The floor as the logarithm of a ratio: 5 % is a ratio between 1 / 1.05 and 1.05."""
        return math.log1p(self.share(device))


def noise_file(facts: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Where the floor of a machine is stored: named by its processor or GPU and by the hash of its environment."""
    machine = re.sub(r"[^a-z0-9]+", "-", str(facts.get("gpu") or facts.get("cpu") or "machine").lower()).strip("-")
    return folder / f"{machine}-{environment_key(facts)}.json"


def read_noise(path: Path) -> NoiseFloor:
    """The stored floor; UserError when there is none or it is not one."""
    try:
        return NoiseFloor.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"no noise floor in '{path}' (measure it with: python -m bench noise)") from None
    except (ValueError, ValidationError) as error:
        problem = " ".join(str(error).split())[:200]
        raise UserError(
            f"'{path}' is not a noise floor ({problem}); measure it again: python -m bench noise"
        ) from error


def write_noise(floor: NoiseFloor, path: Path) -> None:
    """Store a floor, whole or not at all; UserError when the place cannot be written."""
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(strict_json(floor.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}; choose another --out") from error
