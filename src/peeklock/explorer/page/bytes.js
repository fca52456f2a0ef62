// Bodies and states: `body` is text, `bodyBase64` bytes that are none.

/** Return bytes of base64. Throws: Error. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text.replace(/\s+/g, "")), (letter) => letter.charCodeAt(0));
}

/** Return the bytes of what the API shows as `body` or `bodyBase64`. */
export const bytesOf = ({ body, bodyBase64 }) => (bodyBase64 === undefined ? new TextEncoder().encode(body ?? "") : fromBase64(bodyBase64));

/** Return whether a text is JSON: an object, an array, a number, ... */
export function isJson(text) {
  if (text === undefined || text.trim() === "") return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
