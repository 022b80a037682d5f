// What is no curve: membership over time, events, output, and the description of the run.

import { sample } from "./chart.js";
import { h, s, show, text } from "./dom.js";
import { clock, count, plural, SIGNS, span } from "./format.js";

const HEIGHT = 110;
const PAD = { left: 34, right: 10, top: 12, bottom: 22 };
const MOST_ROWS = 200;

const on = ({ size, hosts }) => `${plural(size, "rank")} on ${hosts.slice(0, 4).join(", ")}${hosts.length > 4 ? ", …" : ""}`;
export const formed = (member) => `generation ${member.generation}: ${on(member)}`;

// The number of ranks over time as steps, with a mark where something happened.
export class Membership {
  constructor() {
    this.picture = s("svg", { role: "img", "aria-label": "number of ranks over time" });
    this.rows = h("tbody");
    this.only = h("span", { class: "quiet" });
    this.table = h(
      "table", { class: "events" },
      h("thead", {}, h("tr", {}, ...["", "time", "step", "what"].map((name) => h("th", { scope: "col" }, name)))),
      this.rows,
    );
    const list = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "what has happened" }, this.table);
    this.title = h("h3", {}, "ranks, faults and orders");
    this.element = h("section", { class: "card wide" }, h("header", {}, this.title, this.only), this.picture, list);
  }

  // Of a search: its trials have members, and it has none.
  ofSearch() {
    this.picture.remove();
    this.table.classList.add("stepless");
    text(this.title, "what has happened");
  }

  // A picture once they have changed, a list once anything has happened; else a line.
  draw(members, marks, began, now) {
    const [first] = members;
    const isQuiet = members.length < 2 && !marks.length;
    text(this.only, !isQuiet ? "" : first ? `${on(first)} since ${clock(first.time)}` : "nothing has happened yet");
    show(this.table, !isQuiet);
    show(this.picture, members.length > 1);
    if (members.length > 1) this.drawPicture(members, marks, began, now);
    this.list(members, marks);
  }

  drawPicture(members, marks, began, now) {
    const WIDTH = Math.max(240, this.element.clientWidth - 26);
    this.picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const end = Math.max(now, began + 1);
    const most = Math.max(1, ...members.map((each) => each.size));
    const x = (time) => PAD.left + ((Math.max(time, began) - began) / (end - began)) * (WIDTH - PAD.left - PAD.right);
    const y = (size) => HEIGHT - PAD.bottom - (size / most) * (HEIGHT - PAD.top - PAD.bottom);
    let path = `M${x(began)},${y(0)}`;
    for (const each of members) path += `H${x(each.time).toFixed(1)}V${y(each.size).toFixed(1)}`;
    path += `H${x(end)}`;
    const ticks = [0, most].map((size) =>
      s("text", { x: PAD.left - 6, y: y(size) + 4, "text-anchor": "end", class: "tick" }, String(size)),
    );
    const times = [0, 0.5, 1].map((part) => {
      const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
      return s("text", { x: x(began + part * (end - began)), y: HEIGHT - 6, "text-anchor": anchor, class: "tick" }, span(part * (end - began)));
    });
    const signs = marks.filter((each) => each.kind !== "note").slice(-60).map((each) =>
      s("g", { class: `mark ${each.kind}` },
        s("line", { x1: x(each.time), x2: x(each.time), y1: PAD.top, y2: HEIGHT - PAD.bottom }),
        s("text", { x: x(each.time), y: PAD.top - 2, "text-anchor": "middle" }, SIGNS[each.kind] ?? "·"),
        s("title", {}, `${clock(each.time)} ${each.text}`)),
    );
    this.picture.replaceChildren(
      s("path", { d: `M${PAD.left},${y(0)}H${WIDTH - PAD.right}`, class: "base" }),
      s("path", { d: `${path}V${y(0)}Z`, class: "area" }), s("path", { d: path, class: "line" }), ...ticks, ...times, ...signs,
    );
  }

  list(members, marks) {
    const resizes = members.map((each) => ({ time: each.time, kind: "resize", step: null, text: formed(each) }));
    const all = [...resizes, ...marks].sort((a, b) => b.time - a.time).slice(0, MOST_ROWS);
    this.rows.replaceChildren(...all.map((each) =>
      h("tr", { class: each.kind },
        h("td", { "aria-label": each.kind, title: each.kind }, SIGNS[each.kind] ?? "·"),
        h("td", {}, clock(each.time)),
        h("td", {}, each.step == null ? "" : count(each.step)),
        h("td", {}, each.text)),
    ));
  }
}

