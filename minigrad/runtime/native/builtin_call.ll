; How Python calls `run` and its like; minigrad/runtime/builtin_call.py makes the builtins.

%Python = type {
  ptr,         ; 0  PyLong_AsVoidPtr
  ptr,         ; 1  PyEval_SaveThread
  ptr,         ; 2  PyEval_RestoreThread
  ptr,         ; 3  Py_IncRef
  ptr          ; 4  None
}

@python = internal global %Python zeroinitializer

define void @bind(ptr %from) {
  %all = load %Python, ptr %from
  store %Python %all, ptr @python
  ret void
}

; What Python calls (METH_O), with the function to run as `self` and its argument; the GIL is released meanwhile.
define ptr @call(ptr %self, ptr %argument) {
  %address_of = load ptr, ptr @python
  %function = call ptr %address_of(ptr %self)
  %address = call ptr %address_of(ptr %argument)
  %wrong = icmp eq ptr %address, null
  br i1 %wrong, label %out, label %go
go:
  %release = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 1)
  %take = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 2)
  %thread = call ptr %release()
  call void %function(ptr %address)
  call void %take(ptr %thread)
  %hold = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 3)
  %none = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 4)
  call void %hold(ptr %none)
  ret ptr %none
out:
  ret ptr null
}
