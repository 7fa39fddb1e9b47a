"""What people write on a command line or in a file (times, sizes, places, JSON lines), into values and back."""
