// The modules that `require` knows. Small stand-ins for what scripts ask of Node; everything else is refused by name.

import random from "wasi:random/random@0.2.12";
import { Buffer, TextDecoder, TextEncoder } from "./bytes.js";
import { fs, promises } from "./fs.js";
import { format, inspect } from "./inspect.js";
import * as loop from "./loop.js";
import { path } from "./path.js";
import { URL, URLSearchParams } from "./url.js";

export class EventEmitter {
  #listeners = new Map();
  on(name, listener) {
    this.#listeners.set(name, [...(this.#listeners.get(name) ?? []), listener]);
    return this;
  }
  once(name, listener) {
    const wrapper = (...args) => {
      this.off(name, wrapper);
      listener.apply(this, args);
    };
    wrapper.listener = listener;
    return this.on(name, wrapper);
  }
  off(name, listener) {
    const list = this.#listeners.get(name) ?? [];
    const at = list.findLastIndex((item) => item === listener || item.listener === listener);
    if (at !== -1) this.#listeners.set(name, list.toSpliced(at, 1));
    return this;
  }
  emit(name, ...args) {
    const list = this.#listeners.get(name) ?? [];
    if (list.length === 0 && name === "error") throw args[0] instanceof Error ? args[0] : new Error(`Unhandled error. (${inspect(args[0])})`);
    for (const listener of list) listener.apply(this, args);
    return list.length > 0;
  }
  listenerCount(name) {
    return this.#listeners.get(name)?.length ?? 0;
  }
  listeners(name) {
    return [...(this.#listeners.get(name) ?? [])];
  }
  eventNames() {
    return [...this.#listeners.keys()].filter((name) => this.listenerCount(name) > 0);
  }
  removeAllListeners(name) {
    if (name === undefined) this.#listeners.clear();
    else this.#listeners.delete(name);
    return this;
  }
  setMaxListeners() {
    return this;
  }
}
Object.assign(EventEmitter.prototype, { addListener: EventEmitter.prototype.on, removeListener: EventEmitter.prototype.off });
EventEmitter.EventEmitter = EventEmitter;
EventEmitter.once = (emitter, name) => new Promise((resolve, reject) => {
  emitter.once(name, (...args) => resolve(args));
  if (name !== "error") emitter.once("error", reject);
});

export const crypto = {
  getRandomValues(array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    if (bytes.length > 65536) throw new DOMException(`The requested length exceeds 65,536 bytes`, "QuotaExceededError");
    bytes.set(random.getRandomBytes(bytes.length));
    return array;
  },
  randomBytes: (size) => Buffer.from(random.getRandomBytes(size)),
  randomUUID() {
    const bytes = random.getRandomBytes(16);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    return bytes.toHex().replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
  },
  randomInt(low, high) {
    if (high === undefined) [low, high] = [0, low];
    const [a, b] = new Uint32Array(random.getRandomBytes(8).buffer);
    return low + Math.floor(((a * 2 ** 21 + (b >>> 11)) / 2 ** 53) * (high - low));
  },
};

// Math.random as QuickJS has it was seeded while the snapshot was taken: every run would draw the same numbers.
// xorshift128+ on 32-bit halves, seeded at first use.
let state = null;
export function mathRandom() {
  state ??= new Uint32Array(random.getRandomBytes(16).buffer).map((word) => word | 1);
  let t = state[3];
  let s = state[0];
  state[3] = state[2];
  state[2] = state[1];
  state[1] = s;
  t ^= t << 11;
  t ^= t >>> 8;
  state[0] = t ^ s ^ (s >>> 19);
  const high = state[0] >>> 5;
  const low = (state[1] + state[0]) >>> 6;
  return (high * 67108864 + low) / 9007199254740992;
}

class AssertionError extends Error {
  constructor({ message, actual, expected, operator }) {
    super(message);
    Object.assign(this, { name: "AssertionError", code: "ERR_ASSERTION", actual, expected, operator });
  }
}

function check(ok, message, fallback, actual, expected, operator) {
  if (ok) return;
  if (message instanceof Error) throw message;
  throw new AssertionError({ message: message ?? fallback, actual, expected, operator });
}

const compare = (a, b, operator) => `Expected values to be ${operator}:\n\n${inspect(a)} !== ${inspect(b)}\n`;
export const assert = (value, message) => check(value, message, "The expression evaluated to a falsy value", value, true, "==");
Object.assign(assert, {
  ok: assert,
  AssertionError,
  equal: (a, b, m) => check(a == b || (a !== a && b !== b), m, `${inspect(a)} == ${inspect(b)}`, a, b, "=="),
  notEqual: (a, b, m) => check(a != b, m, `${inspect(a)} != ${inspect(b)}`, a, b, "!="),
  strictEqual: (a, b, m) => check(Object.is(a, b), m, compare(a, b, "strictly equal"), a, b, "strictEqual"),
  notStrictEqual: (a, b, m) => check(!Object.is(a, b), m, `Expected "actual" to be strictly unequal to: ${inspect(b)}`, a, b, "notStrictEqual"),
  deepEqual: (a, b, m) => check(same(a, b), m, compare(a, b, "loosely deep-equal"), a, b, "deepEqual"),
  deepStrictEqual: (a, b, m) => check(same(a, b), m, compare(a, b, "strictly deep-equal"), a, b, "deepStrictEqual"),
  notDeepStrictEqual: (a, b, m) => check(!same(a, b), m, `Expected "actual" not to be strictly deep-equal to: ${inspect(b)}`, a, b, "notDeepStrictEqual"),
  match: (text, pattern, m) => check(pattern.test(text), m, `The input did not match the regular expression ${pattern}. Input:\n\n${inspect(text)}\n`, text, pattern, "match"),
  fail: (message = "Failed") => check(false, message),
  throws(body, expected, message) {
    let thrown;
    try {
      body();
    } catch (error) {
      return fits((thrown = error), expected) ? undefined : raise(thrown);
    }
    check(false, message, "Missing expected exception.");
  },
  async rejects(body, expected, message) {
    try {
      await (typeof body === "function" ? body() : body);
    } catch (error) {
      return fits(error, expected) ? undefined : raise(error);
    }
    check(false, message, "Missing expected rejection.");
  },
  doesNotThrow: (body) => void body(),
});
assert.strict = assert;

const raise = (error) => {
  throw error;
};

function fits(error, expected) {
  if (expected === undefined || typeof expected === "string") return true;
  if (expected instanceof RegExp) return expected.test(String(error));
  if (typeof expected === "function") return expected.prototype !== undefined && error instanceof expected ? true : expected.prototype === undefined && expected(error) === true;
  return Object.keys(expected).every((key) => (expected[key] instanceof RegExp ? expected[key].test(error[key]) : same(error[key], expected[key])));
}

// Deep equality, as `deepStrictEqual` and `util.isDeepStrictEqual` see it.
export function same(a, b, seen = new Map()) {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return false;
  if (seen.get(a) === b) return true;
  seen.set(a, b);
  if (a instanceof Date || a instanceof RegExp || a instanceof Number || a instanceof String || a instanceof Boolean) {
    if (String(a) !== String(b) || Number(a) - Number(b) !== 0 && a instanceof Date) return false;
  }
  if (a instanceof Error && (a.message !== b.message || a.name !== b.name)) return false;
  if (a instanceof Map) return a.size === b.size && [...a].every(([key, value]) => (b.has(key) ? same(value, b.get(key), seen) : [...b].some((pair) => same(pair, [key, value], seen))));
  if (a instanceof Set) return a.size === b.size && [...a].every((value) => b.has(value) || [...b].some((other) => same(value, other, seen)));
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && (a.length === b.length) && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key], seen));
}

