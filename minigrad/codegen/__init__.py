"""From a fused kernel to the text of a program: pure functions, which know no device."""
