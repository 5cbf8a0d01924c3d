// <metaq-chart data-chart='{"start": ms, "step": ms, "from": ms, "series": [{"label", "values"}]}' data-unit="rate">
// One or two series over time. A gap in the values is a gap in the line. All charts of a page share a cursor and
// begin at `from`, when the console began to poll.
import { number, rate, share, size, span } from "./units.js";

const UNITS = { number, rate, bytes: size, ms: span, share };

// The least height of an axis, so that noise does not look like a mountain.
const LEAST = { number: 5, rate: 5, bytes: 1024, ms: 1000, share: 1 };
// Steps of an axis of time, in milliseconds.
const MS_STEPS = [1, 5, 10, 50, 100, 250, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 864e6];
const SPAN_MIN_S = 120;
// The step that is under way has no value before it was polled.
const STEPS_UNDER_WAY = 3;
function clock(seconds, withSeconds) {
  const time = new Date(seconds * 1000);
  const parts = [time.getHours(), time.getMinutes(), ...(withSeconds ? [time.getSeconds()] : [])];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

class Chart extends HTMLElement {
  static observedAttributes = ["data-chart"];
  #plot = null;
  #observer = new ResizeObserver(() => this.#resize());

  connectedCallback() {
    this.#observer.observe(this);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", this.#redraw);
    this.#redraw();
  }
  disconnectedCallback() {
    this.#observer.disconnect();
    matchMedia("(prefers-color-scheme: dark)").removeEventListener("change", this.#redraw);
    this.#plot?.destroy();
    this.#plot = null;
  }
  attributeChangedCallback() {
    if (this.#plot) this.#plot.setData(this.#data());
    this.#showValues();
  }
  #chart() { return JSON.parse(this.dataset.chart); }
  #data() {
    const { start, step, series } = this.#chart();
    const length = Math.max(...series.map((one) => one.values.length), 0);
    const times = Array.from({ length }, (_, index) => (start + index * step) / 1000);
    return [times, ...series.map((one) => one.values)];
  }
  // A console that has just started shows the time since then, not an empty hour.
  #span(plot, first, last) {
    const [times, ...all] = plot.data;
    const known = Math.min(...all.map((values) => values.findIndex((value) => value != null)).filter((index) => index >= 0), times.length);
    const from = Math.min(times[known] ?? Infinity, (this.#chart().from ?? Infinity) / 1000);
    return [Math.min(Number.isFinite(from) ? Math.max(first, from) : first, last - SPAN_MIN_S), last];
  }
  #format(value) { return value == null ? "" : UNITS[this.dataset.unit ?? "number"](value); }
  #tick(value) { return this.#format(value).replace(/\.0(?=\D|$)/, ""); }
  // The values under the cursor with their time, or else the last ones.
  #showValues() {
    const index = this.#plot?.cursor.idx;
    const all = index == null ? this.#chart().series.map((one) => one.values.slice(-STEPS_UNDER_WAY).findLast((value) => value != null)) : this.#plot.data.slice(1).map((values) => values[index]);
    const time = index == null ? null : this.#plot.data[0][index];
    for (const key of document.querySelectorAll(`[data-chart-value="${CSS.escape(this.id)}"]`)) key.textContent = this.#format(all[key.dataset.index]);
    for (const key of document.querySelectorAll(`[data-chart-time="${CSS.escape(this.id)}"]`)) key.textContent = time == null ? "" : clock(time, true);
  }
  #resize() {
    if (this.#plot && this.clientWidth) this.#plot.setSize({ width: this.clientWidth, height: 160 });
    else if (!this.#plot) this.#redraw();
  }
  #redraw = () => {
    this.#plot?.destroy();
    this.#plot = null;
    if (!this.clientWidth || typeof uPlot === "undefined") return;
    const style = getComputedStyle(this);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--ink-faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${colour("--font")}` };
    const line = (stroke) => ({ stroke, width: 1.5, spanGaps: false, points: { show: false } });
    this.#plot = new uPlot({
      width: this.clientWidth,
      height: 160,
      padding: [8, 26, 0, 0],
      cursor: { sync: { key: "metaq" }, y: false, drag: { x: false, y: false } },
      legend: { show: false },
      scales: { x: { time: true, range: (plot, first, last) => this.#span(plot, first, last) }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, LEAST[this.dataset.unit] ?? 1)] } },
      axes: [{ ...axis, size: 22, space: 64, values: (_, ticks) => ticks.map((tick) => clock(tick, ticks[1] - ticks[0] < 60)) }, { ...axis, size: 66, space: 24, ...(this.dataset.unit === "ms" ? { incrs: MS_STEPS } : {}), values: (_, ticks) => ticks.map((tick) => this.#tick(tick)) }],
      series: [{}, ...this.#chart().series.map((one, index) => ({ label: one.label, ...line(colour(index ? "--second" : "--accent")) }))],
      hooks: { setCursor: [() => this.#showValues()] },
    }, this.#data(), this);
    this.#showValues();
  };
}
customElements.define("metaq-chart", Chart);
