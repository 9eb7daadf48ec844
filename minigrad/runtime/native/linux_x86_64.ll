; Linux's numbers of system calls on x86-64.
@futex = internal constant i64 202
@gettid = internal constant i64 186
@getcpu = internal constant i64 309
@sched_setaffinity = internal constant i64 203
@sched_getaffinity = internal constant i64 204
