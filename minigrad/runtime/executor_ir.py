"""The native executor: LLVM IR text of the pool's entry points, and the layout of the memory that they share.

`run(table)` executes the commands of a table in order for the calling thread, which is worker 0. `work(state, me)` is
where the other workers live until `STOP` is set. A table is a header and commands of eight u64 words each:

    state, count, 0, 0, 0, 0, 0, 0
    fn, args, total, size, chunks, table, 0, 0
    ...

Chunk c covers [c*size, min((c+1)*size, total)). Without a table the chunk is one call `fn(args, begin, end, scratch)`.
With one, begin..end counts pieces of four words (fn, args, begin, end), each a call of its own. A command with at most
one chunk runs on the caller alone; otherwise each worker has a fixed range of chunks, takes them from its front, and
then takes from the back of the others'.

A range is one word, epoch:32 lo:16 hi:16, and a chunk is claimed by exchanging the whole word. The epoch makes a claim
of a late worker fail. The rest follows from one rule: `run` publishes a command only when every chunk of the previous
one is done, hence whoever claimed a chunk may read the command until it reports that chunk as done.
"""
from __future__ import annotations

from minigrad.runtime import builtin_call, executor_system

HEADER_WORDS = 8
COMMAND_WORDS = 8
PIECE_WORDS = 4

# Byte offsets into the state. Words that different threads write lie 128 bytes apart: processors fetch lines in pairs.
EPOCH = 0            # u32, counts published commands; what idle workers watch
SLEEPERS = 128       # u32, workers inside the system's wait
DONE = 256           # u32, chunks of the current command that are done
WAITING = 384        # u32, 1 while the caller sleeps on DONE
COMMAND = 512        # u64, the current command's address
THREADS = 520        # u64, workers including the caller
SPIN = 528           # u64, pauses before sleeping
SYSTEM = 536         # u64, address of libc's `syscall` on Linux, of `nanosleep` elsewhere
STOP = 544           # u32, set once: the workers return
APART = 548          # u32, 1 + the processor that the workers keep off, 0 for none
WORKERS = 640        # one block per worker: u64 range, u64 address of its scratch memory, u64 its thread in Linux
WORKER_BYTES = 128
MASK_BYTES = 128     # of a set of processors


def state_bytes(threads: int) -> int:
    """Size of the state shared by `threads` workers."""
    return WORKERS + WORKER_BYTES * threads


def emit_executor(triple: str) -> str:
    """The executor's IR for a target triple. Entries: `run`, `work`, `spin` (for calibration) and `stop`, and those of
    `builtin_call`, by which Python calls `run`."""
    arch = triple.split("-")[0]
    text = _CHUNKS + _RUN + _WORK + builtin_call.IR
    text += executor_system.emit_system(triple)
    pause, declaration = _PAUSE.get(arch, ("", ""))
    text = text.replace("PAUSE", pause) + declaration
    for name in ("SLEEPERS", "DONE", "WAITING", "COMMAND", "THREADS", "SPIN", "SYSTEM", "STOP", "APART",
                 "WORKERS", "HEADER_WORDS", "MASK_BYTES"):
        text = text.replace(f"@@{name}", str(globals()[name]))
    return text.replace("@@WORKER_SHIFT", str(WORKER_BYTES.bit_length() - 1))


_PAUSE = {
    "x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()\n"),
    "aarch64": ("call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)\n"),
    "arm64": ("call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)\n"),
}

# call_range: one chunk's calls.  share: claims and runs chunks until there are none, returns how many it ran.
_CHUNKS = """
define internal void @call_range(ptr %command, i64 %begin, i64 %end, ptr %scratch) {
  %table_p = getelementptr i64, ptr %command, i64 5
  %table = load ptr, ptr %table_p
  %no_table = icmp eq ptr %table, null
  br i1 %no_table, label %single, label %test
single:
  %fn = load ptr, ptr %command
  %args_p = getelementptr i64, ptr %command, i64 1
  %args = load ptr, ptr %args_p
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  ret void
test:
  %i = phi i64 [ %begin, %0 ], [ %next, %piece ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %piece, label %out
piece:
  %word = shl i64 %i, 2
  %p0 = getelementptr i64, ptr %table, i64 %word
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %row_fn = load ptr, ptr %p0
  %row_args = load ptr, ptr %p1
  %row_begin = load i64, ptr %p2
  %row_end = load i64, ptr %p3
  call void %row_fn(ptr %row_args, i64 %row_begin, i64 %row_end, ptr %scratch)
  %next = add i64 %i, 1
  br label %test
out:
  ret void
}

define internal i32 @share(ptr %state, i64 %me) {
entry:
  %threads_p = getelementptr i8, ptr %state, i64 @@THREADS
  %threads = load i64, ptr %threads_p
  %my_offset = shl i64 %me, @@WORKER_SHIFT
  %workers = getelementptr i8, ptr %state, i64 @@WORKERS
  %mine = getelementptr i8, ptr %workers, i64 %my_offset
  %scratch_p = getelementptr i8, ptr %mine, i64 8
  %command_p = getelementptr i8, ptr %state, i64 @@COMMAND
  br label %victim
victim:
  %k = phi i64 [ 0, %entry ], [ %k_next, %empty ]
  %ran = phi i32 [ 0, %entry ], [ %ran_here, %empty ]
  %sum = add i64 %me, %k
  %over = icmp uge i64 %sum, %threads
  %wrapped = sub i64 %sum, %threads
  %v = select i1 %over, i64 %wrapped, i64 %sum
  %offset = shl i64 %v, @@WORKER_SHIFT
  %range_p = getelementptr i8, ptr %workers, i64 %offset
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
  %total_p = getelementptr i64, ptr %command, i64 2
  %total = load i64, ptr %total_p
  %size_p = getelementptr i64, ptr %command, i64 3
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
"""

