// Starting a session, and ending it.
import { api } from "./api.js";
import { readConnectionString, session, use } from "./session.js";

// The emulator's well-known key, which everybody knows. Source: wire contract 1.2.
const DEVELOPMENT = { keyName: "RootManageSharedAccessKey", key: "SAS_KEY_VALUE" };

/** Begin: in development mode nothing is asked for, and `ask` is called at once; else the form is shown. */
export async function start(ask) {
  if (document.documentElement.dataset.secret !== "none") {
    session.set({ phase: "out", me: null, problem: null });
    return;
  }
  try {
    await enter({ kind: "key", resource: resourceOf(location.host), ...DEVELOPMENT }, ask);
  } catch (problem) {
    session.set({ phase: "out", me: null, problem });
  }
}

const resourceOf = (host, entity = "") => `sb://${host}/${entity}`;

async function enter(credential, ask) {
  use(credential);
  ask?.();
  try {
    const me = await api.get("me");
    session.set({ phase: "in", me, problem: null });
  } catch (problem) {
    use(null);
    throw problem;
  }
}

/** Sign in with a connection string, or with a token: a signature or a JSON web token. Throws: Problem, Error. */
export async function signIn(text) {
  const given = text.trim();
  if (/^(endpoint|sharedaccesskeyname)=/i.test(given)) {
    const { host, entity, keyName, key, token } = readConnectionString(given);
    if (token) await enter({ kind: "token", text: token });
    else await enter({ kind: "key", resource: resourceOf(host, entity), keyName, key });
  } else if (/^sharedaccesssignature /i.test(given) || /^bearer /i.test(given)) {
    await enter({ kind: "token", text: given });
  } else if (/^[\w-]+\.[\w-]+\.[\w-]+$/.test(given)) {
    await enter({ kind: "token", text: `Bearer ${given}` });
  } else {
    throw new Error("This is neither a connection string (Endpoint=sb://…), nor a shared access signature, nor a JSON web token.");
  }
}

/** Forget the key or token. */
export function signOut() {
  use(null);
  session.set({ phase: "out", me: null, problem: null });
}
