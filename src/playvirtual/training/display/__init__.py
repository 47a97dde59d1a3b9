"""What a person sees of a run: progress, estimates of its time, films."""