export function structuredClone(value, seen = new Map()) {
  if (typeof value === "function" || typeof value === "symbol") throw new DOMException(`${String(value)} could not be cloned.`, "DataCloneError");
  if (typeof value !== "object" || value === null) return value;
  if (seen.has(value)) return seen.get(value);
  const keep = (copy) => (seen.set(value, copy), copy);
  const clone = (inner) => structuredClone(inner, seen);
  if (value instanceof Date) return keep(new Date(value));
  if (value instanceof RegExp) return keep(new RegExp(value));
  if (value instanceof ArrayBuffer) return keep(value.slice(0));
  if (ArrayBuffer.isView(value)) return keep(new value.constructor(clone(value.buffer), value.byteOffset, value.length));
  if (value instanceof Map) {
    const copy = keep(new Map());
    for (const [key, inner] of value) copy.set(clone(key), clone(inner));
    return copy;
  }
  if (value instanceof Set) {
    const copy = keep(new Set());
    for (const inner of value) copy.add(clone(inner));
    return copy;
  }
  const copy = keep(Array.isArray(value) ? new Array(value.length) : value instanceof Error ? new value.constructor(value.message) : {});
  for (const key of Object.keys(value)) copy[key] = clone(value[key]);
  return copy;
}

const util = {
  inspect: Object.assign((value, options) => inspect(value, options), { custom: Symbol.for("nodejs.util.inspect.custom") }),
  format,
  promisify: (body) => (...args) => new Promise((resolve, reject) => body(...args, (error, value) => (error ? reject(error) : resolve(value)))),
  inherits: (child, parent) => void Object.setPrototypeOf(child.prototype, parent.prototype),
  isDeepStrictEqual: (a, b) => same(a, b),
  deprecate: (body) => body,
  types: {
    isPromise: (value) => value instanceof Promise,
    isDate: (value) => value instanceof Date,
    isRegExp: (value) => value instanceof RegExp,
  },
  TextEncoder,
  TextDecoder,
};

