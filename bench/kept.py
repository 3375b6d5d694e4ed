"""Trained models that a run keeps: one file each, the weights and what they are the weights of."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from bench.errors import UserError

if TYPE_CHECKING:
    import numpy.typing as npt

PREFIX, SUFFIX = "model-", ".npz"
ABOUT = "about"  # the entry of the file that is no weight


class About(BaseModel):
    """What a model was trained for. source: of its variant. length: positions of the sequence that is recorded.

    heads, head_dim, value_dim: of each of its attentions.
    """

    model_config = ConfigDict(extra="forbid")

    variant: str
    knobs: dict[str, Any]
    source: dict[str, str | None]
    task: str
    preset: str
    file: str | None
    causal: bool
    seed: int
    length: int
    heads: int
    head_dim: int
    value_dim: int


def file_name(task: str, variant: str, seed: int, key: str) -> str:
    """The name in its run's folder of the model that the training of a cell made."""
    return f"{PREFIX}{task}-{re.sub(r'[^0-9A-Za-z_]', '_', variant)}-{seed}-{key[:8]}{SUFFIX}"


def write(path: Path, about: About, weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """Keep a model, whole or not at all."""
    import numpy as np

    temporary = path.with_suffix(".tmp")
    arrays: dict[str, Any] = {ABOUT: np.array(about.model_dump_json()), **weights}
    try:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_about(path: Path) -> About:
    """What a kept model is; UserError when the file is none."""
    import numpy as np

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return About.model_validate(json.loads(str(arrays[ABOUT])))
    except OSError as error:
        raise UserError(f"cannot read the model '{path}' ({error.strerror or error}); {_how()}") from error
    except (KeyError, IndexError, ValueError, TypeError, EOFError, zipfile.BadZipFile, ValidationError) as error:
        raise UserError(f"'{path}' is not a model that a run kept; {_how()}") from error


def read_weights(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The weights by name."""
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files if name != ABOUT}


def _how() -> str:
    return f"give a {PREFIX}*{SUFFIX} from the folder of a run with a workload task:NAME"
