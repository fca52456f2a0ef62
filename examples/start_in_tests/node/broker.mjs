// Start a broker for the tests of a program; it ends with this process.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

export async function startBroker(options = ["--durability", "memory"]) {
  const file = join(mkdtempSync(join(tmpdir(), "peeklock-")), "ready.json");
  const process = spawn(
    "peeklock",
    ["serve", "--amqp-port", "0", "--http-port", "0", "--ready-file", file, "--exit-with-parent", ...options],
    { stdio: ["ignore", "ignore", "inherit"] },
  );
  let failure;
  process.on("error", (error) => (failure = error));
  process.on("exit", (status) => (failure ??= new Error(`the broker ended with ${status}; its log says why`)));
  for (let waited = 0; !existsSync(file); waited += 20) {
    if (failure) throw failure;
    if (waited > 30_000) throw new Error("the broker did not become ready in 30 s");
    await sleep(20);
  }
  const { connectionString, httpPort } = JSON.parse(readFileSync(file, "utf8"));
  return { connectionString, httpPort, stop: () => process.kill() };
}
