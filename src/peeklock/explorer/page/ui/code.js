import { html, useMemo, useState } from "../lib.js";
import { number } from "../format.js";
import { Button } from "./button.js";
import { Copy } from "./copy.js";
import { visible } from "./text.js";

const LINES_MAX = 500; // shown at first
const CHARACTERS_MAX = 100_000;
const LINE_MAX = 20_000; // characters of a line
export const LEVELS_MAX = 32; // that are indented: a body of brackets alone would become gigabytes

const JSON_TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const XML_TOKENS = /<\/?[\w:.-]+|\/?>|<!--.*?-->|[\w:.-]+(?==")|"[^"]*"/g;

function kindOfJson(found) {
  if (found[1]) return found[2] ? "name" : "string";
  return found[3] ? "word" : "number";
}

function kindOfXml([text]) {
  if (text.startsWith("<!--")) return "comment";
  return text.startsWith("<") || text.endsWith(">") ? "name" : text.startsWith('"') ? "string" : "word";
}

function painted(line, tokens, kindOf) {
  const parts = [];
  let at = 0;
  for (const found of line.matchAll(tokens)) {
    if (found.index > at) parts.push(visible(line.slice(at, found.index)));
    const text = found[1] ?? found[0];
    parts.push(html`<span class=${`token ${kindOf(found)}`}>${visible(text)}</span>`);
    at = found.index + text.length;
  }
  parts.push(visible(line.slice(at)));
  return parts;
}

/** Return JSON indented; a text that is none comes back as it is. Numbers and order stay: it is not parsed. */
export function indentJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  let result = "";
  let before = "";
  const breakLine = () => `\n${"  ".repeat(Math.min(depth, LEVELS_MAX))}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === "}" || token === "]") {
      depth -= 1;
      result += before === "{" || before === "[" ? token : breakLine() + token;
    } else {
      if (before === "{" || before === "[") result += breakLine();
      if (token === "{" || token === "[") depth += 1;
      result += token === "," ? token + breakLine() : token === ":" ? ": " : token;
    }
    before = token;
  }
  return result;
}

/** Return bytes as lines of offset, hexadecimal and text. */
export function hexDump(bytes, max = 65_536) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, max); at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (bytes.length > max) lines.push(`… ${number(bytes.length - max)} bytes more`);
  return lines.join("\n");
}

/**
 * Text with line numbers. `language`: "json" (indented unless `isRaw`), "xml", "text"; nothing in it is executed, and
 * characters that mislead are escaped. `label` names it for screen readers; `noCopy`: without the copy button;
 * `isPlain`: without line numbers; `isProgram`: lines are not wrapped.
 */
export function Code({ text, language = "text", isRaw, label = "Text", noCopy, isPlain, isProgram }) {
  const [isWhole, setWhole] = useState(false);
  const shown = useMemo(() => (language === "json" && !isRaw ? indentJson(text) : text), [text, language, isRaw]);
  const cut = isWhole ? shown : shown.slice(0, CHARACTERS_MAX);
  const all = cut.replace(/\n$/, "").split("\n");
  const lines = isWhole ? all : all.slice(0, LINES_MAX);
  const isCut = cut.length < shown.length || lines.length < all.length;
  const paint = (line) => {
    if (line.length > LINE_MAX) return visible(line);
    if (language === "json") return painted(line, JSON_TOKENS, kindOfJson);
    return language === "xml" ? painted(line, XML_TOKENS, kindOfXml) : visible(line);
  };
  const drawn = useMemo(() => lines.map((line, at) => html`<div key=${at} class="code-line">${paint(line)}${"\n"}</div>`), [shown, isWhole, language]);
  return html`<div class="code">
    ${!noCopy && html`<div class="code-tools"><${Copy} text=${text} label=${`Copy: ${label}`} /></div>`}
    <pre class=${`${isPlain ? "plain" : "numbered"} ${isProgram ? "program" : ""}`} tabindex="0" role="region" aria-label=${label} dir="ltr">${drawn}</pre>
    ${isCut &&
    html`<div class="code-more">
      <${Button} small onClick=${() => setWhole(true)}>Show all ${number(shown.length)} characters<//>
    </div>`}
  </div>`;
}
