"""Kept models: what is recorded is what the attentions were given, and what cannot be read says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import trained

from bench import kept, registry, tasks
from bench.cells import cells
from bench.commands.run import run
from bench.commands.show import show_learned
from bench.errors import UserError
from bench.measure import recorded
from bench.results import read_run
from bench.sweep import make_sweep

TASK = tasks.find("mqar")
OPTIONS = {"dry_run": False, "fresh": False, "rerun_failed": False, "command": "python -m bench run"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("kept") / "model-a.npz")


def test_what_is_recorded_is_what_plain_code_gives_the_first_attention(model: Path) -> None:
    weights = {name: torch.from_numpy(value).double() for name, value in kept.read_weights(model).items()}
    found = recorded.record(model)
    preset = next(iter(TASK.presets.values()))
    tokens = next(iter(TASK.open(preset, seed=0).held_out("test"))).tokens[0]
    first = {name.split("blocks.0.mix.")[1]: value for name, value in weights.items() if "blocks.0.mix." in name}
    x = weights["stack.embedding.tokens.weight"][tokens] + weights["stack.embedding.learned.weight"][: len(tokens)]
    x = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    x = x * first["norm.weight"] + first["norm.bias"]
    mixed = x.clone()
    kernel = first["inner.conv.weight_KC"]
    for n in range(len(x)):
        for place in range(len(kernel)):
            if n - len(kernel) + 1 + place >= 0:
                mixed[n] += kernel[place] * x[n - len(kernel) + 1 + place]
    torch.testing.assert_close(found.layers[0].x[0], mixed, rtol=1e-4, atol=1e-5)
    heads, width = found.about.heads, found.about.head_dim
    for part, name in zip(found.layers[0][:3], "qkv", strict=True):
        right = (mixed @ first[f"inner.to_{name}.weight"].T).view(len(x), heads, width).transpose(0, 1)
        torch.testing.assert_close(part[0], right, rtol=1e-4, atol=1e-5)
    assert len(found.layers) == preset.layers
    assert not torch.equal(found.layers[0].q, found.layers[1].q)


def test_the_same_training_keeps_the_same_bytes(model: Path, tmp_path: Path) -> None:
    assert trained(tmp_path / "again.npz").read_bytes() == model.read_bytes()


def test_errors_on_a_trained_model_stand_in_a_run(model: Path, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "variant": ["flash", "linear"], "workload": f"fidelity:{model}", "controls": ["mean"], "seeds": [0],
    }  # fmt: skip
    assert run("quick", values, out=str(tmp_path / "run"), **OPTIONS) == 0
    rows = {row.variant: row for row in read_run(tmp_path / "run")[0]}
    assert {row.status for row in rows.values()} == {"ok"}
    assert {row.workload for row in rows.values()} == {rows["mean"].workload}
    assert rows["mean"].workload.startswith("fidelity:mqar-")
    for layer in (1, 2):
        errors = {name: row.error[f"output_vs_mean, layer {layer}"] for name, row in rows.items() if row.error}
        assert errors["flash"] < 1e-4
        assert errors["mean"] == pytest.approx(1, abs=1e-4)
        assert errors["linear"] > 0.01
    page = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "output layer 2" in page
    assert str(tmp_path) not in (tmp_path / "run" / "rows.jsonl").read_text(encoding="utf-8")


def test_a_cell_knows_which_bytes_it_was_measured_on(model: Path, tmp_path: Path) -> None:
    def key(path: Path) -> str:
        sweep = make_sweep({"variant": "linear", "workload": f"fidelity:{path}", "controls": []})
        (made,) = cells(sweep, registry.entries(), devices=["cpu"], threads=1, environment="e")
        assert (made.heads, made.causal, made.seq_len) == (1, True, next(iter(TASK.presets.values())).seq_len)
        return made.key

    other = trained(tmp_path / model.name, steps=3)
    assert len({key(model), key(other)}) == 2


def test_learned_weights_are_softmax_of_what_was_recorded(model: Path) -> None:
    found = recorded.record(model)
    for weights, inputs in zip(recorded.learned_weights(found, None, {}), found.layers, strict=True):
        scores = inputs.q[0] @ inputs.k[0].mT / found.about.head_dim**0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        torch.testing.assert_close(weights, scores.masked_fill(hidden, -torch.inf).softmax(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_learned_weights_are_drawn(model: Path, tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{name}.{suffix}" for name in ("one", "other")]
    for path in paths:
        assert show_learned("flash", model=str(model), settings={}, out=str(path)) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    if suffix == "svg":
        text = paths[0].read_text(encoding="utf-8")
        assert "flash trained on mqar" in text
        assert "layer 2, head 1" in text


def test_what_has_no_weights_is_not_drawn(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_learned("gla", model=str(model), settings={}, out=str(tmp_path / "w.svg")) == 1
    assert "gla: unsupported: there are no weights to show" in capsys.readouterr().out
    with pytest.raises(UserError, match="drawn into a file: add --out"):
        show_learned("flash", model=str(model), settings={}, out=None)


def test_a_file_that_is_no_model_is_one_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "model-x.npz"
    with pytest.raises(UserError, match=r"cannot read the model '.*model-x.npz' \(No such file"):
        make_sweep({"workload": f"fidelity:{path}"})
    whole = model.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="not a model that a run kept; give a model-"):
            kept.read_about(path)
    np.savez(path, weight=np.zeros(3))
    with pytest.raises(UserError, match="not a model that a run kept"):
        kept.read_about(path)


def test_a_model_of_another_version_is_one_line(model: Path, tmp_path: Path) -> None:
    weights = kept.read_weights(model)
    weights.pop(next(iter(weights)))
    kept.write(tmp_path / "model-old.npz", kept.read_about(model), weights)
    with pytest.raises(UserError, match="from another version of the project; train it again"):
        recorded.record(tmp_path / "model-old.npz")


def test_a_model_that_cannot_be_written_leaves_nothing_half(model: Path, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        kept.write(tmp_path / "model-b.npz", kept.read_about(model), {})
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_reads_two_sequences_is_not_kept(tmp_path: Path) -> None:
    path = trained(tmp_path / "model-c.npz", task="copy_reverse")
    assert not path.exists()
