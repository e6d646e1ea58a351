// How values look when printed. Follows Node's `util.inspect` closely enough that the same program prints the same
// text: two levels deep, at most 80 columns, short things on one line, long arrays in columns.

const BREAK = 80;
const COMPACT = 3; // how many levels may share a line
const MAX_ITEMS = 100;
const MAX_STRING = 10000;
const CUSTOM = Symbol.for("nodejs.util.inspect.custom");
const IDENTIFIER = /^[A-Za-z_$][\w$]*$/;
const ESCAPES = { "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v", "\\": "\\\\" };
const TypedArray = Object.getPrototypeOf(Uint8Array);

export function inspect(value, options = {}) {
  const depth = options.depth === undefined ? 2 : options.depth === null ? Infinity : options.depth;
  const breakLength = options.compact === false ? 0 : (options.breakLength ?? BREAK);
  return show(value, { depth, breakLength, path: [], circular: new Map(), level: 0, indent: 0 }, 0);
}

// `console.log(format, ...rest)`: printf-like when the first argument is a string with `%`.
export function format(...args) {
  const [first] = args;
  let used = 1;
  let text = "";
  if (typeof first !== "string") {
    used = 0;
  } else if (args.length === 1 || !first.includes("%")) {
    text = first;
  } else {
    text = first.replace(/%([sdifjoOc%])/g, (whole, kind) => {
      if (kind === "%") return "%";
      if (used >= args.length) return whole;
      return convert(kind, args[used++]);
    });
  }
  for (const value of args.slice(used)) {
    text += (text === "" && used === 0 ? "" : " ") + (typeof value === "string" ? value : inspect(value));
    used++;
  }
  return text;
}

function convert(kind, value) {
  switch (kind) {
    case "s":
      if (typeof value === "string") return value;
      if (typeof value === "object" && value !== null && !(value instanceof Error)) return inspect(value, { depth: 0 });
      return typeof value === "bigint" || Object.is(value, -0) ? inspect(value) : String(value);
    case "d":
      return typeof value === "bigint" ? `${value}n` : typeof value === "object" ? "NaN" : inspect(Number(value));
    case "i":
      return typeof value === "bigint" ? `${value}n` : inspect(parseInt(value));
    case "f":
      return inspect(parseFloat(value));
    case "j":
      return JSON.stringify(value);
    case "c":
      return "";
    default:
      return inspect(value, kind === "o" ? { depth: 4 } : {});
  }
}

function show(value, ctx, level) {
  switch (typeof value) {
    case "string":
      return quote(value.length > MAX_STRING ? value.slice(0, MAX_STRING) : value) +
        (value.length > MAX_STRING ? `... ${value.length - MAX_STRING} more characters` : "");
    case "number":
      return Object.is(value, -0) ? "-0" : String(value);
    case "bigint":
      return `${value}n`;
    case "object":
    case "function":
      return value === null ? "null" : showObject(value, ctx, level);
    default:
      return String(value); // undefined, boolean, symbol
  }
}

function showObject(value, ctx, level) {
  const custom = value[CUSTOM];
  if (typeof custom === "function") {
    const text = custom.call(value, ctx.depth - level, {}, inspect);
    if (text !== value) return typeof text === "string" ? text : show(text, ctx, level);
  }
  if (ctx.path.includes(value)) {
    if (!ctx.circular.has(value)) ctx.circular.set(value, ctx.circular.size + 1);
    return `[Circular *${ctx.circular.get(value)}]`;
  }
  const shape = shapeOf(value);
  const size = shape.list?.length ?? shape.size ?? (shape.items ? 1 : 0);
  if (size === 0 && shape.keys.length === 0) return shape.base ?? `${shape.head}${shape.open}${shape.close}`;
  if (level > ctx.depth) return shape.tooDeep;

  ctx.path.push(value);
  ctx.level = level;
  ctx.indent += 2;
  const items = shape.items ? shape.items(ctx, level + 1) : [];
  for (const key of shape.keys) items.push(property(value, key, ctx, level + 1));
  ctx.indent -= 2;
  ctx.path.pop();

  let { head, open, close, base } = shape;
  if (ctx.circular.has(value)) head = `<ref *${ctx.circular.get(value)}> ${head}`;
  return layout(items, `${head}${open}`, close, base, ctx, level, shape);
}

