// Files: offered as a download, and read.

/** Have the browser save a Blob or a text under a name. */
export function save(content, name, type = "application/octet-stream") {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Return a name for a file, made of the name of an entity: without what a file system does not take. */
export const fileName = (entity, end) => `${entity.replace(/[^\w.$-]+/g, "-").slice(0, 100)}${end}`;

/** Yield the lines of a file, one after the other: it may be larger than the memory. */
export async function* linesOf(file) {
  const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
  if (rest) yield rest;
}
