// JSON lines in and out.
import readline from "node:readline";

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export async function* questions() {
  for (let line = await lines.next(); !line.done; line = await lines.next()) yield JSON.parse(line.value);
}

export function answer(value) {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

// Asks whoever runs this program to do something, and waits until it is done.
export async function ask(what) {
  answer({ ask: what });
  const { done } = JSON.parse((await lines.next()).value);
  if (done !== what) throw new Error(`asked for ${what}, got ${done}`);
}
