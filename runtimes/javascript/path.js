// Node's `path`, for the one kind of path there is here.

let directory = "/";
export const cwd = () => directory;
export const setCwd = (path) => (directory = path);

export const sep = "/";
export const delimiter = ":";
export const isAbsolute = (path) => path.startsWith("/");

export function normalize(path) {
  if (path === "") return ".";
  const rooted = path.startsWith("/");
  const parts = [];
  for (const part of path.split("/")) {
    if (part === "" || part === ".") continue;
    if (part !== ".." ) parts.push(part);
    else if (parts.length > 0 && parts.at(-1) !== "..") parts.pop();
    else if (!rooted) parts.push("..");
  }
  const text = parts.join("/");
  const tail = path.endsWith("/") && text !== "" ? "/" : "";
  return (rooted ? "/" : "") + (text === "" && !rooted ? "." : text) + tail;
}

export const join = (...parts) => normalize(parts.filter((part) => part !== "").join("/"));

export function resolve(...parts) {
  let path = "";
  for (const part of [directory, ...parts.map(String)]) if (part !== "") path = part.startsWith("/") ? part : `${path}/${part}`;
  const full = normalize(path);
  return full.length > 1 && full.endsWith("/") ? full.slice(0, -1) : full;
}

export function dirname(path) {
  const trimmed = path.replace(/\/+$/, "");
  const at = trimmed.lastIndexOf("/");
  if (at === -1) return path.startsWith("/") ? "/" : ".";
  return at === 0 ? "/" : trimmed.slice(0, at).replace(/\/+$/, "") || "/";
}

export function basename(path, suffix = "") {
  const name = path.replace(/\/+$/, "").split("/").at(-1);
  return suffix && name !== suffix && name.endsWith(suffix) ? name.slice(0, -suffix.length) : name;
}

export function extname(path) {
  const name = basename(path);
  const at = name.lastIndexOf(".");
  return at <= 0 ? "" : name.slice(at);
}

export function relative(from, to) {
  const a = resolve(from).split("/").filter(Boolean);
  const b = resolve(to).split("/").filter(Boolean);
  let same = 0;
  while (same < a.length && same < b.length && a[same] === b[same]) same++;
  return [...a.slice(same).map(() => ".."), ...b.slice(same)].join("/");
}

export function parse(path) {
  const base = basename(path);
  const ext = extname(path);
  const dir = path.includes("/") ? dirname(path) : "";
  return { root: path.startsWith("/") ? "/" : "", dir, base, ext, name: ext ? base.slice(0, -ext.length) : base };
}

export const format = ({ dir, root = "", base, name = "", ext = "" }) => {
  const file = base ?? name + ext;
  return dir ? (dir === root ? dir + file : `${dir}/${file}`) : root + file;
};

export const path = { sep, delimiter, isAbsolute, normalize, join, resolve, dirname, basename, extname, relative, parse, format };
path.posix = path;
