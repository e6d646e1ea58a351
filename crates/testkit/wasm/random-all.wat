;; 88: wants as many random bytes as can be asked for, into a memory that has no room for them. 20 if the host says it did that.
(module
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (if (call $random (i32.const 0) (i32.const 0xffffffff)) (then (call $exit (i32.const 10))))
    (call $exit (i32.const 20))))
