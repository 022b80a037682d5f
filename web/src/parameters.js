// Values of the trials of a search against each of its hyper-parameters: a small scatter for each, the most important first.

import { colour } from "./chart.js";
import { h, s, show, text } from "./dom.js";
import { number, plural } from "./format.js";

const WIDTH = 300;
const HEIGHT = 160;
const PAD = { left: 44, right: 12, top: 10, bottom: 24 };
const LEAST = 8; // trials of which importance is asked
const GROWTH = 1.1; // of their number, after which it is asked again

export class Parameters {
  constructor(view, trials) {
    this.view = view;
    this.trials = trials;
    this.plots = new Map();
    this.shares = {};
    this.asked = 0;
    this.facts = h("span", { class: "whose" });
    this.grid = h("div", { class: "parameters" });
    this.element = h("section", { class: "card wide", "data-name": "parameters" }, h("header", {}, h("h3", {}, "last values, by hyper-parameter"), this.facts), this.grid);
    view.on_importance = (message) => this.take(message);
  }

  // Space as run.json has it; of an older record all parameters are taken for choices.
  get space() {
    const names = new Set([...this.trials.trials.values()].flatMap((each) => Object.keys(each.params)));
    return Object.fromEntries([...names].map((name) => [name, this.view.run.space?.[name] ?? {}]));
  }

  take({ shares, epoch, trials }) {
    this.shares = shares;
    const of = `of ${plural(trials, "trial")} at epoch ${epoch}`;
    text(this.facts, Object.keys(shares).length ? `bars: importance for the values ${of} (PED-ANOVA)` : "");
    this.trials.dirty = true;
    this.trials.draw();
  }

  ask(shown) {
    const known = shown.length;
    const isDue = known >= LEAST && known >= this.asked * (this.view.state.state === "ended" ? 1 + 1e-9 : GROWTH);
    if (isDue && this.view.link === "open" && this.view.isReady && this.view.connection.send({ t: "importance" })) this.asked = known;
  }

  draw() {
    const shown = [...this.trials.trials.values()].filter((each) => Number.isFinite(each.values.last)).sort((a, b) => a.trial - b.trial);
    show(this.element, shown.length);
    this.ask(shown);
    const space = this.space;
    const names = Object.keys(space).sort((a, b) => (this.shares[b] ?? 0) - (this.shares[a] ?? 0));
    const key = `${names.map((name) => `${name} ${this.shares[name] ?? ""}`)}${this.view.dark}`;
    if (key !== this.key) {
      this.key = key;
      this.plots.clear();
      this.grid.replaceChildren(...names.map((name) => this.figure(name)));
    }
    for (const name of names) this.drawOne(this.plots.get(name), name, space[name], shown);
  }

  figure(name) {
    const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    const share = this.shares[name];
    const bar = share != null && h("span", { class: "importance", title: "importance" }, h("span"), `${Math.round(100 * share)} %`);
    if (bar) bar.firstChild.style.width = `${Math.round(60 * share)}px`; // no attribute, which the page's policy forbids
    const axes = s("g", {});
    const dots = s("g", {});
    svg.append(axes, dots);
    this.plots.set(name, { svg, axes, dots, circles: new Map() });
    return h("figure", { "data-name": name }, h("figcaption", {}, h("span", {}, name), bar), svg);
  }

  drawOne(plot, name, parameter, shown) {
    const isLog = this.trials.log && shown.every((each) => each.values.last > 0);
    const y = scale(shown.map((each) => each.values.last), isLog, HEIGHT - PAD.bottom, PAD.top);
    const x = across(parameter, shown.map((each) => each.params[name]));
    this.drawAxes(plot, x, y);
    const best = this.trials.best();
    for (const each of shown) {
      const dot = plot.circles.get(each.trial) ?? this.dot(plot, each.trial);
      const [cx, cy] = [x.of(each.params[name]), y.of(each.values.last)].map((at) => at.toFixed(1));
      const kind = `${each.state}${each.trial === best ? " best" : ""}${each.trial === this.trials.lit || each.trial === this.trials.selected ? " lit" : ""}`;
      const key = `${cx} ${cy} ${kind}`;
      if (dot.key === key) continue; // of hundreds few have moved
      dot.key = key;
      for (const [attribute, value] of Object.entries({ cx, cy, r: each.trial === best ? 6 : 3.5, class: kind })) dot.setAttribute(attribute, value);
      text(dot.firstChild, `trial ${each.trial}: ${name} ${said(each.params[name])}, ${number(each.values.last)}`);
    }
    const front = plot.circles.get(best);
    if (front && plot.dots.lastChild !== front) plot.dots.append(front);
    plot.svg.setAttribute("aria-label", `last values of ${plural(shown.length, "trial")} by ${name}${best == null ? "" : `; the best has ${said(this.trials.trials.get(best)?.params[name])}`}`);
  }

