// Runs one program as `node` would, and turns how it ended into an exit status. Everything at the top level of these
// modules runs once, while componentize-qjs takes its snapshot; only `run` and what it calls run in a live instance.

import environment from "wasi:cli/environment@0.2.12";
import wasiExit from "wasi:cli/exit@0.2.12";
import { Buffer, TextDecoder, TextEncoder, decode, incompleteTail } from "./bytes.js";
import { existsSync, readFileSync, statSync } from "./fs.js";
import { format, inspect } from "./inspect.js";
import * as loop from "./loop.js";
import { EventEmitter, builtins, crypto, elsewhere, mathRandom, structuredClone } from "./modules.js";
import * as paths from "./path.js";
import { prepare } from "./source.js";
import { err, out, readAllInput, readInput } from "./stdio.js";
import { URL, URLSearchParams } from "./url.js";

const HINT = (what) => `hint: ${what} exist in WASM JavaScript; run this on a native stack, such as --on container\n`;
const ASYNC_OPEN = "(async () => {";
const MODULE_LINES = 100000; // how far apart in line numbers the required files are kept; see `locateLine`

// ---- how a program ends

let exiting = false;

function finish(code) {
  if (!exiting) {
    exiting = true;
    process.exitCode = code ?? process.exitCode ?? 0;
    loop.guarded(() => process.emit("exit", process.exitCode));
  }
  out.flush();
  return Number(process.exitCode) & 0xff;
}

function fail(error) {
  if (!exiting && process.listenerCount("uncaughtException") > 0) {
    return void process.emit("uncaughtException", error, "uncaughtException");
  }
  err.write(`Uncaught ${inspect(error)}\n${error?.missing ? HINT(error.missing) : ""}`);
  wasiExit.exitWithCode(finish(1));
}

loop.handleErrorsWith(fail);

// ---- where an error happened

const files = []; // file names by number: the program, then what it required

// Every piece of text that goes through `eval` has the same name in QuickJS's stacks. So the n-th required file starts
// n * MODULE_LINES lines down, and the line number tells the file.
function locateLine(line, column) {
  const index = Math.min(Math.floor((line - 1) / MODULE_LINES), files.length - 1);
  const { name, shift } = files[index];
  const inFile = line - index * MODULE_LINES;
  return `${name}:${inFile}:${inFile === 1 ? Math.max(column - shift, 1) : column}`;
}

Error.prepareStackTrace = (error, frames) => {
  const lines = [];
  for (const frame of frames) {
    const file = frame.getFileName();
    if (frame.isNative() || file === null || file === undefined) continue;
    if (file.startsWith("/")) continue; // this runtime's own code
    const name = frame.getFunctionName();
    const place = file === "<input>" && files.length > 0 ? locateLine(frame.getLineNumber(), frame.getColumnNumber()) : file;
    lines.push(name && name !== "<eval>" ? `    at ${name} (${place})` : `    at ${place}`);
  }
  let head;
  try {
    head = Error.prototype.toString.call(error);
  } catch {
    head = "Error";
  }
  return [head, ...lines].join("\n");
};

// ---- console

let groupIndent = "";
const counts = new Map();
const times = new Map();
const indented = (text) => (groupIndent ? text.replace(/^/gm, groupIndent) : text) + "\n";
const log = (...args) => out.write(indented(format(...args)));
const warn = (...args) => err.write(indented(format(...args)));
const elapsed = (label) => {
  const ms = (loop.now() - times.get(label)) / 1e6;
  return `${label}: ${ms >= 1000 ? `${(ms / 1000).toFixed(3)}s` : `${Number(ms.toPrecision(4))}ms`}`;
};

