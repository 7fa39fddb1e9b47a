"""How results look: tables for people, JSON for programs."""
