"""The page of mpk serve: one file that asks nobody else, and what it does in a browser, by mouse and keyboard."""

import json
import os
import re
import select
import shutil
import subprocess
import time

import pytest

from servers import WAIT
from serving import CHAT, Server, endless, model, server  # noqa: F401, the last three are fixtures

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_the_page_is_whole(server):
    status, headers, page = server.ask("GET", "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    assert not re.search(r"https?:|//\w|src=|@import|url\(|innerHTML|eval\(", page)  # asks nobody, parses no answer
    for control in re.findall(r"<(?:input|textarea)[^>]*>", page):  # each has a label
        name = re.search(r'id="(\w+)"', control)[1]
        assert f'for="{name}"' in page or re.search(rf"<label[^>]*>[^<]*{re.escape(control)}", page), control


def test_the_page_is_open_and_the_rest_is_not(model):
    with Server(model, "--api-key", "secret") as s:
        assert s.ask("GET", "/")[0] == 200 and s.ask("GET", "/metrics")[0] == 401


class Browser:
    """Headless Chromium by its debugging pipe: JSON messages that end with NUL."""

    def __init__(self, url, folder):
        to_browser, from_browser = os.pipe(), os.pipe()
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        shell = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
        self.process = subprocess.Popen(["bash", "-c", shell, "bash", *command], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, pass_fds=(to_browser[0], from_browser[1]))
        os.close(to_browser[0])
        os.close(from_browser[1])
        self.writer, self.reader = os.fdopen(to_browser[1], "wb", 0), os.fdopen(from_browser[0], "rb", 0)
        self.number, self.rest, self.faults = 0, b"", []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Page.navigate", url=url)
        self.wait("!!document.getElementById('kv')")

    def receive(self):
        while b"\0" not in self.rest:
            assert select.select([self.reader], [], [], WAIT)[0], "the browser does not answer"
            data = self.reader.read(1 << 16)
            assert data, "the browser has ended"
            self.rest += data
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.writer.write(json.dumps(message).encode() + b"\0")
        while (reply := self.receive()).get("id") != self.number:
            is_entry = reply.get("method") == "Log.entryAdded" and reply["params"]["entry"]["level"] == "error"
            if is_entry or reply.get("method") == "Runtime.exceptionThrown":
                self.faults.append(reply["params"])
        assert "error" not in reply, reply
        return reply["result"]

    def look(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression):
        end = time.monotonic() + WAIT
        while not (value := self.look(expression)):
            assert time.monotonic() < end, (expression, self.look("document.body.innerText"))
            time.sleep(0.05)
        return value

    def type(self, words):
        self.call("Input.insertText", text=words)

    def press(self, key):
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[key]
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def close(self):
        self.writer.close()
        self.reader.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def browser(tmp_path):
    opened = []

    def open_page(s):
        opened.append(Browser(f"http://{s.host}:{s.port}/", tmp_path / "profile"))
        return opened[-1]
    yield open_page
    for b in opened:
        b.close()


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
def test_a_chat_by_keyboard(model, browser, tmp_path):
    (tmp_path / "template").write_text(CHAT)
    with Server(model, "--chat-template", tmp_path / "template") as s:
        page = browser(s)
        page.wait("document.title === 'mpk: tiny'")
        page.look("document.getElementById('temperature').value = 0")
        page.look("document.getElementById('max_tokens').value = 12")
        page.wait("document.activeElement.id === 'words'")
        page.type("in the")
        page.press("Enter")
        page.wait("document.getElementById('status').textContent.startsWith('Answer: ')")
        shown = page.look("[...document.querySelectorAll('article .text')].map(e => e.textContent)")
        wanted = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "in the"}], "max_tokens": 12,
                                                 "temperature": 0})["choices"][0]["message"]["content"]
        assert shown == ["in the", wanted]
        page.wait("document.activeElement.id === 'words'")  # ready for the next
        page.look("document.getElementById('temperature').value = -1")
        page.type("the")
        page.press("Enter")
        words = page.wait("document.querySelector('article.fault .text')?.textContent")
        assert "temperature" in words
        page.look("document.getElementById('clear').click()")
        assert page.look("document.querySelectorAll('article').length") == 0
        names = [n["name"]["value"] for n in page.call("Accessibility.getFullAXTree")["nodes"]
                 if n["role"]["value"] in ("textbox", "button", "spinbutton", "combobox", "log", "meter", "image")]
        assert len(names) >= 14 and all(names), names  # a screen reader has a name for each
        assert all("400" in json.dumps(fault) for fault in page.faults), page.faults


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
def test_focus_and_live_regions(server, browser):
    """Tab reaches every control once, in the order of the page, and comes round; a screen reader hears the status."""
    page = browser(server)
    page.wait("document.activeElement.id === 'words'")
    controls = page.look("""[...document.querySelectorAll('input, textarea, button, select, [tabindex="0"]')]
                            .filter(e => !e.disabled).map(e => e.id)""")
    first = controls.index("words")
    reached = []
    for _ in controls[first:]:
        reached.append(page.look("document.activeElement.id"))
        page.press("Tab")
    assert reached == controls[first:] and len(reached) >= 11
    assert controls[0] == "talk"  # long answers scroll by keyboard
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {n["role"]["value"]: n for n in tree if not n["ignored"]}
    assert roles.keys() >= {"log", "status", "complementary", "heading"}
    live = {p["name"]: p["value"]["value"] for p in roles["status"]["properties"]}
    assert live["live"] == "polite"
    assert page.look("document.documentElement.lang") == "en" and not page.faults


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
def test_stop_and_the_view_of_the_engine(endless, browser, tmp_path):
    (tmp_path / "template").write_text(CHAT)
    with Server(endless, "--chat-template", tmp_path / "template", "--context", 1 << 20, "--kv-tokens", 1 << 21,
                "--grace", 0) as s:
        page = browser(s)
        page.wait("document.getElementById('kv').textContent.endsWith('%d')" % s.metric("mpk_kv_tokens"))
        page.look("""const ask = fetch; window.fetch = (url, options) => ask(url, options.body ? {
            ...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})} : options); 0""")
        page.type("in the")
        page.press("Enter")
        page.wait("document.getElementById('running').textContent === '1'")
        page.wait("Number(document.getElementById('rate').textContent) > 0")
        assert page.look("document.getElementById('send').disabled")
        page.press("Escape")
        page.wait("document.getElementById('status').textContent === 'Stopped.'")
        s.wait_metric("mpk_requests_running", 0)
        assert page.look("document.querySelectorAll('article.assistant .text')[0].textContent.length") > 0
        page.wait("document.getElementById('running').textContent === '0'")
        assert not page.faults, page.faults
