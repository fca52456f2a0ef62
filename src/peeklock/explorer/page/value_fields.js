// Names with values of several types, as fields: the properties of a message, the parameters of a rule.
import { html } from "./lib.js";
import { TYPES, newRow, wrongIn } from "./typed_values.js";
import { Button, IconButton } from "./ui.js";

/** Rows of `newRow` to edit. `what`: what one is called, such as "property"; `types`: those that are offered. */
export function ValueFields({ title, what, rows, onChange, types = TYPES }) {
  const change = (id, part) => onChange(rows.map((row) => (row.id === id ? { ...row, ...part } : row)));
  return html`<fieldset class="fieldset">
    <legend>${title}</legend>
    ${rows.map((row) => {
      const wrong = row.text || row.type !== "string" ? wrongIn(row) : "";
      return html`<div class="value-row" key=${row.id}>
        <input class="input mono" aria-label=${`Name of the ${what}`} placeholder="name" value=${row.name} spellcheck=${false} autocomplete="off" onInput=${(event) => change(row.id, { name: event.target.value })} />
        <select class="input" aria-label=${`Type of the ${what}`} value=${row.type} onChange=${(event) => change(row.id, { type: event.target.value })}>
          ${types.map(([type, name]) => html`<option key=${type} value=${type} selected=${type === row.type}>${name}</option>`)}
        </select>
        <input class="input mono" aria-label=${`Value of the ${what}`} placeholder="value" value=${row.text} disabled=${row.type === "null"} aria-invalid=${wrong ? "true" : undefined} spellcheck=${false} autocomplete="off" onInput=${(event) => change(row.id, { text: event.target.value })} />
        <${IconButton} icon="trash" label=${`Remove the ${what} ${row.name}`} onClick=${() => onChange(rows.filter((one) => one.id !== row.id))} />
        ${wrong && html`<div class="field-problem" role="alert">${wrong}</div>`}
      </div>`;
    })}
    <div><${Button} small icon="plus" onClick=${() => onChange([...rows, newRow()])}>Add a ${what}<//></div>
  </fieldset>`;
}
