;; Makes a file `new` beneath its first directory. 20 if it can, 10 if it is told no, 30 if there is no directory.
(module
  (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 64) "new")
  (func (export "_start")
    (if (call $prestat (i32.const 3) (i32.const 32)) (then (call $exit (i32.const 30))))
    ;; Creates (1), asks to write (bit 6).
    (if (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 3) (i32.const 1)
          (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 48))
      (then (call $exit (i32.const 10))))
    (call $exit (i32.const 20))))
