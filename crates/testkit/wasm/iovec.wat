;; 88: offers more buffers than its memory could hold, and one that is as large as an address space. 20 if the host takes either.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (i32.store (i32.const 8) (i32.const 0))
    (i32.store (i32.const 12) (i32.const 0xffffffff))
    (if (i32.eqz (call $write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 0)))
      (then (call $exit (i32.const 20))))
    (if (i32.eqz (call $read (i32.const 0) (i32.const 8) (i32.const 0x1fffffff) (i32.const 0)))
      (then (call $exit (i32.const 20))))
    (call $exit (i32.const 10))))
