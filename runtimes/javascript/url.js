// `URL` and `URLSearchParams`, for the absolute and relative addresses that scripts take apart. No punycode, and no
// percent-encoding beyond what `encodeURI` does.

const PARTS = /^([a-z][a-z0-9+.-]*:)(\/\/(?:([^/?#@]*)@)?(\[[^\]]*\]|[^/?#:]*)(?::(\d*))?)?([^?#]*)(\?[^#]*)?(#.*)?$/i;
const DEFAULT_PORTS = { "http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21" };

export class URLSearchParams {
  #pairs = [];
  #changed;
  constructor(init = "", changed = () => {}) {
    this.#changed = changed;
    if (typeof init === "string") {
      for (const part of init.replace(/^\?/, "").split("&").filter(Boolean)) {
        const [name, ...value] = part.split("=");
        this.#pairs.push([unplus(name), unplus(value.join("="))]);
      }
    } else {
      for (const [name, value] of typeof init[Symbol.iterator] === "function" ? init : Object.entries(init)) this.#pairs.push([String(name), String(value)]);
    }
  }
  get size() {
    return this.#pairs.length;
  }
  get(name) {
    return this.#pairs.find((pair) => pair[0] === name)?.[1] ?? null;
  }
  getAll(name) {
    return this.#pairs.filter((pair) => pair[0] === name).map((pair) => pair[1]);
  }
  has(name) {
    return this.get(name) !== null;
  }
  append(name, value) {
    this.#pairs.push([String(name), String(value)]);
    this.#changed();
  }
  set(name, value) {
    const at = this.#pairs.findIndex((pair) => pair[0] === name);
    if (at === -1) return this.append(name, value);
    this.#pairs = this.#pairs.filter((pair, i) => pair[0] !== name || i === at);
    this.#pairs[at][1] = String(value);
    this.#changed();
  }
  delete(name) {
    this.#pairs = this.#pairs.filter((pair) => pair[0] !== name);
    this.#changed();
  }
  sort() {
    this.#pairs.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0));
    this.#changed();
  }
  forEach(callback) {
    for (const [name, value] of this.#pairs) callback(value, name, this);
  }
  entries() {
    return this.#pairs.map((pair) => [...pair]).values();
  }
  keys() {
    return this.#pairs.map((pair) => pair[0]).values();
  }
  values() {
    return this.#pairs.map((pair) => pair[1]).values();
  }
  [Symbol.iterator]() {
    return this.entries();
  }
  toString() {
    return this.#pairs.map((pair) => pair.map(plus).join("=")).join("&");
  }
  get [Symbol.toStringTag]() {
    return "URLSearchParams";
  }
}

const plus = (text) => encodeURIComponent(text).replace(/%20/g, "+").replace(/[!'()~]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
const unplus = (text) => {
  try {
    return decodeURIComponent(text.replace(/\+/g, " "));
  } catch {
    return text;
  }
};

export class URL {
  constructor(address, base) {
    const text = String(address).trim();
    let parts = PARTS.exec(text);
    if (!parts && base !== undefined) parts = PARTS.exec(against(new URL(base), text));
    if (!parts) throw Object.assign(new TypeError("Invalid URL"), { code: "ERR_INVALID_URL", input: text });
    const [, scheme, authority, user = "", host = "", port = "", path, search = "", hash = ""] = parts;
    this.protocol = scheme.toLowerCase();
    const special = this.protocol in DEFAULT_PORTS;
    if (special && !host) throw Object.assign(new TypeError("Invalid URL"), { code: "ERR_INVALID_URL", input: text });
    [this.username = "", this.password = ""] = user.split(":");
    this.hostname = host.toLowerCase();
    this.port = port === DEFAULT_PORTS[this.protocol] ? "" : port;
    this.pathname = authority !== undefined ? tidy(escaped(path)) || (special ? "/" : "") : escaped(path);
    this.hash = hash === "#" ? "" : escaped(hash);
    hidden(this, "slashes", authority !== undefined);
    hidden(this, "query", search === "?" ? "" : escaped(search));
    hidden(this, "searchParams", new URLSearchParams(search, () => (this.search = String(this.searchParams))));
  }
  static canParse(address, base) {
    try {
      return Boolean(new URL(address, base));
    } catch {
      return false;
    }
  }
  get search() {
    return this.query;
  }
  set search(text) {
    this.query = text === "" ? "" : `?${String(text).replace(/^\?/, "")}`;
  }
  get host() {
    return this.hostname + (this.port && `:${this.port}`);
  }
  get origin() {
    return this.protocol in DEFAULT_PORTS ? `${this.protocol}//${this.host}` : "null";
  }
  get href() {
    const user = this.username && `${this.username}${this.password && `:${this.password}`}@`;
    return `${this.protocol}${this.slashes ? "//" : ""}${user}${this.host}${this.pathname}${this.search}${this.hash}`;
  }
  toString() {
    return this.href;
  }
  toJSON() {
    return this.href;
  }
}

const hidden = (object, name, value) => Object.defineProperty(object, name, { value, writable: true });
const escaped = (text) => encodeURI(text).replace(/%25/g, "%").replace(/%5B/g, "[").replace(/%5D/g, "]");

function against(base, text) {
  const root = `${base.protocol}${base.slashes ? "//" : ""}${base.username && `${base.username}@`}${base.host}`;
  if (text.startsWith("//")) return base.protocol + text;
  if (text.startsWith("/")) return root + text;
  if (text.startsWith("?")) return root + base.pathname + text;
  if (text.startsWith("#") || text === "") return root + base.pathname + base.search + text;
  return root + base.pathname.replace(/[^/]*$/, "") + text;
}

function tidy(path) {
  const parts = [];
  const pieces = path.split("/");
  pieces.forEach((piece, i) => {
    const last = i === pieces.length - 1;
    if (piece === "..") {
      if (parts.length > 1) parts.pop();
      if (last) parts.push("");
    } else if (piece !== ".") parts.push(piece);
    else if (last) parts.push("");
  });
  return parts.join("/");
}
