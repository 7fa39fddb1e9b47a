"""Pure planning: offsets in, ranges out. Nothing here opens a socket or knows what a range is for."""
