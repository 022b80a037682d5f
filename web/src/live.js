// The live view of a training: one module (an anywidget front-end module) for the plain page and for notebooks.

import "uplot/dist/uPlot.min.css";
import "./live.css";
import { Chart } from "./chart.js";
import { connect } from "./connection.js";
import { Controls } from "./controls.js";
import { Curves } from "./curves.js";
import { h, keep, kept, show, text } from "./dom.js";
import { clock, count, number, plural, script, span } from "./format.js";
import { About, Comparison, formed, Membership, Output } from "./panels.js";
import { layOut } from "./rows.js";
import { Trials } from "./search.js";

const SURE_MS = 5000;
const LATE_MS = 3000;
const BUSY_MS = 1500; // after which a kernel that has not answered runs a cell
const FRAME_MS = 8; // of a frame, for drawing charts; what is left waits for the next one
const HIDDEN = /_(low|high)$/;
const NO_CHART = /^epochs?$/; // they fill the bar above
const LAST = ["samples_per_s", "step_s", "wait_s", "input_s", "noise_scale"];
let views = 0;

class View {
  constructor(model, el) {
    this.model = model;
    this.el = el;
    this.sync = `farandole-${views++}`;
    this.curves = new Curves();
    this.charts = new Map();
    this.marks = [];
    this.members = [];
    this.hidden = new Set();
    this.chosen = new Set();
    this.byTime = false;
    this.run = { began: Date.now() / 1000 };
    this.state = { state: "starting", step: 0, size: 0 };
    this.link = "loading";
    this.role = null;
    this.frames = [];
    this.pending = new Map();
    this.dark = false;
    this.build();
    this.watchTheme();
    this.watchSize();
    this.ticker = setInterval(() => this.tick(), 1000);
    this.connection = connect(model, {
      message: (message) => this.take(message),
      state: (state, why) => this.linkIs(state, why),
    });
  }

  get began() {
    return this.run.began;
  }

  named(rank) {
    return this.run.runs?.names[rank] ?? `rank ${rank}`;
  }

  get most() {
    return Math.max(this.state.size, ...this.members.map((each) => each.size), 0);
  }

  // -- what stands there -----------------------------------------------------------------------------------------

  build() {
    this.name = h("h1", {}, "training");
    this.pill = h("span", { class: "pill", role: "status" }, "loading");
    this.facts = h("p", { class: "facts" });
    this.bar = h("progress", { class: "goal", max: "1", "aria-label": "epochs", hidden: true });
    this.news = h("p", { class: "news", role: "status", "aria-live": "polite" });
    this.said = h("p", { class: "unseen", "aria-live": "polite" });
    this.banner = h("div", { class: "banner", role: "alert", hidden: true });
    this.buildButtons();
    this.controls = new Controls(this);
    this.grid = h("div", { class: "grid" });
    this.moreButton = h("button", { type: "button", class: "small more", onclick: () => this.showMore(!kept("more", false)) }, "more");
    this.membership = new Membership();
    this.output = new Output();
    this.trials = new Trials(this);
    this.about = new About();
    this.comparison = new Comparison();
    this.skeleton = h("div", { class: "skeleton", "aria-hidden": "true" }, ...[1, 2, 3].map(() => h("div", { class: "card ghost" })));
    this.empty = h(
      "div", { class: "card empty", hidden: true },
      h("h3", {}, "No numbers yet"),
      h("p", {}, "The optimizer's step times come by themselves with its first steps. For more, log them in the script, on any rank:"),
      h("pre", {}, "hvd.log(loss=loss, acc=hits / len(x))"),
    );
    this.body = h("div", { class: "body" }, this.comparison.element, this.controls.element, this.skeleton, this.empty, this.grid, this.moreButton, this.trials.element, this.membership.element, this.output.element, this.about.element);
    const head = h("header", { class: "top" }, h("div", { class: "title" }, this.name, this.pill), this.facts, this.bar, this.buttons);
    this.root = h("div", { class: "farandole" }, head, this.news, this.said, this.banner, this.body);
    this.showMore(kept("more", false));
    this.keys = this.model.get("address") ? document : this.root; // nothing else on a plain page wants them
    this.keyed = (event) => this.shortcut(event);
    this.keys.addEventListener("keydown", this.keyed);
    this.el.append(this.root);
  }

