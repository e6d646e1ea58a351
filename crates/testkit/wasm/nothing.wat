;; Does nothing, for which it needs nothing.
(module
  (memory (export "memory") 1)
  (func (export "_start")))
