;; 89: asks for its standard output fifty thousand times, and keeps every handle. Succeeds if it gets them all.
(component
  (import "wasi:io/streams@0.2.0" (instance $streams (export "output-stream" (type (sub resource)))))
  (alias export $streams "output-stream" (type $stream))
  (import "wasi:cli/stdout@0.2.0" (instance $stdout
    (alias outer 1 $stream (type $outer))
    (export "output-stream" (type $inner (eq $outer)))
    (export "get-stdout" (func (result (own $inner))))))
  (core func $get (canon lower (func $stdout "get-stdout")))
  (core module $m
    (import "" "get" (func $get (result i32)))
    (func (export "run") (result i32) (local $left i32)
      (local.set $left (i32.const 50000))
      (loop $again
        (drop (call $get))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br_if $again (local.get $left)))
      (i32.const 0)))
  (core instance $i (instantiate $m (with "" (instance (export "get" (func $get))))))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $runs (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $runs)))
