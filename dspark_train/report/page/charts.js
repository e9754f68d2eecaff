// The charts: one record of the run, five views of it. Bounded: what the controller tells replaces what is here.
import {bytes, number, short} from "/page/format.js"

const HEIGHT_PX = 150
const GAP_WIDTHS = 3
const MIN_GAP_S = 10
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
const BINARY = Array.from({length: 50}, (_, i) => 2 ** i)

// `to`: colour of page.css. A dash or a step tells lines apart where colour does not.
const CHARTS = [
  {id: "pools", title: "Pool sizes", unit: "members", format: (v) => number(v), from0: true, whole: true, lines: [
    {key: "engines_ready", label: "engines", to: "a", stepped: true, width: 4},
    {key: "engines_desired", label: "wanted", to: "a", stepped: true, dash: [3, 4]},
    {key: "ranks_ready", label: "ranks", to: "b", stepped: true, width: 2},
    {key: "ranks_desired", label: "wanted", to: "b", stepped: true, dash: [3, 4]},
  ]},
  {id: "throughput", title: "Throughput", unit: "tokens/s", format: short, from0: true, lines: [
    {key: "engine_tokens_per_s", label: "extracted", to: "a"},
    {key: "trained_tokens_per_s", label: "trained", to: "b", width: 2},
    {key: "limit_tokens_per_s", label: "limit", to: "c", dash: [6, 4]},
  ]},
  {id: "loss", title: "Loss", unit: "", format: (v) => v == null ? "–" : v.toPrecision(3), lines: [
    {key: "loss", label: "training", to: "a", width: 1.5},
    {key: "validation_loss", label: "validation", to: "b", dash: [6, 3], width: 2, stepped: true},
  ]},
  {id: "accept", title: "Acceptance length", unit: "tokens", format: (v) => number(v, 2), lines: [
    {key: "accept_len", label: "training", to: "a", width: 1.5},
    {key: "validation_accept_len", label: "validation", to: "b", dash: [6, 3], width: 2, stepped: true},
  ]},
  {id: "blocked", title: "Time without work", unit: "share", format: (v) => v == null ? "–" : `${Math.round(v * 100)}%`,
    range: [0, 1], lines: [
      {key: "engine_blocked_frac", label: "engines", to: "a"},
      {key: "trainer_blocked_frac", label: "ranks", to: "b", dash: [6, 3]},
    ]},
  {id: "store", title: "Store", unit: "", format: bytes, from0: true, lines: [
    {key: "store_used_bytes", label: "used", to: "a", fill: true},
    {key: "store_capacity_bytes", label: "capacity", to: "c", dash: [6, 4]},
  ]},
]

export const SPANS = [["10 min", 600], ["1 h", 3600], ["All", Infinity]]
export const record = {width_s: 0, columns: {at_s: []}, left_s: null}
let plots = []
let span_s = Infinity

export const query = () => {
  const at = record.columns.at_s
  return at.length ? `?after_s=${at[at.length - 1]}&width_s=${record.width_s}` : ""
}

export function take(answer) {
  record.left_s = answer.left_s
  if (answer.is_whole || !record.columns.at_s.length) {
    record.width_s = answer.width_s
    record.columns = answer.columns
  } else if (answer.columns.at_s.length) {
    const at = record.columns.at_s, from = at.findIndex((one) => one >= answer.columns.at_s[0])
    for (const [name, values] of Object.entries(answer.columns)) {
      const kept = record.columns[name]
      kept.splice(from < 0 ? kept.length : from, Infinity, ...values)
    }
  }
  draw()
}

export function setSpan(seconds) {
  span_s = seconds
  draw()
}
export const span = () => span_s

// What both pools could do at most: the smaller of the two.
function limits(columns) {
  const [engines, ranks] = [columns.engine_service_tokens_per_s ?? [], columns.trainer_service_tokens_per_s ?? []]
  return columns.at_s.map((_, i) => engines[i] == null || ranks[i] == null ? null : Math.min(engines[i], ranks[i]))
}

