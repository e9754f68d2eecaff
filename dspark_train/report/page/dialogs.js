// The dialogs: an order is shown as a plan before it is given. The browser's own <dialog> keeps the focus and the Esc key.
import {html, nothing, render} from "/page/vendor/lit-html.js"
import {get, post} from "/page/api.js"
import {bytes, short} from "/page/format.js"

const LINES = 300
const LOG_EVERY_MS = 2_000
const WORDS = {inference: "Engines", trainers: "Ranks"}
const place = () => document.getElementById("dialogs")

// Shows a dialog whose content `view` gives, drawn anew by the function that is returned. Removed when closed.
function open(label, view, onClose = () => {}) {
  const dialog = document.createElement("dialog")
  dialog.setAttribute("aria-label", label)
  const close = () => dialog.close()
  const draw = () => dialog.isConnected && render(html`<article>
    <header><button aria-label="Close" rel="prev" @click=${close}></button><h2>${label}</h2></header>${view(close)}</article>`, dialog)
  dialog.addEventListener("close", () => {
    onClose()
    dialog.remove()
  })
  dialog.addEventListener("click", (event) => event.target === dialog && close())
  place().append(dialog)
  draw()
  dialog.showModal()
  return draw
}

export function toast(text, kind = "good") {
  const box = document.getElementById("toasts")
  const line = Object.assign(document.createElement("div"), {className: `toast ${kind}`, textContent: `${kind === "bad" ? "✕" : "✓"} ${text}`})
  box.append(line)
  while (box.children.length > 3) box.firstChild.remove()
  setTimeout(() => line.remove(), 8_000)
}

async function order(path, body, text, close) {
  try {
    await post(path, body)
    toast(text)
    close()
  } catch (error) {
    toast(error.message, "bad")
  }
}

// -- scale ------------------------------------------------------------------------------------------------------------

export function scale(state, pool, by) {
  const now = {inference: state.pools.inference.desired, trainers: state.pools.trainers.desired}
  const wanted = {...now, [pool]: Math.max(0, now[pool] + by)}
  let plan = null, refused = "", asked = 0, busy = false
  const changed = () => Object.fromEntries(Object.keys(now).filter((one) => wanted[one] !== now[one]).map((one) => [one, String(wanted[one])]))

  async function ask() {
    const number = ++asked
    plan = null
    refused = ""
    draw()
    if (!Object.keys(changed()).length) return
    try {
      const made = await post("/v1/scale", {...changed(), dry_run: true})
      if (number === asked) plan = made
    } catch (error) {
      if (number === asked) refused = error.message.replace(/^--\S+ \S+: /, "") // named as on the command line
    }
    draw()
  }

  function set(one, num) {
    if (!Number.isInteger(num) || num < 0) return
    wanted[one] = num
    ask()
  }

  async function give(close) {
    busy = true
    draw()
    await order("/v1/scale", changed(), "ordered; see how it goes above", close)
    busy = false
    draw()
  }

  const counter = (one) => html`<div class="counter"><label for="num-${one}">${WORDS[one]}</label>
    <div class="buttons"><button type="button" class="outline" aria-label="${WORDS[one]}: one less" @click=${() => set(one, wanted[one] - 1)}>−</button>
    <input id="num-${one}" type="number" min="0" max="4096" inputmode="numeric" .value=${String(wanted[one])} @change=${(e) => set(one, e.target.valueAsNumber)}>
    <button type="button" class="outline" aria-label="${WORDS[one]}: one more" @click=${() => set(one, wanted[one] + 1)}>+</button></div>
    <small>now ${now[one]}</small></div>`

  const draw = open("Scale", (close) => html`
    <div class="counters">${Object.keys(now).map(counter)}</div>
    <div class="plan" role="status" aria-live="polite">${planView(plan, refused, Object.keys(changed()).length)}</div>
    <footer><button class="secondary outline" @click=${close}>Cancel</button>
      <button id="do-scale" ?disabled=${!plan || busy} aria-busy=${busy} @click=${() => give(close)}>Do it</button></footer>`)
  ask()
}

