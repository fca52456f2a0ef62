// Shows with @azure/service-bus what features.toml lists: one JSON line in for a feature, one out.
//
// Beyond the connection string: the port stands in its Endpoint, which both clients honour, and Node is told to
// trust the broker's authority by NODE_EXTRA_CA_CERTS before it starts (run.sh).
import { answer, questions } from "./lines.js";
import { closeAll, removeEntities } from "./broker.js";
import * as administration from "./administration.js";
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
  ...administration.features,
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
    const differs = await Promise.race([feature(), late]);
    return differs ? { status: "differs", how: differs } : { status: "works" };
  } catch (error) {
    console.error(error);
    return { status: "failed", error: `${error.code ?? error.name}: ${error.message}` };
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