// Column by column, with a hole where the controller was away.
function withHoles() {
  const columns = {...record.columns, limit_tokens_per_s: limits(record.columns)}
  const at = columns.at_s, hole_s = Math.max(MIN_GAP_S, GAP_WIDTHS * record.width_s)
  const names = Object.keys(columns), made = Object.fromEntries(names.map((name) => [name, []]))
  const begin_s = (at[at.length - 1] ?? 0) - span_s
  for (let i = 0; i < at.length; i++) {
    if (at[i] < begin_s) continue
    if (i && at[i] - at[i - 1] > hole_s && made.at_s.length)
      for (const name of names) made[name].push(name === "at_s" ? at[i - 1] + record.width_s : null)
    for (const name of names) made[name].push(columns[name][i])
  }
  return made
}

export function draw() {
  if (!plots.length) return
  const columns = withHoles()
  for (const {plot, chart} of plots) {
    plot.setData([columns.at_s, ...chart.lines.map((line) => columns[line.key] ?? columns.at_s.map(() => null))])
    setTimeout(newest, 0, plot) // after the plot's own turn
  }
}

// The legend tells the newest values, unless a moment is pointed at.
function newest(plot) {
  const num = plot.data[0]?.length
  if (num && plot.cursor.idx == null) plot.setLegend({idx: num - 1}, false)
}

export function build(parent) {
  for (const {plot, watcher} of plots) {
    watcher.disconnect()
    plot.destroy()
  }
  parent.replaceChildren()
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--chart-${name}`).trim()
  plots = CHARTS.map((chart) => {
    const box = document.createElement("figure")
    box.id = `chart-${chart.id}`
    box.className = "chart"
    const caption = document.createElement("figcaption")
    caption.append(chart.title)
    if (chart.unit) caption.append(Object.assign(document.createElement("small"), {textContent: chart.unit}))
    const holder = document.createElement("div")
    box.append(caption, holder)
    parent.append(box)
    const plot = new uPlot(options(chart, colour, holder.clientWidth || 320), [[]], holder)
    const watcher = new ResizeObserver(() => plot.setSize({width: holder.clientWidth, height: HEIGHT_PX}))
    watcher.observe(holder)
    return {chart, plot, watcher}
  })
  draw()
}

function options(chart, colour, width) {
  const axis = {stroke: colour("ink"), font: "11px system-ui, sans-serif", grid: {stroke: colour("grid"), width: 1}, ticks: {show: false}}
  const span = (min, max) => {
    if (min == null) return [0, 1]
    if (chart.range) return chart.range
    const low = chart.from0 ? 0 : min, room = (max - low) * 0.08 || Math.abs(max) * 0.1 || 1
    return [chart.from0 ? 0 : low - room, chart.whole ? max + 1 : max + room]
  }
  return {
    width, height: HEIGHT_PX,
    padding: [8, 24, 0, 0], // room for the last time under the axis
    cursor: {sync: {key: "run"}, points: {size: 5}, drag: {x: false, y: false}},
    legend: {live: true, markers: {width: 2, dash: (_, i) => chart.lines[i - 1]?.dash ? "dashed" : "solid"}},
    hooks: {setCursor: [newest]},
    scales: {y: {range: (_, min, max) => span(min, max)}},
    axes: [
      {...axis, size: 24, gap: 2, space: 60, values: times},
      {...axis, size: 52, gap: 4, space: 28, values: (_, ticks) => ticks.map((t) => chart.format(t)),
        incrs: chart.whole ? WHOLE : chart.format === bytes ? BINARY : undefined},
    ],
    series: [{label: "at", value: (_, v) => v == null ? "" : new Date(v * 1000).toLocaleTimeString("en-GB")},
      ...chart.lines.map((line) => ({
        label: line.label, stroke: colour(line.to), width: line.width ?? 1.25, dash: line.dash,
        fill: line.fill ? colour(`${line.to}-fill`) : undefined,
        paths: line.stepped ? uPlot.paths.stepped({align: 1}) : undefined,
        points: {show: false},
        value: (_, v) => v == null ? "–" : chart.format(v),
      }))],
  }
}

function times(_, ticks, __, ___, step_s) {
  const [date, time] = [{day: "numeric", month: "short"}, {hour: "2-digit", minute: "2-digit"}]
  if (step_s < 60) time.second = "2-digit"
  return ticks.map((t) => step_s >= 86400 ? new Date(t * 1000).toLocaleDateString("en-GB", date)
    : new Date(t * 1000).toLocaleTimeString("en-GB", time))
}
