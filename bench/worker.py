"""One request -> one reply, inside a fresh process: the only place that catches broadly.

A request names a function below and carries plain data; the reply is plain data, whatever went wrong.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench import machine, nvidia, registry
from bench.cells import Cell
from bench.results import strict_json
from bench.variant import Shape, Unsupported, admit


def serve(connection: Connection, log: str, request: dict[str, Any]) -> None:
    """Entry point of a worker process: isolate it, answer one request, send the reply as JSON."""
    _isolate(log, request.get("memory_limit"), request.get("processor"))
    start = time.perf_counter()
    reply = answer(request)
    reply["wall_s"] = time.perf_counter() - start
    connection.send_bytes(strict_json(reply).encode())
    connection.close()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request: {"status": "ok", ...} or a status with its reason."""
    try:
        return {"status": "ok", **FUNCTIONS[request["function"]](request)}
    except BaseException as error:  # a plugin may raise anything: its cell is lost, the run goes on
        return _failure(error)


def _failure(error: BaseException) -> dict[str, Any]:
    text = _text(error)
    if isinstance(error, Unsupported):
        return {"status": "unsupported", "reason": text}
    if _out_of_memory(error):
        return {"status": "oom", "reason": text or "out of memory"}
    name = type(error).__name__
    status = "diverged" if name == "Diverged" else "error"
    reason = text if status == "diverged" else f"{name}: {text}" if text else name
    return {"status": status, "reason": reason}


def _text(error: BaseException) -> str:
    """The message of an error on one line that any file can hold; a plugin's own may not even have one."""
    try:
        text = " ".join(str(error).split())
    except BaseException as again:  # its __str__ is foreign code
        text = f"its message cannot be read ({type(again).__name__})"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _out_of_memory(error: BaseException) -> bool:
    names = {cls.__name__ for cls in type(error).__mro__}
    text = _text(error)
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)
    )


def _isolate(log: str, memory_limit: int | None, processor: int | None) -> None:
    """Own session (no terminal signals), output into a file, an end with the parent, limits.

    memory_limit: bytes above what the process starts with. processor: the one it may use.
    """
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    if memory_limit is not None and sys.platform == "linux":
        import resource

        total = machine.process_bytes("VmData") + memory_limit
        resource.setrlimit(resource.RLIMIT_DATA, (total, total))
    if processor is not None and hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[processor % len(allowed)]})


