"""The page of a gateway in Chromium: what operators see, and what each change asks and does."""

import gzip
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from delay_transport.http.tokens import Role, Token, digest_of, encode_tokens
from tests.processes.real_processes import ROOT, ServerProcess, meta_server, server, until

CHROMIUM: Final = shutil.which("chromium")
DRIVER: Final = shutil.which("chromedriver")

pytestmark = pytest.mark.process

WAIT_S: Final = 20.0
RECEIVER: Final = """
import sys, anyio, pathlib
from delay_client import Receiver, RetryPolicy
async def main(meta, mended):
    async def handler(message):
        if message.data == b"bad" and not pathlib.Path(mended).exists():
            raise ValueError("the customer has <b>no</b> address")
    async with Receiver("mail", subjects=["orders.*"], meta=meta) as receiver:
        await receiver.run(handler, handle_signals=True, retry=RetryPolicy(tries=1))
anyio.run(main, *sys.argv[1:])
"""


class Place(NamedTuple):
    """A cluster of one node with a gateway."""

    gateway: str
    """host:port."""
    guarded: str
    """The same of a gateway that needs tokens, of the roles read and admin."""
    node: ServerProcess
    mended: Path
    """Where this file is, the receiver refuses nothing."""


@contextmanager
def process(*words: str) -> Iterator[str]:
    """Run a command; yield the first line that it prints."""
    child = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, cwd=ROOT, bufsize=1
    )
    assert child.stdout is not None
    try:
        yield child.stdout.readline() if "gateway" in words else ""
    finally:
        child.terminate()
        child.wait(WAIT_S)
        child.stdout.close()


@contextmanager
def gateway(meta: str, *words: str) -> Iterator[str]:
    """Run a gateway; yield its host:port."""
    asked = ("-m", "delaywheel", "gateway", "--meta", meta, "--listen", "127.0.0.1:0", *words)
    with process(*asked) as ready:
        yield ready.split()[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "m").mkdir()
    (folder / "d").mkdir()
    tokens = [
        Token(name=r.value, role=r, sha256=digest_of(r.value)) for r in (Role.READ, Role.ADMIN)
    ]
    file = folder / "tokens.json"
    file.write_bytes(encode_tokens(tokens))
    file.chmod(0o600)
    mended = folder / "mended"
    with meta_server(folder / "m" / "data") as meta:
        meta.wait_ready()
        with server(folder / "d" / "data", options=("--meta", meta.http, "--group", "d1")) as node:
            node.wait_ready()
            with (
                gateway(meta.http) as open_one,
                gateway(meta.http, "--token-file", str(file)) as guarded,
                process("-c", RECEIVER, meta.http, str(mended)),
            ):
                yield Place(open_one, guarded, node, mended)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not installed: apt-get install chromium-driver")
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--lang=en"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


class Browser:
    """The page in a tab, as somebody uses it."""

    def __init__(self, chrome: Chrome, address: str) -> None:
        self.chrome = chrome
        self._address = address

    def open(self, view: str) -> None:
        self.chrome.get("about:blank")
        self.chrome.get(f"http://{self._address}/ui#{view}")

    def text(self, selector: str = "body") -> str:
        found = self.chrome.execute_script(
            "return document.querySelector(arguments[0])?.innerText ?? ''", selector
        )
        return str(found)

    def wait_for(self, text: str, selector: str = "body") -> None:
        shown = until(lambda: text in self.text(selector), seconds=WAIT_S)
        assert shown, (text, self.text())

    def buttons(self, text: str, within: str = "main") -> list[WebElement]:
        """Return the buttons that a screen reader calls so, or with more behind."""
        found = self.chrome.find_elements(By.CSS_SELECTOR, f"{within} button")
        return [one for one in found if one.accessible_name.startswith(text)]

    def click(self, text: str, within: str = "main") -> None:
        """Click a button once it can be; the list that has it may be shown anew meanwhile."""

        def is_clicked() -> bool:
            try:
                for button in self.buttons(text, within)[:1]:
                    if button.is_enabled():
                        button.click()
                        return True
            except StaleElementReferenceException:
                pass
            return False

        assert until(is_clicked, seconds=WAIT_S), (text, self.text())

    def confirm(self, says: str, verb: str, *, does: str) -> None:
        """Read what the dialog says it will do, do it, and read what was done."""
        self.wait_for(says, "dialog")
        self.click(verb, "dialog")
        self.wait_for(does, "#said")

    def faults(self) -> list[str]:
        """Return what the browser complains of: scripts, the content policy, what is not there."""
        return [one["message"] for one in self.chrome.get_log("browser")]  # type: ignore[no-untyped-call]


@pytest.fixture
def browser(chrome: Chrome, place: Place) -> Browser:
    found = Browser(chrome, place.gateway)
    found.faults()
    return found


