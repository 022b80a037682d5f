// One chart: the curves of one metric, by rank or as a band, with marks of what happened.

import uPlot from "uplot";
import { band, line, smoothLine } from "./curves.js";
import { h, s, show, text } from "./dom.js";
import { clock, count, number, plural, SIGNS, span, title } from "./format.js";

// Okabe and Ito: told apart by all common kinds of colour vision; beyond colour, curves differ by their dashes.
const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b37700", "#2f8fc4", "#5c5c5c", "#7a5195"];
const DARK = ["#56b4e9", "#f0894d", "#2fc79b", "#e5a3c6", "#e6b84d", "#9ad0f5", "#c9c9c9", "#b99be0"];
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2, 1, 2], [1, 2], [8, 2, 2, 2, 2, 2]];
export const MOST_CURVES = 8;
const FAINT = 0.3; // of a curve behind its smoothed one
const NEAR = 6; // pixels between the cursor and a mark that it is at

const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power)); // steps, seconds
const QUIET = { width: 0, stroke: "transparent", points: { show: false } };

export const colour = (rank, dark) => (dark ? DARK : LIGHT)[rank % LIGHT.length];
export const dash = (rank) => DASHES[(rank + (rank >> 3)) % DASHES.length];

// A piece of a curve, as it stands in the plot.
export const sample = (rank, dark) =>
  s("svg", { width: 22, height: 8, "aria-hidden": "true" },
    s("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: colour(rank, dark), "stroke-width": 2, "stroke-dasharray": dash(rank).join(" ") || null }));

const corners = () =>
  s("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" },
    s("path", { d: "M1 4V1H4M8 1H11V4M11 8V11H8M4 11H1V8", fill: "none", stroke: "currentColor", "stroke-width": 1.5 }));

export class Chart {
  constructor(name, view) {
    this.name = name;
    this.view = view;
    this.log = false;
    this.zoom = null;
    this.dirty = true;
    this.seen = true;
    const button = (words, hint, run) => h("button", { class: "small", type: "button", title: hint, "aria-label": `${hint}: ${title(name)}`, onclick: run }, words);
    this.now = h("output", { class: "now", "aria-live": "off" });
    this.whose = h("span", { class: "whose" });
    this.resetButton = button("reset", "the whole curve again", () => this.reset());
    this.logButton = button("log", "logarithmic scale", () => this.toggle());
    this.logButton.setAttribute("aria-pressed", "false");
    this.fullButton = button(corners(), "full screen (Escape goes back)", () => this.toggleFull());
    this.hover = h("div", { class: "hover", hidden: true });
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img", onkeydown: (event) => this.key(event) });
    this.head = h("header", {}, h("h3", {}, title(name)), this.now, this.whose, h("span", { class: "tools" }, this.resetButton, this.logButton, this.fullButton));
    this.element = h("section", { class: "card chart", "data-name": name, ontoggle: () => this.filled() }, this.head, this.plot);
    show(this.resetButton, false);
    show(this.fullButton, this.element.showPopover);
  }

  toggle() {
    this.log = !this.log;
    this.logButton.setAttribute("aria-pressed", String(this.log));
    this.remake();
  }

  // Over all else, where it stands: it is a popover as long as it is.
  toggleFull() {
    if (this.element.popover) return this.element.hidePopover();
    this.element.popover = "auto";
    this.element.showPopover();
  }

  filled() {
    if (!this.element.matches(":popover-open")) this.element.popover = null;
    this.resize();
  }

  remake() {
    this.uplot?.destroy();
    this.uplot = null;
    this.dirty = true;
    this.view.redraw();
  }

  get banded() {
    return this.view.most > MOST_CURVES;
  }

  get ranks() {
    const { curves, hidden, chosen } = this.view;
    const there = curves.ranks(this.name);
    return this.banded ? there.filter((rank) => chosen.has(rank)) : there.filter((rank) => !hidden.has(rank));
  }

  // What is drawn, from the back to the front: columns of uPlot, x first, and how each of them is drawn.
  layers() {
    const { curves, byTime, began } = this.view;
    const layers = [];
    const around = this.banded && curves.band(this.name);
    if (around) layers.push(...this.curve(around, "mean", 0, band(around, byTime, began)));
    const [low, high] = ["low", "high"].map((end) => curves.get(`${this.name}_${end}`, 0));
    if (low && high) {
      const [x, lower] = line(low, byTime, began);
      layers.push({ table: [x, lower, line(high, byTime, began)[1]], series: [QUIET, QUIET], fill: [1, 0] });
    }
    for (const rank of this.ranks) {
      const each = curves.get(this.name, rank);
      layers.push(...this.curve(each, this.view.named(rank), rank, line(each, byTime, began)));
    }
    return layers;
  }

  // A curve, which is faint behind itself where it is smoothed; three columns of values are a band with the curve in it.
  curve(curve, label, rank, table) {
    const { byTime, began, dark, smoothing } = this.view;
    const isBand = table.length > 2;
    const hue = isBand ? 0 : rank + this.banded;
    const drawn = { label, hue, stroke: colour(hue, dark), dash: dash(hue), width: isBand ? 1.75 : 1.5, spanGaps: !isBand, points: { show: false } };
    const raw = smoothing ? { ...drawn, alpha: FAINT } : drawn;
    const layers = [isBand ? { table, series: [QUIET, raw, QUIET], fill: [2, 0] } : { table, series: [raw] }];
    if (smoothing) layers.push({ table: smoothLine(curve, smoothing, byTime, began), series: [{ ...drawn, isSmooth: true }] });
    return layers;
  }

  draw() {
    this.dirty = false;
    const layers = this.layers();
    const { dark, byTime, smoothing } = this.view;
    const key = `${layers.length}:${this.ranks}:${this.banded}${dark}${byTime}${smoothing > 0}`;
    if (this.byTime !== byTime) this.zoom = null;
    this.byTime = byTime;
    if (this.uplot && key !== this.key_) this.remake();
    const data = this.data(layers.map((each) => each.table));
    if (!this.uplot) this.make(layers, data, key);
    else this.uplot.setData(data, !this.zoom);
    if (this.zoom) this.uplot.setScale("x", this.zoom);
    this.tell();
  }

  data(tables) {
    if (!tables.length) return [[]];
    const joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
    return this.log ? [joined[0], ...joined.slice(1).map((column) => column.map((v) => (v > 0 ? v : null)))] : joined;
  }

  tell() {
    const { value, of, rank } = this.view.curves.now(this.name, this.ranks);
    if (this.view.run.runs) return this.tellRuns();
    const last = of && value == null ? "not finite" : number(value, this.name);
    const whose = of > 1 ? `mean of ${of} ranks` : rank == null || this.view.curves.ranks(this.name).length < 2 ? "" : `rank ${rank}`;
    text(this.now, last);
    text(this.whose, whose);
    const first = this.banded ? `a band over ${this.view.most} ranks` : plural(this.ranks.length, "rank");
    const all = extent(this.uplot.data.slice(1));
    this.plot.setAttribute(
      "aria-label",
      `${title(this.name)} by ${this.view.byTime ? "time" : "step"}, ${first}; now ${last}${whose && `, ${whose}`}` +
        (all ? `, from ${number(all[0], this.name)} to ${number(all[1], this.name)}` : "") +
        ". Arrow keys move along the curve.",
    );
  }

  // The table of them has their numbers; a mean of several runs is none.
  tellRuns() {
    const names = this.ranks.map((rank) => this.view.named(rank)).join(", ");
    this.plot.setAttribute("aria-label", `${title(this.name)} by ${this.view.byTime ? "time" : "step"}, of ${names}. Arrow keys move along the curve.`);
  }

  make(layers, data, key) {
    this.key_ = key;
    const css = getComputedStyle(this.element);
    const ink = css.getPropertyValue("--ink-soft").trim();
    const grid = { stroke: css.getPropertyValue("--grid").trim(), width: 1 };
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font };
    const fill = css.getPropertyValue("--band").trim();
    const bands = [];
    let at = 1;
    for (const layer of layers) {
      if (layer.fill) bands.push({ series: layer.fill.map((i) => at + i), fill });
      at += layer.series.length;
    }
    this.uplot = new uPlot(
      {
        ...this.place(),
        padding: [8, 20, 0, 0],
        cursor: { sync: { key: this.view.sync }, drag: { x: true, y: false }, points: { size: 6 } },
        legend: { show: false },
        scales: { x: { time: false }, y: this.log ? { distr: 3 } : { range: comfortable } },
        axes: [
          { ...axis, size: 32, incrs: WHOLE, values: (_, ticks) => ticks.map((v) => (this.view.byTime ? span(v) : count(v))) },
          { ...axis, size: 58, values: (_, ticks) => ticks.map((v) => (v == null ? "" : number(v, this.name))) },
        ],
        series: [{}, ...layers.flatMap((layer) => layer.series)],
        bands,
        hooks: {
          init: [(u) => u.over.append(this.hover)], draw: [(u) => this.marks(u)],
          setCursor: [(u) => this.point(u)], setScale: [(u, key) => key === "x" && this.scaled(u)],
        },
      },
      data,
      this.plot,
    );
  }

  // What a reader has zoomed to stays when numbers come.
  scaled(u) {
    const xs = u.data[0];
    const { min, max } = u.scales.x;
    this.zoom = xs.length > 1 && (min > xs[0] || max < xs.at(-1)) ? { min, max } : null;
    show(this.resetButton, this.zoom);
  }

  reset() {
    this.zoom = null;
    this.uplot?.setData(this.uplot.data);
  }

  marks(u) {
    const { ctx, bbox } = u;
    const css = getComputedStyle(this.element);
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.lineWidth = ratio;
    for (const mark of this.view.chartMarks()) {
      const x = Math.round(u.valToPos(this.across(mark), "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = css.getPropertyValue(`--${mark.kind}`).trim() || "#888";
      ctx.setLineDash(mark.kind === "fault" ? [] : [4 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.fillText(SIGNS[mark.kind] ?? "·", x + 2 * ratio, bbox.top + 10 * ratio);
    }
    ctx.restore();
  }

  across(mark) {
    return this.view.byTime ? mark.time - this.view.began : mark.step;
  }

  // Beside the cursor: the values of all curves there, and the marks that it is at.
  point(u) {
    const { idx, left } = u.cursor;
    show(this.hover, idx != null && left >= 0);
    if (this.hover.hidden) return;
    const rows = this.values(idx).map(({ hue, label, said }) => h("tr", {}, h("td", {}, sample(hue, this.view.dark)), h("td", {}, label), h("td", {}, said)));
    const marks = this.plot.matches(":hover, :focus") ? this.marksAt(left) : []; // the cursor of one chart is in all
    this.hover.replaceChildren(h("b", {}, this.where(idx)), h("table", {}, ...rows), ...marks.map((words) => h("p", {}, words)));
    this.hover.classList.toggle("left", left > u.over.clientWidth / 2);
  }

  where(index) {
    const x = this.uplot.data[0][index];
    return this.view.byTime ? span(x) : `step ${count(x)}`;
  }

  // What each curve is at an index, or next to it; one that is smoothed also as it was.
  values(index) {
    const rows = [];
    this.uplot.series.forEach(({ hue, label, isSmooth }, i) => {
      const value = hue == null ? null : nearest(this.uplot.data[i], index);
      if (value == null) return;
      const said = number(value, this.name);
      if (isSmooth) rows.at(-1).said = `${said} (${rows.at(-1).said})`;
      else rows.push({ hue, label, said });
    });
    return rows;
  }

  marksAt(left) {
    const at = this.view.chartMarks().filter((mark) => Math.abs(this.uplot.valToPos(this.across(mark), "x") - left) <= NEAR);
    return at.map((mark) => `${SIGNS[mark.kind] ?? "·"} ${clock(mark.time)} ${mark.text}`);
  }

  key(event) {
    const u = this.uplot;
    const length = u?.data[0].length;
    if (!length) return;
    const at = u.cursor.idx ?? length - 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: length - 1, PageUp: at - 50, PageDown: at + 50 }[event.key];
    if (event.key === "Escape" && !this.element.popover) this.reset();
    if (to == null) return;
    event.preventDefault();
    event.stopPropagation();
    const index = Math.max(0, Math.min(length - 1, to));
    const first = u.data.findIndex((column, i) => i > 0 && column[index] != null);
    const top = first > 0 ? u.valToPos(u.data[first][index], "y") : 10;
    const left = u.valToPos(u.data[0][index], "x");
    u.setCursor({ left, top });
    const said = [...this.values(index).map((row) => `${row.label} ${row.said}`), ...this.marksAt(left)];
    this.view.announce(`${title(this.name)}, ${this.where(index)}: ${said.join(", ")}`);
  }

  // Its place, which the plot's own size does not change.
  place() {
    return { width: Math.max(200, this.plot.clientWidth), height: Math.max(120, this.plot.clientHeight) };
  }

  resize() {
    const { width, height } = this.place();
    if (this.uplot && (this.uplot.width !== width || this.uplot.height !== height)) this.uplot.setSize({ width, height });
  }

  close() {
    this.uplot?.destroy();
  }
}

function nearest(column, index) {
  for (let away = 0; away < column.length; away++) {
    const value = column[index - away] ?? column[index + away];
    if (value != null) return value;
  }
  return null;
}

// Some air above and below, and never a scale without height.
export function comfortable(_, low, high) {
  if (low == null || high == null) return [0, 1];
  const pad = high - low || Math.abs(high) || 1;
  const from = low >= 0 && low < pad * 0.5 ? 0 : low - pad * 0.08;
  return [from, high + pad * 0.08];
}

function extent(columns) {
  let low = Infinity;
  let high = -Infinity;
  for (const column of columns) {
    for (const value of column) {
      if (value == null) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return high >= low ? [low, high] : null;
}