// The last lines that the workers have printed.
export class Output {
  constructor() {
    this.lines = [];
    this.rank = "";
    this.pre = h("pre", { class: "output", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "output of the workers" });
    this.select = h("select", { "aria-label": "output of which rank", onchange: () => this.filter() }, h("option", { value: "" }, "all ranks"));
    this.element = h("section", { class: "card wide" }, h("header", {}, h("h3", {}, "output"), this.select), this.pre);
    this.ranks = new Set();
    this.follows = true;
    this.pre.addEventListener("scroll", () => {
      if (this.pre.clientHeight) this.follows = this.pre.scrollTop + this.pre.clientHeight >= this.pre.scrollHeight - 20;
    });
  }

  settle() {
    if (this.follows) this.pre.scrollTop = this.pre.scrollHeight;
  }

  clear() {
    this.lines = [];
    this.pre.replaceChildren();
  }

  take(lines) {
    for (const each of lines) {
      each.line = each.line.replace(/\x1b\[[0-9;]*[A-Za-z]/g, "");
      const rank = /^(?:\S+ \S+ )?\[(\d+)\](?:<\w+>)?:/.exec(each.line)?.[1];
      each.rank = rank ?? "";
      if (rank && !this.ranks.has(rank) && this.ranks.size < 512) {
        this.ranks.add(rank);
        this.select.append(h("option", { value: rank }, `rank ${rank}`));
      }
      this.lines.push(each);
      if (this.shows(each)) this.pre.append(this.row(each));
    }
    this.lines = this.lines.slice(-400);
    while (this.pre.childElementCount > 400) this.pre.firstElementChild.remove();
    this.settle();
  }

  shows(each) {
    return !this.rank || each.rank === this.rank;
  }

  filter() {
    this.rank = this.select.value;
    this.pre.replaceChildren(...this.lines.filter((each) => this.shows(each)).map((each) => this.row(each)));
    this.pre.scrollTop = this.pre.scrollHeight;
  }

  row(each) {
    return h("span", { class: each.stream ? "err" : null }, `${each.line}\n`);
  }
}

// Several runs: a column for each, and a row for each thing in which they differ.
export class Comparison {
  constructor() {
    this.table = h("table", { class: "compared" });
    this.element = h("section", { class: "card wide", hidden: true }, h("div", { class: "scroll" }, this.table));
  }

  draw({ names, table }, dark) {
    const row = (cell, [name, values]) => h("tr", {}, h("th", { scope: "row" }, name), ...values.map(cell));
    const head = row((name, i) => h("th", { scope: "col" }, sample(i, dark), name), ["", names]);
    this.table.replaceChildren(h("thead", {}, head), h("tbody", {}, ...table.map((each) => row((value) => h("td", {}, value), each))));
    show(this.element, true);
  }
}

export class About {
  constructor() {
    this.list = h("dl");
    this.element = h("details", { class: "about" }, h("summary", {}, "about this run"), this.list);
  }

  draw(info) {
    const told = {
      command: info.command.join(" "), folder: `${info.host}:${info.folder}`, commit: info.git, began: new Date(info.began * 1000).toLocaleString("en-GB"),
      versions: Object.entries(info.versions).map((each) => each.join(" ")).join(", "),
      seeds: Object.entries(info.seeds).map((each) => each.join(" ")).join(", "),
    };
    const rows = Object.entries(told).filter(([, value]) => value);
    this.list.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }
}