def send(place: Place, subject: str, body: str, **headers: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"http://{place.gateway}/v1/messages/{subject}"
    request = urllib.request.Request(url, data=body.encode(), headers=named)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310 (our own)
        found: dict[str, Any] = json.load(answer)
        return found


def test_the_cluster_is_seen_at_a_glance_and_follows_what_comes(
    browser: Browser, place: Place
) -> None:
    browser.open("cluster")
    browser.wait_for("Live.", "#state")
    browser.wait_for("d1")
    pending = place.node.status()["pending"]
    for n in range(3):
        send(place, "glance", "x", Delaywheel_Delay="2h", Idempotency_Key=f"glance-{n}")
    browser.wait_for(f"{pending + 3}\npending", "main")
    assert "1 of 1, 1 needed" in browser.text("main")
    browser.wait_for("glance", "main .steps")  # Nobody takes it.
    # The table is one for a screen reader: a caption, and headings of its columns.
    assert browser.chrome.find_elements(By.CSS_SELECTOR, "caption + thead th[scope=col]")
    assert browser.faults() == []


_OF_CLUSTER: Final = """
const [standings, done] = arguments;
const groups = standings.map((one, number) => ({
  name: `d${number}`, nodes: [], in_sync: [], epoch: 1, phase: "serving",
  figures: { brokers: { b1: { queued: 1, in_flight: 0, ...one } } },
}));
const none = { away: {}, cut: {}, failing: [], next_steps: [], unserved: [], receivers: [] };
const brokers = [{ name: "b1", kind: "normal", state: "RW", address: "", heard_seconds_ago: 1 }];
import("/ui/cluster.js").then(({ open }) => {
  const place = document.createElement("main");
  open(place).update({ ...none, delay_groups: groups, broker_groups: brokers });
  const shown = place.querySelector("td[data-label=state] span");
  done([shown.className, shown.textContent]);
});
"""
"""Shows a broker group that masters stand with so; returns the class and the text of its state."""


def test_a_broker_group_is_shown_as_well_only_if_all_masters_reach_it(browser: Browser) -> None:
    up = {"state": "up", "circuit": "closed", "paused": False}
    browser.open("cluster")
    for others, shown in (
        ({}, ["good", "up, circuit closed"]),
        ({"state": "down"}, ["warn", "down, circuit closed"]),
        ({"state": "retiring", "circuit": "open"}, ["warn", "retiring, circuit open"]),
        ({"paused": True}, ["warn", "paused, circuit closed"]),
    ):
        assert browser.chrome.execute_async_script(_OF_CLUSTER, [up, up | others]) == shown


def test_a_message_is_found_moved_and_cancelled_after_one_question(
    browser: Browser, place: Place
) -> None:
    sent = send(place, "found", "x", Delaywheel_Delay="2h", Idempotency_Key="<i>one</i>")
    browser.open(f"find?id={sent['cancel_token']}")
    browser.wait_for("<i>one</i>", "main table")
    assert browser.chrome.find_elements(By.CSS_SELECTOR, "main i") == []
    browser.click("Move")
    field = browser.chrome.find_element(By.CSS_SELECTOR, "dialog input")
    browser.chrome.execute_script("arguments[0].value = '2027-01-02T03:04:05'", field)
    browser.confirm("Moves 1 message", "Move", does="is moved; it is due 2027-01-02 03:04:05")
    browser.wait_for("moved", "main table")
    browser.open("waiting?subject=found")
    browser.wait_for("2027-01-02 03:04:05", "main table")
    browser.click("Cancel <i>")
    # Esc leaves all as it was; the keyboard alone is enough.
    browser.wait_for("Cancels 1 message", "dialog")
    browser.chrome.switch_to.active_element.send_keys("\ue00c")
    assert until(lambda: not browser.text("dialog"), seconds=WAIT_S)
    assert "<i>one</i>" in browser.text("main table")
    browser.click("Cancel <i>")
    browser.confirm("Cancels 1 message", "Cancel", does="is cancelled")
    browser.wait_for("Nothing that fits is pending.", "main")
    assert browser.faults() == []


def test_all_of_a_subject_are_counted_before_they_are_moved_or_cancelled(
    browser: Browser, place: Place
) -> None:
    for n in range(4):
        send(place, f"many.{n % 2}", "x", Delaywheel_Delay="2h", Idempotency_Key=f"many-{n}")
    browser.open("timeline?subject=many.*")
    browser.wait_for("4 due in this time", "main")
    browser.wait_for("many.1", "main")
    browser.open("waiting?subject=many.*")
    browser.wait_for("4 in all", "main")
    browser.click("Move all of many.*")
    by = browser.chrome.find_element(By.CSS_SELECTOR, "dialog input")
    by.send_keys("soon")
    browser.wait_for("Moves 4 messages", "dialog")
    browser.click("Move all of them", "dialog")
    browser.wait_for("by: 'soon' is not allowed", "dialog")
    by.clear()
    by.send_keys("1h")
    browser.confirm("Moves 4 messages", "Move all of them", does="Done: 4 moved")
    browser.wait_for("4 in all", "main")
    browser.click("Cancel all of many.*")
    browser.confirm("Cancels 4 messages", "Cancel all", does="Done: 4 cancelled")
    browser.wait_for("Nothing that fits is pending.", "main")


def test_dead_letters_are_requeued_and_dropped_one_or_all(browser: Browser, place: Place) -> None:
    for n in range(4):
        send(place, "orders.paid", "bad", Idempotency_Key=f"bad-{n}")
    assert until(lambda: place.node.status()["dead_pending"] == 4, seconds=WAIT_S)
    browser.open("cluster")
    browser.wait_for("d1: 4 dead letters.", "main .steps")
    browser.open("dead")
    # What a receiver says is text.
    browser.wait_for("the customer has <b>no</b> address", "main table")
    browser.click("Drop bad-0")
    browser.confirm("Drops 1 dead letter for good", "Drop", does="1 dead letter dropped")
    browser.wait_for("d1: 3 dead letters", "main")
    place.mended.touch()
    browser.click("Requeue bad-1")
    browser.confirm("Sends 1 dead letter once more", "Requeue", does="1 dead letter requeued")
    browser.click("Requeue all that mail refused")
    browser.confirm("Sends 2 dead letters once more", "Requeue", does="2 dead letters requeued")
    # The list follows the stream of events.
    browser.wait_for("d1: 0 dead letters", "main")
    browser.open("find?id=bad-1&subject=orders.paid")
    browser.wait_for("delivered", "main table")
    assert browser.faults() == []


def test_a_pause_says_how_many_messages_wait(browser: Browser, place: Place) -> None:
    send(place, "paused.one", "x", Delaywheel_Delay="2h")
    browser.open("pauses")
    browser.wait_for("Nothing is paused", "main")
    browser.chrome.find_element(By.NAME, "subject").send_keys("paused.*\n")
    browser.confirm("Concerns 1 pending message of paused.*", "Pause", does="paused.* is paused")
    browser.click("Go on with paused.*")
    browser.confirm("Concerns 1 pending message", "Go on", does="paused.* goes on")
    browser.wait_for("Nothing is paused", "main")


def test_a_token_is_asked_for_and_one_that_may_not_is_refused(chrome: Chrome, place: Place) -> None:
    send(place, "guarded", "x", Delaywheel_Delay="2h", Idempotency_Key="guarded-1")
    browser = Browser(chrome, place.guarded)
    browser.open("waiting?subject=guarded")
    for token, says in (("wrong", "unknown token"), ("read", "guarded-1")):
        browser.wait_for("Token", "dialog")
        chrome.find_element(By.ID, "secret").send_keys(token + "\n")
        browser.wait_for(says, "dialog" if token == "wrong" else "main")  # noqa: S105 (of the test)
    browser.click("Cancel guarded-1")
    browser.wait_for("Cancels 1 message", "dialog")
    browser.click("Cancel the message", "dialog")
    browser.wait_for("role read; this needs the role send", "dialog [role=alert]")
    browser.click("Back", "dialog")
    assert "guarded-1" in browser.text("main table")
    assert chrome.execute_script("return [localStorage.length, document.cookie]") == [0, ""]


def test_what_is_old_or_lacking_is_said_and_a_hidden_page_is_silent(
    browser: Browser, tmp_path: Path
) -> None:
    browser.open("cluster")
    browser.wait_for("Live.", "#state")
    hide = (
        "Object.defineProperty(document, 'hidden', {configurable: true, value: arguments[0]});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    browser.chrome.execute_script(hide, True)
    browser.wait_for("Stopped while the page was hidden.", "#state")
    browser.chrome.execute_script(hide, False)
    browser.wait_for("Live.", "#state")
    (tmp_path / "m").mkdir()
    (tmp_path / "d").mkdir()
    with meta_server(tmp_path / "m" / "data") as meta:
        meta.wait_ready()
        options = ("--meta", meta.http, "--group", "d2")
        with (
            server(tmp_path / "d" / "data", options=options) as node,
            gateway(meta.http) as address,
        ):
            node.wait_ready()
            other = Browser(browser.chrome, address)
            other.open("cluster")
            other.wait_for("1 of 1\ngroups answer", "main")
            node.kill()
            other.wait_for("Delay group d2 gives no answer", "main .steps")
            other.wait_for("0 of 1\ngroups answer", "main")
            meta.kill()
            other.wait_for("Old. no meta server answers", "#state")
        other.wait_for("Old. The gateway does not answer.", "#state")
        assert "groups answer" in other.text("main")


def test_the_page_stays_small() -> None:
    files = sorted((ROOT / "gateway" / "ui").iterdir())
    lines = [len(file.read_text().splitlines()) for file in files if file.suffix == ".js"]
    assert sum(lines) <= 1500
    assert max(lines) <= 300
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= 60_000


def test_the_page_is_served_as_itself_alone(place: Place) -> None:
    with urllib.request.urlopen(f"http://{place.gateway}/ui", timeout=WAIT_S) as answer:
        policy = answer.headers["Content-Security-Policy"]
        page = answer.read().decode()
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "://" not in page
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{place.gateway}/ui/..%2Fapp.py", timeout=WAIT_S)