function planView(plan, refused, isChange) {
  if (refused) return html`<p class="mark bad">✕ ${refused}</p>`
  if (!isChange) return html`<p class="note">Set how many there shall be; the plan appears here.</p>`
  if (!plan) return html`<p aria-busy="true">making the plan</p>`
  const names = (changes) => changes.map((one) => html`<li><b>${one.name}</b> on ${one.node}</li>`)
  return html`<h3>The plan</h3>
    ${plan.starts.length ? html`<p>starts</p><ul>${names(plan.starts)}</ul>` : nothing}
    ${plan.stops.length ? html`<p>stops</p><ul>${names(plan.stops)}</ul>` : nothing}
    <p class="note">${plan.expected_pause_s === 0 ? "No step waits for it." : plan.expected_pause_s == null
      ? "Training pauses at a step boundary while the ranks change; how long is not measured yet."
      : `Training pauses for about ${plan.expected_pause_s.toFixed(1)} s at a step boundary.`}
      ${plan.predicted_tokens_per_s == null ? nothing : `Then about ${short(plan.predicted_tokens_per_s)} tokens/s.`}
      The pools stay as they are set until the balance is on auto again.</p>`
}

// -- rebalance and stop -------------------------------------------------------------------------------------------------

const MODES = {
  auto: "Engines and ranks are added and removed by measured throughput, within the bounds of the topology. Pools that were set by hand are free again.",
  advise: "What would be done is told, with its reason; nothing is done.",
  off: "Nothing is added or removed but by hand.",
}

export function rebalance(state, mode) {
  if (mode === state.mode) return
  open(`Balance: ${mode}`, (close) => html`<p>From <b>${state.mode}</b> to <b>${mode}</b>.</p><p>${MODES[mode]}</p>
    <footer><button class="secondary outline" @click=${close}>Cancel</button>
      <button id="do-rebalance" @click=${() => order("/v1/rebalance", {mode}, `the balance is on ${mode}`, close)}>Do it</button></footer>`)
}

export function stop(state) {
  open(`Stop ${state.run}`, (close) => html`<p>The run ends after the step in hand (${state.step} of ${state.total_steps} are done) with a checkpoint.
      It can be taken up again with <code>launch --resume</code>.</p>
    <footer><button class="secondary outline" @click=${close}>Cancel</button>
      <button id="do-stop" @click=${() => order("/v1/stop", {now: false}, "the run stops at the next boundary", close)}>Stop the run</button></footer>`)
}

// -- logs ---------------------------------------------------------------------------------------------------------------

export async function log(member) {
  let tail = null, names = [], refused = "", chosen = member, over = false
  const draw = open("Logs", () => html`
    <label>Log of <select id="log-of" @change=${(e) => choose(e.target.value)}>${names.map((one) => html`<option ?selected=${one === chosen}>${one}</option>`)}</select></label>
    ${refused ? html`<p class="mark bad">✕ ${refused}</p>` : nothing}
    <pre class="log" tabindex="0" aria-label="last lines">${tail ? tail.lines.join("\n") || "(empty)" : "…"}</pre>
    <p class="note">${tail ? `last ${tail.lines.length} lines of ${bytes(tail.num_bytes)}` : nothing}</p>`, () => { over = true })
  const choose = (one) => {
    chosen = one
    tail = null
    draw()
    read()
  }
  async function read() {
    try {
      names = Object.keys((await get("/v1/logs")).logs)
      chosen ??= names[0]
      const pre = document.querySelector("pre.log"), wasAtEnd = !tail || pre.scrollTop + pre.clientHeight > pre.scrollHeight - 20
      if (chosen) tail = await get(`/v1/logs/${encodeURIComponent(chosen)}?lines=${LINES}`)
      refused = ""
      draw()
      if (wasAtEnd && pre.isConnected) pre.scrollTop = pre.scrollHeight
    } catch (error) {
      refused = error.message
      draw()
    }
  }
  while (!over) {
    await read()
    await new Promise((wake) => setTimeout(wake, LOG_EVERY_MS))
  }
}

// -- the token ----------------------------------------------------------------------------------------------------------

export function askToken(onToken, wasWrong) {
  const view = html`<article class="card gate"><h1>Which run?</h1>
    <p>${wasWrong ? "The token is not this run's: a run that is started again has a new one. " : nothing}Open the link that this prints where the run was launched:</p>
    <pre>dspark-train page</pre>
    <form @submit=${(event) => { event.preventDefault(); onToken(event.target.token.value) }}>
      <label>or paste the run's token <input name="token" type="password" autocomplete="off" required></label><button>Open</button></form></article>`
  render(view, document.getElementById("top"))
}
