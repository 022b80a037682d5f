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
    for (const name of ["now", "of", "formed"]) curve[name] = message[name];
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

  // The latest value, null where it is not finite, and of how many ranks it is the mean: of all where they are a band, else
  // of those that are shown. Never of ranks that have said nothing since a generation was formed in which others did.
  now(name, shown) {
    const all = this.band(name);
    if (all) return { value: all.now, of: all.of };
    const newest = Math.max(...this.ranks(name).map((rank) => this.get(name, rank).formed));
    const ranks = shown.filter((rank) => this.get(name, rank).formed === newest);
    const values = ranks.map((rank) => this.get(name, rank).now);
    const isSound = values.length && values.every((value) => value != null);
    return { value: isSound ? values.reduce((a, b) => a + b) / values.length : null, of: values.length, rank: ranks[0] };
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

// The same curve by its means, smoothed.
export function smoothLine(curve, weight, byTime, began) {
  const ys = smoothed(curve.m, weight);
  return byTime ? ordered(curve.w.map((time) => time - began), ys) : [curve.s, ys];
}

// Exponential moving average, without its bias towards 0 at the beginning: as TensorBoard smooths.
export function smoothed(values, weight) {
  let sum = 0;
  let left = 1;
  return values.map((value) => {
    if (value == null) return null;
    sum = weight * sum + (1 - weight) * value;
    left *= weight;
    return sum / (1 - left);
  });
}

function ordered(xs, ys) {
  let sorted = true;
  for (let i = 1; i < xs.length && sorted; i++) sorted = xs[i] >= xs[i - 1];
  if (sorted) return [xs, ys];
  const order = xs.map((_, i) => i).sort((a, b) => xs[a] - xs[b]);
  return [order.map((i) => xs[i]), order.map((i) => ys[i])];
}
