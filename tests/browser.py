"""A headless browser for tests: the DevTools protocol over a pipe, nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip
PATIENCE_S = 60.0  # until a browser that hangs is given up


class Page:
    """One tab. `events` are the notifications since the tab was opened."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reader], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            self._rest += os.read(self._reader, 1 << 20)
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def open(self, path: Path) -> None:
        """Load a file and wait until it is drawn."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + PATIENCE_S
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            assert time.monotonic() < end, "the page does not load"

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, as plain data; what it throws fails the test."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def look(self, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """Size of the window, colour scheme, and screen or print."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key."""
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **more)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def requests(self) -> list[str]:
        """Addresses asked for other than files of this machine."""
        sent = [event["params"]["request"]["url"] for event in self.events if event["method"].endswith("WillBeSent")]
        return [url for url in sent if not url.startswith(("file:", "data:", "about:"))]

    @property
    def complaints(self) -> list[str]:
        """What stands in the console: errors, warnings, uncaught exceptions."""
        names = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [json.dumps(event["params"]) for event in self.events if event["method"] in names]


def _wire(reader: int, writer: int) -> None:
    """In the child: the protocol wants descriptors 3 and 4, which may be those of the pipes, the wrong way round."""
    high = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (reader, writer)]
    for end, place in zip(high, (3, 4), strict=True):
        os.dup2(end, place)
        os.close(end)


@contextmanager
def browser() -> Iterator[Page]:
    """A page in a browser of its own, with a profile of its own, which ends with the block."""
    assert CHROMIUM is not None
    to_browser, ours_out = os.pipe()
    ours_in, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="attn-bench-browser-", ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            command, close_fds=False, preexec_fn=partial(_wire, to_browser, from_browser), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        try:
            page = Page(ours_in, ours_out)
            yield page
            page._session = None
            page.call("Browser.close")
        finally:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(ours_in)
            os.close(ours_out)
