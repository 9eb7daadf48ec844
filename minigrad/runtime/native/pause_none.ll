; What a thread that watches a word does between two looks.
define internal void @pause() {
  ret void
}
