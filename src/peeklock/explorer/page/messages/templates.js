// Templates of messages: kept in the memory of the tab, and as a file that is downloaded and read again.
import { html, useRef, useState } from "../lib.js";
import { plural } from "../format.js";
import { makeStore, useStore } from "../store.js";
import { Button, IconButton, toast } from "../ui.js";
import { blank } from "./compose.js";
import { save } from "./save.js";

const templates = makeStore([]); // [{name, form}]
const FORMS = ["text", "json", "base64"];

const isText = (value) => typeof value === "string";

/** Return a template of a file with all that a form has; null = it is none. */
function checked({ name, form } = {}) {
  if (!isText(name) || !name || typeof form !== "object" || form === null) return null;
  const { body, fields, properties } = { ...blank(), ...form };
  const areFields = fields && Object.values(fields).every(isText);
  const areProperties = Array.isArray(properties) && properties.every((one) => one && isText(one.name) && isText(one.type) && isText(one.value));
  if (!isText(body) || !areFields || !areProperties || !FORMS.includes(form.form)) return null;
  return { name, form: { ...blank(), body, form: form.form, fields: { ...fields }, properties } };
}

const put = (all, one) => [...all.filter((known) => known.name !== one.name), one].sort((a, b) => (a.name < b.name ? -1 : 1));

async function read(file) {
  const given = JSON.parse(await file.text());
  const found = (Array.isArray(given?.templates) ? given.templates : []).map(checked);
  if (found.length === 0 || found.includes(null)) throw new Error("it has no templates");
  templates.set(found.reduce(put, templates.value));
  return found.length;
}

/** Choose, save, download and read templates. `form` is the current one; `onChoose(form)` takes another. */
export function Templates({ form, onChoose }) {
  const known = useStore(templates);
  const [name, setName] = useState("");
  const input = useRef(null);
  const choose = (event) => {
    const found = known.find((one) => one.name === event.target.value);
    if (!found) return;
    setName(found.name);
    onChoose(structuredClone(found.form));
  };
  const keep = () => {
    templates.set(put(known, { name: name.trim(), form: structuredClone({ ...form, copies: 1 }) }));
    toast(`Saved as ${name.trim()}, until the tab is closed: download it to keep it`);
  };
  const take = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    try {
      toast(`${plural(await read(file), "template")} read`);
    } catch (error) {
      toast(`The file is not read: ${error.message}`, { kind: "bad" });
    }
  };
  return html`<div class="templates row-of" role="group" aria-label="Templates">
    <select class="input" aria-label="Use a template" value="" onChange=${choose} disabled=${known.length === 0}>
      <option value="">${known.length ? "Use a template…" : "No templates yet"}</option>
      ${known.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
    </select>
    <input class="input" aria-label="Name of the template" placeholder="name of a template" value=${name} onInput=${(event) => setName(event.target.value)} autocomplete="off" />
    <${Button} small disabled=${!name.trim()} onClick=${keep}>Save<//>
    <${IconButton} icon="download" label="Download the templates" disabled=${known.length === 0} onClick=${() => save(JSON.stringify({ templates: known }, null, 2), "peeklock-templates.json", "application/json")} />
    <${IconButton} icon="upload" label="Read templates of a file" onClick=${() => input.current.click()} />
    <input type="file" hidden ref=${input} accept=".json,application/json" aria-label="File with templates" onChange=${take} />
  </div>`;
}
