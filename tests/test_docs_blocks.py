"""Every command and code block of the pages is run, and every link leads somewhere. The rules: doc_blocks.py."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
from doc_blocks import (
    KINDS,
    NOT_RUN,
    PAGES,
    ROOT,
    RUNS,
    SMALL_PYTHON,
    Block,
    Reader,
    blocks,
    check_words,
    checkout,
    prose,
)
from doc_tools import stand_ins
from models import trained
from rows import INFO, cost, score, write_run

from bench.errors import UserError

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`((?:python -m bench|tox) [^`]+)`")
MODEL = re.compile(r"results/\S+/model-\S+\.npz")
FOLLOWED = [page for page in PAGES if blocks(page)]
MADE_UP = [
    *(cost(name, n, ms=ms * n / 512) for name, ms in (("full", 10.0), ("flash", 5.0)) for n in (512, 1024)),
    cost("full", 4096, status="oom"), cost("local", 512, peak=None, knobs={"window": 64}, flags=["drifting"]),
    score("full", 0.9, by_gap={"1-8": 0.9}),
]  # fmt: skip


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader of the page, with the runs that pages speak of."""
    page = request.getfixturevalue("page")
    apart = any((block.file or "").startswith("bench/") for block in blocks(page))
    if apart:
        checkout(tmp_path)
    for name in RUNS:
        write_run(tmp_path / name, MADE_UP, INFO)
    text = page.read_text(encoding="utf-8")
    for model in sorted(set(MODEL.findall(text))):
        trained(tmp_path / model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    matplotlib.use("Agg")
    yield Reader(tmp_path, apart, text)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")  # what a notebook shows stays open


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert [str(block) for block in blocks(page) if block.language not in KINDS] == []


@pytest.mark.parametrize("page", [page for page in FOLLOWED if page.name != "recipes.md"], ids=name_of)
def test_a_page_does_what_it_says(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        try:
            reader.follow(block)
        except BaseException as error:
            error.add_note(f"in the block at {block}")
            raise


@pytest.mark.parametrize("page", [ROOT / "docs/recipes.md"], ids=name_of)
def test_the_recipes_give_each_tool_what_it_takes(page: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    modules, calls = stand_ins()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for block in blocks(page):
        reader.follow(block)
    metrics = [given for name, given in calls if name == "log_metrics"]
    params = [given for name, given in calls if name == "log_params"]
    assert len(metrics) == len(params) == len(MADE_UP)
    assert metrics[0]["time.median_s"] == 0.01
    assert metrics[4] == {}  # out of memory: no figure, and none made up
    assert params[4]["status"] == "oom"
    assert all(math.isfinite(value) for given in metrics for value in given.values())
    (table,) = (given["rows"].dataframe for name, given in calls if name == "log")
    (pushed,) = (given for name, given in calls if name == "from_pandas")
    assert len(table) == len(pushed) == len(MADE_UP)
    assert not {type(value) for name in pushed for value in pushed[name]} & {list, dict}
    assert [given[0] for name, given in calls if name == "upload_file"] == ["rows.jsonl", "run.json"]


@pytest.mark.parametrize(
    ("language", "text", "told"),
    [
        ("sh", "curl example.org\n", "no rule for the command: curl"),
        ("sh", "pip install tox left-pad\n", "pip install left-pad"),
        ("sh", "pip install attn-bench[nothing]\n", "nothing"),
        ("sh", "tox -e nothing\n", "tox -e nothing"),
        ("sh", "python -m bench run --variant flahs\n", "unknown variant 'flahs'"),
        ("sh", "python -m bench list nothing && tox\n", "unknown list 'nothing'"),
        ("toml", "variants = ['flash']\n", "unknown key 'variants'"),
        ("python", "import bench\nbench.nothing\n", "no attribute 'nothing'"),
    ],
)
def test_a_block_that_is_wrong_fails(tmp_path: Path, language: str, text: str, told: str) -> None:
    with pytest.raises((AssertionError, AttributeError, UserError), match=re.escape(told)):
        Reader(tmp_path, False, text).follow(Block(ROOT / "README.md", 1, language, text))


def test_the_rules_of_what_is_not_run_are_in_use() -> None:
    text = "".join(block.text for page in PAGES for block in blocks(page))
    assert [name for name in NOT_RUN if f"python -m bench {name}" not in text] == []
    assert [old for old in SMALL_PYTHON if old not in text] == []
    assert [name for name in RUNS if name not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_named_in_the_text_are_there(page: Path) -> None:
    for command in INLINE.findall(prose(page)):
        check_words(shlex.split(command))


def anchors(page: Path) -> set[str]:
    """The anchors that a code host makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("[!R]*.md") if f"({page.name})" not in index] == []
    assert "(docs/README.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
