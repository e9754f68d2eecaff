// From what is known of the run to what is seen. Draws nothing by itself: `main.js` says when.
import {html, nothing} from "/page/vendor/lit-html.js"
import {bytes, clock, day, duration, number, percent, range, short, DASH} from "/page/format.js"

// A mark and a word for each state: colour only repeats them.
const MARKS = {
  ready: ["●", "good"], starting: ["○", "soon"], draining: ["↓", "warn"], stopped: ["■", "off"], dead: ["✕", "bad"],
  running: ["●", "good"], stopping: ["↓", "warn"], done: ["✓", "good"], failed: ["✕", "bad"], lost: ["?", "bad"],
}
const POOLS = {inference: ["Engines", "engine"], trainers: ["Ranks", "rank"]}
const LIMITS = {inference: "the engines", trainers: "the ranks", link: "the way from engines to ranks"}
const FLOW = [["planned", "not asked for yet"], ["leased", "being made"], ["ready", "in the store"], ["taken", "with a rank"], ["trained", "committed"]]

export const mark = (state) => {
  const [sign, kind] = MARKS[state] ?? ["·", "off"]
  return html`<span class="mark ${kind}"><span aria-hidden="true">${sign}</span> ${state}</span>`
}

export const isOver = (state) => ["done", "failed", "stopped"].includes(state.state)

export function headView({state, left_s, silent_s}) {
  if (!state) return html`<div class="head-row"><h1>dspark-train</h1></div>`
  const share = state.total_steps ? state.step / state.total_steps : null
  const left = left_s && !isOver(state) ? html`<span><b>${range(...left_s)}</b> left</span>` : nothing
  return html`
    <div class="head-row">
      <h1>${state.run}</h1>
      <span id="run-state">${mark(state.state)}</span>
      <span class="phase">${state.phase && state.phase !== "training" ? state.phase : nothing}</span>
      ${silent_s > 5 ? html`<span class="mark bad" role="alert">? no answer for ${duration(silent_s)}</span>` : nothing}
    </div>
    <progress max="1" .value=${share ?? 0} aria-label="steps done"></progress>
    <div class="head-row small">
      <span>step <b id="step">${number(state.step)}</b> of ${number(state.total_steps)}</span>
      <span>epoch ${state.epoch}</span>${left}
      ${share == null ? nothing : html`<span class="push">${percent(share)}</span>`}
    </div>`
}

const tile = (label, value, note, id) => html`
  <article class="tile" id=${id}><h2>${label}</h2><p class="figure">${value}</p><p class="note">${note}</p></article>`

export function topView({state}, act) {
  if (!state) return nothing
  return html`${faultsView(state)}${changeView(state)}<section class="tiles" aria-label="Now">${tiles(state)}</section>${poolsView(state, act)}`
}

function faultsView(state) {
  const cause = state.root_cause ? [`root cause: ${state.root_cause}`] : []
  const texts = [...cause, ...(state.reason ? [state.reason] : []), ...state.faults]
  const bad = state.state === "failed"
  return html`<div role="alert" id="faults">${texts.length ? html`
    <div class="banner ${bad ? "bad" : "warn"}">
      <strong><span aria-hidden="true">${bad ? "✕" : "!"}</span> ${bad ? "The run failed" : texts.length === 1 ? "One fault" : `${texts.length} faults`}</strong>
      <ul>${texts.slice(0, 6).map((text) => html`<li>${firstLines(text)}</li>`)}</ul>
      ${texts.length > 6 ? html`<p>and ${texts.length - 6} more</p>` : nothing}
    </div>` : nothing}</div>`
}

function firstLines(text) {
  const [first, ...rest] = text.split("\n")
  return rest.length ? html`${first}<details><summary>more</summary><pre>${rest.join("\n")}</pre></details>` : first
}

function changeView(state) {
  const made = state.transaction
  if (made?.state !== "running") return html`<div role="status" id="change"></div>`
  return html`<div role="status" id="change"><div class="banner soon" aria-busy="true">
    <span><strong>Scaling</strong> ${changeText(made)}: ${made.phase || "beginning"}</span></div></div>`
}

