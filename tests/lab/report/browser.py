"""A real browser for tests, driven through its debugging pipe: no driver package and no open port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    """``with Browser(path) as browser: browser.open(page, width=400)``; a NUL ends a message on the pipe."""

    def __init__(self, executable: str, patience: float = 60.0) -> None:
        self.patience = patience
        self.errors: list[str] = []  # script errors and anything the console calls an error
        self.requests: list[str] = []  # everything the page asked for
        self._events: list[dict[str, Any]] = []
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self._profile = tempfile.mkdtemp(prefix="browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The browser reads on descriptor 3 and writes on 4, so the shell puts our ends there first.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["/bin/bash", "-c", script, "bash", executable, *FLAGS, f"--user-data-dir={self._profile}"]
        self._process = subprocess.Popen(
            [*command, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)

    def __enter__(self) -> Browser:
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._session = None
            self._send("Browser.close")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        for descriptor in (self._in, self._out):
            os.close(descriptor)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = self._send(method, **params)
        while True:
            message = self._receive(method)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def open(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a local file in a window of this size and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._note(self._receive("the page to load"))

    def evaluate(self, expression: str, wait: bool = False) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=wait)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def _middle(self, selector: str) -> dict[str, float]:
        """Where the first such element is, once it has been scrolled into the window."""
        found = self.evaluate(
            f"(e => {{ e.scrollIntoView({{block: 'center', behavior: 'instant'}}); const r = e.getBoundingClientRect();"
            f" return {{x: r.left + r.width / 2, y: r.top + r.height / 2}}; }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))", wait=True)
        return found

    def point(self, selector: str) -> None:
        """Move the mouse onto the first element of this selector."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self._middle(selector))

    def click(self, selector: str) -> None:
        at = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def tap(self, selector: str) -> None:
        at = self._middle(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[at])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    # ---- the pipe

    def _send(self, method: str, **params: Any) -> int:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._number

    def _receive(self, wanted: str) -> dict[str, Any]:
        end = time.monotonic() + self.patience
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError(f"the browser did not answer in {self.patience:g} s (waiting for {wanted})")
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method is None:
            return
        self._events.append(message)
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
