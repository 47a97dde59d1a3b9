"""Small faults that are put into copies of the code one at a time, to see which test notices each."""
