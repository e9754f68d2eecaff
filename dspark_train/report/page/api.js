// Speaks to the controller. The token comes behind "#" in the link, stays in this tab, and is sent in a header only.
import {createParser} from "/page/vendor/eventsource-parser.js"

const KEY = "dspark-token"
const TIMEOUT_MS = 10_000
const RETRY_MS = 2_000

export class Refused extends Error {
  constructor(status, detail) {
    super(detail)
    this.status = status
  }
}

export function takeTokenFromLink() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token")
  if (!found) return
  setToken(found)
  history.replaceState(null, "", location.pathname)
}

export const setToken = (token) => sessionStorage.setItem(KEY, token.trim())
export const hasToken = () => Boolean(sessionStorage.getItem(KEY))
export const forgetToken = () => sessionStorage.removeItem(KEY)

const headers = (more) => ({Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}`, ...more})

async function answer(path, options) {
  const response = await fetch(path, {signal: AbortSignal.timeout(TIMEOUT_MS), ...options})
  if (response.ok) return response.json() // rejects where the answer is cut: an empty state would end the loop that asks
  const body = await response.json().catch(() => ({}))
  throw new Refused(response.status, String(body.detail ?? response.statusText))
}

export const get = (path) => answer(path, {headers: headers()})

export const post = (path, body) => answer(path, {
  method: "POST", headers: headers({"Content-Type": "application/json"}), body: JSON.stringify(body),
})

// Calls onEvent for each event after `id`, and takes up the stream again where it was cut. Ends with the signal.
export async function follow(id, onEvent, signal) {
  while (!signal.aborted) {
    try {
      const response = await fetch("/v1/events", {
        headers: headers({Accept: "text/event-stream", "Last-Event-ID": String(id)}), signal,
      })
      if (response.status === 401) return
      if (response.ok) {
        const parser = createParser({onEvent: (sent) => {
          id = Number(sent.id)
          onEvent(JSON.parse(sent.data))
        }})
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
        for (let part; !(part = await reader.read()).done;) parser.feed(part.value)
      }
    } catch {
      // The controller is away: it is asked again below, and the page says so from the state.
    }
    await new Promise((wake) => setTimeout(wake, RETRY_MS))
  }
}
