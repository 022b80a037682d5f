// The trials of a search: a table with their buttons, and the curves of all of them in one plot.

import uPlot from "uplot";
import "./search.css";
import { colour, dash, sample } from "./chart.js";
import { h, show, text } from "./dom.js";
import { count, number } from "./format.js";
import { Parameters } from "./parameters.js";
import { overEpochs, TrialCurves } from "./trial_curves.js";

const SURE_MS = 5000;
const MOST_LINES = 100; // of the best trials; of more nobody could tell one from the other
const HEIGHT = 260;
const NEAR = 24; // pixels from the cursor to the line that it lights
const ACTIVE = new Set(["running", "pausing", "stopping"]);
const OVER = new Set(["complete", "pruned", "failed", "finished"]);

export class Trials {
  constructor(view) {
    this.view = view;
    this.trials = new Map();
    this.rows = new Map();
    this.by = "trial";
    this.down = false;
    this.log = false;
    this.selected = null;
    this.lit = null;
    this.count = h("span", { class: "now" });
    this.head = h("thead");
    this.body = h("tbody", { onkeydown: (event) => this.key(event), onmouseleave: () => this.light(null) });
    this.scroll = h("div", { class: "scroll trials-list", tabindex: "0", role: "region", "aria-label": "trials" }, h("table", { class: "trials" }, this.head, this.body));
    this.logButton = h("button", { class: "small", type: "button", "aria-pressed": "false", title: "logarithmic scale", onclick: () => this.toggle() }, "log");
    this.plot = h("div", { class: "plot", role: "img", "aria-label": "values of all trials by epoch" });
    this.curves = h("section", { class: "card wide", "data-name": "trials", hidden: true }, h("header", {}, h("h3", {}, "values of all trials, by epoch"), this.logButton), this.plot);
    this.table = h("section", { class: "card wide" }, h("header", {}, h("h3", {}, "trials"), h("span", { class: "whose" }, "select one for all of its curves"), this.count), this.scroll);
    this.own = new TrialCurves(view);
    this.parameters = new Parameters(view, this);
    this.element = h("div", { hidden: true }, this.curves, this.table, this.own.element, this.parameters.element);
  }

  clear() {
    this.trials.clear();
    this.body.replaceChildren();
    this.rows.clear();
    this.parameters.clear();
    this.dirty = true;
  }

  take(trials) {
    for (const [, time, trial, state, params, values, step, workers, note, points, metrics] of trials) {
      const known = this.trials.get(trial) ?? { points: new Map(), metrics: new Map() };
      for (const [epoch, value] of points ?? []) known.points.set(epoch, value);
      for (const [name, own] of Object.entries(metrics ?? {})) {
        if (!known.metrics.has(name)) known.metrics.set(name, new Map());
        for (const [epoch, value] of own) known.metrics.get(name).set(epoch, value);
      }
      this.trials.set(trial, { time, trial, state, params, values, step, workers, note, points: known.points, metrics: known.metrics });
    }
    this.dirty = true;
  }

  // What a search has come to, for the line under its name.
  facts(search) {
    const all = [...this.trials.values()];
    const epochs = all.reduce((sum, each) => sum + Math.max(0, each.step), 0);
    const active = all.filter((each) => ACTIVE.has(each.state));
    const workers = active.reduce((sum, each) => sum + each.workers, 0);
    return [
      `${all.length} of ${Math.max(all.length, search.trials)} trials`, active.length && `${active.length} at work on ${workers} worker${workers === 1 ? "" : "s"}`,
      `${count(epochs)} of ${count(search.trials * search.epochs)} epochs`,
    ];
  }

  draw() {
    if (!this.dirty) return;
    this.dirty = false;
    show(this.element, this.trials.size);
    if (!this.trials.size) return;
    const all = this.sorted();
    this.drawTable(all);
    const lines = this.lines();
    show(this.curves, lines.length);
    if (lines.length) this.drawPlot(lines);
    this.own.draw(this.trials.get(this.selected));
    this.parameters.draw();
  }