_RUN = """
define void @run(ptr %table) {
entry:
  %state = load ptr, ptr %table
  %count_p = getelementptr i64, ptr %table, i64 1
  %count = load i64, ptr %count_p
  %commands = getelementptr i64, ptr %table, i64 @@HEADER_WORDS
  %threads_p = getelementptr i8, ptr %state, i64 @@THREADS
  %threads = load i64, ptr %threads_p
  %alone = icmp ult i64 %threads, 2
  %scratch_p = getelementptr i8, ptr %state, i64 @@WORKERS
  %scratch_q = getelementptr i8, ptr %scratch_p, i64 8
  %scratch = load ptr, ptr %scratch_q
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i_next, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %out
one:
  %word = shl i64 %i, 3
  %command = getelementptr i64, ptr %commands, i64 %word
  %chunks_p = getelementptr i64, ptr %command, i64 4
  %chunks = load i64, ptr %chunks_p
  %few = icmp ult i64 %chunks, 2
  %serial = or i1 %alone, %few
  br i1 %serial, label %here, label %shared
here:
  %total_p = getelementptr i64, ptr %command, i64 2
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
  %done_p = getelementptr i8, ptr %state, i64 @@DONE
  store atomic i32 0, ptr %done_p monotonic, align 4
  %command_p = getelementptr i8, ptr %state, i64 @@COMMAND
  store ptr %command, ptr %command_p
  %workers = getelementptr i8, ptr %state, i64 @@WORKERS
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
  %offset = shl i64 %t, @@WORKER_SHIFT
  %range_p = getelementptr i8, ptr %workers, i64 %offset
  store atomic i64 %word, ptr %range_p release, align 8
  %again = icmp ult i64 %t_next, %threads
  br i1 %again, label %range, label %announce
announce:
  store atomic i32 %epoch_next, ptr %state seq_cst, align 4
  %sleepers_p = getelementptr i8, ptr %state, i64 @@SLEEPERS
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
  %stop_p = getelementptr i8, ptr %state, i64 @@STOP
  store atomic i32 1, ptr %stop_p release, align 4
  %threads_p = getelementptr i8, ptr %state, i64 @@THREADS
  %threads = load i64, ptr %threads_p
  call void @publish(ptr %state, ptr null, i64 0, i64 %threads)
  ret void
}

define internal void @finish(ptr %state, i64 %chunks, i32 %ran) {
entry:
  %all = trunc i64 %chunks to i32
  %done_p = getelementptr i8, ptr %state, i64 @@DONE
  %waiting_p = getelementptr i8, ptr %state, i64 @@WAITING
  %spin_p = getelementptr i8, ptr %state, i64 @@SPIN
  %spin = load i64, ptr %spin_p
  %before = atomicrmw add ptr %done_p, i32 %ran seq_cst
  br label %watch
watch:
  %n = phi i64 [ 0, %entry ], [ %n_next, %idle ]
  %done = load atomic i32, ptr %done_p acquire, align 4
  %complete = icmp eq i32 %done, %all
  br i1 %complete, label %out, label %idle
idle:
  PAUSE
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
"""

_WORK = """
define void @work(ptr %state, i64 %me) {
entry:
  %sleepers_p = getelementptr i8, ptr %state, i64 @@SLEEPERS
  %done_p = getelementptr i8, ptr %state, i64 @@DONE
  %waiting_p = getelementptr i8, ptr %state, i64 @@WAITING
  %spin_p = getelementptr i8, ptr %state, i64 @@SPIN
  %stop_p = getelementptr i8, ptr %state, i64 @@STOP
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
  PAUSE
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
  PAUSE
  %n_next = add i64 %n, 1
  %more = icmp ult i64 %n_next, %count
  br i1 %more, label %again, label %out
out:
  ret void
}
"""
