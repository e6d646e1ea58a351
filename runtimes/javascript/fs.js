// Node's `fs`, the synchronous part, over WASI's directories. What is not below a preopened directory does not exist.

import preopens from "wasi:filesystem/preopens@0.2.12";
import { Buffer, encode } from "./bytes.js";
import { readAllInput, out, err } from "./stdio.js";
import { resolve } from "./path.js";

const READ = 1 << 20;
const CODES = {
  "no-entry": ["ENOENT", "no such file or directory"],
  "exist": ["EEXIST", "file already exists"],
  "not-directory": ["ENOTDIR", "not a directory"],
  "is-directory": ["EISDIR", "illegal operation on a directory"],
  "not-empty": ["ENOTEMPTY", "directory not empty"],
  "access": ["EACCES", "permission denied"],
  "not-permitted": ["EPERM", "operation not permitted"],
  "read-only": ["EROFS", "read-only file system"],
  "insufficient-space": ["ENOSPC", "no space left on device"],
  "quota": ["EDQUOT", "disk quota exceeded"],
  "invalid": ["EINVAL", "invalid argument"],
  "loop": ["ELOOP", "too many symbolic links encountered"],
  "name-too-long": ["ENAMETOOLONG", "name too long"],
};

let roots = null;

// The preopened directory that holds `path`, and the path below it.
function locate(path, call) {
  roots ??= preopens.getDirectories().map(([directory, name]) => [directory, name.replace(/\/$/, "")]).sort((a, b) => b[1].length - a[1].length);
  const full = resolve(path instanceof URL ? decodeURIComponent(path.pathname) : path);
  for (const [directory, name] of roots) {
    if (full === name || full === `${name}/`) return [directory, ".", full];
    if (full.startsWith(`${name}/`)) return [directory, full.slice(name.length + 1), full];
  }
  throw failure("no-entry", call, path);
}

function failure(code, call, path) {
  const [name, text] = CODES[code] ?? [`E${String(code).toUpperCase().replace(/-/g, "")}`, String(code)];
  return Object.assign(new Error(`${name}: ${text}, ${call} '${path}'`), { code: name, syscall: call, path: String(path) });
}

function attempt(call, path, body) {
  const place = locate(path, call);
  try {
    return body(...place);
  } catch (error) {
    throw "payload" in error ? failure(error.payload, call, path) : error;
  }
}

const encodingOf = (options) => (typeof options === "string" ? options : options?.encoding);
const FOLLOW = { symlinkFollow: true };

function open(path, call, openFlags, flags) {
  return attempt(call, path, (directory, name) => directory.openAt(FOLLOW, name, openFlags, flags));
}

export function readFileSync(path, options) {
  const bytes = path === 0 || path === "/dev/stdin" ? readAllInput() : readWhole(path);
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  const encoding = encodingOf(options);
  return encoding ? buffer.toString(encoding) : buffer;
}

function readWhole(path) {
  const file = open(path, "open", {}, { read: true });
  try {
    const parts = [];
    let at = 0;
    for (;;) {
      const [bytes, end] = file.read(READ, at);
      parts.push(bytes);
      at += bytes.length;
      if (end || bytes.length === 0) break;
    }
    return Buffer.concat(parts);
  } catch (error) {
    throw failure(error.payload ?? error.message, "read", path);
  } finally {
    file[Symbol.dispose]();
  }
}

export function writeFileSync(path, data, options) {
  const flag = options?.flag ?? "w";
  put(path, data, options, flag);
}

export function appendFileSync(path, data, options) {
  put(path, data, options, "a");
}

function put(path, data, options, flag) {
  const encoding = encodingOf(options);
  const bytes = typeof data === "string" ? (encoding ? Buffer.from(data, encoding) : encode(data)) : ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : encode(String(data));
  if (path === 1 || path === "/dev/stdout") return out.write(bytes);
  if (path === 2 || path === "/dev/stderr") return err.write(bytes);
  const append = flag.startsWith("a");
  const file = open(path, "open", { create: true, truncate: !append, exclusive: flag.includes("x") }, { write: true });
  try {
    let at = append ? file.stat().size : 0;
    for (let done = 0; done < bytes.length; ) {
      const count = file.write(bytes.subarray(done, done + READ), at);
      done += count;
      at += count;
    }
  } catch (error) {
    throw failure(error.payload ?? error.message, "write", path);
  } finally {
    file[Symbol.dispose]();
  }
}

export function existsSync(path) {
  try {
    statSync(path);
    return true;
  } catch {
    return false;
  }
}

export const accessSync = (path) => void statSync(path);

