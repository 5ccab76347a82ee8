"""browser: a headless Chromium, driven by its DevTools protocol over a pipe. Needs nothing but the browser."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """The path of a browser, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class BrowserError(Exception):
    pass


class Page:
    """A page in a browser of its own. Use it in a `with`.

    `requests` are the addresses that it asks the network for, `errors` is what goes wrong in its scripts.
    """

    def __init__(self, program, timeout=60):
        self.requests = []
        self.errors = []
        self._timeout = timeout
        self._ids = itertools.count(1)
        self._buffer = b""
        self._profile = tempfile.mkdtemp(prefix="browser-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        os.set_blocking(self._read, False)

        def descriptors():  # the browser reads from descriptor 3 and writes to 4
            copies = os.dup(to_browser), os.dup(from_browser)
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        self._process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
             "--user-data-dir=" + self._profile, "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=descriptors, env=dict(os.environ, HOME=self._profile))
        os.close(to_browser)
        os.close(from_browser)
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    _session = None

    def _call(self, method, parameters=None, session=""):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda m: m.get("id") == number, method)
        if "error" in answer:
            raise BrowserError("{}: {}".format(method, answer["error"]["message"]))
        return answer["result"]

    def _wait(self, wanted, what):
        deadline = time.monotonic() + self._timeout
        while True:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(text)
                self._note(message)
                if wanted(message):
                    return message
            try:
                data = os.read(self._read, 1 << 20)
                if not data:
                    raise BrowserError("the browser ended while waiting for " + what)
                self._buffer += data
            except BlockingIOError:
                if self._process.poll() is not None:
                    raise BrowserError("the browser ended while waiting for " + what) from None
                if time.monotonic() > deadline:
                    raise BrowserError("no answer to {} in {} s".format(what, self._timeout)) from None
                time.sleep(0.01)

    def _note(self, message):
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif message.get("method") == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append(" ".join(str(each.get("value", "")) for each in parameters["args"]))

    def view(self, width, dark=False, height=800, media=""):
        """Sets how the page looks from now on: the width in CSS pixels, and the user's preference."""
        self._call("Emulation.setDeviceMetricsOverride",
                   {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self._call("Emulation.setEmulatedMedia",
                   {"media": media, "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def open(self, path):
        self._call("Page.navigate", {"url": "file://" + os.path.abspath(path)})
        self._wait(lambda m: m.get("method") == "Page.loadEventFired", "the page")

    def evaluate(self, expression):
        """The value of an expression of JavaScript; a promise's, if it is one."""
        answer = self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise BrowserError("{}: {}".format(expression, answer["exceptionDetails"]))
        return answer["result"].get("value")

    def picture(self, path, selector=""):
        """Saves the whole page, or the first element that `selector` finds with some space around it, as PNG."""
        if selector:
            box = self.evaluate("(() => {{ const b = document.querySelector({}).getBoundingClientRect(); return "
                                "{{x: b.x + scrollX - 12, y: b.y + scrollY - 12, width: b.width + 24, height: b.height + 24}}; }})()"
                                .format(json.dumps(selector)))
        else:
            box = self.evaluate("({x: 0, y: 0, width: innerWidth, height: document.documentElement.scrollHeight})")
        answer = self._call("Page.captureScreenshot",
                            {"format": "png", "captureBeyondViewport": True, "clip": dict(box, scale=1)})
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))
