// Text to bytes and back. QuickJS has no TextEncoder; its base64 functions are native, and a detour through them is far
// faster than a loop over characters.

export const encode = (text) => Uint8Array.fromBase64(btoa(unescape(encodeURIComponent(String(text).toWellFormed()))));

export function decode(bytes, fatal = false) {
  try {
    return decodeURIComponent(escape(atob(bytes.toBase64())));
  } catch {
    if (fatal) throw new TypeError("The encoded data was not valid for encoding utf-8");
    return decodeLossy(bytes);
  }
}

// The slow way, for bytes that are not UTF-8: every maximal broken part becomes one U+FFFD.
function decodeLossy(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; ) {
    const first = bytes[i++];
    if (first < 0x80) {
      text += String.fromCharCode(first);
      continue;
    }
    const more = first >= 0xc2 && first <= 0xdf ? 1 : first >= 0xe0 && first <= 0xef ? 2 : first >= 0xf0 && first <= 0xf4 ? 3 : 0;
    let code = more === 1 ? first & 0x1f : more === 2 ? first & 0x0f : first & 0x07;
    let left = more;
    let low = first === 0xe0 ? 0xa0 : first === 0xf0 ? 0x90 : 0x80;
    let high = first === 0xed ? 0x9f : first === 0xf4 ? 0x8f : 0xbf;
    while (left > 0 && i < bytes.length && bytes[i] >= low && bytes[i] <= high) {
      code = (code << 6) | (bytes[i++] & 0x3f);
      [low, high] = [0x80, 0xbf];
      left--;
    }
    text += more === 0 || left > 0 ? "\ufffd" : String.fromCodePoint(code);
  }
  return text;
}

// How many bytes at the end belong to a character that has not arrived in full.
export function incompleteTail(bytes) {
  for (let back = 1; back <= 3 && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back];
    if (byte >= 0xc0) return back < (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2) ? back : 0;
    if (byte < 0x80) return 0;
  }
  return 0;
}

export const latin1 = (text) => Uint8Array.from(text, (c) => c.charCodeAt(0));

export class TextEncoder {
  get encoding() {
    return "utf-8";
  }
  encode(text = "") {
    return encode(text);
  }
  encodeInto(text, target) {
    const bytes = encode(text);
    const written = Math.min(bytes.length, target.length) - incompleteTail(bytes.subarray(0, Math.min(bytes.length, target.length)));
    target.set(bytes.subarray(0, written));
    return { read: decode(bytes.subarray(0, written)).length, written };
  }
}

