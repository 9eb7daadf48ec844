; Each iteration: 12 independent vector sums, s = s * x + x. The result goes to scratch memory.
; `%vector` is put before this text: as many floats as a register holds.
define void @peak_multiply_add(ptr noalias %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %a = load ptr, ptr %args
  %x = load %vector, ptr %a, align 4
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %s0 = phi %vector [ splat (float 0.0), %entry ], [ %t0, %loop ]
  %s1 = phi %vector [ splat (float 1.0), %entry ], [ %t1, %loop ]
  %s2 = phi %vector [ splat (float 2.0), %entry ], [ %t2, %loop ]
  %s3 = phi %vector [ splat (float 3.0), %entry ], [ %t3, %loop ]
  %s4 = phi %vector [ splat (float 4.0), %entry ], [ %t4, %loop ]
  %s5 = phi %vector [ splat (float 5.0), %entry ], [ %t5, %loop ]
  %s6 = phi %vector [ splat (float 6.0), %entry ], [ %t6, %loop ]
  %s7 = phi %vector [ splat (float 7.0), %entry ], [ %t7, %loop ]
  %s8 = phi %vector [ splat (float 8.0), %entry ], [ %t8, %loop ]
  %s9 = phi %vector [ splat (float 9.0), %entry ], [ %t9, %loop ]
  %s10 = phi %vector [ splat (float 10.0), %entry ], [ %t10, %loop ]
  %s11 = phi %vector [ splat (float 11.0), %entry ], [ %t11, %loop ]
  %t0 = call %vector @llvm.fmuladd(%vector %s0, %vector %x, %vector %x)
  %t1 = call %vector @llvm.fmuladd(%vector %s1, %vector %x, %vector %x)
  %t2 = call %vector @llvm.fmuladd(%vector %s2, %vector %x, %vector %x)
  %t3 = call %vector @llvm.fmuladd(%vector %s3, %vector %x, %vector %x)
  %t4 = call %vector @llvm.fmuladd(%vector %s4, %vector %x, %vector %x)
  %t5 = call %vector @llvm.fmuladd(%vector %s5, %vector %x, %vector %x)
  %t6 = call %vector @llvm.fmuladd(%vector %s6, %vector %x, %vector %x)
  %t7 = call %vector @llvm.fmuladd(%vector %s7, %vector %x, %vector %x)
  %t8 = call %vector @llvm.fmuladd(%vector %s8, %vector %x, %vector %x)
  %t9 = call %vector @llvm.fmuladd(%vector %s9, %vector %x, %vector %x)
  %t10 = call %vector @llvm.fmuladd(%vector %s10, %vector %x, %vector %x)
  %t11 = call %vector @llvm.fmuladd(%vector %s11, %vector %x, %vector %x)
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
  %f8 = fadd %vector %f7, %t8
  %f9 = fadd %vector %f8, %t9
  %f10 = fadd %vector %f9, %t10
  %f11 = fadd %vector %f10, %t11
  store %vector %f11, ptr %scratch
  br label %done
done:
  ret void
}