const console = {
  log, info: log, debug: log, error: warn, warn,
  dir: (value, options) => log(inspect(value, options)),
  trace: (...args) => warn(`Trace: ${format(...args)}\n${new Error().stack.split("\n").slice(1).join("\n")}`),
  assert: (ok, ...args) => ok || warn(...(args.length === 0 ? ["Assertion failed"] : typeof args[0] === "string" ? [`Assertion failed: ${args[0]}`, ...args.slice(1)] : ["Assertion failed", ...args])),
  count(label = "default") {
    counts.set(label, (counts.get(label) ?? 0) + 1);
    log(`${label}: ${counts.get(label)}`);
  },
  countReset: (label = "default") => void counts.delete(label),
  time: (label = "default") => void times.set(label, loop.now()),
  timeLog: (label = "default", ...args) => times.has(label) && log(elapsed(label), ...args),
  timeEnd(label = "default") {
    if (times.has(label)) log(elapsed(label));
    times.delete(label);
  },
  group(...args) {
    if (args.length > 0) log(...args);
    groupIndent += "  ";
  },
  groupEnd: () => void (groupIndent = groupIndent.slice(2)),
  table,
};
console.groupCollapsed = console.group;

function table(rows) {
  if (typeof rows !== "object" || rows === null) return log(rows);
  const entries = Object.entries(rows);
  const columns = [...new Set(entries.flatMap(([, row]) => (typeof row === "object" && row !== null ? Object.keys(row) : [])))];
  const simple = entries.some(([, row]) => typeof row !== "object" || row === null);
  const head = ["(index)", ...columns, ...(simple ? ["Values"] : [])];
  const cell = (row, key) => (typeof row === "object" && row !== null && key in row ? inspect(row[key], { depth: 0 }) : "");
  const body = entries.map(([index, row]) => [index, ...columns.map((key) => cell(row, key)), ...(simple ? [typeof row === "object" && row !== null ? "" : inspect(row)] : [])]);
  const widths = head.map((_, i) => Math.max(...[head, ...body].map((line) => line[i].length)) + 2);
  const centre = (text, width) => " ".repeat(Math.floor((width - text.length) / 2)) + text + " ".repeat(Math.ceil((width - text.length) / 2));
  const rule = (left, middle, right) => left + widths.map((width) => "─".repeat(width)).join(middle) + right;
  const line = (cells) => `│${cells.map((text, i) => centre(text, widths[i])).join("│")}│`;
  log([rule("┌", "┬", "┐"), line(head), rule("├", "┼", "┤"), ...body.map(line), rule("└", "┴", "┘")].join("\n"));
}

// ---- process