def _end_with_parent() -> None:
    """Blocks until the process that started this one is gone, then ends this one and all it started."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    if hasattr(os, "killpg"):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _describe_machine(request: dict[str, Any]) -> dict[str, Any]:
    return {"devices": machine.devices(), "environment": machine.fingerprint()}


def _try_out(request: dict[str, Any]) -> dict[str, Any]:
    """Why each of the given sources cannot be imported, and why no device here can run it; None where all is well.

    It is built as it is, for an ordinary shape, in the first dtype and direction that it claims.
    """
    broken: dict[str, str | None] = {}
    refused: dict[str, str | None] = {}
    for source in request["sources"]:
        name = source["name"]
        broken[name] = refused[name] = None
        try:
            cls = registry.load(source)
        except BaseException as error:  # the import runs foreign code
            broken[name] = _failure(error)["reason"]
            continue
        reasons = {device: _refusal(cls, device) for device, why in machine.devices().items() if why is None}
        if None not in reasons.values():
            refused[name] = "; ".join(dict.fromkeys(reason or "" for reason in reasons.values()))
    return {"broken": broken, "refused": refused}


def _refusal(cls: Any, device: str) -> str | None:
    """Why a class cannot run on a device, in its own words."""
    claims = cls.claims
    try:
        shape = Shape(8, 64, causal=claims.causal)
        dtype = "float32" if "float32" in claims.dtypes else claims.dtypes[0]
        admit(cls(shape).to(device), shape, dtype=dtype, device=device, query_len=8, key_len=8)
    except BaseException as error:  # building it runs foreign code
        return str(_failure(error)["reason"])
    return None


def _gate(request: dict[str, Any]) -> dict[str, Any]:
    from bench.conformance import gate

    cell = Cell.model_validate(request["cell"])
    machine.set_process_state(cell.threads, cell.seed)
    findings = gate(registry.load(cell.source), cell.knobs, device=cell.device, dtype=cell.dtype, causal=cell.causal)
    failed = [f"{finding.check}: {finding.detail}" for finding in findings if finding.status == "fail"]
    return {"failed": failed}


def _check(request: dict[str, Any]) -> dict[str, Any]:
    from bench.conformance import run_checks

    machine.set_process_state(machine.default_threads(), 0)
    findings = run_checks(
        registry.load(request["source"]), request["knobs"], device=request["device"], dtype=request["dtype"]
    )
    return {"findings": [asdict(finding) for finding in findings]}


def _predict(request: dict[str, Any]) -> dict[str, Any]:
    from bench import plan

    return plan.predict(Cell.model_validate(request["cell"]))


def _costs(request: dict[str, Any]) -> dict[str, Any]:
    """For each of the given cells its FLOPs, or why it cannot run."""
    from bench import plan

    costs = []
    for data in request["cells"]:
        try:
            costs.append({"status": "ok", "flops": plan.flops(Cell.model_validate(data))})
        except BaseException as error:  # building it runs the variant's code
            costs.append(_failure(error))
    return {"costs": costs}


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    """One replicate: sampled times, and with `decompose` the operators that ran and the memory."""
    from bench.measure import kernels, memory, workload
    from bench.measure import time as timing
    from bench.measure.load import Load

    cell = Cell.model_validate(request["cell"])
    machine.set_process_state(cell.threads, cell.seed)
    cls = _load(cell)
    reply: dict[str, Any] = {}
    if request["decompose"]:
        error = _spot_error(cell, cls)
        if isinstance(error, str):
            return {"status": "incorrect", "reason": error}
        reply["error"] = error
    built = workload.build(cell, cls, cell.device)
    reply |= {"flops": built.flops, "tokens": built.tokens}
    watch = machine.Watch(cell.device)
    firsts: list[float] = []
    cold = memory.cold_peak(lambda: firsts.append(timing.sample(built.call, watch, 1)[0]), cell.device)
    if request["decompose"]:
        profile = kernels.profile_call(built.call, cell.device)
        reply["kernels"] = profile.operators
        absent = kernels.missing(profile.operators, built.runs)
        if absent:
            return {**reply, "status": "fallback", "reason": f"{', '.join(absent)} did not run"}
        reply["memory"] = memory.measure_memory(
            built.call, built.forward, inputs=built.inputs, params=built.params,
            train=cell.pass_ == "train", device=cell.device, profile=profile, cold_peak_bytes=cold,
        ).model_dump()  # fmt: skip
    load = Load()
    found = timing.measure(
        built.call, watch, budget_s=request["budget_s"], first_s=firsts[0],
        idle=workload.idle_call(cell.pass_ == "train"),
    )  # fmt: skip
    slowdowns = nvidia.slowdowns() if cell.device == "cuda" else []
    return {**reply, **asdict(found), "others": load.others(), "slowdowns": slowdowns}


def _load(cell: Cell) -> Any:
    """The class of the cell's variant, unless its source changed since the sweep was read."""
    rooms = registry.MEASURING if cell.task is None else registry.TRAINING
    if registry.hash_of(cell.source, rooms) != cell.source_hash:
        raise RuntimeError(f"the source of variant '{cell.variant}' or of the harness changed meanwhile; run again")
    return registry.load(cell.source)


def _spot_error(cell: Cell, cls: Any) -> dict[str, float | None] | str:
    """The error at the cell's own size, or why the variant is wrong there: a variant that is wrong has no time."""
    from bench.conformance import Subject, spot_error
    from bench.measure.workload import shape_of

    assert cell.seq_len
    subject = Subject(cls, cell.knobs, cell.device, cell.dtype, cell.causal)
    shape, query_len = shape_of(cell), 1 if cell.pass_ == "decode" else cell.seq_len
    error = spot_error(subject, shape, query_len, cell.seq_len, train=cell.pass_ == "train")
    if error is not None and cls.claims.kind != "approximate" and not error <= subject.tolerance:
        return (
            f"at n={cell.seq_len} the output is off by {error:.2g} of its largest entry (allowed {subject.tolerance:g})"
        )
    return {"output": error}


