"""Follows the pages as a reader would: writes their files, runs their commands and their Python, in a new folder.

What a test cannot afford is replaced by rules that stand here and nowhere else:

- `python -m bench run` is run with `--dry-run` as it is written, which validates every axis. Where the page names the
  folder of its `--out` again, or adds a task of its own, it is then measured too: on the axes of SMALL, and without
  trainings but those of that task.
- NOT_RUN names commands that are too long for a test, with what shows that they work.
- SMALL_PYTHON replaces the axes of a sweep in Python.
- The folders in RUNS and the models that a page names are there from the start: as of a run that was made before.
- `pip` and `tox` change the machine: what they name must be in pyproject.toml and tox.ini. A package that the page
  itself made is installed, without its dependencies, into a folder.
- A page that writes into `bench/` is followed in a copy of the checkout, by processes of its own.
"""

from __future__ import annotations

import configparser
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.main import get_command

from bench.cli import app
from bench.sweep import TASK

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "results/README.md",
]
KINDS = {"sh", "python", "toml"}
SMALL = {"--seq-len": "16,32", "--heads": "2", "--kv-heads": "1", "--head-dim": "8", "--budget": "0.2"}
SMALL_PYTHON = {
    "seq_len=[512, 1024, 2048]": "seq_len=[16, 32], heads=[2], head_dim=[8], rounds=2, max_rounds=2, budget=0.2"
}
NOT_RUN = {"noise": "takes minutes; test_compare.py measures a floor"}
RUNS = ("results/quick-1a2b3c4d", "results/before", "results/after")
EITHER = {"compare"}  # its exit code is its answer: 0 or 1
NAMED = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page. `file`: what its first line says it is, a comment with a path."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        found = NAMED.match(self.text)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    start, inside = 0, False
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("```"):
            if inside:
                text = "".join(f"{part}\n" for part in lines[start : number - 1])
                found.append(Block(page, start, lines[start - 1].strip().strip("`"), text))
            start, inside = number, not inside
    assert not inside, f"{page}:{start}: a block that does not end"
    return found


def prose(page: Path) -> str:
    """The text of a page outside its blocks."""
    return re.sub(r"^\s*```.*?^\s*```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@dataclass
class Reader:
    """Someone who follows one page in `folder`. apart: with a checkout and processes of its own. text: of the page."""

    folder: Path
    apart: bool
    text: str
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def follow(self, block: Block) -> None:
        """Do what a block says; raises when it cannot be done."""
        if block.file:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "sh":
            for words in commands(block.text):
                self._command(words)
        elif block.language == "toml":
            self._toml(block)
        elif not block.file:
            text = block.text
            for old, new in SMALL_PYTHON.items():
                text = text.replace(old, new)
            exec(compile("\n" * block.line + text, str(block.page), "exec"), self.names)

    def _toml(self, block: Block) -> None:
        """A project file must be TOML; anything else is a sweep."""
        tomllib.loads(block.text)
        if Path(block.file or "").name != "pyproject.toml":
            path = self.folder / (block.file or "unnamed.toml")
            path.write_text(block.text, encoding="utf-8")
            self._bench("run", str(path), "--dry-run")

    def _command(self, words: list[str]) -> None:
        match words:
            case ["python", "-m", "bench", name, *_] if name in NOT_RUN:
                return
            case ["python", "-m", "bench", "run", *rest]:
                self._run(rest)
            case ["python", "-m", "bench", *rest]:
                self._bench(*rest)
            case ["python", "-m", "pytest", *_] if not self.apart:
                self._process(words, "--collect-only", "-q")  # the checks themselves were run by `check`
            case ["python", "-m", "pytest", *_] | ["mkdir" | "cp" | "touch", *_]:
                self._process(words)
            case ["pip", "install", target] if (self.folder / target / "pyproject.toml").is_file():
                plain = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(self.site)]
                self._process(["python", "-m", "pip", "install", target], *plain)
                importlib.invalidate_caches()
            case ["pip", "install", *rest]:
                check_pip(rest)
            case ["tox", *rest]:
                check_tox(rest)
            case _:
                raise AssertionError(f"no rule for the command: {shlex.join(words)}")

    @property
    def site(self) -> Path:
        """Where packages of the page are installed."""
        return self.folder / "site"

    def _run(self, words: Sequence[str]) -> None:
        self._bench("run", *(word for word in words if word != "--dry-run"), "--dry-run")
        named = "--out" in words and self.text.count(words[words.index("--out") + 1]) > 1
        if "--dry-run" not in words and (named or self.apart):
            self._bench("run", *self._small(words))

    def _small(self, words: Sequence[str]) -> list[str]:
        """The same command on small axes."""
        made: list[str] = []
        rest = iter(words)
        for word in rest:
            if word in SMALL:
                next(rest)
            elif word == "--workload":
                kept = [name for name in next(rest).split(",") if self.apart or not name.startswith(TASK)]
                made += [word, ",".join(kept)]
            else:
                made.append(word)
        return [*made, *(part for pair in SMALL.items() for part in pair)]

    def _bench(self, *words: str) -> None:
        if self.apart:
            self._process(["python", "-m", "bench", *words])
            return
        code = get_command(app).main(list(words), standalone_mode=False)
        assert code in ((None, 0, 1) if words[0] in EITHER else (None, 0)), f"{shlex.join(words)}: exit code {code}"

    def _process(self, words: Sequence[str], *more: str) -> None:
        command = [sys.executable if word == "python" else word for word in words]
        paths = [str(self.folder if self.apart else ROOT), str(self.site)]
        done = subprocess.run(
            [*command, *more], cwd=self.folder, capture_output=True, text=True, encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        assert done.returncode == 0, f"{shlex.join(words)}:\n{done.stdout}{done.stderr}"


def checkout(folder: Path) -> None:
    """What a clone has that a page may change or run."""
    for name in ("bench", "variants"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block, word by word, without comments."""
    for line in text.splitlines():
        words: list[str] = []
        for word in shlex.split(line, comments=True):
            if word == "&&":
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words


def check_pip(words: Sequence[str]) -> None:
    """What pip is asked for is this project, one of its extras or tox; a file of constraints is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {"tox", "-e", ".", project["name"]}
    rest = iter(words)
    for word in rest:
        if word == "-c":
            assert (ROOT / next(rest)).is_file()
            continue
        name, _, extras = word.rstrip("]").partition("[")
        assert name in known, f"pip install {word}"
        assert set(filter(None, extras.split(","))) <= project["optional-dependencies"].keys(), word


def check_tox(words: Sequence[str]) -> None:
    """What tox is asked for is in tox.ini."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "tox.ini", encoding="utf-8")
    match words:
        case []:
            assert settings.has_option("tox", "env_list")
        case ["-e", name]:
            assert settings.has_section(f"testenv:{name}"), f"tox -e {name}"
        case _:
            raise AssertionError(f"no rule for the command: tox {shlex.join(words)}")


def check_words(words: Sequence[str]) -> None:
    """A command named in the text: it exists, and so does each of its flags."""
    if words[0] == "tox":
        check_tox(words[1:])
        return
    group = get_command(app)
    name, *rest = words[3:]
    assert name in group.commands, shlex.join(words)  # type: ignore[attr-defined]
    parameters = group.commands[name].params  # type: ignore[attr-defined]
    flags = {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    assert {word for word in rest if word.startswith("--")} <= flags, shlex.join(words)
