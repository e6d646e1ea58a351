;; Prints the bits of NaNs that arithmetic made: which ones they are is up to the processor, unless somebody sees to it.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func $nan (param $zero f64) (result f64) (f64.div (local.get $zero) (local.get $zero)))
  (func (export "_start")
    (f64.store (i32.const 64) (call $nan (f64.const 0)))
    (f64.store (i32.const 72) (f64.neg (call $nan (f64.const -0))))
    (f64.store (i32.const 80) (f64.sqrt (f64.const -1)))
    (f64.store (i32.const 88) (f64.add (f64.const nan:0x8000000000001) (f64.const 1)))
    (f32.store (i32.const 96) (f32.sub (f32.const inf) (f32.const inf)))
    (i32.store (i32.const 8) (i32.const 64))
    (i32.store (i32.const 12) (i32.const 40))
    (drop (call $write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 0)))))
