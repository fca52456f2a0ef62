// The application properties of a message that is written: name, type and value of each.
import { html, useState } from "../lib.js";
import { plural } from "../format.js";
import { Button, IconButton } from "../ui.js";
import { TYPES, faultOf } from "./compose.js";

const SHOWN = 50; // at first: a message may have thousands

function Value({ one, label, onChange }) {
  if (one.type === "null") return html`<span class="faint">null</span>`;
  if (one.type === "boolean") {
    return html`<select class="input" aria-label=${label} value=${one.value} onChange=${(event) => onChange(event.target.value)}>
      ${["true", "false"].map((text) => html`<option key=${text} selected=${text === one.value}>${text}</option>`)}
    </select>`;
  }
  return html`<input class="input mono" aria-label=${label} value=${one.value} spellcheck=${false} autocomplete="off" onInput=${(event) => onChange(event.target.value)} />`;
}

/** Edit properties: `value` is [{name, type, value}]. */
export function PropertiesEditor({ value, onChange }) {
  const [isWhole, setWhole] = useState(false);
  const set = (at, part) => onChange(value.map((one, index) => (index === at ? { ...one, ...part } : one)));
  const setType = (at, type) => {
    const { value: before } = value[at];
    set(at, { type, value: type === "boolean" ? (before === "false" ? "false" : "true") : type === "null" ? "" : before });
  };
  const shown = isWhole ? value : value.slice(0, SHOWN);
  return html`<fieldset class="properties">
    <legend class="field-label">Application properties</legend>
    ${shown.map((one, at) => {
      const fault = faultOf(one, value);
      return html`<div key=${at} class="property">
        <input class="input" aria-label=${`Name of property ${at + 1}`} placeholder="name" value=${one.name} spellcheck=${false} autocomplete="off" onInput=${(event) => set(at, { name: event.target.value })} />
        <select class="input" aria-label=${`Type of property ${at + 1}`} value=${one.type} onChange=${(event) => setType(at, event.target.value)}>
          ${TYPES.map(([type, text]) => html`<option key=${type} value=${type} selected=${type === one.type}>${text}</option>`)}
        </select>
        <${Value} one=${one} label=${`Value of property ${at + 1}`} onChange=${(text) => set(at, { value: text })} />
        <${IconButton} icon="trash" label=${`Remove property ${at + 1}`} onClick=${() => onChange(value.filter((_, index) => index !== at))} />
        ${fault && html`<div class="field-problem" role="alert">${fault}</div>`}
      </div>`;
    })}
    <div class="row-of">
      <${Button} small icon="plus" onClick=${() => (setWhole(true), onChange([...value, { name: "", type: "text", value: "" }]))}>Add a property<//>
      ${shown.length < value.length && html`<${Button} small kind="quiet" onClick=${() => setWhole(true)}>Show all ${plural(value.length, "property", "properties")}<//>`}
    </div>
  </fieldset>`;
}
