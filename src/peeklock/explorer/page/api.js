// The JSON API, as docs/reference/api.md has it. Addresses are relative to the document: a proxy may add a path.
import { authorization, session } from "./session.js";

const root = new URL(".", document.baseURI);

/** Return the address of a path below the document's own, such as `health`. */
export const address = (path) => new URL(`./${path}`, root).href;

/** Return `entities/NAME/...` with each part encoded. */
export const entityPath = (entity, ...parts) => ["entities", entity, ...parts].map(encodeURIComponent).join("/");

/** A refusal or a failure: `status` (0 = no answer), `title`, `detail`, `type`, `trackingId`. */
export class Problem extends Error {
  constructor(fields) {
    super(fields.detail || fields.title);
    this.name = "Problem";
    this.status = fields.status;
    this.type = (fields.type ?? "").replace("urn:peeklock:problem:", "");
    this.title = fields.title;
    this.detail = fields.detail ?? "";
    this.trackingId = fields.trackingId ?? "";
    this.fields = fields;
  }
}

/** Return whether an error only says that a request was cancelled by the page. */
export const isCancelled = (error) => error?.name === "AbortError";

async function problemOf(response) {
  const text = await response.text();
  const fallback = { status: response.status, title: `The broker answered ${response.status}`, detail: text.slice(0, 300) };
  if (!/json/.test(response.headers.get("content-type") ?? "")) return new Problem(fallback);
  try {
    return new Problem({ ...fallback, detail: "", ...JSON.parse(text), status: response.status });
  } catch {
    return new Problem(fallback);
  }
}

async function send(method, path, { query, body, content, headers = {}, signal, accept } = {}) {
  const url = new URL(address(path));
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, one);
    }
  }
  const all = { ...headers };
  const token = await authorization();
  if (token) all.Authorization = token;
  if (accept) all.Accept = accept;
  if (body !== undefined) all["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, {
      method,
      headers: all,
      body: body === undefined ? content : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (isCancelled(error)) throw error;
    throw new Problem({ status: 0, title: "The broker does not answer", detail: "It may be stopped or restarting." });
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401 && session.value.phase === "in") {
    session.set({ phase: "out", me: null, problem });
  }
  throw problem;
}

async function call(method, path, options) {
  const response = await send(method, path, options);
  if (response.status === 204) return null;
  return /json/.test(response.headers.get("content-type") ?? "") ? response.json() : response.text();
}

/** Ask a page of the operator, such as `health`. `/health` answers 503 with figures: see `health`. */
export const page = (method, path, options) => call(method, path, options);

/** Return the figures of `/health`, whatever the status. */
export async function health(signal) {
  try {
    return await call("GET", "health", { signal });
  } catch (problem) {
    if (problem instanceof Problem && problem.fields.version) return problem.fields;
    throw problem;
  }
}

const below = (method) => (path, options) => call(method, `$api/v1/${path}`, options);

/** Calls below `/$api/v1/`: `api.get("entities", {query: {limit: 10}})`. `options`: query, body, or `content` as it is, headers,
 * signal. */
export const api = {
  get: below("GET"),
  post: below("POST"),
  put: below("PUT"),
  patch: below("PATCH"),
  del: below("DELETE"),

  /**
   * Read a stream of server-sent events, and call `onEvent(name, data)` for each. Returns when it ends.
   * To cancel it, abort `options.signal`.
   */
  async stream(method, path, onEvent, options = {}) {
    const response = await send(method, `$api/v1/${path}`, { accept: "text/event-stream", ...options });
    for await (const event of events(response.body)) onEvent(event.name, event.data);
  },

  /** Return the answer as a Blob: a download. */
  async blob(method, path, options) {
    return (await send(method, `$api/v1/${path}`, options)).blob();
  },

  /** Yield the entries of all pages of a list: `for await (const entity of api.pages("entities", "entities"))`. */
  async *pages(path, member, { query = {}, signal } = {}) {
    let cursor;
    do {
      const found = await call("GET", `$api/v1/${path}`, { query: { limit: 250, ...query, cursor }, signal });
      yield* found[member];
      cursor = found.next;
    } while (cursor);
  },
};

/** Yield {name, data} of a body of server-sent events; data is JSON. Source: HTML "Server-sent events" 9.2.6. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let name = "message";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { name, data: JSON.parse(data.join("\n")) };
          [name, data] = ["message", []];
        } else if (line.startsWith("event:")) {
          name = line.slice(6).trim();
        } else if (line.startsWith("data:")) {
          data.push(line.slice(5).replace(/^ /, ""));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
