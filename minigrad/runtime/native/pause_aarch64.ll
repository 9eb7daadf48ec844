; What a thread that watches a word does between two looks: `yield`.
define internal void @pause() {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
