// Shows with rhea, a plain AMQP 1.0 client, what features.toml lists: one JSON line in for a feature, one out.
//
// rhea knows nothing of Service Bus: what Azure adds to AMQP (session filter, requests to $management, annotations)
// is put together here by hand, and entities are made by plain HTTPS. Node is told to trust the broker's authority by
// NODE_EXTRA_CA_CERTS before it starts (run.sh).
import { answer, questions } from "./lines.js";
import { closeAll, removeEntities } from "./broker.js";
import * as connections from "./connections.js";
import * as large from "./large.js";
import * as receiving from "./receiving.js";
import * as sending from "./sending.js";
import * as sessions from "./sessions.js";
import * as topics from "./topics.js";

const LIMIT_MS = 28_000;

const features = {
  ...connections.features,
  ...sending.features,
  ...receiving.features,
  ...large.features,
  ...sessions.features,
  ...topics.features,
};

async function run(name) {
  const feature = features[name];
  if (!feature) return { status: "not offered", how: "" };
  if (typeof feature === "string") return { status: "not offered", how: feature };
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing after ${LIMIT_MS} ms`)), LIMIT_MS);
  });
  try {
    const outcome = await Promise.race([feature(), late]);
    return outcome ? { status: "differs", how: outcome } : { status: "works" };
  } catch (error) {
    console.error(error);
    return { status: "failed", error: `${error.condition ?? error.code ?? error.name}: ${error.message}` };
  } finally {
    clearTimeout(timer);
    await Promise.race([closeAll(), new Promise((done) => setTimeout(done, 1000))]);
  }
}

for await (const { feature } of questions()) {
  answer({ feature, ...(await run(feature)) });
}
await removeEntities();
process.exit(0);
