; How workers sleep where the system has no known way to wake them: for 50 us at a time.
define internal void @enlist(ptr %state, i64 %me) {
  ret void
}

define internal void @part(ptr %state, i64 %threads) {
  ret void
}

define internal void @wait(ptr %state, ptr %word, i32 %value) {
  %time = alloca { i64, i64 }
  %nanoseconds = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  store i64 0, ptr %time
  store i64 50000, ptr %nanoseconds
  %system_p = getelementptr %State, ptr %state, i32 0, i32 7
  %nanosleep = load ptr, ptr %system_p
  %r = call i32 %nanosleep(ptr %time, ptr null)
  ret void
}

define internal void @wake(ptr %state, ptr %word) {
  ret void
}
