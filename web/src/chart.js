// One chart: the curves of one metric, by rank or as a band, with marks of what happened.

import uPlot from "uplot";
import { band, line } from "./curves.js";
import { h, s, text } from "./dom.js";
import { clock, count, number, plural, span, title } from "./format.js";

// Okabe and Ito: told apart by all common kinds of colour vision; beyond colour, curves differ by their dashes.
const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b37700", "#2f8fc4", "#5c5c5c", "#7a5195"];
const DARK = ["#56b4e9", "#f0894d", "#2fc79b", "#e5a3c6", "#e6b84d", "#9ad0f5", "#c9c9c9", "#b99be0"];
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2, 1, 2], [1, 2], [8, 2, 2, 2, 2, 2]];
export const MOST_CURVES = 8;
const HEIGHT = 190;

export const colour = (rank, dark) => (dark ? DARK : LIGHT)[rank % LIGHT.length];
export const dash = (rank) => DASHES[(rank + (rank >> 3)) % DASHES.length];

// A piece of a curve, as it stands in the plot.
export const sample = (rank, dark) =>
  s("svg", { width: 22, height: 8, "aria-hidden": "true" },
    s("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: colour(rank, dark), "stroke-width": 2, "stroke-dasharray": dash(rank).join(" ") || null }));

export class Chart {
  constructor(name, view) {
    this.name = name;
    this.view = view;
    this.log = false;
    this.dirty = true;
    this.seen = true;
    this.now = h("output", { class: "now", "aria-live": "off" });
    this.whose = h("span", { class: "whose" });
    this.logButton = h("button", {
      class: "small", type: "button", "aria-pressed": "false", title: "logarithmic scale",
      onclick: () => this.toggle(),
    }, "log");
    this.plot = h("div", { class: "plot", tabindex: "0", role: "img", onkeydown: (event) => this.key(event) });
    this.head = h("header", {}, h("h3", {}, title(name)), this.now, this.whose, this.logButton);
    this.element = h("section", { class: "card chart", "data-name": name }, this.head, this.plot);
  }

  toggle() {
    this.log = !this.log;
    this.logButton.setAttribute("aria-pressed", String(this.log));
    this.remake();
  }

  remake() {
    this.uplot?.destroy();
    this.uplot = null;
    this.dirty = true;
    this.view.redraw();
  }

  // Columns for uPlot: x, then for a band low, mean and high, then a line for each rank that is shown.
  data() {
    const { curves, byTime, began } = this.view;
    const tables = [];
    const banded = this.banded;
    const around = banded ? curves.band(this.name) : null;
    if (around) tables.push(band(around, byTime, began));
    const low = curves.get(`${this.name}_low`, 0);
    const high = curves.get(`${this.name}_high`, 0);
    if (this.hasInterval && low && high) {
      const [x, lower] = line(low, byTime, began);
      tables.push([x, lower, line(high, byTime, began)[1]]);
    }
    for (const rank of this.ranks) tables.push(line(curves.get(this.name, rank), byTime, began));
    if (!tables.length) return [[]];
    const joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
    return this.log ? [joined[0], ...joined.slice(1).map((column) => column.map((v) => (v > 0 ? v : null)))] : joined;
  }

  get banded() {
    return this.view.most > MOST_CURVES;
  }

  get hasInterval() {
    return this.view.curves.names.has(`${this.name}_low`);
  }

  get ranks() {
    const { curves, hidden, chosen } = this.view;
    const there = curves.ranks(this.name);
    return this.banded ? there.filter((rank) => chosen.has(rank)) : there.filter((rank) => !hidden.has(rank));
  }

  draw() {
    this.dirty = false;
    const key = `${this.banded}${this.hasInterval}${this.ranks}${this.view.dark}${this.view.byTime}`;
    if (this.uplot && key !== this.key_) this.remake();
    const data = this.data();
    if (!this.uplot) this.make(data, key);
    else this.uplot.setData(data);
    this.tell();
  }

  tell() {
    const { value, of, rank } = this.view.curves.now(this.name, this.ranks);
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

  make(data, key) {
    this.key_ = key;
    const css = getComputedStyle(this.element);
    const ink = css.getPropertyValue("--ink-soft").trim();
    const grid = { stroke: css.getPropertyValue("--grid").trim(), width: 1 };
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font };
    const value = (_, v) => number(v, this.name);
    this.uplot = new uPlot(
      {
        width: Math.max(200, this.plot.clientWidth),
        height: HEIGHT,
        padding: [8, 20, 0, 0],
        cursor: { sync: { key: this.view.sync }, drag: { x: true, y: false }, points: { size: 6 } },
        legend: { live: true },
        scales: { x: { time: false }, y: this.log ? { distr: 3 } : { range: comfortable } },
        axes: [
          { ...axis, size: 32, values: (_, ticks) => ticks.map((v) => (this.view.byTime ? span(v) : count(v))) },
          { ...axis, size: 58, values: (_, ticks) => ticks.map((v) => (v == null ? "" : number(v, this.name))) },
        ],
        series: [
          { label: this.view.byTime ? "time" : "step", value: (_, v) => (this.view.byTime ? span(v ?? 0) : count(v)) },
          ...this.series(value),
        ],
        bands: this.bands(css.getPropertyValue("--band").trim()),
        hooks: { draw: [(u) => this.marks(u)] },
      },
      data,
      this.plot,
    );
  }

  series(value) {
    const { dark } = this.view;
    const quiet = { width: 0, stroke: "transparent", points: { show: false }, value };
    const all = [];
    if (this.banded) {
      all.push({ ...quiet, label: "lowest" }, { label: "mean", stroke: colour(0, dark), width: 1.75, value, points: { show: false } });
      all.push({ ...quiet, label: "highest" });
    }
    if (this.hasInterval) all.push({ ...quiet, label: "from" }, { ...quiet, label: "to" });
    for (const rank of this.ranks) {
      all.push({
        label: `rank ${rank}`, stroke: colour(rank + this.banded, dark), dash: dash(rank), width: 1.5, value,
        spanGaps: true, points: { show: false },
      });
    }
    return all;
  }

  bands(fill) {
    if (this.banded) return [{ series: [3, 1], fill }];
    return this.hasInterval ? [{ series: [2, 1], fill }] : [];
  }

  marks(u) {
    const { ctx, bbox } = u;
    const css = getComputedStyle(this.element);
    const ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.lineWidth = ratio;
    for (const mark of this.view.chartMarks()) {
      const x = Math.round(u.valToPos(this.view.byTime ? mark.time - this.view.began : mark.step, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = css.getPropertyValue(`--${mark.kind}`).trim() || "#888";
      ctx.setLineDash(mark.kind === "fault" ? [] : [4 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.fillText({ fault: "✕", order: "●", recovery: "↻", resize: "↕" }[mark.kind] ?? "·", x + 2 * ratio, bbox.top + 10 * ratio);
    }
    ctx.restore();
  }

  key(event) {
    const u = this.uplot;
    const length = u?.data[0].length;
    if (!length) return;
    const at = u.cursor.idx ?? length - 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: length - 1, PageUp: at - 50, PageDown: at + 50 }[event.key];
    if (event.key === "Escape") u.setScale("x", { min: u.data[0][0], max: u.data[0][length - 1] });
    if (to == null) return;
    event.preventDefault();
    event.stopPropagation();
    const index = Math.max(0, Math.min(length - 1, to));
    const first = u.data.findIndex((column, i) => i > 0 && column[index] != null);
    const top = first > 0 ? u.valToPos(u.data[first][index], "y") : 10;
    u.setCursor({ left: u.valToPos(u.data[0][index], "x"), top });
    const said = u.series.slice(1).map((each, i) => [each.label, u.data[i + 1][index]]).filter((each) => each[1] != null);
    const where = this.view.byTime ? span(u.data[0][index]) : `step ${count(u.data[0][index])}`;
    this.view.announce(`${title(this.name)}, ${where}: ${said.map(([label, v]) => `${label} ${number(v, this.name)}`).join(", ")}`);
  }

  resize() {
    const width = Math.max(200, this.plot.clientWidth);
    if (this.uplot && this.uplot.width !== width) this.uplot.setSize({ width, height: HEIGHT });
  }

  close() {
    this.uplot?.destroy();
  }
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

export const when = clock;