  // -- the table ---------------------------------------------------------------------------------------------------

  columns() {
    const all = [...this.trials.values()];
    const params = [...new Set(all.flatMap((each) => Object.keys(each.params)))];
    const same = all.every((each) => (each.values.best ?? null) === (each.values.last ?? null));
    const values = same && this.view.run.search ? [] : [...new Set(all.flatMap((each) => Object.keys(each.values)))];
    const metrics = [...new Set(all.flatMap((each) => [...each.metrics.keys()]))];
    return [
      ["trial", (t) => t.trial], ["state", (t) => t.state], [this.view.run.search ? "epoch" : "step", (t) => (t.step < 0 ? null : t.step)],
      ["workers", (t) => t.workers || null], ...(values.length ? [] : [["value", (t) => t.values.last]]), ...values.map((name) => [name, (t) => t.values[name]]),
      ...metrics.map((name) => [name, (t) => t.metrics.get(name)?.get(Math.max(...t.metrics.get(name).keys()))]), ...params.map((name) => [name, (t) => t.params[name]]),
    ];
  }

  sorted() {
    const columns = this.columns();
    const of = columns.find(([name]) => name === this.by)?.[1] ?? columns[0][1];
    const order = (a, b) => (a == null ? 1 : b == null ? -1 : a < b ? -1 : a > b ? 1 : 0);
    return [...this.trials.values()].sort((a, b) => order(of(a), of(b)) * (this.down && of(a) != null && of(b) != null ? -1 : 1) || a.trial - b.trial);
  }

  drawTable(all) {
    const columns = this.columns();
    const key = columns.map(([name]) => name).join() + this.by + this.down + this.mayOrder;
    const focused = document.activeElement;
    const at = this.body.contains(focused) && focused.matches("tr") && focused.dataset.trial;
    if (key !== this.drawn) {
      this.drawn = key;
      this.drawHead(columns);
      this.rows.clear();
    }
    const best = this.best();
    const rows = all.map((each) => {
      const row = this.rows.get(each.trial) ?? this.rows.set(each.trial, this.row(each, columns.length)).get(each.trial);
      columns.forEach(([, get], i) => text(row.cells[i], cell(get(each))));
      row.element.className = `${each.state}${each.trial === best ? " best" : ""}${each.trial === this.lit ? " lit" : ""}`;
      row.element.setAttribute("aria-selected", String(each.trial === this.selected));
      row.element.title = each.note || "";
      row.line.setAttribute("stroke-dasharray", each.trial === best ? "none" : dash(each.trial).join(" ") || "none");
      if (row.pause) this.drawButtons(row, each);
      return row.element;
    });
    text(this.count, best == null ? "" : `best: trial ${best}`);
    const there = [...this.body.children];
    if (rows.length !== there.length || rows.some((row, i) => row !== there[i])) {
      this.body.replaceChildren(...rows);
      if (this.body.contains(focused)) focused.focus();
      else if (at) this.rows.get(Number(at))?.element.focus();
    }
  }

  drawHead(columns) {
    const head = columns.map(([name]) => {
      const sorted = name === this.by ? (this.down ? "descending" : "ascending") : "none";
      const button = h("button", { type: "button", class: "plain", onclick: () => this.sort(name) }, name);
      return h("th", { scope: "col", "aria-sort": sorted }, button);
    });
    const acts = this.mayOrder ? [h("th", { scope: "col" }, h("span", { class: "unseen" }, "orders"))] : [];
    this.head.replaceChildren(h("tr", {}, ...head, ...acts));
  }

