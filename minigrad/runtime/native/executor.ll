; The pool's entry points; minigrad/runtime/executor_ir.py says how they work together. @pause comes from pause_*.ll;
; @enlist, @part, @wait and @wake from sleep_*.ll.

%Alone = type { i32, [124 x i8] }  ; processors fetch lines in pairs: what different threads write lies 128 bytes apart

%Worker = type {
  i64,         ; 0  range of chunks: epoch:32 lo:16 hi:16
  ptr,         ; 1  scratch memory
  i64,         ; 2  its thread in Linux, 0 until it runs
  [104 x i8]
}

%State = type {
  %Alone,      ; 0  epoch: counts published commands; what idle workers watch
  %Alone,      ; 1  sleepers: workers inside the system's wait
  %Alone,      ; 2  done: chunks of the current command that are done
  %Alone,      ; 3  waiting: 1 while the caller sleeps on `done`
  ptr,         ; 4  the current command
  i64,         ; 5  threads: workers including the caller
  i64,         ; 6  spin: pauses before sleeping
  ptr,         ; 7  libc's `syscall` on Linux, two functions of Windows, `nanosleep` elsewhere
  i32,         ; 8  stop, set once: the workers return
  i32,         ; 9  apart: 1 + the processor that the workers keep off, 0 for none
  [88 x i8],
  [0 x %Worker]  ; 11
}

%Command = type {
  ptr,         ; 0  function
  ptr,         ; 1  its arguments
  i64,         ; 2  total
  i64,         ; 3  size of a chunk
  i64,         ; 4  chunks
  ptr,         ; 5  table of pieces, or null
  [2 x i64]
}

%Table = type {
  ptr,         ; 0  state
  i64,         ; 1  commands
  [6 x i64],
  [0 x %Command]  ; 3
}

%Piece = type { ptr, ptr, i64, i64 }  ; function, its arguments, begin, end

