;; 87: waits, in one call of the host, until an hour has passed. 20 if it comes back. With an argument it waits for 50 ms.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (drop (call $sizes (i32.const 0) (i32.const 4)))
    ;; A subscription: user data, tag 0 (clock), clock 1 (monotonic), timeout, precision, flags 0 (relative).
    (i32.store (i32.const 80) (i32.const 1))
    (i64.store (i32.const 88) (select (i64.const 50000000) (i64.const 3600000000000)
      (i32.gt_u (i32.load (i32.const 0)) (i32.const 1))))
    (drop (call $poll (i32.const 64) (i32.const 256) (i32.const 1) (i32.const 512)))
    (call $exit (i32.const 20))))
