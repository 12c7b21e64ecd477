"""Many runs, to answer a question: points of a sweep, run side by side, each of them once."""
