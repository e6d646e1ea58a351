;; 82: takes a gigabyte, a megabyte at a time, and touches it. 20 if it gets it, 10 if the memory refuses to grow.
(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start") (local $left i32) (local $at i32)
    (local.set $left (i32.const 1024))
    (loop $again
      (local.set $at (memory.grow (i32.const 16)))
      (if (i32.eq (local.get $at) (i32.const -1)) (then (call $exit (i32.const 10))))
      (i32.store8 (i32.mul (local.get $at) (i32.const 65536)) (i32.const 1))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))
    (call $exit (i32.const 20))))