// What kind of thing it is: the text around its properties, and which properties are left to print.
function shapeOf(value) {
  const name = className(value);
  const keys = ownKeys(value);
  const plain = { head: "", open: "{", close: "}", keys, tooDeep: `[${name ?? "Object: null prototype"}]` };
  const prefix = (fallback, size) => {
    const text = size === undefined ? "" : `(${size})`;
    if (name === null) return `[${fallback}${text}: null prototype] `;
    return name === fallback || name.length > 0 ? `${name}${text} ` : `${fallback}${text} `;
  };
  if (Array.isArray(value)) {
    const head = name === "Array" ? "" : prefix("Array", value.length);
    const rest = keys.filter((key) => typeof key === "symbol" || !isIndex(key));
    return { head, open: "[", close: "]", keys: rest, list: value, items: (ctx, level) => arrayItems(value, ctx, level), tooDeep: `[${name ?? "Array"}]` };
  }
  if (value instanceof TypedArray) {
    const kind = value[Symbol.toStringTag];
    const rest = keys.filter((key) => typeof key === "symbol" || !isIndex(key));
    return { head: prefix(kind, value.length), open: "[", close: "]", keys: rest, list: value, items: (ctx, level) => arrayItems(value, ctx, level), tooDeep: `[${name}]` };
  }
  if (value instanceof Map) {
    const items = (ctx, level) => limited([...value], (pair) => `${show(pair[0], ctx, level)} => ${show(pair[1], ctx, level)}`);
    return { ...plain, head: prefix("Map", value.size), size: value.size, items };
  }
  if (value instanceof Set) {
    return { ...plain, head: prefix("Set", value.size), size: value.size, items: (ctx, level) => limited([...value], (item) => show(item, ctx, level)) };
  }
  if (typeof value === "function") return { ...plain, base: functionName(value), tooDeep: functionName(value) };
  if (value instanceof Error) {
    const rest = keys.filter((key) => key !== "stack" && key !== "message");
    if (Object.hasOwn(value, "cause") && !rest.includes("cause")) rest.push("cause");
    if (Object.hasOwn(value, "errors") && !rest.includes("errors")) rest.push("errors");
    return { ...plain, base: errorText(value), keys: rest, tooDeep: `[${errorText(value)}]` };
  }
  if (value instanceof RegExp) return { ...plain, base: String(value) };
  if (value instanceof Date) return { ...plain, base: isNaN(value) ? "Invalid Date" : value.toISOString() };
  if (value instanceof ArrayBuffer) {
    const bytes = [...new Uint8Array(value).subarray(0, 50)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const more = value.byteLength > 50 ? ` ... ${value.byteLength - 50} more bytes` : "";
    return { ...plain, head: prefix("ArrayBuffer"), items: () => [`[Uint8Contents]: <${bytes}${more}>`, `byteLength: ${value.byteLength}`] };
  }
  if (value instanceof WeakMap || value instanceof WeakSet) return { ...plain, head: prefix(name), items: () => ["<items unknown>"] };
  for (const Box of [Number, String, Boolean, BigInt, Symbol]) {
    if (value instanceof Box) {
      const rest = keys.filter((key) => typeof key === "symbol" || !(Box === String && isIndex(key)));
      return { ...plain, keys: rest, base: `[${Box.name}: ${show(value.valueOf(), {}, 0)}]` };
    }
  }
  if (Object.prototype.toString.call(value) === "[object Arguments]") {
    return { ...plain, head: "[Arguments] ", open: "[", close: "]", keys: [], list: [...value], items: (ctx, level) => arrayItems([...value], ctx, level) };
  }
  const tag = value[Symbol.toStringTag];
  const tagged = typeof tag === "string" && tag !== "" && tag !== name ? `${name ?? "Object: null prototype"} [${tag}] ` : null;
  return { ...plain, head: tagged ?? (name === "Object" ? "" : prefix("Object")) };
}

function arrayItems(array, ctx, level) {
  const items = [];
  let shown = 0;
  for (let i = 0; i < array.length && shown < MAX_ITEMS; i++, shown++) {
    if (i in array) {
      items.push(show(array[i], ctx, level));
      continue;
    }
    const from = i;
    while (i + 1 < array.length && !(i + 1 in array)) i++;
    items.push(`<${i - from + 1} empty item${i > from ? "s" : ""}>`);
  }
  const left = array.length - Math.min(array.length, MAX_ITEMS);
  if (left > 0 && shown === MAX_ITEMS) items.push(more(left));
  return items;
}

function limited(list, each) {
  const items = list.slice(0, MAX_ITEMS).map(each);
  if (list.length > MAX_ITEMS) items.push(more(list.length - MAX_ITEMS));
  return items;
}

const more = (count) => `... ${count} more item${count > 1 ? "s" : ""}`;

function property(value, key, ctx, level) {
  const { get, set, value: inner, enumerable } = Object.getOwnPropertyDescriptor(value, key) ?? { value: value[key], enumerable: true };
  let text;
  if (get) text = set ? "[Getter/Setter]" : "[Getter]";
  else if (set) text = "[Setter]";
  else text = show(inner, ctx, level);
  let name = typeof key === "symbol" ? `[${String(key)}]` : IDENTIFIER.test(key) ? key : quote(key);
  if (key === "__proto__") name = "['__proto__']";
  if (!enumerable) name = `[${key}]`;
  return `${name}: ${text}`;
}

function layout(items, open, close, base, ctx, level, shape) {
  const entries = items.length;
  // Only the elements of a long array are put into columns, and only if none of them spans lines.
  if (shape.list && entries > 6) items = columns(items, shape.list, ctx);
  const start = base ? `${base} ${open}` : open;
  if (ctx.level - level < COMPACT && items.length === entries) {
    const length = items.reduce((sum, item) => sum + item.length, 0) + items.length;
    const room = items.length + ctx.indent + open.length + (base?.length ?? 0) + 10;
    if (length + room <= ctx.breakLength && !items.some((item) => item.includes("\n")) && !base?.includes("\n")) {
      return `${start} ${items.join(", ")} ${close}`;
    }
  }
  const pad = "\n" + " ".repeat(ctx.indent);
  return `${start}${pad}  ${items.join(`,${pad}  `)}${pad}${close}`;
}

// Columns about as wide as tall, as Node chooses them: numbers to the right, everything else to the left.
function columns(items, list, ctx) {
  const extra = list.length > MAX_ITEMS && items.length > MAX_ITEMS ? 1 : 0;
  const count = items.length - extra;
  const widths = items.slice(0, count).map((item) => width(item));
  const total = widths.reduce((sum, w) => sum + w + 2, 0);
  const widest = Math.max(...widths) + 2;
  if (widest * 3 + ctx.indent >= ctx.breakLength || (total / widest <= 5 && widest - 2 > 6)) return items;
  const bias = Math.sqrt(widest - total / items.length);
  const biased = Math.max(widest - 3 - bias, 1);
  const perRow = Math.min(
    Math.round(Math.sqrt(2.5 * biased * count) / biased),
    Math.floor((ctx.breakLength - ctx.indent) / widest),
    COMPACT * 4,
    15,
  );
  if (perRow <= 1) return items;
  const columnWidths = [];
  for (let column = 0; column < perRow; column++) {
    let max = 0;
    for (let i = column; i < count; i += perRow) max = Math.max(max, widths[i]);
    columnWidths.push(max + 2);
  }
  const right = Array.prototype.every.call(list, (item) => typeof item === "number" || typeof item === "bigint");
  const rows = [];
  for (let i = 0; i < count; i += perRow) {
    const end = Math.min(i + perRow, count);
    let row = "";
    for (let j = i; j < end; j++) {
      const last = j === end - 1;
      const cell = last ? items[j] : `${items[j]}, `;
      const room = columnWidths[j - i] - (last ? 2 : 0) + cell.length - widths[j] - (last ? 0 : 2);
      row += right ? cell.padStart(room) : last ? cell : cell.padEnd(room);
    }
    rows.push(row);
  }
  if (extra) rows.push(items[count]);
  return rows;
}

// Wide characters (CJK, emoji) take two columns.
function width(text) {
  let columns = 0;
  for (const character of text) columns += /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{1faff}]/u.test(character) ? 2 : 1;
  return columns;
}

