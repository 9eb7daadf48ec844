; How workers sleep and wake on Windows: by WaitOnAddress and WakeByAddressAll, to both of which the state points.
define internal void @enlist(ptr %state, i64 %me) {
  ret void
}

define internal void @part(ptr %state, i64 %threads) {
  ret void
}

define internal void @wait(ptr %state, ptr %word, i32 %value) {
  %compared = alloca i32
  store i32 %value, ptr %compared
  %system_p = getelementptr %State, ptr %state, i32 0, i32 7
  %functions = load ptr, ptr %system_p
  %wait_on_address = load ptr, ptr %functions
  ; -1 is INFINITE
  %r = call i32 %wait_on_address(ptr %word, ptr %compared, i64 4, i32 -1)
  ret void
}

define internal void @wake(ptr %state, ptr %word) {
  %system_p = getelementptr %State, ptr %state, i32 0, i32 7
  %functions = load ptr, ptr %system_p
  %second = getelementptr ptr, ptr %functions, i64 1
  %wake_by_address_all = load ptr, ptr %second
  call void %wake_by_address_all(ptr %word)
  ret void
}
