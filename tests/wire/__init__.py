"""What the wire room promises, checked without a broker."""
