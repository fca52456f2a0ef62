// The body of a message: as JSON, XML, text or bytes.
import { html, useMemo, useState } from "../lib.js";
import { bytes as size } from "../format.js";
import { hexDump } from "../ui/code.js";
import { Button, Code, Empty, Icon, Refusal, Tabs } from "../ui.js";
import { bodyBytes, isCut } from "./model.js";
import { fileName, save } from "./save.js";
import { indentXml, xmlFault } from "./xml.js";

const KINDS = [
  { id: "json", label: "JSON" },
  { id: "xml", label: "XML" },
  { id: "text", label: "Text" },
  { id: "hex", label: "Bytes" },
];
const PARSED_MAX = 8 * 1024 * 1024; // characters

/** Return what is wrong with a text as JSON; "" = nothing. */
function jsonFault(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return error.message;
  }
}

/** Return what a body is: its bytes, its text if it is one, and the form to show first. */
function read(message) {
  const bytes = bodyBytes(message);
  const text = message.bodyBase64 === undefined ? (message.body ?? "") : null;
  if (text === null) return { bytes, text, form: "hex" };
  const type = (message.contentType ?? "").toLowerCase();
  const start = text.trimStart().slice(0, 1);
  const isWhole = !isCut(message) && text.length <= PARSED_MAX;
  let form = "text";
  if (/[/+]json\b/.test(type)) form = "json";
  else if (/[/+]xml\b/.test(type)) form = "xml";
  else if (/[{[]/.test(start) && isWhole && jsonFault(text) === "") form = "json";
  else if (start === "<" && isWhole && xmlFault(text) === "") form = "xml";
  return { bytes, text, form };
}

function Shown({ form, found, isAsSent, isWhole }) {
  const { bytes, text } = found;
  const dump = useMemo(() => (form === "hex" ? hexDump(bytes) : ""), [form, bytes]);
  const asText = useMemo(() => text ?? new TextDecoder().decode(bytes), [text, bytes]);
  const fault = useMemo(() => {
    if (!isWhole || asText.length > PARSED_MAX) return "";
    return form === "json" ? jsonFault(asText) : form === "xml" ? xmlFault(asText) : "";
  }, [form, asText, isWhole]);
  const shown = useMemo(() => (form === "xml" && !fault && !isAsSent ? indentXml(asText) : asText), [form, asText, fault, isAsSent]);
  if (form === "hex") return html`<${Code} text=${dump} label="Bytes of the body" isPlain isProgram />`;
  return html`
    ${fault && html`<p class="note warn">This is no valid ${form === "json" ? "JSON" : "XML"}: ${fault}</p>`}
    ${text === null && html`<p class="note warn">These bytes are no text in UTF-8: what is none is shown as �.</p>`}
    <${Code} text=${shown} language=${fault ? "text" : form} isRaw=${isAsSent || !isWhole} label="Body" />
  `;
}

/**
 * The body of a message. `onWhole()`, which may be async, asks for all of a body that is cut; `whole()` returns the
 * message with it, for the download. `name` begins the name of that file.
 */
export function Body({ message, onWhole, whole, name }) {
  const found = useMemo(() => read(message), [message]);
  const [chosen, setChosen] = useState("");
  const [isAsSent, setAsSent] = useState(false);
  const [state, setState] = useState({ isBusy: "", problem: null });
  const form = chosen || found.form;
  const cut = isCut(message);
  const total = message.bodySizeBytes ?? found.bytes.length;
  const run = (what, call) => async () => {
    setState({ isBusy: what, problem: null });
    try {
      await call();
      setState({ isBusy: "", problem: null });
    } catch (problem) {
      setState({ isBusy: "", problem });
    }
  };
  const download = run("download", async () => {
    const end = { json: ".json", xml: ".xml", text: ".txt", hex: ".bin" }[found.form];
    save(new Blob([bodyBytes(cut ? await whole() : message)]), fileName(name, end));
  });
  if (total === 0) return html`<section class="card" aria-label="Body of the message"><h2>Body</h2><${Empty} title="The body is empty" icon="messages" /></section>`;
  const canIndent = (form === "json" || form === "xml") && !cut;
  return html`<section class="card" aria-label="Body of the message">
    <div class="row-of">
      <h2>Body</h2>
      <span class="faint">${size(total)}${message.contentType ? html`, <code>${message.contentType}</code>` : ""}</span>
      <span class="spread"></span>
      ${canIndent && html`<${Button} small kind="quiet" aria-pressed=${isAsSent ? "true" : "false"} onClick=${() => setAsSent(!isAsSent)}>${isAsSent ? "Indent" : "As it was sent"}<//>`}
      <${Button} small kind="quiet" icon="download" isBusy=${state.isBusy === "download"} onClick=${download}>Download<//>
    </div>
    <${Tabs} items=${KINDS} current=${form} onChoose=${setChosen} label="Form of the body" />
    ${cut &&
    html`<div class="note row-of">
      <${Icon} name="info" /><span>The first ${size(found.bytes.length)} of ${size(total)} are shown.</span>
      ${onWhole && html`<${Button} small isBusy=${state.isBusy === "whole"} onClick=${run("whole", onWhole)}>Show all of it<//>`}
    </div>`}
    ${state.problem && html`<${Refusal} problem=${state.problem} />`}
    <div role="tabpanel" aria-label=${KINDS.find((one) => one.id === form).label}>
      <${Shown} form=${form} found=${found} isAsSent=${isAsSent} isWhole=${!cut} />
    </div>
  </section>`;
}
