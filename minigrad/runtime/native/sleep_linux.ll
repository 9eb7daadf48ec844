; How workers sleep and wake on Linux, and where they run. The numbers of system calls come from linux_*.ll.

%Processors = type [128 x i8]  ; a set of them, a bit each

; A worker says which thread it is.
define internal void @enlist(ptr %state, i64 %me) {
  %system_p = getelementptr %State, ptr %state, i32 0, i32 7
  %syscall = load ptr, ptr %system_p
  %gettid = load i64, ptr @gettid
  %thread = call i64 (i64, ...) %syscall(i64 %gettid)
  %thread_p = getelementptr %State, ptr %state, i32 0, i32 11, i64 %me, i32 2
  store atomic i64 %thread, ptr %thread_p release, align 8
  ret void
}

; Keeps the workers off the processor that the caller is on. Where others have something to do too, Linux wakes a thread
; beside the one that wakes it, and leaves it there: workers that sleep often would always wait for the caller. They may
; be on all other processors that the caller may be on, if there are any.
define internal void @part(ptr %state, i64 %threads) {
entry:
  %set = alloca %Processors, align 8
  %here_p = alloca i32
  store i32 0, ptr %here_p
  %system_p = getelementptr %State, ptr %state, i32 0, i32 7
  %syscall = load ptr, ptr %system_p
  %getcpu = load i64, ptr @getcpu
  %e0 = call i64 (i64, ...) %syscall(i64 %getcpu, ptr %here_p, ptr null, ptr null)
  %here = load i32, ptr %here_p
  %number = add i32 %here, 1
  %apart_p = getelementptr %State, ptr %state, i32 0, i32 9
  %apart = load i32, ptr %apart_p
  %same = icmp eq i32 %apart, %number
  br i1 %same, label %out, label %look
look:
  store i32 %number, ptr %apart_p
  store %Processors zeroinitializer, ptr %set
  %getaffinity = load i64, ptr @sched_getaffinity
  %e1 = call i64 (i64, ...) %syscall(i64 %getaffinity, i32 0, i64 128, ptr %set)
  %wide = zext i32 %here to i64
  %at = lshr i64 %wide, 3
  %known = icmp sgt i64 %e1, %at
  br i1 %known, label %remove, label %out
remove:
  %byte_p = getelementptr i8, ptr %set, i64 %at
  %byte = load i8, ptr %byte_p
  %low = and i32 %here, 7
  %bit = shl i32 1, %low
  %bit_byte = trunc i32 %bit to i8
  %others = xor i8 %bit_byte, -1
  %rest = and i8 %byte, %others
  store i8 %rest, ptr %byte_p
  br label %count
count:
  %i = phi i64 [ 0, %remove ], [ %i_next, %count ]
  %any = phi i64 [ 0, %remove ], [ %any_next, %count ]
  %word_p = getelementptr i8, ptr %set, i64 %i
  %word = load i64, ptr %word_p
  %any_next = or i64 %any, %word
  %i_next = add i64 %i, 8
  %more = icmp ult i64 %i_next, 128
  br i1 %more, label %count, label %judge
judge:
  %none = icmp eq i64 %any_next, 0
  br i1 %none, label %out, label %move
move:
  %t = phi i64 [ 1, %judge ], [ %t_next, %moved ]
  %left = icmp ult i64 %t, %threads
  br i1 %left, label %one, label %out
one:
  %thread_p = getelementptr %State, ptr %state, i32 0, i32 11, i64 %t, i32 2
  %thread = load atomic i64, ptr %thread_p acquire, align 8
  %there = icmp ne i64 %thread, 0
  br i1 %there, label %set_one, label %missing
missing:
  store i32 0, ptr %apart_p
  br label %moved
set_one:
  %setaffinity = load i64, ptr @sched_setaffinity
  %e2 = call i64 (i64, ...) %syscall(i64 %setaffinity, i64 %thread, i64 128, ptr %set)
  br label %moved
moved:
  %t_next = add i64 %t, 1
  br label %move
out:
  ret void
}

define internal void @wait(ptr %state, ptr %word, i32 %value) {
  %system_p = getelementptr %State, ptr %state, i32 0, i32 7
  %syscall = load ptr, ptr %system_p
  %futex = load i64, ptr @futex
  ; 128 is FUTEX_WAIT_PRIVATE
  %r = call i64 (i64, ...) %syscall(i64 %futex, ptr %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

define internal void @wake(ptr %state, ptr %word) {
  %system_p = getelementptr %State, ptr %state, i32 0, i32 7
  %syscall = load ptr, ptr %system_p
  %futex = load i64, ptr @futex
  ; 129 is FUTEX_WAKE_PRIVATE
  %r = call i64 (i64, ...) %syscall(i64 %futex, ptr %word, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}
