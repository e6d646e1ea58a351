// Runs one piece of JavaScript after another and keeps what they define. What it is told and tells is described in `python.py`.
'use strict';

(() => {
  const repl = require('node:repl');
  const util = require('node:util');
  const { PassThrough } = require('node:stream');

  const PIECE = 3000;
  const MOST = 12 << 20;
  const DISPLAY = Symbol.for('Jupyter.display');

  // The code may put something else into their place.
  const out = process.stdout.write.bind(process.stdout);
  const err = process.stderr.write.bind(process.stderr);
  let mark;

  const tell = (frame) => {
    const text = Buffer.from(JSON.stringify(frame));
    if (text.length > MOST) {
      err(`a ${frame.kind} of ${text.length} bytes was left out\n`);
      return;
    }
    for (let at = 0; at < text.length; at += PIECE) {
      const flag = at + PIECE < text.length ? '+' : '.';
      out(Buffer.concat([Buffer.from(mark + flag), text.subarray(at, at + PIECE), Buffer.from('\n')]));
    }
  };

  // Nothing that could not be sent, and not too much of it.
  const plain = (text, most) => {
    const whole = String(text).toWellFormed();
    return whole.length <= most ? whole : `${whole.slice(0, most).toWellFormed()}…`;
  };

  const represented = (value) => {
    const found = { 'text/plain': plain(util.inspect(value), 1 << 20) };
    let offered;
    try {
      offered = value?.[DISPLAY]?.();
    } catch (error) {
      err(`${util.inspect(error)}\n`);
    }
    for (const [kind, content] of Object.entries(offered ?? {})) {
      const encoded = encode(kind, content);
      if (encoded !== undefined) found[kind] = encoded;
    }
    return found;
  };

  const encode = (kind, content) => {
    if (content instanceof Uint8Array) return Buffer.from(content).toString('base64');
    if (kind !== 'application/json' && typeof content === 'string') return content.toWellFormed();
    try {
      return JSON.stringify(content);
    } catch {
      return undefined;
    }
  };

  const show = (value, main) => tell({ kind: 'result', main, data: represented(value) });

  globalThis.display = (...values) => values.forEach((value) => show(value, false));

  const traced = (error) => {
    if (!util.types.isNativeError(error)) return util.inspect(error);
    const lines = String(error.stack).split('\n');
    // From here on it is how the code was called.
    const ours = lines.findIndex((line) => /^ +at .*\(node:(vm|repl|domain|internal\/vm)/.test(line));
    return lines.slice(0, ours < 0 ? undefined : ours).join('\n');
  };

  const report = (error) => {
    const isError = util.types.isNativeError(error);
    const name = plain(isError ? error.name : 'Uncaught', 256);
    const value = plain(isError ? error.message : util.inspect(error), 1 << 16);
    tell({ kind: 'error', name, value, traceback: plain(traced(error), 1 << 18) });
  };

  // It knows how to await at the top and how to keep what is declared. Nobody types into it, and nobody reads what it writes.
  const evaluator = repl.start({
    prompt: '',
    input: new PassThrough(),
    output: new PassThrough().resume(),
    terminal: false,
    useGlobal: true,
    breakEvalOnSigint: true,
  });
  // Interrupts what is awaited. Nobody may listen while code runs: then the evaluator itself looks out for the signal.
  const interrupt = () => {
    if (ended) evaluator.emit('SIGINT');
  };
  process.on('SIGINT', interrupt);

  // What the code throws comes here instead of to the callback, and so does what is thrown where nobody waits for it.
  let ended;
  evaluator._domain.removeAllListeners('error');
  evaluator._domain.on('error', (error) => {
    if (ended && !error?.domainThrown) ended(() => report(error));
    else err(`Uncaught ${traced(error)}\n`);
  });

  const run = (code, name) =>
    new Promise((resolve) => {
      // What has ended may still throw, and what it awaited may still come.
      const end = (say) => {
        if (ended !== end) return;
        ended = undefined;
        say();
        resolve();
      };
      ended = end;
      process.off('SIGINT', interrupt);
      evaluator.eval(code, evaluator.context, name, (error, value) =>
        end(() => {
          if (error) report(error instanceof repl.Recoverable ? error.err : error);
          else if (value !== undefined) show(value, true);
        }),
      );
      process.on('SIGINT', interrupt);
    });

  let count = 0;
  const serve = async ({ code, env }) => {
    count += 1;
    const before = { ...process.env };
    Object.assign(process.env, env);
    await run(code, `<cell ${count}>`);
    for (const name of Object.keys(env)) {
      if (name in before) process.env[name] = before[name];
      else delete process.env[name];
    }
    err(`${mark}.${count}\n`);
    tell({ kind: 'done', count });
  };

  let waiting = '';
  process.stdin.setEncoding('utf8');
  process.stdin.on('data', (text) => {
    waiting += text;
    for (let end; (end = waiting.indexOf('\n')) >= 0; waiting = waiting.slice(end + 1)) {
      const request = JSON.parse(waiting.slice(0, end));
      if (mark === undefined) mark = request.mark;
      else serve(request);
    }
  });
  process.stdin.on('end', () => process.exit());
})();
