// JSON whose numbers stay as they are: whole numbers beyond 2^53 are BigInts, 5.0 is a Decimal.

/** A number with a decimal point, as it is written. */
export class Decimal {
  constructor(text) {
    this.text = /[.eE]/.test(text) ? text : `${text}.0`;
  }
  toString() {
    return this.text;
  }
}

/** Read JSON. Where the browser does not show the source of a number, a large one loses its last digits. */
export function parseExact(text) {
  return JSON.parse(text, (_key, value, context) => {
    const source = context?.source;
    if (typeof value !== "number" || source === undefined) return value;
    if (/[.eE]/.test(source)) return new Decimal(source);
    return Number.isSafeInteger(value) ? value : BigInt(source);
  });
}

/** Write JSON. */
export function writeExact(value) {
  if (typeof value === "bigint" || value instanceof Decimal) return value.toString();
  if (Array.isArray(value)) return `[${value.map(writeExact).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${writeExact(member)}`).join(",")}}`;
}
