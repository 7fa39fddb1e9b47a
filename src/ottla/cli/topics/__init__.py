"""`ottla topics`: list, describe, create, alter and delete topics."""
