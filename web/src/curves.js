// Curves as they come: the bins of every metric and rank, and what a chart draws of them.

const BAND = -1;

export class Curves {
  constructor() {
    this.names = new Map(); // name -> rank -> {s, w, l, m, h}
  }

  clear() {
    this.names.clear();
  }

  take(message) {
    const ranks = this.names.get(message.name) ?? this.names.set(message.name, new Map()).get(message.name);
    const curve = ranks.get(message.rank) ?? { s: [], w: [], m: [], l: [], h: [] };
    const low = message.l ?? message.m;
    const high = message.h ?? message.m;
    for (const [name, fresh] of Object.entries({ s: message.s, w: message.w, m: message.m, l: low, h: high })) {
      curve[name].length = Math.min(curve[name].length, message.from);
      for (const value of fresh) curve[name].push(value);
    }
    ranks.set(message.rank, curve);
  }

  ranks(name) {
    return [...(this.names.get(name)?.keys() ?? [])].filter((rank) => rank !== BAND).sort((a, b) => a - b);
  }

  get(name, rank) {
    return this.names.get(name)?.get(rank);
  }

  band(name) {
    return this.get(name, BAND);
  }

  last(name) {
    const curves = [...(this.names.get(name)?.values() ?? [])];
    const values = curves.map((curve) => curve.m.at(-1)).filter((value) => value != null);
    return values.length ? values.reduce((a, b) => a + b) / values.length : null;
  }
}

// One line through a curve that keeps its peaks: of a bin with several values its lowest and its highest.
export function line(curve, byTime, began) {
  const xs = [];
  const ys = [];
  const { s, w, l, h, m } = curve;
  for (let i = 0; i < s.length; i++) {
    const x = byTime ? w[i] - began : s[i];
    if (m[i] == null || l[i] === h[i]) {
      xs.push(x);
      ys.push(m[i]);
      continue;
    }
    const next = i + 1 < s.length ? (byTime ? w[i + 1] - began : s[i + 1]) : x + (i ? (x - xs[xs.length - 2]) : 1);
    const rises = i === 0 || (m[i - 1] ?? 0) <= m[i];
    xs.push(x, x + (next - x) / 2);
    ys.push(rises ? l[i] : h[i], rises ? h[i] : l[i]);
  }
  return byTime ? ordered(xs, ys) : [xs, ys];
}

export function band(curve, byTime, began) {
  if (!byTime) return [curve.s, curve.l, curve.m, curve.h];
  const order = curve.w.map((_, i) => i).sort((a, b) => curve.w[a] - curve.w[b]);
  return [order.map((i) => curve.w[i] - began), ...[curve.l, curve.m, curve.h].map((of) => order.map((i) => of[i]))];
}

function ordered(xs, ys) {
  let sorted = true;
  for (let i = 1; i < xs.length && sorted; i++) sorted = xs[i] >= xs[i - 1];
  if (sorted) return [xs, ys];
  const order = xs.map((_, i) => i).sort((a, b) => xs[a] - xs[b]);
  return [order.map((i) => xs[i]), order.map((i) => ys[i])];
}