export const changeText = (made) => [
  ...Object.entries(made.num_to).map(([pool, num]) => `${POOLS[pool][0].toLowerCase()} ${made.num_from[pool]} → ${num}`),
  ...Object.values(made.drains ?? {}).map((address) => `away from ${address}`),
].join(", ")

function tiles(state) {
  const {inference, trainers} = state.pools
  const services = [inference.service_tokens_per_s, trainers.service_tokens_per_s]
  const limit = services.every((one) => one != null) ? Math.min(...services) : null
  const full = state.store.capacity_bytes ? state.store.used_bytes / state.store.capacity_bytes : null
  return [
    tile("Throughput", html`${short(state.tokens_per_s)} <small>tokens/s</small>`, limit == null ? "limit not measured yet" : `limit ${short(limit)} tokens/s`, "tile-throughput"),
    tile("Held up by", state.bottleneck ? POOLS[state.bottleneck]?.[0] ?? "Link" : "Nothing", waits(state), "tile-bottleneck"),
    tile("Loss", number(state.loss, 3), state.validation_loss == null ? "no validation yet" : `validation ${number(state.validation_loss, 3)}`, "tile-loss"),
    tile("Acceptance length", html`${number(state.accept_len, 2)} <small>tokens</small>`, state.validation_accept_len == null ? "no validation yet" : `validation ${number(state.validation_accept_len, 2)}`, "tile-accept"),
    tile("Store", percent(full), html`<meter min="0" max="1" high="0.9" .value=${full ?? 0} aria-label="store use"></meter> ${bytes(state.store.used_bytes)} of ${bytes(state.store.capacity_bytes)}${state.store.num_evicted ? html` <span class="mark bad">✕ ${state.store.num_evicted} evicted</span>` : nothing}`, "tile-store"),
    tile("Checkpoint", state.checkpoint ? html`<small>step</small> ${number(state.checkpoint.step)}` : DASH, state.checkpoint ? `${duration(state.checkpoint.age_s)} old` : "none yet", "tile-checkpoint"),
  ]
}

function waits(state) {
  const {inference, trainers} = state.pools
  if (inference.blocked_frac == null || trainers.blocked_frac == null) return "not measured yet"
  const figures = `idle: engines ${percent(inference.blocked_frac)}, ranks ${percent(trainers.blocked_frac)}`
  return state.bottleneck ? figures : `pools match; ${figures}`
}

function poolsView(state, act) {
  const live = state.state === "running"
  return html`<section class="pools" aria-label="Pools">${Object.entries(state.pools).map(([name, pool]) => {
    const [title, one] = POOLS[name]
    return html`<article class="pool" id="pool-${name}">
      <header>
        <h2>${title} <span class="count">${pool.ready}<small> of ${pool.desired} ready</small>${pool.ready < pool.desired ? html` <span class="mark warn">! ${pool.desired - pool.ready} missing</span>` : nothing}</span></h2>
        <div class="buttons" role="group" aria-label="Scale ${title.toLowerCase()}">
          <button class="outline" ?disabled=${!live} @click=${() => act.scale(name, -1)} aria-label="One ${one} less">−</button>
          <button class="outline" ?disabled=${!live} @click=${() => act.scale(name, 0)}>Scale…</button>
          <button class="outline" ?disabled=${!live} @click=${() => act.scale(name, 1)} aria-label="One ${one} more">+</button>
        </div>
      </header>
      <p class="note">${short(pool.tokens_per_s)} tokens/s${pool.service_tokens_per_s == null ? nothing : html`, could do ${short(pool.service_tokens_per_s)}`}${pool.blocked_frac == null ? nothing : html`, without work ${percent(pool.blocked_frac)} of the time`}${pool.draining ? html`, ${pool.draining} draining` : nothing}</p>
      <ul class="members">${inOrder(pool.members).map((member) => memberView(member, hasDied(member, state), act))}</ul>
      ${pool.members.length ? nothing : html`<p class="note">none yet</p>`}
    </article>`
  })}</section>
  ${state.drained.length ? html`<p class="note" id="drained">Drained, so that nothing is started there: ${state.drained.join(", ")}</p>` : nothing}`
}

const inOrder = (members) => [...members].sort((a, b) => a.name.localeCompare(b.name, "en", {numeric: true}))