class Input extends EventEmitter {
  #encoding = null;
  #rest = new Uint8Array(0);
  #ended = false;
  #flowing = false;
  fd = 0;
  isTTY = false;
  setEncoding(encoding = "utf8") {
    this.#encoding = encoding;
    return this;
  }
  on(name, listener) {
    super.on(name, listener);
    if (name === "data" || name === "end" || name === "readable") this.resume();
    return this;
  }
  resume() {
    if (!this.#flowing && !this.#ended) loop.soon(() => this.#deliver());
    this.#flowing = true;
    return this;
  }
  pause() {
    this.#flowing = false;
    return this;
  }
  unref() {
    return this;
  }
  ref() {
    return this;
  }
  // One piece a turn, so that what a listener starts can finish before the next.
  #deliver() {
    if (!this.#flowing) return;
    if (this.listenerCount("readable") > 0) {
      this.emit("readable");
      if (this.#ended) this.emit("readable");
    } else {
      const piece = this.#next();
      if (piece !== null) {
        this.emit("data", piece);
        return loop.soon(() => this.#deliver());
      }
    }
    this.emit("end");
    this.emit("close");
  }
  #next() {
    const bytes = this.#ended ? null : readInput();
    if (bytes === null) {
      this.#ended = true;
      const rest = this.#rest;
      this.#rest = new Uint8Array(0);
      return rest.length > 0 ? decode(rest) : null;
    }
    if (this.#encoding === null) return Buffer.from(bytes);
    const all = Buffer.concat([this.#rest, bytes]);
    const keep = /^utf-?8$/i.test(this.#encoding) ? incompleteTail(all) : 0;
    this.#rest = all.subarray(all.length - keep);
    return all.subarray(0, all.length - keep).toString(this.#encoding);
  }
  read() {
    return this.#next();
  }
  readText() {
    this.#ended = true;
    return decode(readAllInput());
  }
  async *[Symbol.asyncIterator]() {
    for (let piece = this.#next(); piece !== null; piece = this.#next()) yield piece;
  }
}

class Output extends EventEmitter {
  isTTY = false;
  writable = true;
  constructor(sink, fd) {
    super();
    Object.defineProperty(this, "sink", { value: sink });
    this.fd = fd;
  }
  write(data, encoding, done = encoding) {
    this.sink.write(typeof data === "string" ? (typeof encoding === "string" ? Buffer.from(data, encoding) : data) : new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    if (typeof done === "function") loop.queueMicrotask(done);
    return true;
  }
  end(data) {
    if (data !== undefined) this.write(data);
    return this;
  }
}

class Process extends EventEmitter {
  argv = [];
  env = {};
  execArgv = [];
  exitCode = undefined;
  stdin = new Input();
  stdout = new Output(out, 1);
  stderr = new Output(err, 2);
  title = "node";
  pid = 1;
  platform = "wasi";
  arch = "wasm32";
  version = "v20.0.0"; // the language level to expect; `versions` says what this is
  versions = { node: "20.0.0", quickjs: "ng" };
  #start = 0;
  exit(code) {
    const status = finish(code);
    wasiExit.exitWithCode(status);
  }
  reallyExit(code) {
    this.exit(code);
  }
  abort() {
    wasiExit.exitWithCode(134);
  }
  cwd() {
    return paths.cwd();
  }
  chdir(path) {
    if (!statSync(path).isDirectory()) throw Object.assign(new Error(`ENOTDIR: not a directory, chdir '${path}'`), { code: "ENOTDIR" });
    paths.setCwd(paths.resolve(path));
  }
  nextTick(callback, ...args) {
    loop.queueMicrotask(() => callback(...args));
  }
  uptime() {
    return (loop.now() - this.#start) / 1e9;
  }
  memoryUsage() {
    const { memoryUsedSize, mallocSize } = internals.getMemoryUsage();
    return { rss: mallocSize, heapTotal: mallocSize, heapUsed: memoryUsedSize, external: 0, arrayBuffers: 0 };
  }
  emitWarning(warning) {
    warn(`(node) Warning: ${warning?.message ?? warning}`);
  }
  begin(argv, env) {
    this.argv = argv;
    this.env = env;
    this.#start = loop.now();
    started = this.#start;
  }
}

const internals = globalThis.__cqjs;
let started = 0;
const process = new Process();
process.hrtime = Object.assign(
  (since) => {
    const time = loop.now();
    const [seconds, nanoseconds] = [Math.floor(time / 1e9), time % 1e9];
    if (!since) return [seconds, nanoseconds];
    const carry = nanoseconds < since[1] ? 1 : 0;
    return [seconds - since[0] - carry, nanoseconds - since[1] + carry * 1e9];
  },
  { bigint: () => BigInt(loop.now()) },
);
const performance = { now: () => (loop.now() - started) / 1e6, timeOrigin: 0, mark() {}, measure() {} };
builtins.process = process;
builtins.console = console;
builtins.perf_hooks.performance = performance;

// ---- require

const cache = new Map();
const NEXT = ["", ".js", ".cjs", ".mjs", ".json", "/index.js"];

function requireFrom(directory) {
  const require = (name) => {
    const bare = String(name).replace(/^node:/, "");
    if (bare in builtins) return builtins[bare];
    if (!/^[./]/.test(name)) throw noModule(name, bare);
    const path = locateModule(paths.resolve(directory, name));
    if (path === undefined) throw Object.assign(new Error(`Cannot find module '${name}'`), { code: "MODULE_NOT_FOUND" });
    return load(path);
  };
  require.resolve = (name) => (String(name).replace(/^node:/, "") in builtins ? name : locateModule(paths.resolve(directory, name)) ?? name);
  require.cache = {};
  return require;
}

function noModule(name, bare) {
  const error = Object.assign(new Error(`Cannot find module '${name}'`), { code: "MODULE_NOT_FOUND" });
  const what = elsewhere.has(bare) ? `the module ${bare} does not` : `the package ${bare} does not`;
  Object.defineProperty(error, "missing", { value: what });
  return error;
}

function locateModule(path) {
  return NEXT.map((suffix) => path + suffix).find((candidate) => existsSync(candidate) && statSync(candidate).isFile());
}

function load(path) {
  if (cache.has(path)) return cache.get(path).exports;
  const text = readFileSync(path, "utf8");
  const module = { exports: {}, id: path, filename: path, loaded: false, children: [], paths: [] };
  cache.set(path, module);
  if (path.endsWith(".json")) {
    module.exports = JSON.parse(text);
    return module.exports;
  }
  const program = prepare(text);
  const open = "(function (exports, require, module, __filename, __dirname, __import, __meta) {";
  const index = files.push({ name: path, shift: open.length }) - 1;
  const directory = paths.dirname(path);
  const require = requireFrom(directory);
  const body = (0, eval)(`${"\n".repeat(index * MODULE_LINES)}${open}${program.text}\n})`);
  body.call(module.exports, module.exports, require, module, path, directory, importWith(require), metaOf(path));
  module.loaded = true;
  return module.exports;
}

const isModule = (exports) => exports?.__esModule === true;
const importWith = (require) => async (name) => namespace(require(name));
const byDefault = (exports) => (isModule(exports) ? exports.default : exports);
const namespace = (exports) => (isModule(exports) ? exports : { ...exports, default: exports });
const metaOf = (path) => ({ url: `file://${path}`, filename: path, dirname: paths.dirname(path) });

// ---- globals

const define = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
for (const [name, value] of Object.entries({
  console, process, performance, crypto, Buffer, TextEncoder, TextDecoder, URL, URLSearchParams, structuredClone,
  setTimeout: loop.setTimeout, setInterval: loop.setInterval, setImmediate: loop.setImmediate, clearTimeout: loop.clearTimeout,
  clearInterval: loop.clearInterval, clearImmediate: loop.clearImmediate, queueMicrotask: loop.queueMicrotask, global: globalThis,
  __default: byDefault, __namespace: namespace,
  fetch: async () => {
    throw Object.defineProperty(new TypeError("fetch failed: WASM JavaScript has no network"), "missing", { value: "the network does not" });
  },
})) define(name, value);
Math.random = mathRandom;
for (const name of ["__cqjs", "wit"]) define(name, globalThis[name]);

// ---- the one export

export async function run(source, args) {
  const isFile = source.tag === "file";
  const name = isFile ? source.val.name : "[eval]";
  const text = isFile ? decode(source.val.bytes) : source.val;
  process.begin(["node", ...(isFile ? [name] : []), ...args], Object.fromEntries(environment.getEnvironment()));
  if (existsSync("/work")) paths.setCwd("/work");
  let settled = true;
  try {
    const value = start(text, name, isFile);
    // The value of the last statement: what `main()` at the end of a script returned. QuickJS tells no one about other
    // promises that fail unheard.
    if (value instanceof Promise) {
      settled = value.isProgram !== true;
      value.then(() => (settled = true), fail);
    }
  } catch (error) {
    fail(error);
  }
  await loop.drain();
  if (!settled) {
    err.write("Warning: the program ended while its top-level await was still waiting\n");
    return finish(13);
  }
  process.emit("beforeExit", process.exitCode ?? 0);
  await loop.drain();
  return finish();
}

function start(text, name, isFile) {
  const program = prepare(text);
  files[0] = { name, shift: program.isAsync ? ASYNC_OPEN.length : 0 };
  const path = isFile ? paths.resolve(name) : paths.resolve("[eval]");
  const directory = paths.dirname(path);
  const module = { exports: {}, id: ".", filename: path, loaded: false, children: [], paths: [] };
  const require = requireFrom(directory);
  require.main = module;
  for (const [key, value] of Object.entries({ require, module, exports: module.exports, __filename: path, __dirname: directory, __import: importWith(require), __meta: metaOf(path) })) define(key, value);
  if (!program.isAsync) return evaluate(program.text);
  const promise = evaluate(`${ASYNC_OPEN}${program.text}\n})()`);
  promise.isProgram = true;
  return promise;
}

function evaluate(text) {
  try {
    return (0, eval)(text);
  } catch (error) {
    // A file may `return` at its top level in Node.
    if (error instanceof SyntaxError && /\breturn\b/.test(text) && /return/.test(error.message)) return (0, eval)(`(function () {${text}\n})()`);
    throw error;
  }
}
