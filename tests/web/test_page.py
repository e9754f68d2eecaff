"""The page in real Chromium, on a live run of the fake cluster."""

import json

import pytest

from tests.web.browser import Watched, launch

pytestmark = pytest.mark.browser
HEAP_GROWTH_BYTES = 3_000_000
PASS_TIME = """async ([state, num]) => {
  const [main, charts] = [await import("/page/main.js"), await import("/page/charts.js")]
  const begin = performance.now()
  window.passed ??= 0
  for (let i = 0; i < num; i++) {
    window.passed++
    main.onState({...state, step: window.passed, loss: Math.random()})
    main.onEvent({id: window.passed, at: new Date().toISOString(), who: "x", kind: "engine.dead", text: "t\\nmore"})
    if (i % 10) continue
    const all = charts.record.columns, at = all.at_s, width_s = charts.record.width_s
    const ten = Object.fromEntries(Object.keys(all).map((name) => [name, Array(10).fill(i)]))
    const times = ten.at_s.map((_, n) => (at.at(-1) ?? 1e9) + 1 + n)
    main.onHistory({width_s, is_whole: false, left_s: [1, 2], columns: {...ten, at_s: times}})
    const half = () => Object.fromEntries(Object.entries(all).map(([name, values]) => [name, values.slice(-300)]))
    if (at.length > 600) main.onHistory({width_s, is_whole: true, left_s: null, columns: half()})
    await new Promise((wake) => setTimeout(wake))
  }
  return (performance.now() - begin) / num
}"""
"""Feeds the page a second of a run after the other: a state, an event, now and then a point of the history."""


@pytest.fixture(scope="module")
def browser():
    playwright, made = launch()
    yield made
    made.close()
    playwright.stop()


@pytest.fixture
def opened(browser, run):
    pages = []

    def opening(**kwargs):
        pages.append(Watched(browser, run, **kwargs))
        return pages[-1]

    yield opening
    for page in pages:
        page.close()


@pytest.mark.parametrize("size", ["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_whole_quiet_and_asks_nobody_else(opened, run, size, scheme):
    seen = opened(size=size, scheme=scheme)
    page = seen.page
    page.wait_for_selector('[data-member="rank-1"][data-state="ready"]')
    page.wait_for_function("document.querySelectorAll('#events .events li').length > 5")
    page.wait_for_function("document.querySelectorAll('.chart canvas').length === 6")
    page.wait_for_function("!document.querySelector('#chart-pools .u-value:last-child').textContent.includes('--')")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it does not scroll sideways"
    assert page.evaluate("location.hash") == ""
    assert [url for url in seen.asked if not url.startswith(run.url)] == []
    assert [url for url in seen.asked if run.token in url.partition("#")[0]] == []
    assert seen.errors() == []
    seen.shot(f"{size}-{scheme}")
    seen.shot(f"{size}-{scheme}-full", full=True)


def test_a_button_scales_up_after_the_plan_is_seen_and_the_page_shows_it_as_it_happens(opened, run):
    seen = opened()
    page = seen.page
    seen.member("engine-1.0", "ready")
    run.hold("engine-2.0")
    page.get_by_role("button", name="One engine more").click()
    page.wait_for_selector(".plan :text('engine-2.0')")
    assert run.state.pools["inference"].desired == 1, "nothing has happened yet"
    seen.shot("desktop-light-plan")
    page.get_by_role("button", name="Do it").click()
    seen.member("engine-2.0", "starting")
    page.wait_for_selector("#change :text('engines 1 → 2')")
    seen.shot("desktop-light-scaling")
    run.release("engine-2.0")
    seen.member("engine-2.0", "ready")
    page.wait_for_selector("#pool-inference .count:has-text('2 of 2 ready')")
    page.wait_for_selector("#events .kind:text('scale.done')")
    page.wait_for_function(
        "import('/page/charts.js').then((charts) => charts.record.columns.engines_ready.at(-1) === 2)"
    )
    assert seen.errors() == []


def test_a_killed_engine_is_shown_dead_with_the_reason_and_then_ready_again(opened, run):
    seen = opened(size="phone", scheme="dark")
    seen.member("engine-1.0", "ready")
    run.hold("engine-1.0")
    run.cluster.kill("engine-1.0")
    seen.page.wait_for_selector("#faults :text('engine-1')")
    seen.page.wait_for_selector('[data-member="engine-1.0"][data-died] .mark.bad:has-text("dead")')
    seen.shot("phone-dark-fault")
    run.release("engine-1.0")
    seen.member("engine-1.0", "ready")
    seen.page.wait_for_selector('[data-member="engine-1.0"]:not([data-died])')
    seen.page.wait_for_function("document.getElementById('faults').textContent.trim() === ''")
    seen.page.wait_for_selector("#events li.bad .kind:text('engine.dead')")
    assert seen.errors() == []


def test_nodes_that_are_drained_are_named_for_as_long_as_they_are(opened):
    seen = opened()
    seen.member("engine-1.0", "ready")
    assert seen.page.locator("#drained").count() == 0

    def drained(route):
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "drained": ["10.0.0.7", "10.0.0.9"]})

    seen.page.route("**/v1/state", drained)
    seen.page.wait_for_selector("#drained:has-text('10.0.0.7, 10.0.0.9')")
    seen.page.unroute("**/v1/state")
    seen.page.wait_for_selector("#drained", state="detached")
    assert seen.errors() == []


