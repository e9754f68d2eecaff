"""A page in real Chromium, watched: what it says on its console, where it asks, what it keeps."""

import os
import shutil
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SHOTS_VARIABLE = "DSPARK_SCREENSHOTS"
"""Names a directory that the tests put screenshots into."""
SIZES = {"phone": {"width": 390, "height": 844}, "desktop": {"width": 1440, "height": 900}}
TIMEOUT_MS = 30_000


def launch():
    """Chromium under playwright; skips, saying so, where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH: Debian's package chromium")
    playwright = pytest.importorskip("playwright.sync_api").sync_playwright().start()
    # As root Chromium runs only without its sandbox; the page is ours.
    return playwright, playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


class Watched:
    """A page of a run in a context of its own. `close` it."""

    def __init__(self, browser, run, size="desktop", scheme="light", link=None, has_clock=False):
        """has_clock: the page's time goes on by itself, and faster by `page.clock`."""
        scale = 2 if size == "phone" else 1
        self.context = browser.new_context(
            viewport=SIZES[size], color_scheme=scheme, device_scale_factor=scale, bypass_csp=True
        )
        self.context.set_default_timeout(TIMEOUT_MS)
        self.page = self.context.new_page()
        if has_clock:
            self.page.clock.install()
        self.said, self.asked, self.size = [], [], size
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(link or f"{run.url}/#token={run.token}")

    def errors(self):
        return [text for text in self.said if text.startswith(("error", "warning"))]

    def member(self, name, state):
        """Wait until the page shows the member in that state."""
        self.page.wait_for_selector(f'[data-member="{name}"][data-state="{state}"]')

    def shot(self, name, full=False):
        directory = os.environ.get(SHOTS_VARIABLE)
        if directory:
            Path(directory).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(directory) / f"{name}.png", full_page=full)

    def close(self):
        self.context.close()