  buildButtons() {
    const button = (name, key, run, hint) =>
      h("button", { type: "button", class: name, onclick: run, title: `${hint} (key ${key})`, "aria-keyshortcuts": key }, name);
    this.pauseButton = button("pause", "p", () => this.order(this.paused ? "resume" : "pause"), "after the step that is under way, on all ranks");
    this.saveButton = button("checkpoint", "c", () => this.order("checkpoint"), "the script saves one after the same step on all ranks");
    this.stopButton = button("stop", "s", () => this.stop(), "ends the training after the same step on all ranks");
    this.size = h("input", { type: "number", min: "1", max: "9999", "aria-label": "number of workers", value: "1" });
    this.resizeForm = h(
      "form", { class: "scale", onsubmit: (event) => { event.preventDefault(); this.order("scale", Number(this.size.value)); } },
      this.size, h("button", { type: "submit", title: "another number of workers, from the next commit on" }, "resize"),
    );
    this.endButton = h("button", { type: "button", class: "end", hidden: true, onclick: () => this.order("end"), title: "SIGTERM to all workers" }, "end at once");
    this.share = h("button", { type: "button", class: "small share", onclick: () => this.copy(), title: "copies a link with which one can watch, and order nothing" }, "view-only link");
    this.onlyLook = h("span", { class: "badge", hidden: true }, "view-only");
    this.buttons = h("div", { class: "buttons", hidden: true }, this.pauseButton, this.saveButton, this.resizeForm, this.stopButton, this.endButton, this.share, this.onlyLook);
  }

  // In a notebook, beside its cells, what is asked for; a page of its own has all.
  showMore(more) {
    const isNotebook = !this.model.get("address");
    show(this.moreButton, isNotebook);
    if (isNotebook) keep("more", more);
    text(this.moreButton, more ? "less" : "more");
    this.moreButton.setAttribute("aria-expanded", String(more));
    this.root.classList.toggle("compact", isNotebook && !more);
  }

  // -- the connection --------------------------------------------------------------------------------------------

  linkIs(state, why) {
    const before = this.link;
    this.link = state;
    if (state === "lost" && before !== "lost") this.lostAt = Date.now();
    if (state === "refused") this.why = why;
    this.drawState();
    this.trials.dirty = true; // its buttons work while there is a connection
    this.redraw();
  }

  take(message) {
    this[`on_${message.t}`]?.(message);
    this.redraw();
  }

  on_hello(message) {
    this.role = message.role;
    this.mayOrder = message.orders;
    this.look = message.look;
    this.curves.clear();
    this.output.clear();
    this.trials.clear();
    this.marks = [];
    this.members = [];
    this.isFresh = true;
  }

  on_run(message) {
    this.run = message.info;
    this.state = message;
    text(this.name, message.info.runs ? message.info.command.join(" · ") : script(message.info.command));
    if (message.info.runs) this.comparison.draw(message.info.runs, this.dark);
    if (message.info.search) this.ofSearch();
    this.about.draw(message.info);
    this.drawState();
  }

  // Words of a training do not fit.
  ofSearch() {
    this.pauseButton.title = "all trials at their next report (key p)";
    this.stopButton.title = "ends the search; the same call goes on (key s)";
    this.empty.replaceChildren(h("h3", {}, "No trials yet"), h("p", {}, "The first one begins when its workers have come."));
  }

  on_ready() {
    this.isReady = true;
    if (this.chosen.size) this.connection.send({ t: "ranks", ranks: [...this.chosen] });
    this.redrawCharts();
    this.drawState();
  }

  on_state(message) {
    this.state = { ...this.state, slow: null, goal: null, ...message };
    this.drawState();
  }

  on_members({ members }) {
    if (!members.length) return;
    this.members = [...this.members, ...members].slice(-500);
    this.state.size = this.members.at(-1).size;
    if (this.resizes) this.resizes = this.tellNews(`resized: ${plural(this.state.size, "rank")} now`, "acted");
    if (document.activeElement !== this.size) this.size.value = this.state.size;
    this.touched = true;
  }

  on_marks(message) {
    this.marks.push(...message.marks);
    this.marks = this.marks.slice(-500);
    this.touched = true;
    this.redrawCharts();
  }

  on_trials(message) {
    this.trials.take(message.trials);
  }

  on_output(message) {
    this.output.take(message.lines);
  }

  on_curve(message) {
    this.curves.take(message);
    if (NO_CHART.test(message.name) && this.state.goal) return;
    if (HIDDEN.test(message.name)) message = { ...message, name: message.name.replace(HIDDEN, "") };
    const chart = this.charts.get(message.name);
    if (chart) chart.dirty = true;
    else this.addChart(message.name);
  }

