"""How topics, groups and clusters look: tables for people, JSON for programs."""
