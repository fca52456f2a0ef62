// Who is signed in. The key or token is in this module's memory only; it ends with the tab.
import { makeStore } from "./store.js";
import { sign } from "./sign.js";

const TOKEN_S = 3600; // of a signature that the page makes
const RENEW_MS = 300_000; // before its end another one is made

/** `phase`: "starting", "out" or "in". `me`: what the API says of the caller. `problem`: why it is "out". */
export const session = makeStore({ phase: "starting", me: null, problem: null });

let credential = null; // {kind: "key", resource, keyName, key} or {kind: "token", text} or {kind: "none"}
let made = null; // the current signature: {text, endsAt}, where text is a promise

/** Use a credential from now on; null = none. */
export function use(next) {
  credential = next;
  made = null;
}

/** Return the key in use: {resource, keyName, key}; null = a token, or nothing. */
export const keyInUse = () => (credential?.kind === "key" ? credential : null);

/** Return the value of the header Authorization; empty = none is sent. */
export async function authorization() {
  if (credential === null || credential.kind === "none") return "";
  if (credential.kind === "token") return credential.text;
  if (made === null || made.endsAt - RENEW_MS < Date.now()) {
    const { resource, keyName, key } = credential;
    made = { text: sign(resource, keyName, key, TOKEN_S), endsAt: Date.now() + TOKEN_S * 1000 };
  }
  return made.text;
}

/** Return whether the caller has a right on an entity; without one, on the namespace. */
export function can(right, entity = "") {
  const me = session.value.me;
  if (me === null) return false;
  return belongs(entity.toLowerCase(), me.path.toLowerCase()) && (me.rights.includes(right) || me.rights.includes("Manage"));
}

/** Return whether the caller may send anywhere: to move needs Send on the target. */
export const maySend = () => session.value.me.rights.some((right) => right === "Send" || right === "Manage");

/**
 * Whether a path belongs to an entity: itself, a subscription of it, or a node such as `$deadletterqueue`. Names may
 * have slashes: `a/b` is another entity than `a`. All belongs to the namespace, the empty `entity`.
 */
const belongs = (path, entity) =>
  entity === "" || path === entity || (path.startsWith(`${entity}/`) && /^(subscriptions\/|\$)/.test(path.slice(entity.length + 1)));

/** Return {keyName, key, host, entity} or {token, host, entity} of a connection string. Throws: Error. */
export function readConnectionString(text) {
  const values = {};
  for (const part of text.trim().split(";")) {
    const at = part.indexOf("=");
    if (at > 0) values[part.slice(0, at).trim().toLowerCase()] = part.slice(at + 1).trim();
  }
  // `peeklock keys list` prints the part that names the key: then the host is the page's.
  const host = values.endpoint === undefined ? location.host : /^[a-z]+:\/\/([^/]+)/i.exec(values.endpoint)?.[1];
  if (!host) throw new Error("The connection string has no Endpoint=sb://HOST/.");
  const entity = values.entitypath ?? "";
  if (values.sharedaccesssignature) return { host, entity, token: values.sharedaccesssignature };
  if (!values.sharedaccesskeyname) throw new Error("The connection string has no SharedAccessKeyName.");
  if (!values.sharedaccesskey) throw new Error("The connection string has no SharedAccessKey.");
  return { host, entity, keyName: values.sharedaccesskeyname, key: values.sharedaccesskey };
}
