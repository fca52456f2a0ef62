import { html, useEffect, useState } from "../lib.js";
import { Icon } from "./icon.js";
import { toast } from "./toast.js";

async function write(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // By plain http from another host there is no clipboard but this one.
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("readonly", "");
  area.className = "offscreen";
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  if (!isDone) throw new Error("the browser refused");
}

/** A button that copies a text. `text` may be a function; `label` names what is copied. */
export function Copy({ text, label = "Copy", children }) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return undefined;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [isDone]);
  const copy = async () => {
    try {
      await write(typeof text === "function" ? text() : text);
      setDone(true);
      toast("Copied");
    } catch (error) {
      toast(`Not copied: ${error.message}`, { kind: "bad" });
    }
  };
  return html`<button
    type="button"
    class=${`button quiet ${children ? "small" : "icon-only"}`}
    aria-label=${label}
    title=${label}
    onClick=${copy}
  >
    <${Icon} name=${isDone ? "check" : "copy"} />${children && html`<span>${children}</span>`}
  </button>`;
}
