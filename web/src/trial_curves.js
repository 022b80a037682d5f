// All curves of one trial of a search: its value and each of its metrics in a small plot, by epoch.

import uPlot from "uplot";
import { colour, comfortable } from "./chart.js";
import { h, show, text } from "./dom.js";
import { number } from "./format.js";

const HEIGHT = 150;
const WHOLE = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power));

// What plots over epochs have in common, in the colours of an element.
export function overEpochs(element, height, log) {
  const css = getComputedStyle(element);
  const grid = { stroke: css.getPropertyValue("--grid").trim(), width: 1 };
  const axis = { stroke: css.getPropertyValue("--ink-soft").trim(), grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
  const told = (_, ticks) => ticks.map((v) => (v == null ? "" : number(v)));
  return {
    width: Math.max(200, element.clientWidth), height, padding: [8, 20, 0, 0], legend: { show: false },
    scales: { x: { time: false }, y: log ? { distr: 3 } : { range: comfortable } },
    axes: [{ ...axis, size: 32, incrs: WHOLE, values: told }, { ...axis, size: 58, values: told }],
  };
}

export class TrialCurves {
  constructor(view) {
    this.view = view;
    this.plots = new Map();
    this.title = h("h3");
    this.facts = h("span", { class: "whose" });
    this.grid = h("div", { class: "trial-curves" });
    this.element = h("section", { class: "card wide", hidden: true, "aria-live": "off" }, h("header", {}, this.title, this.facts), this.grid);
  }

  // The curves of a trial, or of none.
  draw(trial) {
    show(this.element, trial);
    if (!trial) return;
    text(this.title, `curves of trial ${trial.trial}`);
    text(this.facts, Object.entries(trial.params).map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : value}`).join(" · "));
    const curves = new Map([["value", trial.points], ...trial.metrics]);
    const key = `${trial.trial} ${this.view.dark} ${[...curves.keys()].join()}`;
    if (key !== this.key) {
      this.close();
      this.key = key;
      for (const name of curves.keys()) this.add(name);
    }
    for (const [name, points] of curves) this.drawOne(this.plots.get(name), name, points, trial);
  }

  add(name) {
    const plot = h("div", { class: "plot", role: "img" });
    const now = h("span", { class: "now" });
    this.grid.append(h("figure", { "data-name": name }, h("figcaption", {}, h("span", {}, name), now), plot));
    this.plots.set(name, { plot, now, uplot: null });
  }

  drawOne(one, name, points, trial) {
    const sorted = [...points].sort((a, b) => a[0] - b[0]);
    const data = [sorted.map((point) => point[0]), sorted.map((point) => point[1])];
    const last = sorted.length ? number(data[1].at(-1)) : "–";
    text(one.now, last);
    one.plot.setAttribute("aria-label", `${name} of trial ${trial.trial} by epoch, now ${last}`);
    if (one.uplot) return one.uplot.setData(data);
    const stroke = colour(trial.trial, this.view.dark);
    const cursor = { drag: { x: true, y: false }, sync: { key: "trial-curves" }, points: { size: 6 } };
    const series = [{}, { label: name, stroke, width: 2, points: { show: sorted.length < 30, size: 5 } }];
    one.uplot = new uPlot({ ...overEpochs(one.plot, HEIGHT), cursor, series }, data, one.plot);
  }

  resize() {
    for (const { plot, uplot } of this.plots.values()) {
      const width = Math.max(200, plot.clientWidth);
      if (uplot && uplot.width !== width) uplot.setSize({ width, height: HEIGHT });
    }
  }

  close() {
    for (const { uplot } of this.plots.values()) uplot?.destroy();
    this.plots.clear();
    this.grid.replaceChildren();
    this.key = "";
  }
}
