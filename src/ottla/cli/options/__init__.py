"""Options that commands have in common: what a person may say, as click decorators and the values they give."""
