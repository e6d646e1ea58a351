// Timers and the event loop. QuickJS runs its job queue dry only when it returns to the host, so a turn of the loop is a
// pause: whatever promises had to do has been done when it is over.

import eventLoop from "casemate:runtime/event-loop@0.1.0";
import clock from "wasi:clocks/monotonic-clock@0.2.12";
import { inspect } from "./inspect.js";

const MS = 1e6;
let onError = null;
let nextId = 1;
const timers = new Map(); // id -> Timeout
const pending = new Set(); // other things that will happen: functions, run in the next turn

export const now = () => clock.now();
export const handleErrorsWith = (handler) => (onError = handler);
export const soon = (body) => pending.add(body);

// Runs until nothing is left to do.
export async function drain() {
  for (;;) {
    await eventLoop.pause(0).read();
    if (pending.size > 0) {
      const batch = [...pending];
      pending.clear();
      for (const body of batch) guarded(body);
      continue;
    }
    const first = earliest();
    if (first === null) return;
    const wait = first.due - now();
    if (wait > 0) await eventLoop.pause(Math.ceil(wait)).read();
    await fireDue();
  }
}

function earliest() {
  let first = null;
  let alive = false;
  for (const timer of timers.values()) {
    alive ||= timer.referenced;
    if (first === null || timer.due < first.due || (timer.due === first.due && timer.id < first.id)) first = timer;
  }
  return alive ? first : null;
}

async function fireDue() {
  const time = now();
  const due = [...timers.values()].filter((timer) => timer.due <= time).sort((a, b) => a.due - b.due || a.id - b.id);
  for (const timer of due) {
    if (!timers.has(timer.id)) continue; // cleared by one that ran before it
    if (timer.every === null) timers.delete(timer.id);
    else timer.due = now() + timer.every;
    guarded(() => timer.callback(...timer.args));
    if (due.length > 1) await eventLoop.pause(0).read(); // promises go before the next timer
  }
}

export function guarded(body) {
  try {
    body();
  } catch (error) {
    onError(error);
  }
}

class Timeout {
  constructor(callback, delay, args, repeat) {
    if (typeof callback !== "function") {
      throw Object.assign(new TypeError(`The "callback" argument must be of type function. Received ${inspect(callback)}`), { code: "ERR_INVALID_ARG_TYPE" });
    }
    const length = Math.max(delay >= 1 && delay <= 0x7fffffff ? Math.trunc(delay) : 1, 1) * MS;
    Object.assign(this, { id: nextId++, callback, args, every: repeat ? length : null, due: now() + length, referenced: true });
    timers.set(this.id, this);
  }
  ref() {
    this.referenced = true;
    return this;
  }
  unref() {
    this.referenced = false;
    return this;
  }
  hasRef() {
    return this.referenced;
  }
  refresh() {
    if (timers.has(this.id)) this.due = now() + (this.every ?? MS);
    return this;
  }
  close() {
    clearTimeout(this);
  }
  [Symbol.toPrimitive]() {
    return this.id;
  }
}

export const setTimeout = (callback, delay, ...args) => new Timeout(callback, delay, args, false);
export const setInterval = (callback, delay, ...args) => new Timeout(callback, delay, args, true);
export const clearTimeout = (timer) => void timers.delete(Number(timer?.id ?? timer));
export const clearInterval = clearTimeout;
export const clearImmediate = (body) => void pending.delete(body);
export const setImmediate = (callback, ...args) => {
  const body = () => callback(...args);
  pending.add(body);
  return body;
};

const microtask = globalThis.queueMicrotask;
export const queueMicrotask = (callback) => microtask(() => guarded(callback));
