// Asks, remembers a bounded part, and draws. Asks nothing while the page is not seen.
import {html, render} from "/page/vendor/lit-html.js"
import * as api from "/page/api.js"
import * as charts from "/page/charts.js"
import * as dialogs from "/page/dialogs.js"
import {headView, isOver, restView, topView} from "/page/view.js"

const STATE_EVERY_MS = 1_000
const HISTORY_EVERY_MS = 3_000
const SLOW = 10
const MAX_EVENTS = 400

const seen = {state: null, events: [], filter: "", left_s: null, silent_s: 0}
let heard_ms = Date.now()
let streaming = null
let isAsking = false

const act = {
  scale: (pool, by) => dialogs.scale(seen.state, pool, by),
  rebalance: (mode) => dialogs.rebalance(seen.state, mode),
  stop: () => dialogs.stop(seen.state),
  log: (member) => dialogs.log(member),
  filter: (kinds) => { seen.filter = kinds; draw() },
}

export function draw() {
  seen.silent_s = (Date.now() - heard_ms) / 1000
  const run = seen.state
  document.title = run ? `${run.state === "running" ? `${Math.floor(100 * run.step / (run.total_steps || 1))} %` : run.state} · ${run.run}` : "dspark-train"
  render(headView(seen), document.getElementById("head"))
  render(topView(seen, act), document.getElementById("top"))
  render(restView(seen, act), document.getElementById("rest"))
}

export function onState(state) {
  heard_ms = Date.now()
  seen.state = state
  draw()
}

export function onHistory(answer) {
  charts.take(answer)
  seen.left_s = answer.left_s
}

// Of the balance's looks in a row only the last is kept: they come for days, and mostly say "hold".
export function onEvent({id, at, kind, who, text}) {
  if (kind === "balance.seen" && seen.events.at(-1)?.kind === kind) seen.events.pop()
  seen.events.push({id, at, kind, who, text})
  if (seen.events.length > MAX_EVENTS) seen.events.splice(0, seen.events.length - MAX_EVENTS)
}

function drawSpans() {
  render(charts.SPANS.map(([text, seconds]) => html`<button aria-pressed=${charts.span() === seconds}
    @click=${() => { charts.setSpan(seconds); drawSpans() }}>${text}</button>`), document.getElementById("spans"))
}

async function every(ms, ask) {
  for (;;) {
    if (!document.hidden && !isAsking) {
      try {
        await ask()
      } catch (error) {
        if (error.status === 401) signIn(true)
        else if (seen.state) draw()
      }
    }
    await new Promise((wake) => setTimeout(wake, seen.state && isOver(seen.state) ? SLOW * ms : ms))
  }
}

async function listen() {
  if (document.hidden || isAsking) return streaming?.abort()
  if (streaming && !streaming.signal.aborted) return
  streaming = new AbortController()
  const {signal} = streaming
  try {
    const page = await api.get("/v1/events?limit=200")
    seen.events = []
    page.events.forEach(onEvent)
    await api.follow(page.next_id, onEvent, signal)
  } catch {
    streaming.abort() // the state's loop tells that nobody answers; below, it is tried again
  }
}

function signIn(wasWrong) {
  isAsking = true
  api.forgetToken()
  streaming?.abort()
  document.body.classList.add("locked")
  dialogs.askToken((token) => {
    api.setToken(token)
    location.reload()
  }, wasWrong)
}

function begin() {
  api.takeTokenFromLink()
  if (!api.hasToken()) return signIn(false)
  const build = () => charts.build(document.getElementById("charts"))
  build()
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build)
  drawSpans()
  document.addEventListener("visibilitychange", listen)
  every(STATE_EVERY_MS, async () => onState(await api.get("/v1/state")))
  every(HISTORY_EVERY_MS, async () => {
    onHistory(await api.get(`/v1/history${charts.query()}`))
    listen()
  })
}

window.addEventListener("hashchange", () => {
  api.takeTokenFromLink()
  location.reload()
})
begin()
