;; The control of 81: the same loop, but for as many turns as take a while, and then it says so.
(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start") (local $left i64)
    (local.set $left (i64.const 20000000))
    (loop $again
      (local.set $left (i64.sub (local.get $left) (i64.const 1)))
      (br_if $again (i64.gt_s (local.get $left) (i64.const 0))))
    (call $exit (i32.const 20))))