  on_order(message) {
    const [, number_, verb, state, said, step, time] = message.order;
    if (this.isFresh && !this.isReady) return;
    clearTimeout(this.busy);
    clearTimeout(this.pending.get(number_));
    if (state === "taken") {
      this.tellNews(`${this.words(verb)}: ${said}`, "taken");
      this.pending.set(number_, setTimeout(() => this.late(verb), LATE_MS));
      return;
    }
    this.pending.delete(number_);
    this.endButton.hidden = true;
    const words = state === "refused" ? `${this.words(verb)} is refused: ${said}` : this.outcome(verb, step, said);
    this.tellNews(words, state);
    this.resizes = verb === "scale" && state === "acted";
  }

  on_ordered(message) {
    clearTimeout(this.busy);
    if (!this.pending.has(message.number)) this.pending.set(message.number, setTimeout(() => this.late(message.verb), LATE_MS));
  }

  on_refused(message) {
    clearTimeout(this.busy);
    this.tellNews(message.text, "refused");
  }

  outcome(verb, step, said) {
    const done = { stop: "stopped", pause: "paused", resume: "resumed", checkpoint: "checkpoint" }[verb];
    return this.run.search ? said : done && step >= 0 ? `${done} at step ${count(step)}` : `${this.words(verb)}: ${said}`;
  }

  words(verb) {
    const trial = this.asked?.[verb] >= 0 ? ` trial ${this.asked[verb]}` : " a trial";
    return verb === "scale" ? "resize" : verb.replace("-trial", trial);
  }

  late(verb) {
    if (this.state.state === "ended" || this.link !== "open" || this.run.search) return;
    this.tellNews(`${this.words(verb)}: no step has ended yet. A script without an optimizer of Farandole never obeys it.`, "taken");
    if (verb === "stop") this.endButton.hidden = false;
  }

  tellNews(words, kind) {
    this.news.dataset.kind = kind;
    text(this.news, words);
  }

  announce(words) {
    text(this.said, words);
  }

  // -- orders ----------------------------------------------------------------------------------------------------

  get paused() {
    return /^paus/.test(this.state.state);
  }

  order(verb, workers = 0, trial = -1) {
    if (!this.mayOrder || this.state.state === "ended") return;
    this.asked = { [verb]: trial };
    if (!this.connection.send({ t: "order", verb, workers, trial })) return this.tellNews("not sent: the connection is lost", "refused");
    this.tellNews(`${this.words(verb)}: sent`, "taken");
    clearTimeout(this.busy);
    if (this.connection.byKernel()) this.busy = setTimeout(() => this.waits(verb), BUSY_MS);
  }

  waits(verb) {
    this.tellNews(`${this.words(verb)}: waits for the kernel, which runs a cell. Interrupt the cell for it to be obeyed now`, "taken");
  }

  stop() {
    if (this.sure) {
      this.unsure();
      this.order("stop");
      return;
    }
    text(this.stopButton, "really stop?");
    this.stopButton.classList.add("sure");
    this.sure = setTimeout(() => this.unsure(), SURE_MS);
  }

  unsure() {
    clearTimeout(this.sure);
    this.sure = null;
    text(this.stopButton, "stop");
    this.stopButton.classList.remove("sure");
  }

  shortcut(event) {
    if (event.key === "Escape" && this.sure) return this.unsure();
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const button = { p: this.pauseButton, c: this.saveButton, s: this.stopButton }[event.key];
    if (!button || button.disabled || button.hidden || this.buttons.hidden || !this.mayOrder) return;
    event.preventDefault();
    event.stopPropagation();
    button.click();
    button.focus();
  }

  async copy() {
    const here = this.model.get("address") || location.href.split("#")[0];
    const link = `${here}${this.look}`;
    try {
      await navigator.clipboard.writeText(link);
      this.tellNews("view-only link copied", "acted");
    } catch {
      const field = h("input", { class: "link", readonly: true, value: link, "aria-label": "view-only link" });
      this.share.replaceWith(field);
      field.select();
    }
  }

  // -- drawing ---------------------------------------------------------------------------------------------------

  addChart(name) {
    const chart = new Chart(name, this);
    this.charts.set(name, chart);
    const rank = (each) => (each === "loss" ? -3 : each.includes("loss") ? -2 : LAST.indexOf(each));
    const following = [...this.charts.values()].filter((each) => rank(each.name) > rank(name)).sort((a, b) => rank(a.name) - rank(b.name))[0];
    this.grid.insertBefore(chart.element, following?.element ?? null);
    layOut(this.grid);
    this.seen?.observe(chart.element);
    this.sizes?.observe(chart.plot); // which its head may leave less room
  }

