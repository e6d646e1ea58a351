// Standard input, output and error over WASI streams.

import stdin from "wasi:cli/stdin@0.2.12";
import stdout from "wasi:cli/stdout@0.2.12";
import stderr from "wasi:cli/stderr@0.2.12";
import { concat, encode } from "./bytes.js";

const CHUNK = 4096; // the most that one blocking-write-and-flush takes
const READ = 65536;

class Writer {
  #open;
  #stream = null;
  #parts = [];
  #size = 0;
  constructor(open) {
    this.#open = open;
  }
  // Output is gathered, because a call to the host costs more than a short line.
  write(data) {
    const bytes = typeof data === "string" ? encode(data) : data;
    this.#parts.push(bytes);
    this.#size += bytes.length;
    if (this.#size >= CHUNK) this.flush();
  }
  flush() {
    if (this.#size === 0) return;
    const bytes = concat(this.#parts);
    this.#parts = [];
    this.#size = 0;
    this.#stream ??= this.#open();
    try {
      for (let at = 0; at < bytes.length; at += CHUNK) this.#stream.blockingWriteAndFlush(bytes.subarray(at, at + CHUNK));
    } catch {
      // Nobody reads any more. As with a closed pipe, there is no one to tell.
    }
  }
}

export const out = new Writer(() => stdout.getStdout());
const errors = new Writer(() => stderr.getStderr());

export const err = {
  write(data) {
    out.flush(); // what was printed before stays before
    errors.write(data);
    errors.flush();
  },
};

let input = null;

// The next piece of standard input, or null at its end.
export function readInput() {
  input ??= stdin.getStdin();
  for (;;) {
    try {
      const bytes = input.blockingRead(READ);
      if (bytes.length > 0) return bytes;
    } catch (error) {
      if (error.payload?.tag === "closed") return null;
      throw new Error("cannot read standard input");
    }
  }
}

export function readAllInput() {
  const parts = [];
  for (let part = readInput(); part !== null; part = readInput()) parts.push(part);
  return parts.length === 0 ? new Uint8Array(0) : concat(parts);
}
