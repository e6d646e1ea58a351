;; 92: opens what its argument names, beneath its first directory. 20 if that is there, 10 if not, 30 if there is no directory.
(module
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_get" (func $args (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  (func (export "_start") (local $path i32) (local $length i32)
    (drop (call $sizes (i32.const 0) (i32.const 4)))
    (drop (call $args (i32.const 64) (i32.const 1024)))
    (local.set $path (i32.load (i32.const 68)))
    (block $end (loop $again
      (br_if $end (i32.eqz (i32.load8_u (i32.add (local.get $path) (local.get $length)))))
      (local.set $length (i32.add (local.get $length) (i32.const 1)))
      (br $again)))
    (if (call $prestat (i32.const 3) (i32.const 32)) (then (call $exit (i32.const 30))))
    ;; Follows links (1), asks to read (bit 1).
    (if (call $open (i32.const 3) (i32.const 1) (local.get $path) (local.get $length) (i32.const 0)
          (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 48))
      (then (call $exit (i32.const 10))))
    (call $exit (i32.const 20))))
