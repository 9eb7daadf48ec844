"""Loop IR: how one stage of a kernel runs, with its text, its rules and its interpreter."""