class Interface extends EventEmitter {
  #lines = null;
  #input;
  #output;
  #closed = false;
  constructor({ input, output }) {
    super();
    this.#input = input;
    this.#output = output;
    this.terminal = false;
  }
  #next() {
    this.#lines ??= this.#input.readText().replace(/\r\n/g, "\n").replace(/\n$/, "").split("\n").filter((_, i, all) => all.length > 1 || all[0] !== "");
    return this.#lines.shift();
  }
  on(name, listener) {
    super.on(name, listener);
    if (name === "line") loop.soon(() => this.#deliver());
    return this;
  }
  // One line a turn, so that what a listener starts can finish before the next.
  #deliver() {
    if (this.#closed || this.listenerCount("line") === 0) return;
    const line = this.#next();
    if (line === undefined) return this.close();
    this.emit("line", line);
    loop.soon(() => this.#deliver());
  }
  question(text, options, callback = options) {
    this.#output?.write(text);
    const line = this.#next();
    if (line === undefined) this.close();
    else loop.soon(() => callback(line));
  }
  setPrompt() {}
  prompt() {}
  write() {}
  pause() {
    return this;
  }
  resume() {
    return this;
  }
  close() {
    if (this.#closed) return;
    this.#closed = true;
    this.emit("close");
  }
  async *[Symbol.asyncIterator]() {
    for (let line = this.#next(); line !== undefined && !this.#closed; line = this.#next()) yield line;
    this.close();
  }
}

const createInterface = (input, output) => new Interface(input?.input ? input : { input, output });
const wait = (ms, value) => new Promise((resolve) => loop.setTimeout(() => resolve(value), ms));

const timers = {
  setTimeout: loop.setTimeout, setInterval: loop.setInterval, setImmediate: loop.setImmediate,
  clearTimeout: loop.clearTimeout, clearInterval: loop.clearInterval, clearImmediate: loop.clearImmediate,
};

class PromiseInterface extends Interface {
  question(text) {
    return new Promise((resolve) => super.question(text, resolve));
  }
}

const os = {
  EOL: "\n", platform: () => "wasi", type: () => "WASI", arch: () => "wasm32", tmpdir: () => "/tmp", homedir: () => "/work", hostname: () => "wasm",
  cpus: () => [{ model: "wasm", speed: 0 }], availableParallelism: () => 1, totalmem: () => 2 ** 32, freemem: () => 2 ** 32, uptime: () => loop.now() / 1e9,
  release: () => "0.2", endianness: () => "LE",
};

export const builtins = {
  assert, "assert/strict": assert, buffer: { Buffer }, crypto: { ...crypto, webcrypto: crypto }, events: EventEmitter, fs, "fs/promises": promises, os, path,
  "path/posix": path, perf_hooks: { performance: globalThis.performance }, readline: { createInterface, Interface },
  "readline/promises": { createInterface: (options) => new PromiseInterface(options), Interface: PromiseInterface },
  timers, "timers/promises": { setTimeout: wait, setImmediate: (value) => wait(0, value) }, url: { URL, URLSearchParams, fileURLToPath: (url) => decodeURIComponent(new URL(url).pathname), pathToFileURL: (name) => new URL(`file://${path.resolve(name)}`) },
  util, "util/types": util.types,
};

// What Node has and this does not, so that the message can tell a missing module from a misspelt one.
export const elsewhere = new Set(
  `async_hooks child_process cluster console dgram diagnostics_channel dns dns/promises domain http http2 https inspector module net
  punycode querystring repl sea sqlite stream stream/promises stream/web string_decoder sys test tls trace_events tty v8 vm wasi worker_threads zlib`.split(/\s+/),
);
