; Linux's numbers of system calls on processors that have the common ones.
@futex = internal constant i64 98
@gettid = internal constant i64 178
@getcpu = internal constant i64 168
@sched_setaffinity = internal constant i64 122
@sched_getaffinity = internal constant i64 123
