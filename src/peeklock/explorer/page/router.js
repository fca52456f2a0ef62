// Where the page is: the part of its address after `#`. `#/entities/orders/messages?from=5`.
import { makeStore } from "./store.js";

/** Return the address of a place: `href(["entities", name, "messages"], {from: 5})`. */
export function href(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Go to a place; `replace`: the way back leads past this one. */
export function go(parts, query = {}, { replace = false } = {}) {
  const to = href(parts, query);
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  read();
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function current() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { parts: path ? path.split("/").map(decode) : [], query: Object.fromEntries(new URLSearchParams(query)) };
}

/** `parts` and `query` of the place. */
export const place = makeStore(current());

function read() {
  place.set(current());
}

addEventListener("hashchange", read);
addEventListener("popstate", read);
