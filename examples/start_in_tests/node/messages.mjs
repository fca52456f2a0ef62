// What came to a queue or subscription of a broker, for the tests of a program.
import { createHmac } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

// Ask the JSON API of the namespace that a connection string names.
export async function ask(connectionString, path, options = {}) {
  const parts = Object.fromEntries(connectionString.split(";").map((part) => part.split(/=(.*)/s, 2)));
  const { host, port } = new URL(parts.Endpoint.replace("sb:", "http:"));
  const resource = encodeURIComponent(`sb://${host}/`);
  const expires = Math.floor(Date.now() / 1000) + 600;
  const signature = createHmac("sha256", parts.SharedAccessKey).update(`${resource}\n${expires}`).digest("base64");
  const Authorization =
    `SharedAccessSignature sr=${resource}&sig=${encodeURIComponent(signature)}` +
    `&se=${expires}&skn=${parts.SharedAccessKeyName}`;
  const url = `http://${port ? host : `${host}:5300`}/$api/v1/${path}`;
  const answer = await fetch(url, { ...options, headers: { Authorization, "Content-Type": "application/json" } });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.detail);
  return found;
}

// The messages that are there, and the last ones that have left; 250 of each at most.
export async function sent(connectionString, entity) {
  const name = encodeURIComponent(entity);
  const left = await ask(connectionString, `history?entity=${name}&limit=250`);
  const { messages } = await ask(connectionString, `entities/${name}/messages?limit=250`);
  return [...left.entries.map((entry) => entry.message).reverse(), ...messages];
}

export async function waitFor(connectionString, entity, count = 1, seconds = 10) {
  for (const until = Date.now() + 1000 * seconds; ; await sleep(50)) {
    const messages = await sent(connectionString, entity);
    if (messages.length >= count) return messages;
    if (Date.now() > until) throw new Error(`${messages.length} of ${count} messages came to ${entity}`);
  }
}
