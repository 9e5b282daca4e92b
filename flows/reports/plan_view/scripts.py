"""What the page does in the browser: stacks the bars by the phase and order that are chosen, names what is wide enough, and
takes the colours of light and dark pages.

Each is the body of a `CustomJS`, which names its arguments.
"""

STACK = """
// chosen: 0 for the whole step, or the number of a phase
const chosen = phase == null ? 0 : phase.active
let widest = 0
for (const {parts} of bars) {
  const d = parts.data, ends = {}
  for (let i = 0; i < d.left.length; i++) {
    const size = chosen == 0 ? d.size[i] : d["phase" + chosen][i]
    d.left[i] = ends[d.device[i]] ?? 0
    ends[d.device[i]] = d.right[i] = d.left[i] + size
    widest = Math.max(widest, d.right[i])
  }
  parts.change.emit()
  parts.ends = ends
}
const shown = 0 < room && room <= 4 * widest ? Math.max(room, widest) : widest
for (const {parts, totals, strips} of bars) {
  const t = totals.data
  for (let i = 0; i < t.end.length; i++) {
    t.end[i] = shown
    t.text[i] = figures(parts.ends[t.device[i]] ?? 0) + (chosen == 0 && t.slowest[i] ? "  ◀ slowest" : "")
  }
  totals.change.emit()
  if (strips != null) strips.visible = chosen == 0
}
if (slowest != null) slowest.visible = chosen == 0
const beside = bars.some(({totals}) => totals.data.slowest.includes(1)) ? 116 : 64
plot.x_range.setv({start: 0, end: shown > 0 ? shown * plot.inner_width / Math.max(plot.inner_width - beside, 100) : 1})
plot.x_range.reset_start = 0
plot.x_range.reset_end = plot.x_range.end
function figures(ms) { return ms == 0 ? "0" : ms >= 100 ? ms.toFixed(0) : ms.toPrecision(3) }
"""
"""Arguments: bars (of each side: sources of parts and of totals, glyphs of phases or null), phase, slowest, room, plot."""

NAME = """
const scale = plot.inner_width / (plot.x_range.end - plot.x_range.start)
const height = plot.inner_height / plot.y_range.factors.length
for (const {parts, share} of bars) {
  const d = parts.data
  for (let i = 0; i < d.left.length; i++) {
    const room = Math.floor(((d.right[i] - d.left[i]) * scale - 8) / 6.8)
    const name = d.table[i] >= 0 ? tables.data.name[place[d.table[i]]]
      : d.table[i] == -1 ? `${d.count[i]} smaller tables` : "waiting"
    d.label[i] = height * share < 9 ? "" : room >= name.length ? name : room >= 9 ? shortened(name, room) : ""
  }
  parts.change.emit()
}
function shortened(name, room) {  // names often differ at their ends
  const tail = Math.floor(room / 2)
  return name.slice(0, room - 1 - tail) + "…" + name.slice(name.length - tail)
}
"""
"""Arguments: bars (of each side: source of parts, share of a row's height), plot, tables, place (of each table in it)."""

HOVER = """
// format says which column is asked for
const t = value >= 0 ? place[value] : null
if (t == null) return format == "name" ? (value == -1 ? "its smaller tables" : "no table of this device: it waits for others")
  : "-"
const cell = tables.data[format][t]
return typeof cell == "number" && Number.isInteger(cell) ? cell.toLocaleString("en-US") : `${cell}`
"""
"""Arguments: tables, place."""

ORDER = """
rows.factors = orders[cb_obj.active]
"""
"""Arguments: rows (the range), orders (factors of each choice, from the bottom)."""

FILTER = """
const word = entry.value_input.trim().toLowerCase()
const names = source.data[column]
const kept = []
for (let i = 0; i < names.length; i++) if (names[i].toLowerCase().includes(word)) kept.push(i)
return kept
"""
"""Arguments: entry, column."""

SELECT = """
const chosen = new Set(tables.selected.indices)
for (const source of parts) {
  const found = []
  if (chosen.size > 0)
    for (let i = 0; i < source.data.table.length; i++) if (chosen.has(place[source.data.table[i]])) found.push(i)
  source.selected.indices = found
}
"""
"""Arguments: tables, parts (sources), place."""

THEME = """
const dark = matchMedia("(prefers-color-scheme: dark)")
function paint() {
  const [ink, soft, line] = dark.matches ? ["#e8e8ea", "#a9abb3", "#3b3e47"] : ["#1d1f24", "#5c606b", "#e2e3e7"]
  for (const axis of axes) axis.setv({major_label_text_color: ink, axis_label_text_color: soft, axis_line_color: line,
    major_tick_line_color: line})
  for (const grid of grids) grid.grid_line_color = line
  for (const text of texts) text.text_color = {value: ink}
  for (const mark of spans) mark.line_color = ink
}
paint()
dark.addEventListener("change", paint)
"""
"""Arguments: axes, grids, texts (glyphs), spans."""