; One chunk's calls.
define internal void @call_range(ptr %command, i64 %begin, i64 %end, ptr %scratch) {
  %table_p = getelementptr %Command, ptr %command, i32 0, i32 5
  %table = load ptr, ptr %table_p
  %no_table = icmp eq ptr %table, null
  br i1 %no_table, label %single, label %test
single:
  %fn = load ptr, ptr %command
  %args_p = getelementptr %Command, ptr %command, i32 0, i32 1
  %args = load ptr, ptr %args_p
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  ret void
test:
  %i = phi i64 [ %begin, %0 ], [ %next, %piece ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %piece, label %out
piece:
  %p0 = getelementptr %Piece, ptr %table, i64 %i
  %p1 = getelementptr %Piece, ptr %table, i64 %i, i32 1
  %p2 = getelementptr %Piece, ptr %table, i64 %i, i32 2
  %p3 = getelementptr %Piece, ptr %table, i64 %i, i32 3
  %piece_fn = load ptr, ptr %p0
  %piece_args = load ptr, ptr %p1
  %piece_begin = load i64, ptr %p2
  %piece_end = load i64, ptr %p3
  call void %piece_fn(ptr %piece_args, i64 %piece_begin, i64 %piece_end, ptr %scratch)
  %next = add i64 %i, 1
  br label %test
out:
  ret void
}

; Claims and runs chunks until there are none; returns how many it ran.
define internal i32 @share(ptr %state, i64 %me) {
entry:
  %threads_p = getelementptr %State, ptr %state, i32 0, i32 5
  %threads = load i64, ptr %threads_p
  %scratch_p = getelementptr %State, ptr %state, i32 0, i32 11, i64 %me, i32 1
  %command_p = getelementptr %State, ptr %state, i32 0, i32 4
  br label %victim
victim:
  %k = phi i64 [ 0, %entry ], [ %k_next, %empty ]
  %ran = phi i32 [ 0, %entry ], [ %ran_here, %empty ]
  %sum = add i64 %me, %k
  %over = icmp uge i64 %sum, %threads
  %wrapped = sub i64 %sum, %threads
  %v = select i1 %over, i64 %wrapped, i64 %sum
  %range_p = getelementptr %State, ptr %state, i32 0, i32 11, i64 %v
  %own = icmp eq i64 %k, 0
  br label %look
look:
  %ran_here = phi i32 [ %ran, %victim ], [ %ran_here, %claim ], [ %ran_more, %execute ]
  %word = load atomic i64, ptr %range_p acquire, align 8
  %shifted = lshr i64 %word, 16
  %lo = and i64 %shifted, 65535
  %hi = and i64 %word, 65535
  %any = icmp ult i64 %lo, %hi
  br i1 %any, label %claim, label %empty
claim:
  %front = add i64 %word, 65536
  %back = add i64 %word, -1
  %new = select i1 %own, i64 %front, i64 %back
  %last = add i64 %hi, -1
  %chunk = select i1 %own, i64 %lo, i64 %last
  %pair = cmpxchg ptr %range_p, i64 %word, i64 %new acq_rel acquire, align 8
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %execute, label %look
execute:
  %command = load ptr, ptr %command_p
  %scratch = load ptr, ptr %scratch_p
  %total_p = getelementptr %Command, ptr %command, i32 0, i32 2
  %total = load i64, ptr %total_p
  %size_p = getelementptr %Command, ptr %command, i32 0, i32 3
  %size = load i64, ptr %size_p
  %begin = mul i64 %chunk, %size
  %begin_next = add i64 %begin, %size
  %inside = icmp slt i64 %begin_next, %total
  %end = select i1 %inside, i64 %begin_next, i64 %total
  call void @call_range(ptr %command, i64 %begin, i64 %end, ptr %scratch)
  %ran_more = add i32 %ran_here, 1
  br label %look
empty:
  %k_next = add i64 %k, 1
  %again = icmp ult i64 %k_next, %threads
  br i1 %again, label %victim, label %leave
leave:
  ret i32 %ran_here
}

define void @run(ptr %table) {
entry:
  %state = load ptr, ptr %table
  %count_p = getelementptr %Table, ptr %table, i32 0, i32 1
  %count = load i64, ptr %count_p
  %threads_p = getelementptr %State, ptr %state, i32 0, i32 5
  %threads = load i64, ptr %threads_p
  %alone = icmp ult i64 %threads, 2
  %scratch_p = getelementptr %State, ptr %state, i32 0, i32 11, i64 0, i32 1
  %scratch = load ptr, ptr %scratch_p
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i_next, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %out
one:
  %command = getelementptr %Table, ptr %table, i32 0, i32 3, i64 %i
  %chunks_p = getelementptr %Command, ptr %command, i32 0, i32 4
  %chunks = load i64, ptr %chunks_p
  %few = icmp ult i64 %chunks, 2
  %serial = or i1 %alone, %few
  br i1 %serial, label %here, label %shared
here:
  %total_p = getelementptr %Command, ptr %command, i32 0, i32 2
  %total = load i64, ptr %total_p
  %empty = icmp eq i64 %total, 0
  br i1 %empty, label %next, label %alone_call
alone_call:
  call void @call_range(ptr %command, i64 0, i64 %total, ptr %scratch)
  br label %next
shared:
  call void @publish(ptr %state, ptr %command, i64 %chunks, i64 %threads)
  %ran = call i32 @share(ptr %state, i64 0)
  call void @finish(ptr %state, i64 %chunks, i32 %ran)
  br label %next
next:
  %i_next = add i64 %i, 1
  br label %test
out:
  ret void
}

define internal void @publish(ptr %state, ptr %command, i64 %chunks, i64 %threads) {
entry:
  %epoch = load atomic i32, ptr %state monotonic, align 4
  %epoch_next = add i32 %epoch, 1
  %epoch_wide = zext i32 %epoch_next to i64
  %tag = shl i64 %epoch_wide, 32
  %done_p = getelementptr %State, ptr %state, i32 0, i32 2
  store atomic i32 0, ptr %done_p monotonic, align 4
  %command_p = getelementptr %State, ptr %state, i32 0, i32 4
  store ptr %command, ptr %command_p
  br label %range
range:
  %t = phi i64 [ 0, %entry ], [ %t_next, %range ]
  %lo = phi i64 [ 0, %entry ], [ %hi, %range ]
  %t_next = add i64 %t, 1
  %scaled = mul i64 %t_next, %chunks
  %hi = udiv i64 %scaled, %threads
  %lo_up = shl i64 %lo, 16
  %both = or i64 %lo_up, %hi
  %word = or i64 %tag, %both
  %range_p = getelementptr %State, ptr %state, i32 0, i32 11, i64 %t
  store atomic i64 %word, ptr %range_p release, align 8
  %again = icmp ult i64 %t_next, %threads
  br i1 %again, label %range, label %announce
announce:
  store atomic i32 %epoch_next, ptr %state seq_cst, align 4
  %sleepers_p = getelementptr %State, ptr %state, i32 0, i32 1
  %sleepers = load atomic i32, ptr %sleepers_p seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %rouse, label %out
rouse:
  call void @part(ptr %state, i64 %threads)
  call void @wake(ptr %state, ptr %state)
  br label %out
out:
  ret void
}

define void @stop(ptr %state) {
  %stop_p = getelementptr %State, ptr %state, i32 0, i32 8
  store atomic i32 1, ptr %stop_p release, align 4
  %threads_p = getelementptr %State, ptr %state, i32 0, i32 5
  %threads = load i64, ptr %threads_p
  call void @publish(ptr %state, ptr null, i64 0, i64 %threads)
  ret void
}

define internal void @finish(ptr %state, i64 %chunks, i32 %ran) {
entry:
  %all = trunc i64 %chunks to i32
  %done_p = getelementptr %State, ptr %state, i32 0, i32 2
  %waiting_p = getelementptr %State, ptr %state, i32 0, i32 3
  %spin_p = getelementptr %State, ptr %state, i32 0, i32 6
  %spin = load i64, ptr %spin_p
  %before = atomicrmw add ptr %done_p, i32 %ran seq_cst
  br label %watch
watch:
  %n = phi i64 [ 0, %entry ], [ %n_next, %idle ]
  %done = load atomic i32, ptr %done_p acquire, align 4
  %complete = icmp eq i32 %done, %all
  br i1 %complete, label %out, label %idle
idle:
  call void @pause()
  %n_next = add i64 %n, 1
  %patient = icmp ult i64 %n_next, %spin
  br i1 %patient, label %watch, label %sleep
sleep:
  store atomic i32 1, ptr %waiting_p seq_cst, align 4
  %done_now = load atomic i32, ptr %done_p seq_cst, align 4
  %complete_now = icmp eq i32 %done_now, %all
  br i1 %complete_now, label %awake, label %wait
wait:
  call void @wait(ptr %state, ptr %done_p, i32 %done_now)
  br label %sleep
awake:
  store atomic i32 0, ptr %waiting_p monotonic, align 4
  br label %out
out:
  ret void
}

define void @work(ptr %state, i64 %me) {
entry:
  %sleepers_p = getelementptr %State, ptr %state, i32 0, i32 1
  %done_p = getelementptr %State, ptr %state, i32 0, i32 2
  %waiting_p = getelementptr %State, ptr %state, i32 0, i32 3
  %spin_p = getelementptr %State, ptr %state, i32 0, i32 6
  %stop_p = getelementptr %State, ptr %state, i32 0, i32 8
  %spin = load i64, ptr %spin_p
  call void @enlist(ptr %state, i64 %me)
  br label %idle
idle:
  %seen = phi i32 [ 0, %entry ], [ %epoch, %take ], [ %epoch, %report ], [ %epoch, %rouse ]
  br label %watch
watch:
  %n = phi i64 [ 0, %idle ], [ %n_next, %pause ], [ 0, %slept ]
  %epoch = load atomic i32, ptr %state acquire, align 4
  %same = icmp eq i32 %epoch, %seen
  br i1 %same, label %pause, label %work
pause:
  call void @pause()
  %n_next = add i64 %n, 1
  %patient = icmp ult i64 %n_next, %spin
  br i1 %patient, label %watch, label %sleep
sleep:
  %s0 = atomicrmw add ptr %sleepers_p, i32 1 seq_cst
  %epoch_now = load atomic i32, ptr %state seq_cst, align 4
  %same_now = icmp eq i32 %epoch_now, %seen
  br i1 %same_now, label %wait, label %slept
wait:
  call void @wait(ptr %state, ptr %state, i32 %seen)
  br label %slept
slept:
  %s1 = atomicrmw sub ptr %sleepers_p, i32 1 seq_cst
  br label %watch
work:
  %stop = load atomic i32, ptr %stop_p acquire, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %out, label %take
take:
  %ran = call i32 @share(ptr %state, i64 %me)
  %none = icmp eq i32 %ran, 0
  br i1 %none, label %idle, label %report
report:
  %before = atomicrmw add ptr %done_p, i32 %ran seq_cst
  %waiting = load atomic i32, ptr %waiting_p seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  br i1 %asleep, label %rouse, label %idle
rouse:
  call void @wake(ptr %state, ptr %done_p)
  br label %idle
out:
  ret void
}

define void @spin(i64 %count) {
entry:
  br label %again
again:
  %n = phi i64 [ 0, %entry ], [ %n_next, %again ]
  call void @pause()
  %n_next = add i64 %n, 1
  %more = icmp ult i64 %n_next, %count
  br i1 %more, label %again, label %out
out:
  ret void
}