  row(each, width) {
    const cells = Array.from({ length: width }, () => h("td"));
    const first = h("span");
    const piece = sample(each.trial, this.view.dark);
    cells[0].append(piece, first);
    const row = { line: piece.firstChild, cells: [first, ...cells.slice(1)], acts: h("td", { class: "acts" }) };
    if (this.mayOrder) {
      const label = (verb) => `${verb} trial ${each.trial}`;
      row.pause = h("button", { type: "button", class: "small", "aria-label": label("pause"), onclick: () => this.order(row.verb, each.trial) }, "pause");
      row.stop = h("button", { type: "button", class: "small stop", "aria-label": label("stop"), onclick: () => this.stop(row, each.trial) }, "stop");
      row.again = h("button", { type: "button", class: "small", "aria-label": `begin trial ${each.trial} again`, onclick: () => this.order("repeat", each.trial) }, "again");
      row.acts.append(row.pause, row.stop, row.again);
    }
    const acts = {
      onclick: (event) => event.target.closest("button") || this.select(each.trial),
      onmouseenter: () => this.light(each.trial), onfocus: () => this.light(each.trial),
    };
    row.element = h("tr", { tabindex: "0", "data-trial": each.trial, ...acts }, ...cells, ...(this.mayOrder ? [row.acts] : []));
    return row;
  }

  drawButtons(row, each) {
    const held = each.state === "held" || each.state === "pausing";
    row.verb = held ? "resume" : "pause";
    text(row.pause, row.verb);
    row.pause.setAttribute("aria-label", `${row.verb} trial ${each.trial}`);
    show(row.pause, !this.view.paused && (held || each.state === "running" || each.state === "waiting"));
    row.end = each.state === "stopping" ? "end at once" : "stop";
    row.stop.setAttribute("aria-label", row.end.replace(/^\w+/, `$& trial ${each.trial}`));
    if (!row.stop.classList.contains("sure")) text(row.stop, row.end);
    show(row.stop, !OVER.has(each.state));
    show(row.again, OVER.has(each.state));
    for (const button of [row.pause, row.stop, row.again]) button.disabled = this.view.link !== "open";
  }

  get mayOrder() {
    return Boolean(this.view.mayOrder && this.view.run.search && this.view.state.state !== "ended");
  }

  order(verb, trial) {
    this.view.order(`${verb}-trial`, 0, trial);
  }

  stop(row, trial) {
    clearTimeout(row.sure);
    if (row.stop.classList.toggle("sure")) {
      text(row.stop, "really?");
      row.sure = setTimeout(() => this.unsure(row), SURE_MS);
    } else {
      text(row.stop, row.end);
      this.order("stop", trial);
    }
  }

  unsure(row) {
    row.stop.classList.remove("sure");
    text(row.stop, row.end);
  }

  sort(name) {
    this.down = this.by === name && !this.down;
    this.by = name;
    this.dirty = true;
    this.draw();
    [...this.head.querySelectorAll("button")].find((each) => each.textContent === name)?.focus();
  }

  // -- one trial ---------------------------------------------------------------------------------------------------

  // Show all curves of a trial; of the one that is shown already, none.
  select(trial) {
    this.selected = trial === this.selected ? null : trial;
    this.dirty = true;
    this.draw();
  }

  // Light a trial's row and its line; those of no trial: all lines are as they were.
  light(trial, fromPlot = false) {
    if (trial === this.lit) return;
    this.rows.get(this.lit)?.element.classList.remove("lit");
    this.lit = trial;
    const row = this.rows.get(trial)?.element;
    row?.classList.add("lit");
    this.parameters.light(trial);
    if (row && fromPlot && (row.offsetTop < this.scroll.scrollTop + row.offsetHeight || row.offsetTop + row.offsetHeight > this.scroll.scrollTop + this.scroll.clientHeight))
      this.scroll.scrollTop = row.offsetTop - this.scroll.clientHeight / 2;
    if (fromPlot) return;
    const line = this.drawnLines?.indexOf(trial);
    this.uplot?.setSeries(line >= 0 ? line + 1 : null, { focus: true });
  }

