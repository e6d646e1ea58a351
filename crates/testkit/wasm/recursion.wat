;; 84: calls itself half a million times, with something to keep each time. 20 if it comes back.
(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func $deeper (param $left i32) (result i32)
    (if (result i32) (local.get $left)
      (then (i32.add (local.get $left) (call $deeper (i32.sub (local.get $left) (i32.const 1)))))
      (else (i32.const 0))))
  (func (export "_start")
    (drop (call $deeper (i32.const 500000)))
    (call $exit (i32.const 20))))
