import { html, useId } from "../lib.js";

/**
 * A field of a form with its name, help and problem.
 *
 * `type`: "text", "password", "number", "textarea", "select", "checkbox", "datetime-local"; `options` of a select are
 * texts or [value, text]. `onInput(value)` takes a text, a boolean for a checkbox, or a number (undefined = empty).
 * `children` stand beside the control. Other attributes go to the control.
 */
export function Field({ label, help, problem, type = "text", value, options = [], onInput, children, mono, ...rest }) {
  const id = useId();
  const described = [help && `${id}-help`, problem && `${id}-problem`].filter(Boolean).join(" ") || undefined;
  const shared = { id, "aria-describedby": described, "aria-invalid": problem ? "true" : undefined, ...rest };
  const take = (event) => onInput(event.target.value);
  const takeNumber = (event) => onInput(event.target.value === "" ? undefined : event.target.valueAsNumber);
  const name = html`<label class="field-label" for=${id}>${label}</label>`;
  const notes = html`
    ${help && html`<div class="field-help" id=${`${id}-help`}>${help}</div>`}
    ${problem && html`<div class="field-problem" id=${`${id}-problem`} role="alert">${problem}</div>`}
  `;
  if (type === "checkbox") {
    return html`<div class="field check">
      <input type="checkbox" checked=${value} onChange=${(event) => onInput(event.target.checked)} ...${shared} />
      <div>${name}${notes}</div>
    </div>`;
  }
  const styled = `input ${mono ? "mono" : ""}`;
  let control = html`<input class=${styled} type=${type} value=${value ?? ""} onInput=${take} ...${shared} />`;
  if (type === "number") {
    control = html`<input class=${styled} type="number" value=${value ?? ""} onInput=${takeNumber} ...${shared} />`;
  } else if (type === "textarea") {
    control = html`<textarea class=${styled} value=${value ?? ""} onInput=${take} ...${shared}></textarea>`;
  } else if (type === "select") {
    control = html`<select class="input" value=${value} onChange=${take} ...${shared}>
      ${options.map((option) => {
        const [key, text] = Array.isArray(option) ? option : [option, option];
        return html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`;
      })}
    </select>`;
  }
  return html`<div class="field">
    ${name}
    <div class="field-row">${control}${children}</div>
    ${notes}
  </div>`;
}
