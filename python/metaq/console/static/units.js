// Numbers and times as the server writes them (figures.py), with units in the language of the page.
const WORDS = JSON.parse(document.body.dataset.units);
const SPANS = [["d", "h", 86400, 3600], ["h", "min", 3600, 60], ["min", "s", 60, 1]];

const fixed = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function number(value) {
  for (const [divisor, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "K"]]) {
    const scaled = value / divisor;
    if (Math.abs(scaled) >= 10) return `${fixed(scaled, Math.abs(scaled) < 100 ? 1 : 0)}${unit}`;
  }
  return fixed(value, Number.isInteger(value) ? 0 : 1);
}
export function rate(value) {
  if (value > 0 && value < 0.1) return `<0.1 ${WORDS.rate}`;
  return `${value > 0 && value < 10 ? fixed(value, 1) : number(Math.round(value))} ${WORDS.rate}`;
}
export function size(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let index = 0;
  let left = value;
  while (Math.abs(left) >= 1024 && index < units.length - 1) { left /= 1024; index += 1; }
  return `${left.toFixed(index === 0 || left >= 100 ? 0 : 1)} ${units[index]}`;
}
export function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ${WORDS.ms}`;
  const seconds = Math.floor(ms / 1000);
  for (const [unit, part, length, smaller] of SPANS) {
    if (seconds >= length) {
      const rest = Math.floor((seconds % length) / smaller);
      return `${Math.floor(seconds / length)} ${WORDS[unit]}${rest ? ` ${rest} ${WORDS[part]}` : ""}`;
    }
  }
  return `${seconds} ${WORDS.s}`;
}
export const share = (ratio) => `${Math.round(ratio * 100)} %`;
