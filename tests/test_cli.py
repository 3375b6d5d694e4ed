"""bench.cli: quick to start, one line an error, exit codes that mean something, output that survives any terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from bench.cli import app

HERE = Path(__file__).parent
COMMANDS = {"run", "report", "export", "compare", "show", "noise", "check", "list", "new-variant", "env"}


def bench(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **more}
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], capture_output=True, text=True, env=environment, encoding="utf-8"
    )


def test_the_commands_and_the_flags_of_run_are_frozen() -> None:
    group = get_command(app)
    assert set(group.commands) == COMMANDS  # type: ignore[attr-defined]
    flags = {parameter.name for parameter in group.commands["run"].params}  # type: ignore[attr-defined]
    assert flags == {
        "sweep", "variant", "workload", "pass_", "seq_len", "device", "dtype", "causal", "batch", "heads", "kv_heads",
        "head_dim", "threads", "seeds", "set_", "text", "out", "dry_run", "fresh", "rerun", "budget", "timeout",
        "memory_limit",
    }  # fmt: skip


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in sorted(COMMANDS))])
def test_help_shows_an_example_and_imports_no_torch(words: list[str]) -> None:
    code = (
        "import sys, bench.cli; sys.argv[1:] = " + repr(words) + "\n"
        "try:\n    bench.cli.main()\nexcept SystemExit as end:\n    assert end.code in (0, None)\n"
        "heavy = {'torch', 'pandas', 'matplotlib', 'numpy', 'seaborn'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Example: python -m bench" in " ".join(done.stdout.split())


@pytest.mark.parametrize("words", [["list", "tasks"], ["list", "presets"], ["list", "variants"]])
def test_lists_start_without_torch(words: list[str]) -> None:
    code = (
        f"import sys, bench.cli; sys.argv[1:] = {words!r}\n"
        "try:\n    bench.cli.main()\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"tasks": "mqar", "presets": "quick", "variants": "flash"}[words[1]] in done.stdout


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--variant", "flahs"], "unknown variant 'flahs'; did you mean 'flash'?"),
        (["--set", "local.window=0"], "variant 'local': knob window must be greater than or equal to 1, got 0"),
    ],
)
def test_c11_a_typo_stops_with_exit_code_2_also_under_dry_run(tmp_path: Path, words, told, dry) -> None:
    done = bench("run", *words, *dry, "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--seq-len", "512,a"], "--seq-len takes whole numbers, got '512,a' (example: --seq-len 512,1024)"),
        (["run", "--set", "window=3"], "--set takes VARIANT.KNOB=VALUE, got 'window=3'"),
        (["run", "--rerun", "all"], "--rerun takes 'failed', got 'all'"),
        (["run", "nothing.toml"], "unknown sweep 'nothing.toml'"),
        (["run", "--variant", "./mine.py"], "variant file './mine.py' does not exist"),
        (["list", "variant"], "unknown list 'variant'; did you mean 'variants'?"),
        (["check"], "name a variant or a file to check, or use --all"),
        (["check", "flahs"], "unknown variant 'flahs'; did you mean 'flash'?"),
        (["report", "nothing"], "no results in 'nothing'"),
        (["new-variant", "my-attention"], "'my-attention' cannot name a variant"),
        (["check", "full", "--device", "gpu"], "unknown device 'gpu'"),
        (["check", "full", "--set", "local.window=3"], "--set names variant 'local', which is not checked here"),
        (["new-variant", "torch"], "'torch' is the name of an importable module"),
        (["new-variant", "mine", "--out", "/proc"], "cannot write '/proc/mine.py'"),
        (["new-variant", "full"], "a variant 'full' exists already"),
        (["new-variant", "../evil"], "'../evil' cannot name a variant"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(words: list[str], told: str) -> None:
    done = bench(*words)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("reading the machine")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert told in lines[0]


def test_dry_run_prints_the_cells_and_writes_nothing(tmp_path: Path) -> None:
    done = bench(
        "run",
        "--dry-run",
        "--variant",
        "full,flash",
        "--seq-len",
        "64,128",
        "--workload",
        "block",
        "--out",
        str(tmp_path / "o"),
    )
    assert done.returncode == 0, done.stderr
    assert "8 cells" in done.stdout
    assert not (tmp_path / "o").exists()


def test_c16_dry_run_refuses_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text("mine", encoding="utf-8")
    done = bench("run", "--dry-run", "--variant", "full", "--workload", "block", "--out", str(file))
    assert done.returncode == 2
    assert "is a file; a run is a folder" in done.stderr


def test_a_check_in_which_nothing_could_be_checked_is_no_success() -> None:
    done = bench("check", "flash", "--set", "flash.backend=cudnn")
    assert done.returncode == 1
    assert "flash: cannot run here: backend 'cudnn' needs a CUDA device" in " ".join(done.stdout.split())


def test_a_new_variant_passes_check_and_runs(tmp_path: Path) -> None:
    made = bench("new-variant", "mine", "--out", str(tmp_path))
    assert made.returncode == 0, made.stderr
    path = tmp_path / "mine.py"
    assert made.stdout.strip() == str(path)
    checked = bench("check", str(path))
    assert checked.returncode == 0, checked.stdout
    assert "mine: " in checked.stdout
    again = bench("new-variant", "mine", "--out", str(tmp_path))
    assert again.returncode == 2
    assert "exists already" in again.stderr
    ran = bench("run", "--variant", str(path), "--seq-len", "64", "--workload", "block", "--out", str(tmp_path / "run"))
    assert ran.returncode == 0, ran.stderr
    assert "mine" in ran.stdout


def test_d01_check_fails_a_plugin_that_peeks(plugin) -> None:
    done = bench("check", plugin("peeks"))
    assert done.returncode == 1
    assert "fail" in done.stdout


def test_d03_a_plugin_that_raises_on_import_says_so(plugin) -> None:
    done = bench("check", plugin("broken_import"))
    assert done.returncode == 1
    assert "RuntimeError: the library libfoo.so is missing" in " ".join(done.stdout.split())


def test_f02_devices_that_are_absent_say_why() -> None:
    done = bench("list", "devices")
    assert done.returncode == 0
    assert "available" in done.stdout
    env = bench("env")
    assert env.returncode == 0
    assert "torch" in env.stdout


@pytest.mark.parametrize("words", [["list", "variants"], ["list", "presets"], ["--help"], ["check", "none"]])
def test_c21_output_survives_a_windows_code_page(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words], capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_public_function_of_the_harness_has_a_docstring() -> None:
    import ast

    missing = []
    for path in [*(HERE.parent / "bench").rglob("*.py"), *(HERE.parent / "variants").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            typed_commands = path.name == "cli.py" and isinstance(node, ast.FunctionDef) and node.decorator_list
            if public and not typed_commands and ast.get_docstring(node) is None and not _nested(path, node):
                missing.append(f"{path.name}:{node.name}")
    assert missing == []


def _nested(path: Path, node) -> bool:
    """Functions inside functions are details."""
    return node.col_offset > 4 or (node.col_offset == 4 and not _method(path, node))


def _method(path: Path, node) -> bool:
    import ast

    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        isinstance(cls, ast.ClassDef) and any(getattr(item, "lineno", 0) == node.lineno for item in cls.body)
        for cls in ast.walk(tree)
    )
