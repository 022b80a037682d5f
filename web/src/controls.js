// What is above the charts: their horizontal axis, how much curves are smoothed, and the ranks that are shown.

import { MOST_CURVES, sample } from "./chart.js";
import { h, keep, kept, text } from "./dom.js";

const SMOOTHEST = 0.99;

export class Controls {
  constructor(view) {
    this.view = view;
    view.smoothing = Math.min(Number(kept("smoothing", 0)) || 0, SMOOTHEST);
    this.axis = h("button", { type: "button", class: "small", "aria-pressed": "false", onclick: () => this.toggleAxis() }, "by time");
    this.slider = h("input", { type: "range", min: "0", max: SMOOTHEST, step: "0.01", value: view.smoothing, oninput: () => this.smooth() });
    this.told = h("output", {}, String(view.smoothing));
    const smoothing = h("label", { class: "smoothing", title: "weight of what was before in an exponential moving average" }, "smoothing", this.slider, this.told);
    this.ranks = h("div", { class: "ranks", role: "group", "aria-label": "ranks that are shown" });
    const hint = h("span", { class: "quiet hint" }, "drag in a chart to zoom, double click to reset");
    this.element = h("div", { class: "controls" }, this.axis, smoothing, this.ranks, hint);
  }

  toggleAxis() {
    this.view.byTime = !this.view.byTime;
    this.axis.setAttribute("aria-pressed", String(this.view.byTime));
    this.view.redrawCharts();
  }

  smooth() {
    this.view.smoothing = Number(this.slider.value);
    text(this.told, String(this.view.smoothing));
    keep("smoothing", this.view.smoothing);
    this.view.redrawCharts();
  }

  draw() {
    const { most, hidden, chosen, dark, charts, curves } = this.view;
    const all = [...new Set([...charts.keys()].flatMap((name) => curves.ranks(name)))].sort((a, b) => a - b);
    const key = `${most}:${all}:${[...hidden]}:${[...chosen]}:${dark}`;
    if (key === this.key) return;
    this.key = key;
    if (most > MOST_CURVES) return this.drawChoice();
    this.ranks.replaceChildren(...(all.length > 1 ? all : []).map((rank) =>
      h("button", {
        type: "button", class: "rank", "aria-pressed": String(!hidden.has(rank)),
        onclick: () => this.toggleRank(rank),
      }, sample(rank, dark), this.view.named(rank)),
    ));
  }

  drawChoice() {
    const { view } = this;
    const field = h("input", { type: "text", inputmode: "numeric", value: [...view.chosen].join(", "), "aria-label": "ranks whose own curves are shown", placeholder: "such as 0, 3" });
    const form = h("form", {
      onsubmit: (event) => {
        event.preventDefault();
        view.chosen = new Set((field.value.match(/\d+/g) ?? []).map(Number).slice(0, MOST_CURVES));
        view.connection.send({ t: "ranks", ranks: [...view.chosen] });
        view.redrawCharts();
      },
    }, h("label", {}, `lowest to highest of ${view.most} ranks, and ranks`, field), h("button", { type: "submit", class: "small" }, "show"));
    this.ranks.replaceChildren(form);
  }

  toggleRank(rank) {
    const { hidden } = this.view;
    if (!hidden.delete(rank)) hidden.add(rank);
    this.view.redrawCharts();
    requestAnimationFrame(() => this.ranks.children[rank]?.focus?.());
  }
}
