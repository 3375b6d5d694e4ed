"""Where a request runs: a fresh process of this machine, forked from a server that has torch loaded already."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bench import worker

LOG_TAIL = 300  # characters of a dead worker's output that go into the reason


@dataclass
class Job:
    """A request under way."""

    process: BaseProcess
    connection: Connection
    log: Path
    deadline: float
    timeout_s: float
    started: float = field(default_factory=time.perf_counter)


class Launcher:
    """Starts workers and collects their replies; a worker that hangs, dies or is killed costs its request only."""

    def __init__(self) -> None:
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            self._context.set_forkserver_preload(worker.PRELOAD)
            _start_server()
        self._folder = tempfile.TemporaryDirectory(prefix="attn-bench-")
        self._jobs: list[Job] = []
        self._count = 0

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        for job in list(self._jobs):
            self._end(job)
        self._folder.cleanup()

    def start(self, request: dict[str, Any], *, timeout_s: float) -> Job:
        """Start a worker on a request of `worker.FUNCTIONS`."""
        self._count += 1
        log = Path(self._folder.name) / f"{self._count}.log"
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=worker.serve, args=(theirs, str(log), request), daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        job = Job(process, ours, log, time.perf_counter() + timeout_s, timeout_s)
        self._jobs.append(job)
        return job

    def collect(self, jobs: Sequence[Job]) -> tuple[Job, dict[str, Any]]:
        """Wait for the first of the jobs to finish, die or run out of time; its reply is {"status": ..., ...}."""
        while True:
            now = time.perf_counter()
            nearest = min(job.deadline for job in jobs)
            watched = [thing for job in jobs for thing in (job.connection, job.process.sentinel)]
            ready = wait(watched, timeout=max(0.0, nearest - now))
            for job in jobs:
                if job.connection in ready or job.process.sentinel in ready:
                    return job, self._reply(job)
            for job in jobs:
                if time.perf_counter() >= job.deadline:
                    self._end(job)
                    return job, {
                        "status": "timeout",
                        "reason": f"not done after {job.timeout_s:g} s",
                        "wall_s": job.timeout_s,
                    }

    def call(self, request: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Run one request and wait for its reply."""
        return self.collect([self.start(request, timeout_s=timeout_s)])[1]

    def _reply(self, job: Job) -> dict[str, Any]:
        try:
            # A child of a dead worker may hold the other end: nothing to read is as good as its end.
            reply = worker.reply_of(job.connection.recv_bytes()) if job.connection.poll() else None
        except (EOFError, OSError):
            reply = None
        if reply is None:
            job.process.join(timeout=10)
            reply = self._death(job)
        self._end(job)
        return reply

    def _death(self, job: Job) -> dict[str, Any]:
        """The reply for a worker that ended without one."""
        code = job.process.exitcode
        said = " ".join(job.log.read_text(encoding="utf-8", errors="replace").split()) if job.log.exists() else ""
        said = f": {said[-LOG_TAIL:]}" if said else ""
        elapsed = time.perf_counter() - job.started
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = " (the system kills a process like this when memory runs out)" if name == "SIGKILL" else ""
            return {"status": "crashed", "reason": f"killed by signal {-code} ({name}){hint}{said}", "wall_s": elapsed}
        return {
            "status": "crashed",
            "reason": f"the process ended with exit code {code} and no result{said}",
            "wall_s": elapsed,
        }

    def _end(self, job: Job) -> None:
        """End the worker with everything it started, and forget it."""
        assert job.process.pid is not None
        try:
            os.killpg(job.process.pid, signal.SIGKILL)  # the worker leads its own group; others in it may outlive it
        except (AttributeError, OSError):  # no process groups here, nobody left, or it has not made its own yet
            job.process.kill()
        job.process.join()
        job.connection.close()
        job.log.unlink(missing_ok=True)
        self._jobs.remove(job)


def _start_server() -> None:
    """Start the fork server deaf to Ctrl-C: what the terminal sends is for this process to decide on."""
    if threading.current_thread() is not threading.main_thread():
        forkserver.ensure_running()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)
