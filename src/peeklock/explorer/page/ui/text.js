// Text that others wrote: control characters and those that change the direction are shown as escapes.
import { html } from "../lib.js";
import { age, instant, number } from "../format.js";

// C0 and C1 without tab and line feed; soft hyphen; marks, isolates and overrides of direction; invisible and
// deprecated format characters; tags; unpaired surrogates. Source: UAX 9; Unicode categories Cc, Cf, Cs.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;

function escapeOf(found) {
  const code = found.codePointAt(0);
  if (code > 0xffff) return `\\U${code.toString(16).padStart(8, "0")}`;
  return code > 0xff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\x${code.toString(16).padStart(2, "0")}`;
}

/** Return what to draw for a text: its parts, and escapes as elements. */
export function visible(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    parts.push(html`<span class="escape" title="a character that is not shown as it is">${escapeOf(found[0])}</span>`);
    at = found.index + found[0].length;
  }
  if (at === 0) return text;
  if (at < text.length) parts.push(text.slice(at));
  return parts;
}

/** Return a text with escapes, for attributes such as a title. */
export const visibleText = (text) => String(text).replace(HIDDEN, escapeOf);

/** Text of a message or a name. `mono`: in the fixed font; `max`: longer ones are cut. */
export function Text({ value, mono, max = 2000 }) {
  const text = value === undefined || value === null ? "" : String(value);
  const cut = text.length > max ? `${text.slice(0, max)}…` : text;
  return html`<bdi class=${mono ? "mono" : undefined}>${visible(cut)}</bdi>`;
}

/** A short word on a colour. `tone`: "plain", "good", "warn", "bad" or "accent". */
export const Badge = ({ tone = "plain", children }) => html`<span class=${`badge ${tone}`}>${children}</span>`;

/** A count in a table: zero is faint. `tone`: of one above zero. */
export const Count = ({ value, tone = "" }) =>
  html`<span class=${value ? `count ${tone}` : "count none"}>${number(value)}</span>`;

/** A figure with its name. `tone` as of `Badge`; `note`: small text below. */
export const Stat = ({ label, value, note, tone = "", children }) => html`<div class="stat">
  <div class="stat-label">${label}</div>
  <div class=${`stat-value ${tone}`}>${value}</div>
  ${note && html`<div class="stat-note">${note}</div>`} ${children}
</div>`;

/** An instant: `isAge` shows how long ago, with the instant as its title. */
export const Time = ({ value, isAge }) =>
  value
    ? html`<time datetime=${value} title=${instant(value)}>${isAge ? `${age(value)} ago` : instant(value)}</time>`
    : html`<span class="faint">–</span>`;

/** Names and values: `items` are [name, what to draw]; those of undefined are left out. */
export const Facts = ({ items }) => html`<dl class="facts">
  ${items
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;
