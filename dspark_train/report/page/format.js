// Numbers, times and sizes as a person reads them.
export const DASH = "–"

export const number = (value, digits = 0) => value == null ? DASH : value.toLocaleString("en", {
  minimumFractionDigits: digits, maximumFractionDigits: digits,
})

export function short(value) {
  if (value == null) return DASH
  const size = Math.abs(value)
  if (size >= 1e6) return `${(value / 1e6).toFixed(size >= 1e7 ? 0 : 1)}M`
  if (size >= 1e4) return `${Math.round(value / 1e3)}k`
  return number(value, size > 0 && size < 10 ? 1 : 0)
}

export function bytes(value) {
  if (value == null) return DASH
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(value) < 1024 || unit === "TiB") return `${number(value, unit === "B" || value >= 100 ? 0 : 1)} ${unit}`
    value /= 1024
  }
}

export function duration(seconds) {
  if (seconds == null) return DASH
  const s = Math.round(seconds), minutes = Math.floor(s / 60), hours = Math.floor(minutes / 60)
  if (hours >= 48) return `${Math.round(hours / 24)} days`
  if (hours) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`
  return minutes ? `${minutes} min` : `${s} s`
}

export const percent = (value) => value == null ? DASH : `${Math.round(value * 100)}%`

export function range(low_s, high_s) {
  const [low, high] = [duration(low_s), duration(high_s)]
  return low === high || high_s < low_s * 1.25 ? `about ${high}` : `${low} to ${high}`
}

export const clock = (iso) => new Date(iso).toLocaleTimeString("en-GB")
export const day = (iso) => new Date(iso).toLocaleDateString("en-GB", {day: "numeric", month: "short"})
