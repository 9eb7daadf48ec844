; Each iteration adds 8 consecutive vectors to as many sums. The result goes to scratch memory.
; `%vector` is put before this text: as many floats as a register holds.
define void @peak_read_stream(ptr noalias %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %a = load ptr, ptr %args
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %s0 = phi %vector [ zeroinitializer, %entry ], [ %t0, %loop ]
  %s1 = phi %vector [ zeroinitializer, %entry ], [ %t1, %loop ]
  %s2 = phi %vector [ zeroinitializer, %entry ], [ %t2, %loop ]
  %s3 = phi %vector [ zeroinitializer, %entry ], [ %t3, %loop ]
  %s4 = phi %vector [ zeroinitializer, %entry ], [ %t4, %loop ]
  %s5 = phi %vector [ zeroinitializer, %entry ], [ %t5, %loop ]
  %s6 = phi %vector [ zeroinitializer, %entry ], [ %t6, %loop ]
  %s7 = phi %vector [ zeroinitializer, %entry ], [ %t7, %loop ]
  %p0 = getelementptr [8 x %vector], ptr %a, i64 %i, i32 0
  %v0 = load %vector, ptr %p0, align 4
  %p1 = getelementptr [8 x %vector], ptr %a, i64 %i, i32 1
  %v1 = load %vector, ptr %p1, align 4
  %p2 = getelementptr [8 x %vector], ptr %a, i64 %i, i32 2
  %v2 = load %vector, ptr %p2, align 4
  %p3 = getelementptr [8 x %vector], ptr %a, i64 %i, i32 3
  %v3 = load %vector, ptr %p3, align 4
  %p4 = getelementptr [8 x %vector], ptr %a, i64 %i, i32 4
  %v4 = load %vector, ptr %p4, align 4
  %p5 = getelementptr [8 x %vector], ptr %a, i64 %i, i32 5
  %v5 = load %vector, ptr %p5, align 4
  %p6 = getelementptr [8 x %vector], ptr %a, i64 %i, i32 6
  %v6 = load %vector, ptr %p6, align 4
  %p7 = getelementptr [8 x %vector], ptr %a, i64 %i, i32 7
  %v7 = load %vector, ptr %p7, align 4
  %t0 = fadd %vector %s0, %v0
  %t1 = fadd %vector %s1, %v1
  %t2 = fadd %vector %s2, %v2
  %t3 = fadd %vector %s3, %v3
  %t4 = fadd %vector %s4, %v4
  %t5 = fadd %vector %s5, %v5
  %t6 = fadd %vector %s6, %v6
  %t7 = fadd %vector %s7, %v7
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %last
last:
  %f1 = fadd %vector %t0, %t1
  %f2 = fadd %vector %f1, %t2
  %f3 = fadd %vector %f2, %t3
  %f4 = fadd %vector %f3, %t4
  %f5 = fadd %vector %f4, %t5
  %f6 = fadd %vector %f5, %t6
  %f7 = fadd %vector %f6, %t7
  store %vector %f7, ptr %scratch
  br label %done
done:
  ret void
}
