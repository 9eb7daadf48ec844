; What a thread that watches a word does between two looks.
define internal void @pause() {
  call void @llvm.x86.sse2.pause()
  ret void
}