def test_the_mode_of_the_balance_is_set_after_it_is_said_what_it_means(opened, run):
    seen = opened()
    seen.page.wait_for_selector("#balance")
    before = run.state.mode
    wanted = "advise" if before != "advise" else "off"
    seen.page.locator("#balance button", has_text=wanted).click()
    seen.page.wait_for_selector("dialog[open]")
    assert run.state.mode == before
    seen.page.locator("#do-rebalance").click()
    seen.page.wait_for_selector(f"#balance button[aria-pressed='true']:text('{wanted}')")
    assert run.state.mode == wanted


def test_a_plan_that_cannot_be_is_refused_in_words_and_cannot_be_done(opened):
    seen = opened()
    seen.member("rank-0", "ready")
    seen.page.get_by_role("group", name="Scale ranks").get_by_role("button", name="Scale…").click()
    seen.page.locator("#num-trainers").fill("99")
    seen.page.locator("#num-trainers").press("Tab")
    seen.page.wait_for_selector(".plan :text('trainers.ranks.max')")
    assert seen.page.locator("#do-scale").is_disabled()


def test_everything_is_reached_with_the_keyboard_and_the_focus_comes_back(opened):
    seen = opened()
    seen.member("rank-0", "ready")
    reached = []
    for _ in range(60):
        seen.page.keyboard.press("Tab")
        reached.append(seen.page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent"))
    assert reached[0] == "Skip to the run"
    for name in ("One engine more", "One rank less", "Log of rank-0", "10 min", "advise", "Stop the run…"):
        assert name in reached, name
    button = seen.page.get_by_role("button", name="Log of rank-0")
    button.focus()
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_selector("pre.log:has-text('rank-0: line 499')")
    seen.shot("desktop-light-log")
    seen.page.keyboard.press("Escape")
    seen.page.wait_for_selector("dialog", state="detached")
    assert button.evaluate("(node) => node === document.activeElement")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_screen_reader_and_weak_eyes_find_their_way(opened, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    seen = opened(scheme=scheme)
    seen.member("rank-0", "ready")
    seen.page.wait_for_selector("#events .events li")
    found = axe.run(seen.page)
    assert [(v["id"], [node["html"] for node in v["nodes"]][:3]) for v in found.response["violations"]] == []
    seen.page.get_by_role("button", name="One rank more").click()
    seen.page.wait_for_selector(".plan h3")
    found = axe.run(seen.page)
    assert [(v["id"], [node["html"] for node in v["nodes"]][:3]) for v in found.response["violations"]] == []


def test_without_the_token_or_with_a_wrong_one_it_says_how_to_get_in(opened, run):
    seen = opened(link=run.url, size="phone")
    seen.page.wait_for_selector(":text('dspark-train page')")
    assert not seen.page.locator(".pool").count()
    seen.shot("phone-light-token")
    seen.page.get_by_label("paste the run's token").fill("wrong")
    seen.page.get_by_role("button", name="Open").click()
    seen.page.wait_for_selector(":text('not this run')")
    seen.page.get_by_label("paste the run's token").fill(run.token)
    seen.page.get_by_role("button", name="Open").click()
    seen.member("rank-0", "ready")
    assert seen.page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"


def test_a_page_that_is_left_open_for_a_day_neither_grows_nor_slows(opened, run):
    seen = opened()
    seen.member("rank-0", "ready")
    state = json.loads(run.state.to_json())
    weight = scales(seen)

    def pass_time(num_states):
        """Feed so many seconds of the run to the page. Milliseconds a state."""
        return seen.page.evaluate(PASS_TIME, [state, num_states])

    pass_time(400)
    first_ms = pass_time(400)
    before = weight()
    last_ms = pass_time(1000)
    after = weight()
    print(f"{first_ms:.2f} then {last_ms:.2f} ms a state")
    assert_no_heavier(before, after)
    assert last_ms < 3 * first_ms


def test_a_page_on_a_machine_that_sleeps_asks_and_shows_on_through_the_hours_of_a_day(opened, run):
    seen = opened(has_clock=True)
    page = seen.page
    seen.member("rank-0", "ready")
    page.wait_for_selector("#events .events li")
    weight = scales(seen)

    def sleep_hours(num_hours):
        for _ in range(num_hours):
            with answered(page):
                page.clock.fast_forward(3_600_000)

    sleep_hours(4)
    before = weight()
    sleep_hours(20)
    assert_no_heavier(before, weight())
    wanted = "advise" if run.state.mode != "advise" else "off"
    run.call("POST", "/v1/rebalance", {"mode": wanted})
    page.wait_for_selector(f"#balance button[aria-pressed='true']:text('{wanted}')")
    page.wait_for_selector("#events .kind:text('rebalance.mode')")
    assert seen.errors() == []


def test_an_answer_that_is_cut_is_asked_for_again(opened):
    seen = opened()
    seen.member("rank-0", "ready")
    seen.page.route("**/v1/state", lambda route: route.fulfill(status=200, body='{"run": "a'), times=1)
    for _ in range(3):
        with answered(seen.page):
            pass
    assert seen.errors() == []


def answered(page):
    """Waits for an answer about the run's state that comes within."""
    return page.expect_response(lambda answer: answer.url.endswith("/v1/state"))


def scales(seen):
    """What tells the weight of a page: its heap in bytes, nodes, listeners."""
    tools = seen.context.new_cdp_session(seen.page)
    tools.send("Performance.enable")

    def weight():
        tools.send("HeapProfiler.collectGarbage")
        found = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
        return found["JSHeapUsedSize"], found["Nodes"], found["JSEventListeners"]

    return weight


def assert_no_heavier(before, after):
    print(f"heap {before[0]:,.0f} then {after[0]:,.0f} bytes, {before[1]} then {after[1]} nodes")
    assert after[0] - before[0] < HEAP_GROWTH_BYTES
    assert after[1] < before[1] * 1.2 + 500
    assert after[2] < before[2] * 1.2 + 100
