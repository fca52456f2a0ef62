// XML as text: whether it is well-formed, and with an element on each line. The browser's own parser is not asked: it
// would apply styles of a message.
import { LEVELS_MAX } from "../ui/code.js";

const NAME = "[A-Za-z_:\\u0080-\\uffff][\\w:.\\-\\u0080-\\uffff]*";
const TOKENS = /<!--[^]*?-->|<!\[CDATA\[[^]*?\]\]>|<\?[^]*?\?>|<!DOCTYPE[^>[]*(?:\[[^\]]*\])?[^>]*>|<(?:"[^"]*"|'[^']*'|[^<>"'])*>|[^<]+/iy;
const START = new RegExp(`^<(${NAME})((?:\\s+${NAME}\\s*=\\s*(?:"[^"<]*"|'[^'<]*'))*)\\s*(/?)>$`);
const END = new RegExp(`^</(${NAME})\\s*>$`);
const REFERENCE = /&(?!(?:#\d+|#x[\da-f]+|[A-Za-z_][\w.-]*);)/i;

/** Yield the tokens of a text; it ends where there is none, and what is left is no token. */
function* tokensOf(text) {
  const tokens = new RegExp(TOKENS);
  for (let found = tokens.exec(text); found; found = tokens.exec(text)) yield [found[0], found.index];
}

const isSilent = (token) => /^<(!--|\?|!DOCTYPE)/i.test(token);

/** Return what is wrong with a text as XML; "" = nothing. Source: XML 1.0, productions 1, 3 and 39 to 44. */
export function xmlFault(text) {
  const open = [];
  let roots = 0;
  let at = 0;
  const line = () => `line ${text.slice(0, at).split("\n").length}`;
  for (const [token, index] of tokensOf(text)) {
    at = index + token.length;
    if (isSilent(token)) continue;
    if (!token.startsWith("<") || token.startsWith("<![CDATA[")) {
      if (open.length === 0 && (token.trim().replace(/^\ufeff/, "") || token.startsWith("<"))) return `text outside the root element, ${line()}`;
      if (!token.startsWith("<") && REFERENCE.test(token)) return `"&" begins no reference, ${line()}`;
      continue;
    }
    const end = END.exec(token);
    const start = end ? null : START.exec(token);
    if (end) {
      const expected = open.pop();
      if (expected !== end[1]) return `${expected ? `</${expected}> is expected` : "nothing is open"} where </${end[1]}> is, ${line()}`;
    } else if (!start) {
      return `this is no tag: ${token.slice(0, 60)}, ${line()}`;
    } else {
      if (open.length === 0 && (roots += 1) > 1) return `a second root element, ${line()}`;
      if (REFERENCE.test(start[2])) return `"&" begins no reference, ${line()}`;
      if (!start[3]) open.push(start[1]);
    }
  }
  if (at !== text.length) return `a tag does not end, ${line()}`;
  if (open.length) return `<${open.at(-1)}> is not closed`;
  return roots ? "" : "there is no element";
}

/** Return well-formed XML with each element on a line of its own, unless it has lines already. */
export function indentXml(text) {
  if (/>\s*\n\s*</.test(text)) return text;
  const tokens = [...tokensOf(text)].map(([token]) => token).filter((token) => token.trim());
  const opens = (token) => /^<[^/!?]/.test(token) && !token.endsWith("/>");
  const closes = (token) => token?.startsWith("</");
  const lines = [];
  let depth = 0;
  for (let at = 0; at < tokens.length; at += 1) {
    let line = tokens[at];
    if (closes(line)) depth -= 1;
    const margin = "  ".repeat(Math.min(Math.max(0, depth), LEVELS_MAX));
    if (opens(line)) {
      const end = [1, 2].find((after) => closes(tokens[at + after]) && !tokens.slice(at + 1, at + after).some(opens));
      if (end) {
        line = tokens.slice(at, at + end + 1).join("");
        at += end;
      } else {
        depth += 1;
      }
    }
    lines.push(margin + line);
  }
  return lines.join("\n");
}