  chartMarks() {
    const resizes = this.members.slice(1).map((each) => ({ ...each, kind: "resize", text: formed(each) }));
    return [...this.marks.filter((each) => each.kind !== "note"), ...(this.byTime ? resizes : [])];
  }

  redrawCharts() {
    for (const chart of this.charts.values()) chart.dirty = true;
    this.redraw();
  }

  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const begin = performance.now();
      this.controls.draw();
      this.trials.draw();
      if (this.touched) {
        this.touched = false;
        this.membership.draw(this.members, this.marks, this.began, this.now);
      }
      let waits = false;
      for (const chart of this.charts.values()) {
        if (!chart.dirty || !chart.seen) continue;
        if (performance.now() - begin > FRAME_MS) waits = true;
        else chart.draw();
      }
      this.frames.push(performance.now() - begin);
      if (this.frames.length > 2000) this.frames.splice(0, 1000);
      this.drawState();
      if (waits) this.redraw();
    });
  }

  get now() {
    return this.state.state === "ended" ? this.state.ended : Date.now() / 1000;
  }

  drawState() {
    const { state, step, size, samples, lost } = this.state;
    const link = this.link;
    const shown = link === "open" || link === "over" ? this.stateShown : link === "loading" ? "loading" : link === "lost" ? "connection lost" : "no access";
    text(this.pill, shown);
    this.root.dataset.state = shown.replace(" ", "-");
    const isKnown = link !== "refused" && this.isReady;
    const isOne = isKnown && !this.run.runs;
    const search = this.run.search;
    const facts = isKnown && !isOne ? ["the mean of the ranks of each run"] : isKnown && search
      ? [...this.trials.facts(search), span(this.now - this.began)]
      : isKnown ? [`step ${count(step)}`, size ? plural(size, "rank") : "", span(this.now - this.began), samples ? `${count(samples)} samples per rank` : "", ...this.progress(), lost ? `${count(lost)} values dropped` : ""]
      : [];
    this.drawTitle(shown);
    text(this.facts, facts.filter(Boolean).join(" · "));
    this.drawBanner(link, state);
    show(this.skeleton, link === "loading" || (link === "open" && !this.isReady));
    show(this.empty, isKnown && !this.charts.size && !this.trials.trials.size && state !== "ended");
    show(this.body, link !== "refused");
    show(this.controls.element, isKnown && this.charts.size > 0);
    const over = state === "ended" || link === "over";
    show(this.buttons, isKnown && !over);
    show(this.onlyLook, !this.mayOrder);
    for (const each of [this.pauseButton, this.saveButton, this.stopButton]) show(each, Boolean(this.mayOrder && (!search || each !== this.saveButton)));
    show(this.share, Boolean(this.mayOrder && this.look));
    show(this.resizeForm, Boolean(this.mayOrder && this.state.resizable));
    for (const each of this.buttons.querySelectorAll("button, input")) each.disabled = link !== "open" || state === "stopping" || state === "between cells";
    this.endButton.disabled = link !== "open";
    this.saveButton.disabled ||= this.paused;
    text(this.pauseButton, this.paused ? "resume" : "pause");
    for (const each of [this.membership, this.output, this.about]) show(each.element, Boolean(isOne && (!search || each !== this.output)));
    if (search && isKnown) this.membership.ofSearch();
    if (isKnown && !this.wasKnown) {
      this.output.settle();
      this.touched = true;
    }
    this.wasKnown = isKnown;
  }

  get stateShown() {
    const { state, status, stopped } = this.state;
    return this.run.runs ? "compared" : state !== "ended" ? state : stopped ? "stopped" : status ? "failed" : state;
  }

  // How far the training has come, as the script tells by epochs, with the time that is left if it goes on like this.
  progress() {
    const { goal, slow, state } = this.state;
    show(this.bar, goal);
    const late = slow && `rank ${slow.rank} is ${slow.times}× slower`;
    if (!goal) return [late];
    this.bar.value = goal.done / goal.whole;
    const left = goal.done && state !== "ended" && (this.now - this.began) * (goal.whole / goal.done - 1);
    return [`epoch ${number(goal.done)} of ${number(goal.whole)}`, left && `about ${span(left)} left`, late];
  }

  // Of a tab of its own, so that it is found among others.
  drawTitle(shown) {
    if (!this.model.get("address") || !this.isReady) return;
    const { goal } = this.state;
    const part = goal && shown === "running" ? `${Math.floor((100 * goal.done) / goal.whole)} %` : shown;
    document.title = `${part} · ${this.name.textContent}`;
  }

  goes(link) {
    const { until } = this.state;
    return until && link === "open" ? `This page and links to it stay until ${clock(until)}; then` : "This page has ended with it:";
  }

  drawBanner(link, state) {
    let words = "";
    let kind = "";
    if (this.run.runs && link !== "refused" && link !== "lost") {
      words = "";
    } else if (link === "refused") {
      words = "This link opens nothing (any more): its run is over, or a part of the link is missing. The link of a run is printed when it begins; 'farandole runs open FOLDER' shows one that is over.";
      kind = "bad";
    } else if (link === "lost") {
      words = `The connection was lost at ${clock(this.lostAt / 1000)}. What stands here is of then; the ${this.run.search ? "search" : "training"} may well go on. Trying again…`;
      kind = "warn";
    } else if (state === "ended") {
      const { status, words: why, ended, stopped } = this.state;
      const where = this.run.search ? "" : `, after step ${count(this.state.step)}`;
      if (status === null) words = `The record ends at ${clock(ended)}${where}. ${why}`;
      else if (stopped) words = `The run was stopped by an order from its page at ${clock(ended)}${where}.`;
      else words = status === 0 ? `The ${this.run.search ? "search" : "run"} has ended well at ${clock(ended)}${where}. ${why}` : `The run ended at ${clock(ended)} with status ${status}${where}. ${why}`;
      if (this.run.record && !this.connection.byKernel()) words += `\n${this.goes(link)} farandole runs open ${this.run.record} shows it again.`;
      kind = stopped ? "" : status === 0 ? "good" : "bad";
    } else if (link === "over") {
      words = "The run is over.";
    } else if (state === "re-forming") {
      words = "A generation has ended; the workers form the next one.";
      kind = "warn";
    } else if (state === "between cells" && this.isReady) {
      words = "No cell runs on the ranks. Buttons work while one does, at the end of a step.";
    } else if (state === "starting" && this.isReady) {
      words = "The workers are starting.";
    }
    const key = kind + words;
    if (this.bannerKey === key) return;
    this.bannerKey = key;
    this.banner.dataset.kind = kind;
    this.banner.replaceChildren(h("span", {}, words));
    if (link === "lost") this.banner.append(h("button", { type: "button", class: "small", onclick: () => this.connection.now() }, "now"));
    show(this.banner, Boolean(words));
  }

  tick() {
    if (document.hidden) return;
    if (this.link === "open" && this.state.state !== "ended" && this.isReady) this.touched = true;
    this.redraw();
  }

  // -- what is around --------------------------------------------------------------------------------------------

  watchTheme() {
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.themed = () => {
      const host = document.querySelector("[data-jp-theme-light]")?.dataset.jpThemeLight;
      const dark = host ? host === "false" : this.scheme.matches;
      this.root.dataset.theme = dark ? "dark" : "light";
      if (dark === this.dark) return;
      this.dark = dark;
      for (const chart of this.charts.values()) chart.remake();
      this.trials.themed();
      if (this.run.runs) this.comparison.draw(this.run.runs, dark);
      this.redraw();
    };
    this.scheme.addEventListener("change", this.themed);
    this.observer = new MutationObserver(this.themed);
    this.observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    this.themed();
  }

  watchSize() {
    this.sizes = new ResizeObserver(() => {
      layOut(this.grid);
      for (const chart of this.charts.values()) chart.resize();
      this.trials.resize();
      this.touched = true;
      this.redraw();
    });
    this.sizes.observe(this.body);
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const chart = this.charts.get(entry.target.dataset.name);
        if (chart) chart.seen = entry.isIntersecting;
      }
      this.redraw();
    }, { rootMargin: "200px" });
  }

  close() {
    clearInterval(this.ticker);
    clearTimeout(this.busy);
    cancelAnimationFrame(this.frame);
    for (const timer of this.pending.values()) clearTimeout(timer);
    this.connection.close();
    this.keys.removeEventListener("keydown", this.keyed);
    this.scheme.removeEventListener("change", this.themed);
    for (const each of [this.observer, this.sizes, this.seen]) each.disconnect();
    for (const chart of this.charts.values()) chart.close();
    this.trials.close();
    this.root.remove();
  }
}

function render({ model, el }) {
  const view = new View(model, el);
  el.farandole = view;
  return () => view.close();
}

export default { render };