export class Stats {
  constructor({ type, size, linkCount, dataAccessTimestamp, dataModificationTimestamp, statusChangeTimestamp }) {
    const ms = (time) => (time ? time.seconds * 1000 + time.nanoseconds / 1e6 : 0);
    Object.defineProperty(this, "kind", { value: type });
    this.size = size;
    this.nlink = linkCount;
    this.mode = type === "directory" ? 0o040755 : 0o100644; // WASI has no permissions to show
    this.atimeMs = ms(dataAccessTimestamp);
    this.mtimeMs = ms(dataModificationTimestamp);
    this.ctimeMs = ms(statusChangeTimestamp);
    this.atime = new Date(this.atimeMs);
    this.mtime = new Date(this.mtimeMs);
    this.ctime = new Date(this.ctimeMs);
  }
  isFile() {
    return this.kind === "regular-file";
  }
  isDirectory() {
    return this.kind === "directory";
  }
  isSymbolicLink() {
    return this.kind === "symbolic-link";
  }
}

export function statSync(path, options) {
  try {
    return attempt("stat", path, (directory, name) => new Stats(directory.statAt(FOLLOW, name)));
  } catch (error) {
    if (options?.throwIfNoEntry === false && error.code === "ENOENT") return undefined;
    throw error;
  }
}

export const lstatSync = (path) => attempt("lstat", path, (directory, name) => new Stats(directory.statAt({}, name)));

class Dirent {
  constructor(entry, parent) {
    this.name = entry.name;
    this.parentPath = parent;
    Object.defineProperty(this, "kind", { value: entry.type });
  }
}
for (const name of ["isFile", "isDirectory", "isSymbolicLink"]) Dirent.prototype[name] = Stats.prototype[name];

export function readdirSync(path, options) {
  const directory = open(path, "scandir", { directory: true }, { read: true });
  const entries = [];
  const stream = directory.readDirectory();
  for (let entry = stream.readDirectoryEntry(); entry; entry = stream.readDirectoryEntry()) entries.push(entry);
  stream[Symbol.dispose]();
  directory[Symbol.dispose]();
  entries.sort((a, b) => (a.name < b.name ? -1 : 1));
  const found = [];
  for (const entry of entries) {
    found.push(options?.withFileTypes ? new Dirent(entry, String(path)) : entry.name);
    if (options?.recursive && entry.type === "directory") {
      for (const inner of readdirSync(resolve(path, entry.name), options)) {
        found.push(options.withFileTypes ? inner : `${entry.name}/${inner}`);
      }
    }
  }
  return found;
}

export function mkdirSync(path, options) {
  if (!options?.recursive) return attempt("mkdir", path, (directory, name) => void directory.createDirectoryAt(name));
  const full = resolve(path);
  if (existsSync(full)) return undefined;
  const parent = resolve(full, "..");
  if (parent !== full) mkdirSync(parent, options);
  mkdirSync(full);
  return full;
}

export function mkdtempSync(prefix) {
  const path = prefix + [...crypto.getRandomValues(new Uint8Array(6))].map((byte) => (byte % 36).toString(36)).join("");
  mkdirSync(path);
  return path;
}

export const unlinkSync = (path) => attempt("unlink", path, (directory, name) => void directory.unlinkFileAt(name));
export const rmdirSync = (path) => attempt("rmdir", path, (directory, name) => void directory.removeDirectoryAt(name));

export function rmSync(path, options = {}) {
  let stats;
  try {
    stats = lstatSync(path);
  } catch (error) {
    if (options.force && error.code === "ENOENT") return;
    throw error;
  }
  if (!stats.isDirectory()) return unlinkSync(path);
  if (!options.recursive) throw failure("is-directory", "rm", path);
  for (const name of readdirSync(path)) rmSync(resolve(path, name), options);
  rmdirSync(path);
}

export function renameSync(from, to) {
  const [directory, name] = locate(to, "rename");
  attempt("rename", from, (source, old) => void source.renameAt(old, directory, name));
}

export const copyFileSync = (from, to) => writeFileSync(to, readFileSync(from));
export const realpathSync = (path) => attempt("realpath", path, (directory, name, full) => (directory.statAt(FOLLOW, name), full));

const sync = {
  readFileSync, writeFileSync, appendFileSync, existsSync, accessSync, statSync, lstatSync, readdirSync, mkdirSync, mkdtempSync,
  unlinkSync, rmdirSync, rmSync, renameSync, copyFileSync, realpathSync,
};

// `fs.promises.x` and `fs.x(…, callback)`: nothing here can really run in the background, so both do the work at once.
export const promises = {};
const callbacks = {};
for (const [name, body] of Object.entries(sync)) {
  const short = name.slice(0, -4);
  if (short === "exists") continue;
  promises[short] = async (...args) => body(...args);
  callbacks[short] = (...args) => {
    const done = args.pop();
    promises[short](...args).then((value) => done(null, value), done);
  };
}

export const fs = { ...sync, ...callbacks, promises, Stats, Dirent, constants: { F_OK: 0, R_OK: 4, W_OK: 2, X_OK: 1 } };
