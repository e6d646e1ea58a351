;; 90: would make a request with 32,769 headers, if there were anybody to ask.
(component
  (import "wasi:http/types@0.2.0" (instance (export "fields" (type (sub resource)))))
  (core module $m (func (export "run") (result i32) (i32.const 0)))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $runs (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $runs)))