  dot(plot, trial) {
    const dot = s("circle", { fill: colour(trial, this.view.dark), "data-trial": trial }, s("title", {}));
    dot.addEventListener("mouseenter", () => this.trials.light(trial));
    dot.addEventListener("mouseleave", () => this.trials.light(null));
    dot.addEventListener("click", () => this.trials.select(trial));
    plot.dots.append(dot);
    plot.circles.set(trial, dot);
    return dot;
  }

  drawAxes(plot, x, y) {
    const key = JSON.stringify([x.ticks, y.ticks]);
    if (key === plot.axesKey) return;
    plot.axesKey = key;
    const bottom = HEIGHT - PAD.bottom;
    plot.axes.replaceChildren(
      ...y.ticks.flatMap(([value, at]) => [
        s("line", { class: "base", x1: PAD.left, x2: WIDTH - PAD.right, y1: at, y2: at }),
        s("text", { class: "tick", x: PAD.left - 6, y: at + 4, "text-anchor": "end" }, number(value)),
      ]),
      ...x.ticks.flatMap(([value, at]) => [
        s("line", { class: "base", x1: at, x2: at, y1: PAD.top, y2: bottom }),
        s("text", { class: "tick", x: at, y: bottom + 16, "text-anchor": "middle" }, said(value)),
      ]),
    );
  }

  // Mark the dots of a trial, of whichever was marked before no more.
  light(trial) {
    for (const { circles } of this.plots.values())
      for (const [own, dot] of circles) {
        const isLit = own === trial || own === this.trials.selected;
        if (dot.classList.contains("lit") === isLit) continue;
        dot.classList.toggle("lit", isLit);
        dot.key = ""; // drawn anew with the next change
      }
  }

  clear() {
    this.asked = 0;
    this.shares = {};
    this.key = "";
  }
}

function said(value) {
  const whole = typeof value === "number" ? number(value) : String(value);
  return whole.length > 12 ? `${whole.slice(0, 11)}…` : whole;
}

// Places and ticks of a hyper-parameter: numbers of a range on its axis, choices side by side.
function across(parameter, values) {
  const [from, to] = [PAD.left, WIDTH - PAD.right];
  if ("low" in parameter) return scale([parameter.low, parameter.high], parameter.log, from, to, 0, parameter.whole);
  const choices = parameter.choices ?? [...new Set(values)];
  const at = (i) => from + ((to - from) * (i + 0.5)) / choices.length;
  const index = (value) => choices.findIndex((each) => each === value);
  return { of: (value) => at(Math.max(0, index(value))), ticks: choices.map((each, i) => [each, at(i)]) };
}

// Places of numbers between two ends, and up to four ticks.
function scale(values, log, from, to, air = 0.06, whole = false) {
  const by = log ? Math.log10 : (value) => value;
  let low = by(Math.min(...values));
  let high = by(Math.max(...values));
  if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
  [low, high] = [low - air * (high - low), high + air * (high - low)];
  const of = (value) => from + ((to - from) * (by(value) - low)) / (high - low);
  const ticks = log && high - low >= 1 ? decades(low, high) : steps(low, high, whole && !log).map((each) => (log ? 10 ** each : each));
  return { of, ticks: ticks.map((each) => [each, of(each)]) };
}

function decades(low, high) {
  const all = [];
  const step = Math.max(1, Math.ceil((high - low) / 4));
  for (let power = Math.ceil(low - 1e-9); power <= high + 1e-9; power += step) all.push(10 ** power);
  return all;
}

function steps(low, high, whole) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough), whole ? 1 : 0);
  const all = [];
  for (let each = Math.ceil(low / step - 1e-9) * step; each <= high + step * 1e-9; each += step) all.push(Math.abs(each) < step * 1e-9 ? 0 : each);
  return all;
}
