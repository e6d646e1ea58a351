;; 83: wants ten million places in a table. 20 if it gets them, 10 if the table refuses to grow.
(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (table $table 1 funcref)
  (func (export "_start") (local $left i32)
    (local.set $left (i32.const 100))
    (loop $again
      (if (i32.eq (table.grow $table (ref.null func) (i32.const 100000)) (i32.const -1))
        (then (call $exit (i32.const 10))))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))
    (call $exit (i32.const 20))))
