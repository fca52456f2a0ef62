// Values as text. Text of messages and names is shown by `Text` of ui/text.js, which escapes what would mislead.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 12,345. Without `Intl`, which takes 20 ms when it is first used. */
export function number(value) {
  if (value === undefined || value === null) return "–";
  const [whole, ...part] = String(value).split(".");
  return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...part].join(".");
}

/** 12.3 k */
export function short(value) {
  if (value === undefined || value === null) return "–";
  if (Math.abs(value) < 10_000) return number(Math.round(value));
  const [by, unit] = value < 1e6 ? [1e3, "k"] : value < 1e9 ? [1e6, "M"] : [1e9, "G"];
  return `${(value / by).toFixed(value / by < 100 ? 1 : 0)} ${unit}`;
}

/** 4.2/s */
export function rate(value) {
  if (value === undefined || value === null) return "–";
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : short(value)}/s`;
}

/** 1.5 MiB */
export function bytes(value) {
  if (value === undefined || value === null) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** 3 d 4 h, of seconds. */
export function duration(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

/** How long ago an instant was: "5 min". */
export function age(instant, now = Date.now()) {
  if (!instant) return "–";
  return duration(Math.max(0, (now - Date.parse(instant)) / 1000));
}

/** How far the reader's zone is from UTC at a time, or now: "UTC", "+02:00", "-03:30". */
export function zoneOf(text) {
  const at = text ? new Date(text) : new Date();
  const minutes = -at.getTimezoneOffset();
  if (!minutes) return "UTC";
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  return `${minutes < 0 ? "-" : "+"}${two(Math.abs(minutes) / 60)}:${two(Math.abs(minutes) % 60)}`;
}

/** 2026-11-28 10:19:30.123 +02:00, in the reader's zone: of a text, or of ms since 1970. */
export function instant(text) {
  if (!text) return "–";
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return text;
  const two = (value) => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return `${day} ${time}.${String(at.getMilliseconds()).padStart(3, "0")} ${zoneOf(at)}`;
}

/** Return `one` or `many` after a number: plural(2, "message") is "2 messages". */
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
