; How Python calls `run` and its like; minigrad/runtime/builtin_call.py makes the builtins.

%Python = type {
  ptr,         ; 0  PyLong_AsVoidPtr
  ptr,         ; 1  PyEval_SaveThread
  ptr,         ; 2  PyEval_RestoreThread
  ptr,         ; 3  Py_IncRef
  ptr,         ; 4  PyErr_BadArgument
  ptr          ; 5  None
}

%Place = type { i64, ptr }  ; which argument, where it goes

%Recipe = type {
  ptr,         ; 0  function
  ptr,         ; 1  its argument
  i64,         ; 2  how many arguments Python gives
  i64,         ; 3  how many words are written before the function runs
  [0 x %Place]
}

@python = internal global %Python zeroinitializer

define void @bind(ptr %from) {
  %all = load %Python, ptr %from
  store %Python %all, ptr @python
  ret void
}

; The function of an address, the GIL released meanwhile; returns None.
define internal ptr @run_released(ptr %function, ptr %address) {
  %release = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 1)
  %take = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 2)
  %thread = call ptr %release()
  call void %function(ptr %address)
  call void %take(ptr %thread)
  %hold = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 3)
  %none = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 5)
  call void %hold(ptr %none)
  ret ptr %none
}

; What Python calls (METH_O), with the function to run as `self` and its argument.
define ptr @call(ptr %self, ptr %argument) {
  %address_of = load ptr, ptr @python
  %function = call ptr %address_of(ptr %self)
  %address = call ptr %address_of(ptr %argument)
  %wrong = icmp eq ptr %address, null
  br i1 %wrong, label %out, label %go
go:
  %none = call ptr @run_released(ptr %function, ptr %address)
  ret ptr %none
out:
  ret ptr null
}

; The same with a recipe as `self` (METH_FASTCALL).
define ptr @call_with(ptr %self, ptr %arguments, i64 %given) {
  %address_of = load ptr, ptr @python
  %recipe = call ptr %address_of(ptr %self)
  %count_p = getelementptr %Recipe, ptr %recipe, i32 0, i32 2
  %count = load i64, ptr %count_p
  %words_p = getelementptr %Recipe, ptr %recipe, i32 0, i32 3
  %words = load i64, ptr %words_p
  %fits = icmp eq i64 %count, %given
  br i1 %fits, label %next, label %wrong
next:
  %k = phi i64 [ 0, %0 ], [ %after, %write ]
  %last = icmp eq i64 %k, %words
  br i1 %last, label %go, label %one
one:
  %which_p = getelementptr %Recipe, ptr %recipe, i32 0, i32 4, i64 %k
  %which = load i64, ptr %which_p
  %object_p = getelementptr ptr, ptr %arguments, i64 %which
  %object = load ptr, ptr %object_p
  %value = call ptr %address_of(ptr %object)
  %bad = icmp eq ptr %value, null
  br i1 %bad, label %out, label %write
write:
  %where_p = getelementptr %Recipe, ptr %recipe, i32 0, i32 4, i64 %k, i32 1
  %where = load ptr, ptr %where_p
  store ptr %value, ptr %where
  %after = add i64 %k, 1
  br label %next
go:
  %function = load ptr, ptr %recipe
  %address_p = getelementptr %Recipe, ptr %recipe, i32 0, i32 1
  %address = load ptr, ptr %address_p
  %none = call ptr @run_released(ptr %function, ptr %address)
  ret ptr %none
wrong:
  %complain = load ptr, ptr getelementptr (%Python, ptr @python, i32 0, i32 4)
  %ignored = call i32 %complain()
  br label %out
out:
  ret ptr null
}