  key(event) {
    if (!event.target.matches("tr")) return;
    const at = { ArrowUp: event.target.previousElementSibling, ArrowDown: event.target.nextElementSibling, Home: this.body.firstElementChild, End: this.body.lastElementChild }[event.key];
    if (at) at.focus();
    else if (event.key === "Enter" || event.key === " ") this.select(Number(event.target.dataset.trial));
    else if (event.key !== "Escape" || this.selected == null) return;
    else this.select(this.selected);
    if (at && this.selected != null) this.select(Number(at.dataset.trial));
    event.preventDefault();
    event.stopPropagation();
  }

  // By which small values are good.
  get sign() {
    return this.view.run.search?.minimize === false ? -1 : 1;
  }

  best() {
    const done = [...this.trials.values()].filter((each) => each.state === "complete" && each.values.last != null);
    return done.sort((a, b) => this.sign * (a.values.last - b.values.last))[0]?.trial;
  }

  // -- the curves --------------------------------------------------------------------------------------------------

  lines() {
    const all = [...this.trials.values()].filter((each) => each.points.size);
    const best = this.best();
    const rank = (each) => (ACTIVE.has(each.state) ? -Infinity : each.values.best == null ? Infinity : this.sign * each.values.best);
    return all.sort((a, b) => rank(a) - rank(b) || b.step - a.step).slice(0, MOST_LINES).sort((a, b) => (a.trial === best) - (b.trial === best) || a.trial - b.trial); // the best over the others
  }

  drawPlot(lines) {
    const key = `${lines.map((each) => each.trial + each.state)}${this.view.dark}${this.log}${this.best()}${this.selected}`;
    const tables = lines.map((each) => {
      const sorted = [...each.points].sort((a, b) => a[0] - b[0]);
      return [sorted.map((point) => point[0]), sorted.map(([, value]) => (this.log && !(value > 0) ? null : value))];
    });
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    if (this.uplot && key === this.plotKey) return this.uplot.setData(data);
    this.uplot?.destroy();
    this.plotKey = key;
    this.uplot = this.make(lines, data);
    this.plot.setAttribute("aria-label", `values of ${lines.length} trials by epoch; the table below has them`);
  }

  make(lines, data) {
    const best = this.best();
    this.drawnLines = lines.map((each) => each.trial);
    const series = lines.map((each) => ({
      label: `trial ${each.trial}`, dash: each.trial === best ? [] : dash(each.trial), spanGaps: true, width: each.trial === best ? 3 : each.trial === this.selected ? 2.5 : 1.5,
      stroke: colour(each.trial, this.view.dark) + (ACTIVE.has(each.state) || each.trial === best || each.trial === this.selected ? "" : "80"),
      points: { show: each.points.size < 3 && !this.log, size: 5 },
    }));
    const near = (_, line) => this.light(line == null ? null : this.drawnLines[line - 1], true);
    return new uPlot(
      {
        ...overEpochs(this.plot, HEIGHT, this.log), focus: { alpha: 0.3 }, hooks: { setSeries: [near] },
        cursor: { drag: { x: true, y: false }, points: { size: 6 }, focus: { prox: NEAR } },
        series: [{ label: "epoch" }, ...series],
      },
      data, this.plot,
    );
  }

  toggle() {
    this.log = !this.log;
    this.logButton.setAttribute("aria-pressed", String(this.log));
    this.dirty = true;
    this.draw();
  }

  themed() {
    this.rows.clear();
    this.dirty = true;
    this.draw();
  }

  resize() {
    const width = Math.max(200, this.plot.clientWidth);
    if (this.uplot && this.uplot.width !== width) this.uplot.setSize({ width, height: HEIGHT });
    this.own.resize();
  }

  close() {
    this.uplot?.destroy();
    this.own.close();
  }
}

const cell = (value) => (typeof value === "number" ? number(value) : value == null ? "" : String(value));