function ownKeys(value) {
  const symbols = Object.getOwnPropertySymbols(value).filter((key) => Object.prototype.propertyIsEnumerable.call(value, key));
  return [...Object.keys(value), ...symbols];
}

const isIndex = (key) => /^(0|[1-9]\d*)$/.test(key);

function className(value) {
  for (let object = value; object !== null; object = Object.getPrototypeOf(object)) {
    const constructor = Object.getOwnPropertyDescriptor(object, "constructor")?.value;
    if (typeof constructor === "function" && constructor.name !== "" && value instanceof constructor) return constructor.name;
  }
  return null;
}

function functionName(value) {
  const source = Function.prototype.toString.call(value);
  if (source.startsWith("class")) {
    const parent = Object.getPrototypeOf(value)?.name;
    return `[class ${value.name || "(anonymous)"}${parent ? ` extends ${parent}` : ""}]`;
  }
  const kind = Object.prototype.toString.call(value).slice(8, -1); // Function, AsyncFunction, GeneratorFunction, …
  return `[${kind}${value.name ? `: ${value.name}` : " (anonymous)"}]`;
}

function errorText(error) {
  const stack = typeof error.stack === "string" && error.stack !== "" ? error.stack.trimEnd() : null;
  return stack ?? `[${Error.prototype.toString.call(error)}]`;
}

function quote(text) {
  const mark = !text.includes("'") ? "'" : !text.includes('"') ? '"' : !text.includes("`") && !text.includes("${") ? "`" : "'";
  const body = text.replace(/[\x00-\x1f\x7f-\x9f\\']|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, (c) => {
    if (c === "'") return mark === "'" ? "\\'" : c;
    if (ESCAPES[c]) return ESCAPES[c];
    const code = c.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).toUpperCase().padStart(2, "0")}` : `\\u${code.toString(16).toUpperCase()}`;
  });
  return mark + body + mark;
}