export class TextDecoder {
  #fatal;
  #keepMark;
  #encoding;
  #rest = new Uint8Array(0);
  constructor(encoding = "utf-8", { fatal = false, ignoreBOM = false } = {}) {
    this.#encoding = String(encoding).toLowerCase().replace(/^utf8$/, "utf-8");
    if (!["utf-8", "latin1", "iso-8859-1", "ascii", "us-ascii"].includes(this.#encoding)) {
      throw new RangeError(`The "${encoding}" encoding is not supported`);
    }
    this.#fatal = fatal;
    this.#keepMark = ignoreBOM;
  }
  get encoding() {
    return this.#encoding;
  }
  decode(input = new Uint8Array(0), { stream = false } = {}) {
    let bytes = ArrayBuffer.isView(input) ? new Uint8Array(input.buffer, input.byteOffset, input.byteLength) : new Uint8Array(input);
    if (this.#encoding !== "utf-8") return atob(bytes.toBase64());
    bytes = concat([this.#rest, bytes]);
    const keep = stream ? incompleteTail(bytes) : 0;
    this.#rest = bytes.slice(bytes.length - keep);
    const text = decode(bytes.subarray(0, bytes.length - keep), this.#fatal);
    return !this.#keepMark && text.startsWith("\ufeff") ? text.slice(1) : text;
  }
}

export function concat(parts) {
  if (parts[0]?.length === 0) parts = parts.slice(1);
  if (parts.length === 1) return parts[0];
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

// The part of Node's Buffer that scripts use.
export class Buffer extends Uint8Array {
  static from(value, encoding, length) {
    if (typeof value === "string") return Buffer.#own(parse(value, encoding));
    if (value instanceof ArrayBuffer) return new Buffer(value, encoding, length);
    return Buffer.#own(Uint8Array.from(value.type === "Buffer" ? value.data : value));
  }
  static alloc(size, fill = 0, encoding) {
    return new Buffer(size).fill(fill, 0, size, encoding);
  }
  static allocUnsafe(size) {
    return new Buffer(size);
  }
  static concat(parts) {
    return Buffer.#own(concat([...parts]).slice());
  }
  static isBuffer(value) {
    return value instanceof Buffer;
  }
  static byteLength(value, encoding) {
    return typeof value === "string" ? parse(value, encoding).length : value.byteLength;
  }
  static compare(a, b) {
    for (let i = 0; i < Math.min(a.length, b.length); i++) if (a[i] !== b[i]) return a[i] < b[i] ? -1 : 1;
    return Math.sign(a.length - b.length);
  }
  static #own(bytes) {
    return new Buffer(bytes.buffer, bytes.byteOffset, bytes.length);
  }
  toString(encoding = "utf8", start = 0, end = this.length) {
    const bytes = new Uint8Array(this.buffer, this.byteOffset, this.length).subarray(start, end);
    switch (String(encoding).toLowerCase()) {
      case "hex":
        return bytes.toHex();
      case "base64":
        return bytes.toBase64();
      case "base64url":
        return bytes.toBase64({ alphabet: "base64url", omitPadding: true });
      case "latin1":
      case "binary":
        return atob(bytes.toBase64());
      case "ascii":
        return atob(bytes.map((byte) => byte & 0x7f).toBase64());
      default:
        return decode(bytes);
    }
  }
  toJSON() {
    return { type: "Buffer", data: [...this] };
  }
  equals(other) {
    return Buffer.compare(this, other) === 0;
  }
  compare(other) {
    return Buffer.compare(this, other);
  }
  write(text, offset = 0, length, encoding) {
    const bytes = parse(text, encoding).subarray(0, Math.min(length ?? Infinity, this.length - offset));
    this.set(bytes, offset);
    return bytes.length;
  }
  fill(value, start = 0, end = this.length, encoding) {
    if (typeof value !== "string") return super.fill(value, start, end);
    const bytes = parse(value, encoding);
    for (let i = start; i < end && bytes.length; i++) this[i] = bytes[(i - start) % bytes.length];
    return this;
  }
  slice(start, end) {
    return this.subarray(start, end);
  }
  copy(target, targetStart = 0, start = 0, end = this.length) {
    const part = this.subarray(start, Math.min(end, start + target.length - targetStart));
    target.set(part, targetStart);
    return part.length;
  }
  indexOf(value, from) {
    if (typeof value === "number") return super.indexOf(value, from);
    const wanted = typeof value === "string" ? encode(value) : value;
    for (let i = from ?? 0; i + wanted.length <= this.length; i++) {
      if (wanted.every((byte, j) => this[i + j] === byte)) return i;
    }
    return -1;
  }
  includes(value, from) {
    return this.indexOf(value, from) !== -1;
  }
  [Symbol.for("nodejs.util.inspect.custom")]() {
    const shown = [...this.subarray(0, 50)].map((byte) => ` ${byte.toString(16).padStart(2, "0")}`).join("");
    const more = this.length > 50 ? ` ... ${this.length - 50} more byte${this.length > 51 ? "s" : ""}` : "";
    return `<Buffer${shown}${more}>`;
  }
}

// `buffer.readUInt32LE(offset)` and its kin.
for (const [name, size, method] of [
  ["UInt8", 1, "Uint8"], ["Int8", 1, "Int8"], ["UInt16", 2, "Uint16"], ["Int16", 2, "Int16"], ["UInt32", 4, "Uint32"], ["Int32", 4, "Int32"],
  ["BigUInt64", 8, "BigUint64"], ["BigInt64", 8, "BigInt64"], ["Float", 4, "Float32"], ["Double", 8, "Float64"],
]) {
  for (const order of size === 1 ? [""] : ["LE", "BE"]) {
    const view = (buffer) => new DataView(buffer.buffer, buffer.byteOffset, buffer.length);
    const define = (key, value) => Object.defineProperty(Buffer.prototype, key, { value, writable: true, configurable: true });
    define(`read${name}${order}`, function (offset = 0) {
      return view(this)[`get${method}`](offset, order === "LE");
    });
    define(`write${name}${order}`, function (value, offset = 0) {
      view(this)[`set${method}`](offset, value, order === "LE");
      return offset + size;
    });
  }
}

function parse(text, encoding = "utf8") {
  switch (String(encoding).toLowerCase()) {
    case "hex":
      return Uint8Array.fromHex(/^(?:[0-9a-f]{2})*/i.exec(text)[0]);
    case "base64":
    case "base64url":
      return Uint8Array.fromBase64(text.replace(/[^A-Za-z0-9+/_-]/g, "").replace(/-/g, "+").replace(/_/g, "/"), { lastChunkHandling: "loose" });
    case "latin1":
    case "binary":
    case "ascii":
      return latin1(text);
    case "utf16le":
    case "ucs2":
      return new Uint8Array(Uint16Array.from(text, (c) => c.charCodeAt(0)).buffer);
    default:
      return encode(text);
  }
}
