"""What a run leaves behind: records, their summary, the run folder, and runs side by side."""
