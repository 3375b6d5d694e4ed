"""Pathfinder of Long Range Arena (Tay et al. 2020, arXiv 2011.04006): the released images, row by row.

A folder has one folder a difficulty, each with `metadata/N.npy` (in truth text: folder, file, number and label of an
image a line) and the images as PNG. Papers differ in the difficulty they mean, so it is part of the preset's name. One
released image is empty: such ones are left out. Splits are by hash of the image, 8 : 1 : 1. The task `pathfinder`
makes images of its own.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError
from bench.tasks import Data, Metric, Preset, Task

if TYPE_CHECKING:
    from bench.tasks._stored import Example, Parts

CLASSES = ("not connected", "connected")
HOW = (
    "download lra_release.gz as https://github.com/google-research/long-range-arena says, unpack it and give "
    "file = 'lra_release/lra_release/pathfinder32', or a data set with image and label as file = 'hub:OWNER/NAME'"
)


@dataclass(frozen=True, kw_only=True)
class ReleasedPreset(Preset):
    """level: the folder of the difficulty."""

    level: str


HARD = ReleasedPreset(
    summary="32 by 32, 14 dashes, 1024 pixels; 2 layers of width 64, mean over positions (port)",
    seq_len=1024, vocab=256, model="classifier", classes=2, level="curv_contour_length_14",
    d_model=64, layers=2, heads=2, ffn="gelu", ffn_ratio=2.0, positions="learned", dropout=0.1,
    batch=256, steps=62_400, learning_rates=(1e-4, 3e-4, 1e-3), weight_decay=0.0,
    eval_every=1000, validation_size=20_000, test_size=20_000,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "port-14": HARD,
    "port-easy": replace(
        HARD, summary="32 by 32, 6 dashes, 1024 pixels; 2 layers of width 64 (port)", level="curv_baseline"
    ),
}


def read(text: str, level: str) -> Parts:
    """The images of one difficulty in a folder, or those of the hub."""
    from bench.tasks import _stored

    if text.startswith(_stored.HUB):
        rows = _stored.hub_splits(text.removeprefix(_stored.HUB), ("image", "label"))
        examples = [
            _stored.Example((image.convert("L").tobytes(),), int(label))
            for part in rows.values()
            for image, label in part
        ]
    else:
        examples = list(_images(Path(text).expanduser() / level))
    return _stored.split_by_hash(examples, {"validation": 1, "test": 1})


def _images(folder: Path) -> Iterator[Example]:
    """The images that the metadata of one difficulty list."""
    from PIL import Image

    from bench.tasks import _stored

    for listing in sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path.name)):
        for number, line in enumerate(listing.read_text().splitlines(), 1):
            fields = line.split()
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise UserError(f"line {number} of '{listing}' is not 'folder file number label ...'; unpack it again")
            path = folder / fields[0] / fields[1]
            if not path.is_file():
                raise UserError(f"'{listing}' names '{path}', which does not exist; unpack it again")
            if raw := path.read_bytes():
                with Image.open(io.BytesIO(raw)) as image:
                    yield _stored.Example((image.convert("L").tobytes(),), int(fields[3]))


class LraPathfinder(Task):
    """Released images from a folder or the hub."""

    name = "lra_pathfinder"
    summary = "Long Range Arena, pathfinder: the released images as 1024 pixels, from your folder; accuracy by class"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (False, True)

    def absent(self, preset: Preset, text: str | None) -> str | None:
        """Whether the folder of the images is there."""
        from bench.tasks import _stored

        assert isinstance(preset, ReleasedPreset)
        return _stored.missing(text, (f"{preset.level}/metadata", f"{preset.level}/imgs"), HOW)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; `text` is the folder pathfinder32. UserError when it cannot be read."""
        from bench.tasks import _stored

        assert isinstance(preset, ReleasedPreset)
        return _stored.Stored(preset, seed, self.name, "Pathfinder", CLASSES, read(str(text), preset.level))


TASK = LraPathfinder()
