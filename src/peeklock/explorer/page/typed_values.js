// Values of parameters and properties in rules: rows of a form, and JSON as the API has it.

/** [type, name] of all types; the API writes the first four as values of JSON, the others as {type, value}. */
export const TYPES = [
  ["string", "text"],
  ["number", "number"],
  ["boolean", "true or false"],
  ["null", "null"],
  ["guid", "guid"],
  ["dateTime", "time"],
  ["duration", "duration"],
  ["decimal", "decimal"],
  ["double", "double"],
  ["base64Binary", "bytes (base64)"],
];

let last = 0;
export const newRow = (name = "", type = "string", text = "") => ({ id: ++last, name, type, text });

/** Return rows of the members of an object. */
export function rowsOf(values) {
  return Object.entries(values ?? {}).map(([name, value]) => {
    if (value === null) return newRow(name, "null");
    if (typeof value === "object") return newRow(name, value.type, value.value);
    return newRow(name, typeof value, String(value));
  });
}

/** Return why a row has no value; empty = it has one. */
export function wrongIn(row) {
  if (row.type === "number") {
    const value = Number(row.text);
    if (row.text.trim() === "" || !Number.isFinite(value)) return "This is not a number.";
    if (Number.isInteger(value) && !Number.isSafeInteger(value)) return "A browser does not keep such a large number exactly: use a decimal.";
  }
  if (row.type === "boolean" && !/^(true|false)$/.test(row.text)) return "Write true or false.";
  return "";
}

/** Return the object of rows; those without a name are left out. */
export function valuesOf(rows) {
  const values = {};
  for (const { name, type, text } of rows) {
    if (name === "") continue;
    if (type === "string") values[name] = text;
    else if (type === "number") values[name] = Number(text);
    else if (type === "boolean") values[name] = text === "true";
    else values[name] = type === "null" ? null : { type, value: text };
  }
  return values;
}

/** Return a value as text, with its type where that is not plain. */
export function shownValue(value) {
  if (value !== null && typeof value === "object") return `${value.value} (${value.type})`;
  return typeof value === "string" ? `'${value}'` : String(value);
}
