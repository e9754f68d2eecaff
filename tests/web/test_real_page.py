"""The page beside a real run: Ray, Mooncake, torch, and the stand-in engine; what is killed is a real process."""

import time
from contextlib import suppress

import httpx
import psutil
import pytest

from tests.faults.inputs import LIES, topology, write_dataset
from tests.faults.processes import find
from tests.real.line import Line
from tests.web.browser import Watched, launch

pytestmark = [pytest.mark.browser, pytest.mark.real, pytest.mark.timeout(900)]
RUN = "seen"
STEP_S = 0.8
NUM_CALLS = 100
START_TIMEOUT_MS = 240_000


@pytest.fixture(scope="module")
def line(tmp_path_factory, tiny_target):
    root = tmp_path_factory.mktemp("line")
    write_dataset(root / "data")
    (root / LIES).write_text("")
    made = Line(root, topology(tiny_target, root / "data", root / LIES))
    yield made
    made.end_all()


@pytest.fixture(scope="module")
def browser():
    playwright, made = launch()
    yield made
    made.close()
    playwright.stop()


def arguments_with(token):
    """Processes of this machine that show the token to whoever asks `ps`."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if any(token in word for word in process.cmdline()):
                found.append(process.pid)
    return found


def p95_s(url, token, path):
    took_s = []
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=20) as client:
        for _ in range(NUM_CALLS):
            began_s = time.perf_counter()
            assert client.get(path).status_code == 200
            took_s.append(time.perf_counter() - began_s)
            time.sleep(0.02)
    return sorted(took_s)[NUM_CALLS * 95 // 100]


def test_a_real_run_is_seen_scaled_wounded_healed_and_stopped_from_its_page(line, browser):
    sets = (f"trainers.min_step_s={STEP_S}", "run.max_steps=600", "validation.every_steps=16")
    started = line.launch(RUN, *sets, options=("--detach",))
    assert started.returncode == 0, started.stdout + started.stderr
    layout_root = line.root / "runs" / RUN
    deadline_s = time.monotonic() + 120
    while (link := line.run("page", RUN)).returncode != 0:
        assert time.monotonic() < deadline_s, link.stderr + line.tail(RUN)
        time.sleep(1)
    address, _, token = link.stdout.strip().partition("/#token=")
    seen = Watched(browser, run=None, link=link.stdout.strip())
    page = seen.page
    page.wait_for_selector('[data-member="rank-0"][data-state="ready"]', timeout=START_TIMEOUT_MS)
    page.wait_for_function("Number(document.getElementById('step').textContent) > 5", timeout=START_TIMEOUT_MS)

    page.get_by_role("button", name="One engine more").click()
    page.wait_for_selector(".plan :text('engine-2.0')")
    page.get_by_role("button", name="Do it").click()
    seen.member("engine-2.0", "starting")
    page.wait_for_selector('[data-member="engine-2.0"][data-state="ready"]', timeout=START_TIMEOUT_MS)
    page.wait_for_selector("#events .kind:text('scale.done')")
    page.wait_for_function("Number(document.getElementById('step').textContent) > 34", timeout=START_TIMEOUT_MS)
    for path in ("/v1/state", "/v1/history", "/v1/events", "/metrics"):
        print(f"{path}: p95 {p95_s(address, token, path) * 1000:.1f} ms while it trains")
    shots(browser, link.stdout.strip())

    find(line, RUN, "engine-1 api").kill()
    page.wait_for_selector('[data-member="engine-1.0"][data-died] .mark.bad', timeout=START_TIMEOUT_MS)
    seen.shot("real-desktop-light-killed")
    page.wait_for_selector('[data-member="engine-1.0"][data-state="ready"]:not([data-died])', timeout=START_TIMEOUT_MS)
    told = [path for path in (layout_root / "logs").glob("*.log") if token in path.read_text(errors="replace")]
    assert told == [], "the token is in no log"
    assert arguments_with(token) == [], "nor in any process's arguments"

    page.get_by_role("button", name="Stop the run…").click()
    page.locator("#do-stop").click()
    page.wait_for_selector("#run-state:has-text('stop')")
    deadline_s = time.monotonic() + 120
    while not (layout_root / "report.html").exists():
        assert time.monotonic() < deadline_s, line.tail(RUN)
        time.sleep(0.5)
    assert [text for text in seen.errors() if "Failed to load resource" not in text] == [], "but for the run's end"
    assert [url for url in seen.asked if not url.startswith(address)] == []
    seen.close()


def shots(browser, link):
    """What README and docs show."""
    for size in ("desktop", "phone"):
        for scheme in ("light", "dark"):
            seen = Watched(browser, run=None, size=size, scheme=scheme, link=link)
            seen.member("rank-0", "ready")
            seen.page.wait_for_function("document.querySelectorAll('#events .events li').length > 5")
            seen.page.wait_for_timeout(500)
            assert seen.errors() == []
            seen.shot(f"real-{size}-{scheme}")
            seen.close()
