// Messages as a file of JSON Lines, which the explorer and `peeklock send` take again.
import { api, entityPath } from "../api.js";
import { plural } from "../format.js";
import { toast } from "../ui.js";
import { parseExact, writeExact } from "./exact_json.js";
import { fileName, save } from "./save.js";

const AT_ONCE = 4;
const TYPE = "application/x-ndjson";

/** Download chosen messages, each as the broker has it now. Those that left meanwhile are missing, and it says so. */
export async function downloadRows(rows, name) {
  const lines = new Array(rows.length).fill("");
  const queue = rows.map((row, at) => [row, at]);
  const work = async () => {
    for (let next = queue.shift(); next; next = queue.shift()) {
      const [row, at] = next;
      try {
        const answer = await api.blob("GET", entityPath(row.entity, "messages", row.number));
        lines[at] = `${writeExact(parseExact(await answer.text()))}\n`;
      } catch (problem) {
        if (problem.status !== 404) throw problem;
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  const found = lines.filter(Boolean);
  save(new Blob(found, { type: TYPE }), fileName(name, ".jsonl"));
  const gone = rows.length - found.length;
  toast(`${plural(found.length, "message")} downloaded${gone ? `; ${gone} not there any more` : ""}`, { kind: gone ? "bad" : "good" });
}

/** Download all messages that a search finds, as the broker streams them. */
export async function downloadFound(criteria, name, signal) {
  const content = await api.blob("POST", "search", { body: criteria, accept: TYPE, signal });
  save(content, fileName(name, ".jsonl"));
}
