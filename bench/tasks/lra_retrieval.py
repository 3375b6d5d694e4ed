"""Retrieval of Long Range Arena (Tay et al. 2020, arXiv 2011.04006): does one paper cite the other, both by byte.

The pairs are those of the ACL Anthology Network (Radev et al. 2013) as released with the benchmark: one line a pair, of
label, two ids and two texts between tabs. One tower reads both documents, cut at the preset's length and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError
from bench.tasks import Data, Metric, Preset, Split, Task

if TYPE_CHECKING:
    from bench.tasks._stored import Example, Parts

CLASSES = ("not cited", "cited")
NAMES: dict[Split, str] = {"train": "train", "validation": "eval", "test": "test"}
FILES: dict[Split, str] = {split: f"new_aan_pairs.{name}.tsv" for split, name in NAMES.items()}
HOW = (
    "download lra_release.gz as https://github.com/google-research/long-range-arena says, unpack it and give "
    "file = 'lra_release/lra_release/tsv_data', or a data set with label, text1 and text2 as file = 'hub:OWNER/NAME'"
)

PRESETS: dict[str, Preset] = {
    "port": Preset(
        summary="two documents of 4000 bytes; 2 layers of width 64, mean over positions (port)",
        seq_len=4000, vocab=256, model="pairs", classes=2, padded=True,
        d_model=64, layers=2, heads=2, ffn="gelu", ffn_ratio=2.0, positions="learned", dropout=0.1,
        batch=32, steps=30_000, learning_rates=(1e-4, 3e-4, 1e-3), weight_decay=0.0,
        eval_every=1000, validation_size=18_090, test_size=17_437,
    ),
}  # fmt: skip


def read(text: str) -> Parts:
    """The pairs of a folder or of the hub, in their own splits."""
    from bench.tasks import _stored

    if not text.startswith(_stored.HUB):
        folder = Path(text).expanduser()
        return {split: list(_pairs(folder / name)) for split, name in FILES.items()}
    name = text.removeprefix(_stored.HUB)
    rows = _stored.hub_splits(name, ("label", "text1", "text2"))
    lacking = {"train", "validation", "test"} - set(rows)
    if lacking:
        raise UserError(f"'{name}' on the hub has no split {min(lacking)} (it has {', '.join(rows)}); give another")
    return {
        split: [_stored.Example((first.encode(), second.encode()), int(label)) for label, first, second in rows[split]]
        for split in FILES
    }


def _pairs(path: Path) -> Iterator[Example]:
    from bench.tasks import _stored

    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != 5:
                raise UserError(
                    f"line {number} of '{path}' has {len(fields)} fields between tabs, not 5; unpack it again"
                )
            label, _, _, first, second = fields
            try:
                yield _stored.Example((first, second), int(float(label)))
            except ValueError as error:
                shown = label.decode(errors="replace")[:20]
                raise UserError(
                    f"line {number} of '{path}' has the label '{shown}', not 0 or 1; unpack it again"
                ) from error


class LraRetrieval(Task):
    """Pairs of papers from a folder or the hub."""

    name = "lra_retrieval"
    summary = "Long Range Arena, retrieval: pairs of papers by byte, from your folder; accuracy by length"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (False, True)

    def absent(self, preset: Preset, text: str | None) -> str | None:
        """Whether the folder of the pairs is there."""
        from bench.tasks import _stored

        return _stored.missing(text, tuple(FILES.values()), HOW)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; `text` is the folder of the tsv files. UserError when it cannot be read."""
        from bench.tasks import _stored

        return _stored.Stored(preset, seed, self.name, "AAN pairs", CLASSES, read(str(text)))


TASK = LraRetrieval()
