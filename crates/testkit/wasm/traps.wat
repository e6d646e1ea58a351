;; Ends in the way that its number of arguments says.
(module
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func $deeper (call $deeper) (call $deeper))
  (func (export "_start") (local $count i32)
    (drop (call $sizes (i32.const 0) (i32.const 4)))
    (local.set $count (i32.load (i32.const 0)))
    (if (i32.eq (local.get $count) (i32.const 1)) (then unreachable))
    (if (i32.eq (local.get $count) (i32.const 2)) (then (drop (i32.div_u (i32.const 1) (i32.const 0)))))
    (if (i32.eq (local.get $count) (i32.const 3)) (then (drop (i32.load (i32.const 0x7fffffff)))))
    (call $deeper)))