def _limits(request: dict[str, Any]) -> dict[str, Any]:
    from bench.measure.limits import measure_limits

    machine.set_process_state(request["threads"], 0)
    return asdict(measure_limits(request["device"], request["dtype"]))


def _train(request: dict[str, Any]) -> dict[str, Any]:
    from bench import tasks
    from bench.measure import recorded
    from bench.measure.training import train

    cell = Cell.model_validate(request["cell"])
    assert cell.task is not None and cell.preset is not None
    of = {
        **cell.model_dump(include={"variant", "knobs", "task", "preset", "file", "causal", "seed"}),
        "source": cell.source,
    }
    machine.set_process_state(cell.threads, cell.seed)
    cls, task = _load(cell), tasks.find(cell.task)
    padded = task.presets[cell.preset].padded

    def make_attention(shape: Shape) -> Any:
        module = cls(shape, **cell.knobs)
        admit(
            module, shape, dtype=cell.dtype, device=cell.device, query_len=1, key_len=1, masked=padded, train=True
        )  # fmt: skip
        return module

    accuracy = train(
        make_attention, task, cell.preset,
        causal=cell.causal, seed=cell.seed, device=cell.device, text=cell.file,
        cpu_s=cell.trial_cpu_s, checkpoint=Path(request["checkpoint"]),
        keep=partial(recorded.keep, Path(request["model"]), of),
    )  # fmt: skip
    return {"accuracy": accuracy.model_dump()}


def _fidelity(request: dict[str, Any]) -> dict[str, Any]:
    from bench.measure.fidelity import SPREADS, draw, measure
    from bench.measure.recorded import record
    from bench.measure.workload import shape_of

    cell = Cell.model_validate(request["cell"])
    assert cell.seq_len is not None
    machine.set_process_state(cell.threads, cell.seed)
    cls, shape = _load(cell), shape_of(cell)
    given = {f"spread {spread:g}": draw(shape, cell.seq_len, spread, cell.seed) for spread in SPREADS}
    if cell.file is not None:
        recording = record(Path(cell.file))
        shape = recording.shape
        given = {f"layer {number}": inputs for number, inputs in enumerate(recording.layers, 1)}
    errors = measure(
        given, lambda more: cls(shape, **{**cell.knobs, **more}), shape,
        seeded="seed" in cell.knobs, dtype=cell.dtype, device=cell.device,
    )  # fmt: skip
    return {"error": errors}


def _seen(request: dict[str, Any]) -> dict[str, Any]:
    """Which key each query of a variant sees, for two heads of an ordinary width."""
    from bench.measure.seen import seen

    shape = Shape(2, 16, max_len=request["length"], causal=request["causal"])
    return {"rows": seen(registry.load(request["source"])(shape, **request["knobs"]), shape, request["length"])}


def _learned(request: dict[str, Any]) -> dict[str, Any]:
    """The weights that a variant gives the q and k of a kept model, by layer, head, query and key."""
    from bench.measure.recorded import learned_weights, record

    machine.set_process_state(machine.default_threads(), 0)
    recording = record(Path(request["model"]))
    cls = None if recording.about.variant == request["variant"] else registry.load(request["source"])
    return {"weights": [layer.tolist() for layer in learned_weights(recording, cls, request["knobs"])]}


FUNCTIONS = {
    "describe machine": _describe_machine,
    "try out": _try_out,
    "gate": _gate,
    "check": _check,
    "costs": _costs,
    "predict": _predict,
    "limits": _limits,
    "measure": _measure,
    "train": _train,
    "fidelity": _fidelity,
    "seen": _seen,
    "learned weights": _learned,
}
PRELOAD = [  # what a worker would import first thing, so that starting one costs a fork
    "torch",
    "torch._dynamo",
    "torch.profiler",
    "bench.worker",
    "bench.plan",
    "bench.conformance",
    "bench.measure.limits",
    "bench.measure.load",
    "bench.measure.memory",
    "bench.measure.time",
    "bench.measure.training",
]


def reply_of(message: bytes) -> dict[str, Any]:
    """The reply in a message of `serve`."""
    value: dict[str, Any] = json.loads(message)
    return value
