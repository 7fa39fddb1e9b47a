"""How `ottla produce` works: blocks of lines into tables, and the books of what became of each line."""
