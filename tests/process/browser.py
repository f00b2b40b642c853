"""Chromium without a window, driven over its DevTools pipe. Standard library only; every wait has a deadline."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium")
TIMEOUT_S = 60


class Browser:
    """One tab. Remembers every URL that the page asked for, every exception and every complaint."""

    def __init__(self, test):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        profile = test.folder / "chromium"
        arguments = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
                     "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={profile}",
                     "--remote-debugging-pipe", "about:blank"]
        # DevTools reads descriptor 3 and writes descriptor 4.
        command = f"exec 3<&{to_browser} 4>&{from_browser}; exec \"$@\""
        with open(test.folder / "chromium.log", "wb") as log:
            self._process = subprocess.Popen(["bash", "-c", command, "bash", *arguments], stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=log, pass_fds=(to_browser, from_browser), start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        test.addCleanup(self.close)
        self._buffer = b""
        self._last_id = 0
        self._session = None
        self.requested, self.complaints = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        os.close(self._out)
        os.close(self._in)

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise AssertionError(f"Chromium said nothing for {TIMEOUT_S} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise AssertionError("Chromium ended; chromium.log says why")
            self._buffer += part
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, message):
        parameters = message.get("params", {})
        if message["method"] == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f'{parameters["entry"]["text"]} {parameters["entry"].get("url", "")}')

    def call(self, method, **parameters):
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self._note(answer)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def run(self, script):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, script, timeout_s=30):
        end = time.monotonic() + timeout_s
        while True:
            value = self.run(script)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"waited {timeout_s} s in vain for {script}; the page complains: {self.complaints}")
            time.sleep(0.05)

    def resize(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
