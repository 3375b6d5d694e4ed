"""Optional kernels that are absent, broken or of another version cost their own cells only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import bench.registry as registry
from bench.variant import Shape, Unsupported, admit
known = registry.entries()
assert registry.find("flash", known).broken is None
cls = registry.load(registry.find("flash", known).source())
for backend in ("flash", "xformers"):
    try:
        module = cls(Shape(2, 16), backend=backend)
        admit(module, Shape(2, 16), dtype="float32", device="cpu", query_len=4, key_len=4)
        print(backend, "runs")
    except Unsupported as reason:
        print(backend, "unsupported:", reason)
"""


def ask(folder: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "stub",
    ["raise ImportError('libcudart.so.99 is missing')", "__version__ = '0.0.1'"],
    ids=["broken", "without operators"],
)
def test_d11_d13_d14_f04_a_broken_library_is_unsupported_with_its_cause_and_the_remedy(
    tmp_path: Path, stub: str
) -> None:
    package = tmp_path / "xformers"
    package.mkdir()
    (package / "__init__.py").write_text(stub + "\n", encoding="utf-8")
    flash, other = ask(tmp_path)
    assert flash == "flash runs"
    assert other.startswith("xformers unsupported: ")
    assert "pip install xformers" in other
    assert "libcudart" in other or "xformers.ops" in other


def test_d15_an_unsupported_dtype_or_device_is_refused_by_name_before_anything_runs() -> None:
    from bench import registry
    from bench.variant import Shape, Unsupported, admit

    module = registry.load(registry.find("full", registry.entries()).source())(Shape(2, 16))
    sizes = {"query_len": 4, "key_len": 4}
    with pytest.raises(Unsupported, match=r"dtype int64 is not supported \(supported: float64, float32"):
        admit(module, Shape(2, 16), dtype="int64", device="cpu", **sizes)
    with pytest.raises(Unsupported, match=r"device xpu is not supported \(supported: cpu, cuda, mps\)"):
        admit(module, Shape(2, 16), dtype="float32", device="xpu", **sizes)
