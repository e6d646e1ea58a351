// Making program text fit for `eval`, the only way in. Lines keep their numbers.
//
// QuickJS's own `import` looks for files that only existed while the snapshot was taken, and traps. So import and export
// statements become calls of `require`; the scanner below keeps strings, templates, comments and regular expressions out
// of it.

const IMPORT = /import\s*(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)|\{([^}]*)\})?\s*(?:from\s*)?(["'])([^"'\n]*)\4(?:\s*with\s*\{[^}]*\})?/y;
const EXPORT_LIST = /export\s*\{([^}]*)\}(?:\s*from\s*(["'])([^"'\n]*)\2)?/y;
const EXPORT_ALL = /export\s*\*\s*(?:as\s+([\w$]+)\s+)?from\s*(["'])([^"'\n]*)\2/y;
const EXPORT_NAMED = /export\s+(?=(?:const|let|var|class|function|async\s+function)\s*\*?\s*([\w$]+))/y;
const EXPORT_DEFAULT = /export\s+default\b\s*/y;
const WORD = /[\w$]+/y;
const KEYWORDS = ["import", "export", "await"];

// The text to evaluate, and whether it has to be the body of an async function.
export function prepare(text) {
  text = text.replace(/^\ufeff/, "").replace(/^#!/, "//");
  const program = /\b(?:import|export)\b/.test(text) ? rewrite(text) : text;
  return { text: program, isAsync: /\bawait\b/.test(text) && awaitsAtTop(program) };
}

// Most programs that say `await` say it inside a function, and end with a call of that function. They are better off as
// plain scripts: a script's last value, that call's promise, can be seen.
function awaitsAtTop(text) {
  for (const [, word, depth] of words(text)) if (word === "await" && depth === 0) return true;
  try {
    new Function(text);
    return false;
  } catch {
    return true; // in a block; or the text is broken, and will say so again
  }
}

function rewrite(text) {
  let result = "";
  let from = 0;
  let tail = "";
  let isModule = false;
  const replace = (start, end, replacement) => {
    const lines = text.slice(start, end).split("\n").length - 1;
    result += text.slice(from, start) + replacement + "\n".repeat(lines);
    from = end;
  };
  for (const [at, word] of words(text)) {
    if (word === "await") continue;
    const match = (pattern) => {
      pattern.lastIndex = at;
      return pattern.exec(text);
    };
    let found;
    if (word === "import") {
      if ((found = match(/import\s*\(/y))) {
        replace(at, at + found[0].length, "__import(");
      } else if ((found = match(/import\s*\.\s*meta\b/y))) {
        replace(at, at + found[0].length, "__meta");
      } else if ((found = match(IMPORT))) {
        isModule = true;
        replace(at, at + found[0].length, importing(found));
      }
    } else if ((found = match(EXPORT_ALL))) {
      isModule = true;
      const value = `require(${JSON.stringify(found[3])})`;
      replace(at, at + found[0].length, found[1] ? `exports.${found[1]} = ${value}` : `Object.assign(exports, ${value})`);
    } else if ((found = match(EXPORT_LIST))) {
      isModule = true;
      const source = found[3] === undefined ? "" : `require(${JSON.stringify(found[3])}).`;
      const code = pairs(found[1]).map(([name, as]) => `exports.${as} = ${source}${name};`).join(" ");
      if (source) {
        replace(at, at + found[0].length, code);
      } else {
        replace(at, at + found[0].length, "");
        tail += code;
      }
    } else if ((found = match(EXPORT_DEFAULT))) {
      isModule = true;
      replace(at, at + found[0].length, "exports.default = ");
    } else if ((found = match(EXPORT_NAMED))) {
      isModule = true;
      replace(at, at + found[0].length, "");
      tail += `exports.${found[1]} = ${found[1]};`;
    }
  }
  result += text.slice(from);
  return isModule ? `"use strict"; exports.__esModule = true; ${result}\n${tail}` : result;
}

function importing([, byDefault, namespace, list, , name]) {
  const module = `require(${JSON.stringify(name)})`;
  const parts = [];
  if (byDefault) parts.push(`const ${byDefault} = __default(${module})`);
  if (namespace) parts.push(`const ${namespace} = __namespace(${module})`);
  if (list !== undefined) parts.push(`const { ${pairs(list).map(([inner, as]) => `${inner}: ${as}`).join(", ")} } = __namespace(${module})`);
  return parts.length === 0 ? module : parts.join("; ");
}

const pairs = (list) => list.split(",").map((item) => item.trim()).filter(Boolean).map((item) => {
  const [name, as = name] = item.split(/\s+as\s+/);
  return [name, as];
});

// The words `import`, `export` and `await` in code proper: where, which, and inside how many braces.
function* words(text) {
  const templates = []; // brace depth at which each open `${` closes
  let depth = 0;
  let last = ""; // the last thing that was code, to tell a division from a regular expression
  for (let i = 0; i < text.length; ) {
    const c = text[i];
    const two = text.slice(i, i + 2);
    if (two === "//") i = after(text, "\n", i);
    else if (two === "/*") i = after(text, "*/", i + 2);
    else if (c === '"' || c === "'") [i, last] = [endOfString(text, i), "x"];
    else if (c === "`" || (c === "}" && templates.at(-1) === depth)) {
      if (c === "}") templates.pop();
      i = endOfTemplate(text, i + 1);
      if (text.slice(i - 2, i) === "${") [last, templates[templates.length]] = ["{", depth];
      else last = "x";
    } else if (c === "/" && !/[\w$)\]}]$/.test(last.replace(/^(?:return|typeof|case|in|of|delete|void|throw|new|do|else|await|yield)$/, "("))) {
      [i, last] = [endOfRegExp(text, i), "x"];
    } else if (/[\w$]/.test(c)) {
      WORD.lastIndex = i;
      const word = WORD.exec(text)[0];
      if (KEYWORDS.includes(word) && last !== ".") yield [i, word, depth];
      [i, last] = [i + word.length, word];
    } else {
      if (c === "{") depth++;
      if (c === "}") depth--;
      if (!/\s/.test(c)) last = c;
      i++;
    }
  }
}

function after(text, mark, from) {
  const at = text.indexOf(mark, from);
  return at === -1 ? text.length : at + mark.length;
}

function endOfString(text, from) {
  for (let i = from + 1; i < text.length; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === text[from] || text[i] === "\n") return i + 1;
  }
  return text.length;
}

function endOfTemplate(text, from) {
  for (let i = from; i < text.length; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "`") return i + 1;
    else if (text[i] === "$" && text[i + 1] === "{") return i + 2;
  }
  return text.length;
}

function endOfRegExp(text, from) {
  let inClass = false;
  for (let i = from + 1; i < text.length; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "\n") return i;
    else if (text[i] === "[") inClass = true;
    else if (text[i] === "]") inClass = false;
    else if (text[i] === "/" && !inClass) return i + 1;
  }
  return text.length;
}
