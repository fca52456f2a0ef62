// A field for a duration: a number and its unit.
import { html, useEffect, useState } from "../lib.js";
import { Field } from "./field.js";

const UNITS = [
  ["1", "seconds"],
  ["60", "minutes"],
  ["3600", "hours"],
  ["86400", "days"],
];
const UNLIMITED = "unlimited";

/** Return [number, unit] of seconds, in the largest unit that shows it as a whole. */
function split(seconds) {
  if (seconds === undefined || seconds === null) return ["", UNLIMITED];
  const unit = UNITS.findLast(([of]) => seconds >= Number(of) && seconds % Number(of) === 0) ?? UNITS[0];
  return [String(seconds / Number(unit[0])), unit[0]];
}

/**
 * A duration. `value` in seconds, undefined = none; `onInput(seconds)`, where NaN stands for what is no duration.
 * `unlimited`: what to call none, such as "never"; absent = a duration is required.
 */
export function DurationField({ value, onInput, unlimited, problem, disabled, label, ...rest }) {
  const [[text, unit], setParts] = useState(() => split(value));
  const secondsOf = (number, of) => (of === UNLIMITED ? undefined : number.trim() === "" ? NaN : Number(number) * Number(of));
  useEffect(() => {
    const shown = secondsOf(text, unit);
    if (shown !== value && !(Number.isNaN(shown) && Number.isNaN(value))) setParts(split(value));
  }, [value]);
  const set = (number, of) => {
    setParts([number, of]);
    onInput(secondsOf(number, of));
  };
  const isNone = unit === UNLIMITED;
  const isWrong = !isNone && !(secondsOf(text, unit) > 0);
  const options = unlimited ? [...UNITS, [UNLIMITED, unlimited]] : UNITS;
  return html`<${Field}
    label=${label}
    value=${isNone ? "" : text}
    inputmode="decimal"
    autocomplete="off"
    disabled=${disabled || isNone}
    onInput=${(number) => set(number, unit)}
    problem=${problem || (isWrong && text !== "" ? "This is not a duration." : "")}
    ...${rest}
  >
    <select class="input unit" aria-label=${`Unit of ${label}`} value=${unit} disabled=${disabled} onChange=${(event) => set(text || "1", event.target.value)}>
      ${options.map(([key, name]) => html`<option key=${key} value=${key} selected=${key === unit}>${name}</option>`)}
    </select>
  <//>`;
}
