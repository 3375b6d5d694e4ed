"""ListOps: nested operations on digits (Nangia and Bowman 2018, 1804.06028), long as in Long Range Arena (2011.04006).

[SM 4 [MIN 7 2 ] 9 ] is 5: operators MIN, MAX, MED (rounded down) and SM (sum modulo 10), every bracket a token, the
value one of ten classes. Published scores of 36 to 37 % are what the first token alone gives, so the rules that read
little are scored on the same split: a model has learned of the nesting what it gets beyond `root operator on its own
digits`. The grammar is LRA's; its program keeps its examples in an order that changes with each process, this does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.tasks import Baseline, Batch, Data, Metric, Preset, Task
from bench.tasks._generated import Generated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BINS = 8
LEARNED_FROM = 50  # training batches of the bag of tokens


@dataclass(frozen=True, kw_only=True)
class ListOpsPreset(Preset):
    """Expressions of more than `above` and fewer than seq_len tokens, at most max_depth deep.

    max_args: an operator has 2 to that many arguments. train_size: expressions to train on. Raises ValueError for
    bounds that hold no expression.
    """

    above: int
    max_depth: int = 10
    max_args: int
    train_size: int

    def __post_init__(self) -> None:
        if not 3 <= self.above <= self.seq_len - 2:
            raise ValueError(f"above must be 3 to {self.seq_len - 2} (seq_len - 2), got {self.above}")
        if self.max_args < 2 or self.max_depth < 2:
            raise ValueError(f"max_args and max_depth must be at least 2, got {self.max_args} and {self.max_depth}")


@dataclass(eq=False)
class ListOpsData(Generated):
    """The expressions of one preset and seed."""

    preset: ListOpsPreset

    @property
    def bins(self) -> list[str]:
        """Labels of the bins of lengths."""
        edges = self._edges
        return [f"{low}-{high - 1}" for low, high in pairwise(edges)]

    @cached_property
    def _edges(self) -> list[int]:
        first, end = self.preset.above + 1, self.preset.seq_len
        return [first + (end - first) * part // BINS for part in range(BINS + 1)]

    @cached_property
    def baseline(self) -> Baseline:
        """Always the most frequent value."""
        from bench.tasks._baselines import labels_of, majority

        return majority(labels_of(self.held_out("test")))

    @cached_property
    def baselines(self) -> Mapping[str, float]:
        """The rules that read the first token, that and its own digits, or all tokens in no order."""
        import numpy as np

        from bench.tasks._baselines import bag_of_tokens, best_by, labels_of

        test = list(self.held_out("test"))
        labels_T = labels_of(test)
        guess_T = np.concatenate([root_on_its_digits(batch) for batch in test])
        return {
            "root operator": best_by(np.concatenate([batch.tokens[:, 0] for batch in test]), labels_T),
            "root operator on its own digits": float((guess_T == labels_T).mean()),
            "bag of tokens": bag_of_tokens(self._some(), test, vocab=self.preset.vocab, classes=10),
        }

    @property
    def facts(self) -> Mapping[str, Any]:
        """Lengths in the test split; none is cut."""
        import numpy as np

        lengths = np.concatenate([batch.mask.sum(axis=1) for batch in self.held_out("test") if batch.mask is not None])
        return {
            "source": "generated", "train_size": self.train_size, "truncated": 0,
            "mean_length": float(lengths.mean()), "median_length": float(np.median(lengths)),
        }  # fmt: skip

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """`count` expressions with their values."""
        import numpy as np

        from bench.tasks import _trees

        preset = self.preset
        drawn = _trees.draw(
            rng, count, above=preset.above, below=preset.seq_len,
            max_depth=preset.max_depth, max_args=preset.max_args,
        )  # fmt: skip
        bins_T = np.searchsorted(self._edges, drawn.mask.sum(axis=1), side="right") - 1
        return Batch(drawn.tokens, drawn.values[:, None], bins_T[:, None], drawn.mask)

    def _some(self) -> Iterator[Batch]:
        """Training batches for a baseline that learns."""
        return map(self.train, range(min(LEARNED_FROM, self.preset.train_size // self.preset.batch)))


def root_on_its_digits(batch: Batch) -> NDArray[np.int64]:
    """The first operator applied to the digits that are its own arguments, all nested ones left out; 0 for none."""
    import numpy as np

    from bench.tasks._trees import CLOSE, FIRST_OPERATOR

    tokens_TN = batch.tokens
    opens_TN = (tokens_TN >= FIRST_OPERATOR) & (tokens_TN < CLOSE)
    depth_TN = opens_TN.cumsum(axis=1) - (tokens_TN == CLOSE).cumsum(axis=1)
    own_TN = (depth_TN == 1) & (tokens_TN < FIRST_OPERATOR)
    guesses = []
    for tokens, own in zip(tokens_TN, own_TN, strict=True):
        digits, operator = np.sort(tokens[own]), tokens[0] - FIRST_OPERATOR
        if not len(digits):
            guesses.append(0)
        elif operator == 2:
            guesses.append(int(np.median(digits)))
        else:
            guesses.append(int((digits[0], digits[-1], 0, digits.sum() % 10)[operator]))
    return np.array(guesses)


def encode(expression: str) -> list[int]:
    """Ids of an expression as it is written, `[SM 4 [MIN 7 2 ] 9 ]`. KeyError for a symbol that there is not."""
    from bench.tasks._trees import SYMBOLS

    ids = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    return [ids[symbol] for symbol in expression.split()]


def decode(tokens: Sequence[int]) -> str:
    """The expression of some ids, as it is written."""
    from bench.tasks._trees import SYMBOLS

    return " ".join(SYMBOLS[token] for token in tokens)


SHORT = ListOpsPreset(
    summary="33 to 127 tokens, up to 5 arguments; 3 layers of width 64",
    seq_len=128, above=32, max_args=5, train_size=40_000, vocab=15, model="classifier", classes=10, padded=True,
    d_model=64, layers=3, heads=4, ffn="gelu", ffn_ratio=2.0, positions="learned",
    batch=64, steps=750, learning_rates=(3e-4, 1e-3, 3e-3),
    eval_every=125, validation_size=1000, test_size=2000,
)  # fmt: skip
PRESETS: dict[str, Preset] = {
    "listops-128": SHORT,
    "lra": replace(
        SHORT, summary="501 to 1999 tokens, up to 10 arguments, 96,000 to train on; 2 layers of width 64 (LRA, port)",
        seq_len=2000, above=500, max_args=10, train_size=96_000,
        layers=2, heads=2, dropout=0.1, batch=32, steps=5000, learning_rates=(1e-4, 3e-4, 1e-3), weight_decay=0.0,
        eval_every=250, validation_size=2000, test_size=2000,
    ),
}  # fmt: skip


class ListOps(Task):
    """Hierarchy, where a model reads more than the first token; see its baselines."""

    name = "listops"
    summary = "value of a nested expression: accuracy by length, beside what reading the first token gives"
    metric: Metric = "accuracy"
    presets: Mapping[str, Preset] = PRESETS
    directions = (False, True)

    def open(self, preset: Preset, *, seed: int, text: str | Path | None = None) -> Data:
        """The data of one run; nothing is read."""
        assert isinstance(preset, ListOpsPreset)
        return ListOpsData(preset, seed, "listops", preset.train_size)


TASK = ListOps()
