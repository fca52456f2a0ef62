// Shared access signatures. `crypto.subtle` is missing where a page came by plain http from another host: then
// SHA-256 is computed here. Source: FIPS 180-4; RFC 2104; wire contract 1.3.

const utf8 = new TextEncoder();

/** Return a shared access signature for a resource, valid for so many seconds. */
export async function sign(resource, keyName, key, seconds, nowMs = Date.now()) {
  const uri = encodeURIComponent(resource);
  const expiry = Math.floor(nowMs / 1000) + seconds;
  const signature = await hmac(utf8.encode(key), utf8.encode(`${uri}\n${expiry}`));
  const text = encodeURIComponent(btoa(String.fromCharCode(...signature)));
  return `SharedAccessSignature sr=${uri}&sig=${text}&se=${expiry}&skn=${encodeURIComponent(keyName)}`;
}

/** Return the HMAC-SHA256 of bytes as bytes. */
async function hmac(key, data) {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) return ownHmac(key, data);
  const made = await subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await subtle.sign("HMAC", made, data));
}

/** The same without WebCrypto. */
export function ownHmac(key, data) {
  const block = new Uint8Array(64);
  block.set(key.length > 64 ? sha256(key) : key);
  const inner = sha256(join(block.map((byte) => byte ^ 0x36), data));
  return sha256(join(block.map((byte) => byte ^ 0x5c), inner));
}

function join(first, second) {
  const joined = new Uint8Array(first.length + second.length);
  joined.set(first);
  joined.set(second, first.length);
  return joined;
}

/** Return the first 32 bits of the fraction of a root of the n-th prime. */
function constants(count, power) {
  const found = [];
  for (let n = 2; found.length < count; n += 1) {
    let prime = true;
    for (let d = 2; d * d <= n; d += 1) if (n % d === 0) prime = false;
    if (prime) found.push(((n ** power % 1) * 2 ** 32) | 0);
  }
  return found;
}

const ROUNDS = constants(64, 1 / 3);
const START = constants(8, 1 / 2);
const turn = (word, by) => (word >>> by) | (word << (32 - by));

/** Return the SHA-256 of bytes as bytes. */
function sha256(data) {
  const size = ((data.length + 8) >> 6) * 64 + 64;
  const padded = new Uint8Array(size);
  padded.set(data);
  padded[data.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(size - 8, Math.floor(data.length / 2 ** 29));
  view.setUint32(size - 4, data.length << 3);
  const state = START.slice();
  const words = new Int32Array(64);
  for (let at = 0; at < size; at += 64) {
    for (let i = 0; i < 64; i += 1) {
      if (i < 16) {
        words[i] = view.getInt32(at + 4 * i);
      } else {
        const early = words[i - 15];
        const late = words[i - 2];
        const s0 = turn(early, 7) ^ turn(early, 18) ^ (early >>> 3);
        const s1 = turn(late, 17) ^ turn(late, 19) ^ (late >>> 10);
        words[i] = words[i - 16] + s0 + words[i - 7] + s1;
      }
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i += 1) {
      const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
      const first = (h + s1 + ((e & f) ^ (~e & g)) + ROUNDS[i] + words[i]) | 0;
      const s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
      const second = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] = (state[i] + word) | 0));
  }
  const result = new Uint8Array(32);
  state.forEach((word, i) => new DataView(result.buffer).setInt32(4 * i, word));
  return result;
}