// A member that died is started again: both are to be seen until it is ready.
const hasDied = (member, state) => member.state === "dead" || (member.state !== "ready" && state.faults.some((text) => text.startsWith(`${member.name} `)))

const memberView = (member, died, act) => html`
  <li data-member=${member.name} data-state=${member.state} ?data-died=${died}>
    <span class="name">${member.name}</span>
    <span>${died && member.state !== "dead" ? html`${mark("dead")} ` : nothing}${mark(member.state)}</span>
    <span class="rate">${short(member.tokens_per_s)} <small>tokens/s</small></span>
    <span class="where" title="process ${member.pid ?? DASH}">${member.node}, for ${duration(member.since_s)}</span>
    <button class="link" @click=${() => act.log(member.name)} aria-label="Log of ${member.name}">Log</button>
    ${member.error ? html`<span class="error">${member.error.split("\n")[0]}</span>` : nothing}
  </li>`

export function restView(seen, act) {
  const {state} = seen
  if (!state) return nothing
  return html`<div class="pair">${flowView(state)}${balanceView(state, act)}</div>${eventsView(seen, act)}`
}

function flowView(state) {
  const {ledger} = state
  return html`<section class="card" id="flow" aria-labelledby="flow-title"><h2 id="flow-title">Samples</h2>
    <ol class="flow">${FLOW.map(([name, text]) => html`<li><b>${number(ledger[name])}</b><span>${name}</span><small>${text}</small></li>`)}</ol>
    <p class="note">${number(ledger.regenerated)} made again,
      <span class=${ledger.failed ? "mark bad" : ""}>${ledger.failed ? "✕ " : ""}${number(ledger.failed)} given up</span></p></section>`
}

function balanceView(state, act) {
  const last = state.last_decision
  return html`<section class="card" id="balance" aria-labelledby="balance-title"><h2 id="balance-title">Balance</h2>
    <div class="segments" role="group" aria-label="Mode of the balance">${["auto", "advise", "off"].map((mode) => html`
      <button aria-pressed=${state.mode === mode} ?disabled=${isOver(state)} @click=${() => act.rebalance(mode)}>${mode}</button>`)}</div>
    <p class="note">${last ? html`${clock(last.at)}: ${last.pool} ${last.from} → ${last.to}: ${last.reason}` : state.bottleneck
      ? `no decision yet; ${LIMITS[state.bottleneck]} hold the run up` : "no decision yet"}</p>
    <p class="buttons"><button class="outline secondary" ?disabled=${!["running", "starting"].includes(state.state)} @click=${act.stop}>Stop the run…</button>
    <button class="outline secondary" @click=${() => act.log(null)}>All logs…</button></p></section>`
}

const KINDS = [["", "All"], ["scale.|group.|node.", "Scaling"], ["engine.", "Engines"], ["rank.|unit.", "Ranks"], ["balance.|rebalance.", "Balance"], ["run.|controller.", "Run"], ["bad", "Faults"]]
const BAD = /dead|failed|given_up|rejected|rolled_back|problem|not_cleared|unwritten|torn|rewound/
const isShown = (event, filter) => !filter || (filter === "bad" ? BAD.test(event.kind) : filter.split("|").some((head) => event.kind.startsWith(head)))

function eventsView({events, filter}, act) {
  const shown = events.filter((event) => isShown(event, filter)).slice(-100).reverse()
  return html`<section class="card" id="events" aria-labelledby="events-title">
    <div class="section-head"><h2 id="events-title">What happened</h2>
      <label class="filter">Show <select @change=${(e) => act.filter(e.target.value)}>${KINDS.map(([value, text]) => html`<option value=${value} ?selected=${value === filter}>${text}</option>`)}</select></label></div>
    <ol class="events" tabindex="0" aria-label="Events, newest first">${shown.map(eventView)}</ol>
    ${shown.length ? nothing : html`<p class="note">nothing of this kind yet</p>`}</section>`
}

const eventView = (event) => html`<li class=${BAD.test(event.kind) ? "bad" : ""}>
  <time datetime=${event.at} title=${day(event.at)}>${clock(event.at)}</time>
  <span class="who">${event.who}</span><span class="kind">${BAD.test(event.kind) ? "✕ " : ""}${event.kind}</span>
  <span class="text">${firstLines(event.text)}</span></li>`
