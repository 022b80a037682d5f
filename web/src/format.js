// Numbers, times and names as people read them.

const TITLES = {
  step_s: "step time",
  wait_s: "waiting for other ranks",
  input_s: "waiting for input",
  samples_per_s: "samples/s of a rank",
  noise_scale: "gradient noise scale (samples)",
};

export const SIGNS = { fault: "✕", order: "●", recovery: "↻", resize: "↕", note: "·" };

export const title = (name) => TITLES[name] ?? name;

export function number(value, name = "") {
  if (value == null || Number.isNaN(value)) return "–";
  if (name.endsWith("_s") && !name.endsWith("_per_s")) return seconds(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 6 : 4 });
}

// Steps and samples, which are whole: all of their digits.
export const count = (value) => value?.toLocaleString("en") ?? "–";

export function seconds(value) {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${(value * 1e6).toPrecision(3)} µs`;
  if (size < 1) return `${(value * 1e3).toPrecision(3)} ms`;
  return size < 100 ? `${value.toPrecision(3)} s` : span(value);
}

export function span(value) {
  const whole = Math.max(0, Math.round(value));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (parts[0] >= 48) return `${Math.floor(parts[0] / 24)} d ${parts[0] % 24} h`;
  const [h, m, s] = parts.map((part) => String(part).padStart(2, "0"));
  return parts[0] ? `${parts[0]}:${m}:${s}` : `${parts[1]}:${s}`;
}

export const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");

export const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

export function script(command) {
  const file = command.find((word) => /\.(py|sh)$/.test(word) && !word.endsWith("__main__.py")) ?? command[0] ?? "training";
  return file.split("/").pop();
}
